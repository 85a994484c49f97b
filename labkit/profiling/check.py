"""The exercises of chapter 15 about who is slow: a trace is read like a doctor's, and a slow step
is mended on real ranks."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import NamedTuple

from labkit.check import exercise, faults, hint, on_ranks, status, wrong
from labkit.profiling.advice import advise
from labkit.profiling.kinds import KINDS, slow
from labkit.profiling.picture import read_beside
from labkit.profiling.shares import SHARES
from labkit.profiling.step import Step
from labkit.timeline import COMM, COMPUTE, Timeline, step_us
from labkit.words import say

__all__ = ["cure", "diagnose", "hint", "status", "straggler", "watch"]

UTILISATION = 0.6
"""of the eight GPUs in the first case"""
POINTS = 0.06
"""a gain may be off by so much"""
LEAST_GAIN = 0.35
"""what a cured step must save of its time"""


class Case(NamedTuple):
    """A simulated trace, and what is wrong with it."""

    kind: str
    """of KINDS"""
    rank: int | None
    """whom it is about; None where it is about all"""
    timeline: Timeline
    """what the reader is given"""
    gain: float
    """what the cure really brings, simulated"""


def cases() -> Iterator[Case]:
    """Eight ranks that compute 60 % of their time because one is slow (the backward takes twice as
    long as the forward, as it does); then other traces, of other kinds, drawn by a seed."""
    draw = random.Random(8)
    step = Step(ranks=8, slow=((draw.randrange(8), _factor()),), link_ms=2.0, input_ms=1.0)
    yield _case("straggler", step, step.but(slow=()))
    for kind in ("input", "link", "overlap", "bubble", "straggler"):
        made = slow(kind, draw.uniform(0.4, 1.0))
        yield _case(kind, made.step, made.cured)


def _factor() -> float:
    """How slow the slow rank is, so that the average one computes 60 % of the time, seven waiting:
    (7 + f) / 8f = 0.6, less a little for what is no computing."""
    return 7 / (8 * UTILISATION - 1) * 0.97


def _case(kind: str, step: Step, cured: Step) -> Case:
    timeline = step.predict()
    gain = 1 - step_us(cured.predict()) / step_us(timeline)
    rank = step.slow[0][0] if step.slow else None
    return Case(kind, rank, timeline, gain)


@exercise
def straggler(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(timeline)`` returns the rank that the others wait for, or None where there is none.

    Six timelines, those of ``cases()``: one of eight ranks, the others of four, one of them a
    pipeline, whose stages wait for one another in turn.
    """
    for number, case in enumerate(cases(), start=1):
        rank = answer(case.timeline)
        told = {"number": number, "ranks": case.timeline.num_ranks, "rank": rank}
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, Integral)):
            yield wrong(
                "timeline {number}, {ranks} ranks: a rank is a whole number, or None; got {rank!r}",
                **told,
            )
        elif rank == case.rank:
            continue
        elif case.rank is None:
            yield wrong(
                "timeline {number}, {ranks} ranks: you named rank {rank}, but no rank is slower "
                "than the others",
                **told,
            )
        elif rank is None:
            yield wrong(
                "timeline {number}, {ranks} ranks: the others do wait for one, and you named none",
                **told,
            )
        else:
            yield wrong(
                "timeline {number}, {ranks} ranks: rank {rank} is not the one that the others wait "
                "for",
                **told,
            )


@exercise
def diagnose(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(timeline)`` returns (kind, rank, gain): what slows a Timeline, whom it is about, and
    the share of its time that the cure would save.

    ``kind`` is one of ``profiling.KINDS``; ``rank`` counts where one rank is slow; ``gain`` may
    be off by 6 points. The first trace is of eight ranks that compute 60 % of their time.
    ``lab.advise`` may be used, and so may your own eyes.
    """
    for case in cases():
        kind, rank, gain = answer(case.timeline)
        mean = advise(case.timeline).shares.mean(axis=0)[SHARES.index("compute")]
        told = {"ranks": case.timeline.num_ranks, "share": 100 * mean}
        if kind not in KINDS:
            yield wrong("a kind is one of {kinds}; got {kind!r}", kinds=list(KINDS), kind=kind)
        elif kind != case.kind:
            yield wrong(
                "{ranks} ranks that compute {share:.0f} % of the time: it is not {kind!r}",
                **told,
                kind=kind,
            )
        elif case.rank is not None and rank != case.rank:
            yield wrong(
                "{ranks} ranks that compute {share:.0f} % of the time: rank {rank} is not the "
                "slow one",
                **told,
                rank=rank,
            )
        elif not abs(float(gain) - case.gain) <= POINTS:
            yield wrong(
                "{ranks} ranks that compute {share:.0f} % of the time: {kind!r} is right; its cure "
                "saves {right:.0f} % of the time, you said {gain:.0f} %",
                **told,
                kind=kind,
                right=100 * case.gain,
                gain=100 * float(gain),
            )


@exercise
def cure(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(load, forward_backward, send, update, num_steps)`` trains; so does the slow one in
    the notebook. It must take 35 % less time at least, and end with the same weights.

    ``load(step)`` gives a batch; ``forward_backward(batch)`` yields the gradient of each layer, the
    last layer first, each when it is there; ``send(gradient)`` averages it over the ranks, in
    place, and takes its time; ``update(gradients)`` does the step. Loading may go on in a thread
    beside the rest, and so may sending, from one thread, in the same order on every rank. All of
    them sleep for as long as they are told. ``check.watch(answer)`` is the Timeline of an answer.
    Run on real ranks; where
    the machine was too busy to tell, again at a slower pace.
    """
    case = say("{steps} steps on {ranks} ranks", steps=STEPS, ranks=2)
    before_s = after_s = 0.0
    for times in PACES:
        slow_run = on_ranks(2, _trained, plain, times)
        run = on_ranks(2, _trained, answer, times)
        found = list(faults(case, [(each[0],) for each in run]))
        if found:
            yield from found
            return
        if run[0][2] != slow_run[0][2]:
            yield wrong("{case}: the weights are not those of the slow one", case=case)
            return
        before_s = max(each[1] for each in slow_run)
        after_s = max(each[1] for each in run)
        if 1 - after_s / before_s >= LEAST_GAIN - 0.02:
            return
    yield wrong(
        "{case}: it took {before:.0f} ms, and takes {after:.0f} ms: {gain:.0f} % less, and "
        "{due:.0f} % can be had",
        case=case,
        before=1e3 * before_s,
        after=1e3 * after_s,
        gain=100 * (1 - after_s / before_s),
        due=100 * LEAST_GAIN,
    )


def watch(answer: Callable | None = None) -> Timeline:
    """What an answer to ``cure`` does, on two real ranks that sleep; without one, what the slow
    one does. What is read stands beside the work."""
    return read_beside(on_ranks(2, _watched, plain if answer is None else answer).timeline())


# --- in the ranks ---

STEPS = 5
LAYERS = 4
LOAD_S = 0.03
LAYER_S = 0.01
SEND_S = 0.006
PACES = (1, 4)
"""times as long as stated: where the quick pace shows no gain, a slower one, beside which a busy
machine's own delays are small"""


def plain(
    load: Callable, forward_backward: Callable, send: Callable, update: Callable, num_steps: int
) -> None:
    """The slow one: everything after everything else."""
    for step in range(num_steps):
        batch = load(step)
        gradients = list(forward_backward(batch))
        for gradient in gradients:
            send(gradient)
        update(gradients)


def _watched(answer: Callable) -> None:
    """The same, recorded."""
    from labkit.launching import rank
    from labkit.measure import trace

    rank.current().note("paced")
    with trace.record(operators=False):
        _trained(answer)


def _drawn(lane: str, kind: str, label: str, start_ns: int) -> None:
    """Records what ends now. What is loaded beside the rest is not drawn: nobody waits for it."""
    from labkit.measure import trace

    if kind != "input" or threading.current_thread() is threading.main_thread():
        trace.span(kind, label, start_ns, time.time_ns(), lane=lane)


def _trained(answer: Callable, times: int = 1) -> tuple[str, float, list[float]]:
    """What is wrong on a rank; how long its steps took, all of it ``times`` as long; the weights at
    the end, rounded."""
    import torch
    from torch import distributed as dist

    weights = torch.zeros(LAYERS, 8)
    sent: list[int] = []

    def load(step: int) -> "torch.Tensor":
        start_ns = time.time_ns()
        time.sleep(times * LOAD_S)
        _drawn(COMPUTE, "input", "batch", start_ns)
        # the default device is each thread's own: a loader's thread has none
        return torch.full((8,), 1.0 + step + dist.get_rank(), device=weights.device)

    def forward_backward(batch: "torch.Tensor") -> Iterator["torch.Tensor"]:
        for layer in reversed(range(LAYERS)):
            start_ns = time.time_ns()
            time.sleep(times * LAYER_S)
            _drawn(COMPUTE, "backward", f"B{layer}", start_ns)
            yield batch * (layer + 1) - 0.1 * weights[layer]

    def send(gradient: "torch.Tensor") -> None:
        start_ns = time.time_ns()
        sent.append(1)
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        time.sleep(times * SEND_S)
        _drawn(COMM, "all_reduce", f"gradient {len(sent)}", start_ns)

    def update(gradients: list) -> None:
        for layer, gradient in zip(reversed(range(LAYERS)), gradients, strict=True):
            weights[layer] -= 0.1 * gradient

    dist.barrier()
    start_s = time.perf_counter()
    answer(load, forward_backward, send, update, STEPS)
    took_s = time.perf_counter() - start_s
    dist.barrier()
    fault = ""
    if len(sent) != STEPS * LAYERS:
        fault = say("it sent {sent} gradients of {due}", sent=len(sent), due=STEPS * LAYERS)
    total = [round(each, 4) for each in weights.flatten().tolist()]
    return fault, took_s if math.isfinite(took_s) else 0.0, total
