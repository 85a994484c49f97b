"""The exercises of chapter 08, pipeline parallelism. Answers are graded at sizes that the chapter
does not show."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest

from labkit.check import exercise, hint, limit, on_ranks, over_budget, status, wrong
from labkit.pipeline.schedules import (
    SCHEDULES,
    Action,
    Schedule,
    gpipe,
    naive,
    one_f_one_b,
    validate,
    zero_bubble_h1,
)
from labkit.pipeline.simulation import Cost, in_flight, simulate
from labkit.timeline import bubble
from labkit.words import say

__all__ = [
    "better_order",
    "chart_fault",
    "choose_microbatches",
    "fill_gaps",
    "hint",
    "real_pipeline",
    "status",
]


@exercise
def better_order(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, num_ranks, num_microbatches)`` lists a rank's actions under 1F1B: ["0F0",
    "0F1", "0B0", ...]."""
    for p, m in ((4, 8), (2, 5), (4, 2), (1, 3), (6, 9)):
        case = say("{p} ranks, {m} microbatches", p=p, m=m)
        orders = [list(answer(rank, p, m)) for rank in range(p)]
        yield from _held_beside(one_f_one_b(p, m), orders, case)


@exercise
def fill_gaps(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, order)`` puts the W's into a rank's order, ["0F0", "0I0", ...]: a step as
    short as ZB-H1's, where F, I and W take equally long, with no more activations kept."""
    for p, m in ((4, 8), (2, 5), (1, 3), (3, 2), (6, 13)):
        case = say("{p} ranks, {m} microbatches", p=p, m=m)
        best = zero_bubble_h1(p, m)
        given = [_without_weights(order) for order in best.orders]
        orders = [list(answer(rank, order)) for rank, order in enumerate(given)]
        yield from _held_beside(best, orders, case)


def _without_weights(order: Iterable[Action]) -> list[str]:
    """A rank's order as an exercise gives it: without the gradients of weights."""
    return [str(each) for each in order if each.kind != "W"]


def _held_beside(best: Schedule, orders: list[list], case: str) -> Iterator[tuple[str, str]]:
    """What is wrong with an answer's orders, or what they cost more than the best ones."""
    try:
        mine = _ordered(best, orders)
        validate(mine)
    except (ValueError, TypeError, AttributeError) as fault:
        place, ours, theirs = _first_difference(orders, best)
        yield wrong(
            "{case}: {place} is {ours!r}; the best order has {theirs!r}\n{fault}",
            case=case,
            place=place,
            ours=ours,
            theirs=theirs,
            fault=fault,
        )
    held = max(in_flight(mine))
    least = max(in_flight(best))
    span_us = simulate(mine).span_us
    least_us = simulate(best).span_us
    if held > least or span_us > least_us:
        yield over_budget(
            "{case}: a valid order that keeps {held} activations, the best one {least}; and "
            "takes {took:g} forwards of time, the best one {least_time:g}\n{drawn}",
            case=case,
            held=held,
            least=least,
            took=span_us / 1000,
            least_time=least_us / 1000,
            drawn=_written(_draw(mine)),
        )


def _ordered(like: Schedule, orders: list[list[str]]) -> Schedule:
    """A schedule with other orders, given as text."""
    return replace(like, orders=tuple(tuple(map(Action.parse, order)) for order in orders))


def _first_difference(orders: list[list[str]], best: Schedule) -> tuple[str, str, str]:
    """Where an answer first differs: the place, its action, the right one."""
    for rank, order in enumerate(orders):
        pairs = zip_longest(order, map(str, best.orders[rank]))
        for step, (ours, theirs) in enumerate(pairs):
            if ours != theirs:
                return say("rank {rank}, step {step}", rank=rank, step=step), ours, theirs
    raise ValueError("the orders are 1F1B's own")


@exercise
def choose_microbatches(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_ranks, max_bubble, max_activations)`` gives ("gpipe" or "1f1b", the fewest
    microbatches), or None.

    The bubble is the idle share of total time; a rank keeps at most max_activations microbatches.
    None: nothing fits.
    """
    for p, most, room in (
        (4, 0.32, 99),
        (4, 0.32, 4),
        (8, 0.26, 8),
        (2, 0.4, 1),
        (4, 0.8, 1),
        (8, 0.2, 7),
        (1, 0.1, 1),
    ):
        fewest = next((m for m in range(1, 65) if _fits("1f1b", m, p, most, room)[0]), None)
        chosen = answer(p, most, room)
        case = say(
            "answer({p}, {most}, {room}) is {chosen!r:.60}",
            p=p,
            most=most,
            room=room,
            chosen=chosen,
        )
        cure = say("1f1b with {fewest} microbatches fits", fewest=fewest)
        if not chosen:
            if fewest is not None:
                yield wrong("{case}: {cure}", case=case, cure=cure)
            continue
        name, m = chosen
        fits, figures = _fits(name, m, p, most, room)
        if not fits:
            yield wrong("{case}: {figures}", case=case, figures=figures)
        elif m > fewest:
            yield over_budget("{case}: {cure}", case=case, cure=cure)


def _fits(name: str, m: int, p: int, most: float, room: int) -> tuple[bool, str]:
    """Simulates a choice: whether it keeps both budgets, and its figures."""
    if name not in ("gpipe", "1f1b") or m < 1:
        return False, say('give ("gpipe" or "1f1b", 1 or more), or None')
    order = SCHEDULES[name](p, m)
    share = bubble(simulate(order))
    held = max(in_flight(order))
    figures = say(
        "its bubble is {share:.3f}, a rank keeps {held} activations", share=share, held=held
    )
    return bool(share <= most and held <= room), figures


@exercise
def chart_fault(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(chart)`` gives (rank, step) of the first box that cannot run where it stands, or
    None where all can.

    A chart has a row per rank, a cell per step: "F1", "B1" (microbatch 1) or "."; rank r holds
    stage r. First means the earliest step, then the lowest rank.
    """
    for chart, truth in _charts():
        given = answer([list(row) for row in chart])
        if given != truth and given != list(truth or ()):
            yield wrong(
                "answer(chart) is {given!r:.60}; right is {truth}\n{drawn}",
                given=given,
                truth=truth,
                drawn=_written(chart),
            )
    try:
        with limit(2.0):
            answer(_draw(gpipe(32, 256)))
    except TimeoutError:
        yield over_budget("32 ranks, 256 microbatches: more than 2 s. Look at each box once.")


Chart = list[list[str]]
Place = tuple[int, int]


def _charts() -> Iterator[tuple[Chart, Place | None]]:
    """Charts with their first fault, or None: the source material's, correct ones, and these with
    one box drawn a step early."""
    yield _of_the_source("F1 F2 F3 F4 B1 B2 B3 B4"), (0, 4)
    yield _of_the_source("F0 F1 F2 F3 B3 B2 B1 B0"), (0, 4)
    yield _a_step_later(_of_the_source("F1 F2 F3 F4 B1 B2 B3 B4")), (0, 5)
    for order in (naive(3, 2), gpipe(4, 3), one_f_one_b(3, 5), one_f_one_b(1, 2)):
        chart = _draw(order)
        yield chart, None
        for rank, row in enumerate(chart):
            for step, (left, right) in enumerate(pairwise(row)):
                if left == "." != right:
                    moved = [*row[:step], right, ".", *row[step + 2 :]]
                    yield [*chart[:rank], moved, *chart[rank + 1 :]], (rank, step)


def _draw(order: Schedule) -> Chart:
    """A schedule as a chart, every action taking one step."""
    equal = Cost(forward_us=1.0, backward_us=1.0, input_us=1.0, weight_us=1.0)
    drawn = simulate(order, equal)
    rows = [["."] * round(drawn.span_us) for _ in range(order.num_ranks)]
    for rank, label, start_us in zip(drawn.rank, drawn.label, drawn.start_us, strict=True):
        rows[rank][round(start_us)] = str(label).removeprefix(str(rank))
    return rows


def _written(chart: Chart) -> str:
    """A chart as text, its boxes under one another."""
    padded = (map("{:>3}".format, row) for row in chart)
    return "\n".join(map(" ".join, padded))


def _of_the_source(text: str) -> Chart:
    """The same boxes on four ranks, each rank a step later than the one before."""
    return [["."] * rank + text.split() + ["."] * (3 - rank) for rank in range(4)]


def _a_step_later(chart: Chart) -> Chart:
    """Rank 0's fifth box and what follows it a step later; the other ranks end with a step of
    nothing."""
    first, *others = chart
    return [[*first[:4], ".", *first[4:]], *([*row, "."] for row in others)]


@exercise
def real_pipeline(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(rank, stage, microbatches, width)`` is one training step of two stages, run on two
    real ranks (gloo).

    Rank 0 holds the first stage and gets the inputs, rank 1 the second and the targets, as lists of
    microbatches. A message is (len(microbatch), width). It leaves in both stages the gradients of
    the mean squared error of the batch.
    """
    for m, size, width in ((4, 2, 8), (1, 3, 5), (6, 1, 4)):
        run = on_ranks(2, _two_stages, answer, m, size, width)
        case = say("{m} microbatches of {size}, width {width}", m=m, size=size, width=width)
        faults = run[0][0] + run[1][0]
        if faults:
            yield "wrong", "\n".join([case, *faults])
        orders = [actions for _, actions in run]
        share = bubble(simulate(_ordered(gpipe(2, m), orders)))
        if share > 1 / (m + 1) + 1e-9:
            yield over_budget(
                "{case}: bubble {share:.3f}, GPipe {least:.3f}. You ran {orders}",
                case=case,
                share=share,
                least=1 / (m + 1),
                orders=orders,
            )


def _two_stages(answer: Callable, m: int, size: int, width: int) -> tuple[list[str], list[str]]:
    """A rank's side: which gradients differ from the one-process run, and in which order the
    actions ran."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    rank = torch.distributed.get_rank()
    first = nn.Sequential(nn.Linear(6, width), nn.Tanh())
    second = nn.Sequential(nn.Linear(width, 3), nn.Tanh())
    model = nn.Sequential(first, second)
    inputs = torch.randn(m * size, 6)
    targets = torch.randn(m * size, 3)
    nn.functional.mse_loss(model(inputs), targets).backward()
    right = {name: weight.grad for name, weight in model[rank].named_parameters()}
    model.zero_grad()
    actions: list[str] = []

    def watch(stage: nn.Module, received: tuple, output: torch.Tensor) -> None:
        k = sum("F" in action for action in actions)
        actions.append(f"{rank}F{k}")
        output.register_hook(lambda grad: actions.append(f"{rank}B{k}"))

    model[rank].register_forward_hook(watch)
    data = inputs if rank == 0 else targets
    answer(rank, model[rank], list(data.chunk(m)), width)
    faults = []
    for name, weight in model[rank].named_parameters():
        if weight.grad is None:
            faults.append(say("rank {rank}: {name}.grad is None", rank=rank, name=name))
        elif not torch.allclose(weight.grad, right[name], rtol=1e-4, atol=1e-6):
            faults.append(
                say(
                    "rank {rank}: {name}.grad is not that of the one-process run",
                    rank=rank,
                    name=name,
                )
            )
    return faults, actions
