"""The exercises of chapter 14, debugging: a broken run each. Which rank, which line, what fault;
and the run mended. Case three asks for a cure and for bytes.

A mended function is called on real ranks, with other data and other numbers of ranks than the
chapter shows. Each rank gets its own part of the data and nothing else, so what it returns can only
be right if the ranks have talked.
"""

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from math import isclose
from typing import NamedTuple

from labkit.check import exercise, hint, on_ranks, over_budget, status, trace, wrong
from labkit.debugging import cure_run
from labkit.launching.run import Run
from labkit.launching.verdicts.outcome import FAULTS
from labkit.words import say

__all__ = [
    "case_five",
    "case_four",
    "case_one",
    "case_six",
    "case_three",
    "case_two",
    "hint",
    "status",
    "trace",
]
Found = Iterator[tuple[str, str]]


class Truth(NamedTuple):
    """What was wrong with a broken run."""

    fault: str
    """a key of ``outcome.FAULTS``"""
    ranks: tuple[int, ...]
    """the suspects: those that the report marks"""
    lines: tuple[str, ...]
    """the lines that a learner may name"""


TRUTH = {
    "case_one": Truth(
        "missing_rank", (1, 2), ("dist.all_reduce(mean)", "if rank == 0 and step % 2 == 0:")
    ),
    "case_two": Truth(
        "swapped_order",
        (2,),
        ("for name, value in metrics.items():", "dist.all_reduce(mean)"),
    ),
    "case_four": Truth("send_cycle", (0, 1, 2), ("dist.send(x, dst=after)",)),
    "case_five": Truth(
        "diverged_replica",
        (0, 1, 2),
        ("norm = grad.norm()", "grad *= limit / norm", "if norm > limit:"),
    ),
    "case_six": Truth("nan", (2,), ("mean = losses.mean()",)),
}
"""The right claims; a test runs the chapter's broken functions and holds these against what labkit
finds."""


@exercise
def case_one(mended: Callable, finding: object = None) -> Found:
    """``mended(losses)`` returns, on every rank, the means over the ranks of every second loss;
    rank 0 alone prints."""
    if (yield from _found("case_one", finding)):
        return
    for num_ranks, steps in ((2, 5), (4, 2), (3, 1)):
        each = [_losses(rank, steps) for rank in range(num_ranks)]
        right = [_mean(column) for column in list(zip(*each, strict=True))[::2]]
        run = yield from _tried(mended, each, [right] * num_ranks, most_calls=steps)
        for r, log in enumerate(run.logs):
            if bool(log.strip()) != (r == 0):
                yield wrong(
                    "{num_ranks} ranks: rank {r} printed {printed!r}; rank 0 alone prints",
                    num_ranks=num_ranks,
                    r=r,
                    printed=log.strip()[:60],
                )


def _losses(rank: int, steps: int) -> list[float]:
    """Numbers that differ from rank to rank and from step to step."""
    return [float((7 * rank + 3 * step) % 11) for step in range(steps)]


@exercise
def case_two(mended: Callable, finding: object = None) -> Found:
    """``mended(metrics)`` returns the means over the ranks, by name, whatever the order in which a
    rank names them. Budget: two collectives."""
    if (yield from _found("case_two", finding)):
        return
    for pairs in (
        [(2.0, 0.25), (1.0, 0.75), (3.0, 1.0), (6.0, 0.0)],
        [(1.0, 0.9), (5.0, 0.3)],
        [(4.0, 0.1), (2.0, 0.2), (6.0, 0.9)],
    ):
        each = [_named(rank, *pair) for rank, pair in enumerate(pairs)]
        losses, accuracies = zip(*pairs, strict=True)
        right = {"loss": _mean(losses), "accuracy": _mean(accuracies)}
        yield from _tried(mended, each, [right] * len(each), most_calls=2)


def _named(rank: int, loss: float, accuracy: float) -> dict[str, float]:
    """A rank's numbers; the odd ranks name them in another order."""
    if rank % 2:
        return {"accuracy": accuracy, "loss": loss}
    return {"loss": loss, "accuracy": accuracy}


@exercise
def case_three(answer: Callable) -> Found:
    """``answer()`` is the cure of a step whose states are the load, and the bytes that a rank then
    holds at the update, to 5 %. The cure is tried on real ranks."""
    said = answer()
    is_pair = isinstance(said, (tuple, list)) and len(said) == 2
    if not is_pair or not all(map(isinstance, said, (str, (int, float)))):
        yield wrong("the answer is (cure, bytes at step); got {said!r}", said=said)
        return
    cure, num_bytes = said
    if cure not in cure_run.CURES:
        known = ", ".join(cure_run.CURES)
        yield wrong("cure {cure!r} is none of {known}", cure=cure, known=known)
        return
    if cure in ("bf16", "half the length"):
        yield wrong("{cure}: the update is no longer the same", cure=cure)
        return
    cured, num_weights = on_ranks(2, _at_the_update, cure, hang_s=30.0)[0]
    if cured > 16 * num_weights:  # without a cure it holds 20 bytes for each
        yield wrong("{cure}: at step a rank still holds {cured} bytes", cure=cure, cured=cured)
    elif not abs(num_bytes - cured) <= 0.05 * cured:
        yield wrong("{cure}: not {num_bytes:.4g} bytes at step", cure=cure, num_bytes=num_bytes)


@exercise
def case_four(mended: Callable, finding: object = None) -> Found:
    """``mended(x)`` hands x to the next rank and returns what the one before handed over. Budget: x
    once."""
    if (yield from _found("case_four", finding)):
        return
    for num_ranks, num in ((2, 1), (4, 300_000), (3, 3)):
        run = on_ranks(num_ranks, _passed, mended, num)
        case = say("{num_ranks} ranks, {num} numbers each", num_ranks=num_ranks, num=num)
        for r, (got, sent_bytes) in enumerate(run):
            before = (r - 1) % num_ranks
            if got != [float(before)] * 2:
                yield wrong(
                    "{case}: rank {r} returned {got}, smallest and largest; rank {before} had "
                    "{before}s",
                    case=case,
                    r=r,
                    got=got,
                    before=before,
                )
            if sent_bytes > 6 * num + 10_000:  # gloo's headers, and half of x
                yield over_budget(
                    "{case}: rank {r} sent {sent_bytes} bytes; x has {due}",
                    case=case,
                    r=r,
                    sent_bytes=sent_bytes,
                    due=4 * num,
                )


@exercise
def case_five(mended: Callable, finding: object = None) -> Found:
    """``mended(weight, grad, limit)`` returns the weight after one update, equal on all ranks: less
    the mean gradient, which is shortened to ``limit`` if it is longer."""
    if (yield from _found("case_five", finding)):
        return
    for each in (
        [[9.0, 0.0], [-8.0, 1.0]],
        [[0.5, 0.0], [0.0, 0.5], [0.0, 0.0]],
        [[8.0, 6.0], [6.0, 8.0], [0.0, 0.0]],
    ):
        mean = [_mean(column) for column in zip(*each, strict=True)]
        factor = min(1.0, 2.0 / (sum(number**2 for number in mean) ** 0.5))
        right = [1.0 - factor * number for number in mean]
        yield from _tried(_clipping, each, [right] * len(each), mended)


@exercise
def case_six(mended: Callable, finding: object = None) -> Found:
    """``mended(losses)`` returns the mean over all losses of all ranks; a rank may have none."""
    if (yield from _found("case_six", finding)):
        return
    for each in (
        [[1.0, 5.0, 3.0], [7.0], []],
        [[], [2.0, 4.0]],
        [[6.0], [], [], [2.0, 1.0, 3.0, 3.0]],
    ):
        whole = list(itertools.chain(*each))
        yield from _tried(_with_tensor, each, [_mean(whole)] * len(each), mended, most_calls=2)


# --- claims, and what came back ---


def _found(name: str, finding: object) -> Generator[tuple[str, str], None, bool]:
    """Yields what is wrong with (rank, line, fault), or with what a function returns as such;
    returns whether there is no use in going on."""
    truth = TRUTH[name]
    said = finding() if callable(finding) else finding
    is_claim = isinstance(said, (tuple, list)) and len(said) == 3
    if said is not None and not is_claim:
        yield wrong("finding is (rank, line, fault); got {said!r}", said=said)
    if said is None or None in said:
        yield (
            "not attempted",
            say("First find rank, line and fault; then mend it."),
        )
        return True
    rank, line, fault = said
    ranks = sorted(rank, key=str) if isinstance(rank, (tuple, list, set)) else [rank]
    if str(fault) not in FAULTS:
        yield wrong("fault {fault!r} is none of {faults}", fault=fault, faults=", ".join(FAULTS))
    if fault != truth.fault:
        yield wrong(
            "fault {fault!r} ({means}): not what happened here",
            fault=fault,
            means=say(FAULTS[fault]),
        )
    if ranks != list(truth.ranks):
        is_part = set(ranks) < set(truth.ranks)
        why = say("some of the suspects, not all") if is_part else say("not the suspect")
        yield wrong("rank {rank!r}: {why}", rank=rank, why=why)
    named = "".join(str(line).split())
    if len(named) < 8 or not any(named in "".join(text.split()) for text in truth.lines):
        yield wrong(
            "line {line!r} is not where it goes wrong (give a piece of the line's text)",
            line=line,
        )
    return False


def _tried(
    work: Callable,
    each: Sequence,
    right: Sequence,
    *args: object,
    most_calls: int = 0,
) -> Generator[tuple[str, str], None, Run]:
    """Runs a mended function, rank r with ``each[r]``; yields how what they return differs from
    ``right[r]``."""
    run = on_ranks(len(each), _called, work, each, args)
    for r, (got, num_calls) in enumerate(run):
        if not _equal(got, right[r]):
            yield wrong(
                "the ranks have {each}: rank {r} returned {got}, right is {right}",
                each=each,
                r=r,
                got=got,
                right=right[r],
            )
        if most_calls and num_calls > most_calls:
            yield over_budget(
                "the ranks have {each}: rank {r} made {num_calls} calls; {most_calls} are enough",
                each=each,
                r=r,
                num_calls=num_calls,
                most_calls=most_calls,
            )
    moved = trace(run)
    if moved.counterexample:
        yield wrong("the ranks have {each}: {fault}", each=each, fault=moved.counterexample)
    return run


def _equal(got: object, right: object) -> bool:
    if isinstance(right, dict):
        has_names = isinstance(got, dict) and set(got) == set(right)
        return has_names and all(_equal(got[name], right[name]) for name in right)
    if isinstance(right, (list, tuple)):
        is_as_long = isinstance(got, (list, tuple)) and len(got) == len(right)
        return is_as_long and all(map(_equal, got, right))
    return isinstance(got, (int, float)) and isclose(got, right, rel_tol=1e-5, abs_tol=1e-6)


def _mean(numbers: Iterable[float]) -> float:
    numbers = list(numbers)
    return sum(numbers) / len(numbers)


# --- in the ranks ---


def _called(work: Callable, each: Sequence, args: Sequence) -> tuple[object, int]:
    """What a rank's answer is, as plain numbers, and how many collectives it called."""
    import torch.distributed as dist

    from labkit.measure import traffic

    mine = each[dist.get_rank()]
    with traffic.count() as counted:
        got = work(mine, *args)
    return _plain(got), counted.calls.total()


def _clipping(gradient: list[float], mended: Callable) -> object:
    import torch

    return mended(torch.ones(2), torch.tensor(gradient), 2.0)


def _with_tensor(losses: list[float], mended: Callable) -> object:
    import torch

    return mended(torch.tensor(losses))


def _at_the_update(cure: str) -> tuple[int, int]:
    """The bytes of a rank at the update of case three under a cure, and the model's weights."""
    got = cure_run.steps([cure], width=256, num_sequences=1, length=32)[cure]
    held = got.footprint.totals[got.footprint.labels.index("step")]
    return int(held), len(got.weights)


def _passed(mended: Callable, num: int) -> tuple[list[float] | str, int]:
    """Smallest and largest of what arrived, and the bytes sent. The sender's x changes as soon as
    the answer has returned: a send that nobody waited for shows."""
    import torch
    import torch.distributed as dist

    from labkit.measure import traffic

    x = torch.full((num,), float(dist.get_rank()))
    with traffic.count() as counted:
        got = mended(x)
        x.fill_(-1.0)
        like_x = isinstance(got, torch.Tensor) and got.shape == x.shape
        found = [got.min().item(), got.max().item()] if like_x else str(got)
    if counted.sent_bytes is not None:
        return found, counted.sent_bytes
    return found, counted.payload_bytes.total() - counted.payload_bytes["recv"]


def _plain(got: object) -> object:
    """Tensors as numbers, sequences as lists."""
    import torch

    if isinstance(got, torch.Tensor):
        return got.tolist()
    if isinstance(got, dict):
        return {name: _plain(one) for name, one in got.items()}
    return [_plain(one) for one in got] if isinstance(got, (list, tuple)) else got
