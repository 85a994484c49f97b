"""The exercises of chapter 16 about unequal machines. A batch is dealt on real ranks, whose samples
are counted; a network is cut, and speeds are followed, against the best that there is."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, wrong
from labkit.heterogeneous import split
from labkit.units import format_us
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["deal_by_speed", "follow_speeds", "hint", "status", "where_to_cut"]

SLACK = 1.05
"""so many times the shortest step is short enough"""
DRAWN = 40
"""signs of the longest bar"""


@exercise
def deal_by_speed(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, inputs, targets, speeds)`` leaves in ``model`` the gradient of
    ``mse_loss(model(inputs), targets)`` over the whole batch, which every rank has.

    Rank r passes ``speeds[r]`` rows a millisecond through ``model``. Together the ranks pass each
    row once, and the step, which is as long as that of the last rank, may take 5 % longer than the
    best deal. Budget: one collective, the gradients once. Run on real ranks, rows counted. A wrong
    deal is drawn.
    """
    for speeds, batch in (((1, 3), 64), ((1, 2, 4), 37), ((4, 1), 9), ((1, 10), 8), ((2, 2, 2), 2)):
        run = on_ranks(len(speeds), _dealt, answer, speeds, batch)
        case = say("speeds {speeds}, {batch} rows", speeds=speeds, batch=batch)
        yield from _deal_faults(case, [each[1] for each in run], speeds, batch)
        yield from faults(case, run)
        calls = max(each[2] for each in run)
        sent = max(each[3] for each in run)
        if calls > 1 or sent > run[0][4]:
            yield over_budget(
                "{case}: {calls} collectives with {sent} bytes; one, with the {due} bytes of the "
                "gradients, is enough",
                case=case,
                calls=calls,
                sent=sent,
                due=run[0][4],
            )


def _deal_faults(
    case: str, rows: Sequence[int], speeds: Sequence[float], batch: int
) -> Iterator[tuple[str, str]]:
    """What is wrong with the rows that ranks passed."""
    if sum(rows) != batch:
        yield wrong(
            "{case}: the ranks passed {rows} rows, together {total}",
            case=case,
            rows=tuple(rows),
            total=sum(rows),
        )
        return
    best = split.fastest(speeds, batch)
    took, least = (split.step_time(each, speeds) for each in (rows, best))
    if took > SLACK * least:
        yield wrong(
            "{case}: {rows} takes {took:.3g} ms, and {least:.3g} are enough\n{drawn}",
            case=case,
            rows=tuple(rows),
            took=took,
            least=least,
            drawn=_bars([each / speed for each, speed in zip(rows, speeds, strict=True)]),
        )


@exercise
def where_to_cut(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(edge_us, cloud_us, up_us, down_us, deadline_us)`` is the number of layers on the
    edge with which a stream has the most answers a second, while no answer is later than
    ``deadline_us`` after its request began; None where that can't be.

    ``edge_us[i]`` and ``cloud_us[i]`` are layer i's time on either side, ``up_us[i]`` that of the
    message before layer i, ``down_us`` that of an answer. With all layers on the edge nothing is
    sent. Edge, both ways of the link and cloud work side by side, on a request each; requests come
    as fast as the slowest of them goes. Of two cuts as fast, the one with the earlier answer. A
    wrong cut is drawn.
    """
    for edge, cloud, up, down, deadline in _CUTS:
        mine = answer(list(edge), list(cloud), list(up), down, deadline)
        right = _best(edge, cloud, up, down, deadline)
        if mine == right:
            continue
        case = say(
            "edge {edge}, cloud {cloud}, up {up}, down {down} us, deadline {deadline} us",
            edge=edge,
            cloud=cloud,
            up=up,
            down=down,
            deadline=deadline,
        )
        yield wrong(
            "{case}: cut at {mine}, right is {right}\n{drawn}",
            case=case,
            mine=mine,
            right=right,
            drawn="\n".join(_told(each, edge, cloud, up, down) for each in (mine, right)),
        )


_CUTS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int], ...] = (
    ((20, 60, 30), (2, 6, 3), (90, 40, 50), 5, 200),
    ((20, 60, 30), (2, 6, 3), (90, 40, 50), 5, 70),
    ((20, 60, 30), (2, 6, 3), (90, 40, 50), 5, 60),
    ((10, 10, 10), (1, 1, 1), (100, 100, 100), 80, 500),
    ((50, 5, 5), (30, 3, 3), (20, 45, 45), 45, 500),
    ((40, 40), (40, 40), (10, 40), 10, 500),
)
"""Edge, cloud, up, down, deadline: throughput and latency want other cuts; nothing in time; all on
the edge; the answer's way is the slowest; two cuts as fast"""


def _parts(cut: int, edge: Sequence, cloud: Sequence, up: Sequence, down: int) -> tuple[int, ...]:
    """What one request takes on edge, up, cloud and down."""
    if cut == len(edge):
        return (sum(edge), 0, 0, 0)
    return (sum(edge[:cut]), up[cut], sum(cloud[cut:]), down)


def _best(edge: Sequence, cloud: Sequence, up: Sequence, down: int, deadline: int) -> int | None:
    """By trying all."""
    found = []
    for cut in range(len(edge) + 1):
        parts = _parts(cut, edge, cloud, up, down)
        if sum(parts) <= deadline:
            found.append((max(parts), sum(parts), cut))
    return min(found)[2] if found else None


def _told(cut: Any, edge: Sequence, cloud: Sequence, up: Sequence, down: int) -> str:
    """A cut's parts as bars, or that it is none."""
    if not isinstance(cut, int) or not 0 <= cut <= len(edge):
        return say("{cut}: no cut", cut=repr(cut))
    parts = _parts(cut, edge, cloud, up, down)
    names = (say("edge"), say("up"), say("cloud"), say("down"))
    head = say(
        "after {cut} layers: an answer every {every}, the first one after {first}",
        cut=cut,
        every=format_us(max(parts)),
        first=format_us(sum(parts)),
    )
    return f"{head}\n{_bars(parts, names)}"


@exercise
def follow_speeds(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(history, batch, num_ranks)`` deals the next step: whole samples of each rank, in all
    ``batch``.

    ``history`` has a pair (samples, times) for each step before, a number per rank in both, the
    last step at the end; empty at first. A rank needs a fixed time, and then the same for each
    sample; nobody says how much, and after some steps a rank may become slower at each sample. From
    the third step on, and again from the third step after a change, a step may take 5 % longer than
    the best deal. Simulated; a step that takes too long is drawn.
    """
    for batch, phases in _PHASES:
        history: list[tuple[list[int], list[float]]] = []
        for overheads, speeds, num_steps in phases:
            for number in range(num_steps):
                given = [(list(samples), list(times)) for samples, times in history]
                mine = list(answer(given, batch, len(speeds)))
                fault = _no_deal(mine, batch, len(speeds))
                if fault:
                    yield wrong("step {step}: {fault}", step=len(history), fault=fault)
                    return
                times = _times(mine, overheads, speeds)
                history.append((mine, times))
                best = _shortest(overheads, speeds, batch)
                if number >= 2 and max(times) > SLACK * best:
                    yield _late(len(history) - 1, mine, times, best)
                    return


_PHASES = (
    (64, [((0, 0), (1, 3), 5)]),
    (64, [((5, 5), (1, 3), 5), ((5, 5), (1, 1), 5)]),
    (96, [((2, 9, 4), (2, 6, 4), 5), ((2, 9, 4), (2, 2, 4), 5)]),
    (90, [((10, 0, 0), (3, 3, 3), 6), ((10, 0, 0), (3, 1.5, 3), 6)]),
)
"""Batch, and phases: what each rank needs for nothing, its speed, and for how many steps"""


def _times(samples: Sequence[int], overheads: Sequence, speeds: Sequence) -> list[float]:
    """What each rank needs."""
    every = zip(samples, overheads, speeds, strict=True)
    return [overhead + num / speed for num, overhead, speed in every]


def _shortest(overheads: Sequence, speeds: Sequence, batch: int) -> float:
    """The step of the best deal: sample by sample to whom would be done first."""
    dealt = [0] * len(speeds)
    for _ in range(batch):
        after = [
            overhead + (num + 1) / speed
            for num, overhead, speed in zip(dealt, overheads, speeds, strict=True)
        ]
        dealt[after.index(min(after))] += 1
    return max(_times(dealt, overheads, speeds))


def _no_deal(samples: list, batch: int, num_ranks: int) -> str:
    """Why that is no deal; nothing where it is one."""
    whole = all(isinstance(each, int) and each >= 0 for each in samples)
    if whole and len(samples) == num_ranks and sum(samples) == batch:
        return ""
    return say(
        "{samples} is no deal of {batch} samples to {num_ranks} ranks",
        samples=samples,
        batch=batch,
        num_ranks=num_ranks,
    )


def _late(step: int, samples: list[int], times: list[float], best: float) -> tuple[str, str]:
    """A step that took too long, drawn."""
    return wrong(
        "step {step} dealt {samples} and took {took:.3g}; the best deal takes {best:.3g}\n{drawn}",
        step=step,
        samples=samples,
        took=max(times),
        best=best,
        drawn=_bars(times),
    )


def _bars(times: Sequence[float], names: Sequence[str] = ()) -> str:
    """A line per rank or part: how long it works."""
    longest = max(max(times), 1e-12)
    lines = []
    for number, each in enumerate(times):
        name = names[number] if names else say("rank {rank}", rank=number)
        lines.append(f"{name:<8}{'#' * round(DRAWN * each / longest)} {each:.3g}")
    return "\n".join(lines)


# --- in the ranks ---


def _dealt(answer: Callable, speeds: Sequence[float], batch: int) -> tuple[str, int, int, int, int]:
    """What is wrong with a rank's gradient; rows that it passed; collectives, bytes handed to them,
    bytes of the gradient."""
    import torch
    from torch import nn

    from labkit.check import unlike
    from labkit.measure import traffic

    torch.manual_seed(0)  # alike on every rank
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    inputs = torch.randn(batch, 6)
    targets = torch.randn(batch, 2)
    nn.functional.mse_loss(model(inputs), targets).backward()
    right = _flat(model)
    model.zero_grad()
    rows = []
    model.register_forward_hook(lambda _, given, made: rows.append(len(given[0])))
    with traffic.count() as counted:
        answer(model, inputs, targets, list(speeds))
    fault = unlike(_flat(model), right, say("the gradient of the whole batch"))
    return fault, sum(rows), counted.calls.total(), counted.payload_bytes.total(), right.nbytes


def _flat(model: "nn.Module") -> "Tensor":
    """Its gradients; zeros where there are none."""
    import torch

    found = []
    for weight in model.parameters():
        found.append(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    return torch.cat([each.flatten() for each in found])
