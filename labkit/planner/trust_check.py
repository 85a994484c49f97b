"""The exercises of chapter 19, how far to trust a plan: choose four runs to fit on, say how far off
a fit is. Answers are graded on programs that the chapter does not show."""

import random
from collections.abc import Callable, Iterator, Sequence

from labkit.check import exercise, hint, over_budget, status, wrong
from labkit.planner.models import DATA
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import STACKS
from labkit.planner.trust import fit as fitting
from labkit.planner.trust.fit import Fit, predicted_us
from labkit.planner.trust.rows import Row, load, row, timed
from labkit.units import format_share
from labkit.words import say, to_say

__all__ = [
    "four_runs",
    "hint",
    "honest_error",
    "status",
]
_SEVEN = Shape(name="7B", layers=32, hidden=4096, heads=32, tied=False)
MOST_RUNS = 4
"""How many runs an answer may measure."""
MOST_RENTED = 64
"""GPUs that a measured run may have."""
MANY_GPUS = 512
"""GPUs that a fit is asked about."""
MOST_MISS = 0.1
"""How far off it may be there."""
CLOCK_ERROR = 0.02
_PROGRAMS = (  # matmul, nic: shares of the peak that products and messages reach
    (to_say("a slow network"), 0.55, 0.08),
    (to_say("slow products"), 0.40, 0.50),
    (to_say("slow in both"), 0.45, 0.04),
)
_SETTINGS = (  # GPUs and sequences at a time of the runs that a fit is made of
    (
        to_say("five runs in one machine, one on eight"),
        (*((8, n) for n in (1, 2, 3, 4, 5)), (64, 1)),
    ),
    (
        to_say("three runs in one machine, three on more"),
        ((8, 1), (8, 2), (8, 4), (32, 1), (64, 1), (64, 4)),
    ),
)
_known: dict[tuple, Fit] = {}
"""fits by the runs that they saw"""


@exercise
def four_runs(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(measure)`` is what ``planner.fit`` makes of at most four runs on at most 64 GPUs.

    ``measure(gpus, mbs, batch)`` takes a run of a 7 B model under ZeRO 3 by a program whose
    constants you are not told, and returns it as a dict that ``fit`` takes. They are computed, and
    their clock errs by up to 2 %. What the fit then says of 512 GPUs may be off by a tenth.
    """
    for case, matmul, nic in _PROGRAMS:
        program = _Program(matmul, nic)
        found = answer(program.measure)
        for mbs in (1, 4):
            plan = program.plan(MANY_GPUS, mbs, 2 * mbs * MANY_GPUS)
            right_us = plan.time().step_us
            row = timed(plan, right_us, case)
            mine_us = predicted_us(row, found.stack(row))
            if not abs(mine_us / right_us - 1) <= MOST_MISS:
                yield wrong(
                    "{case}: {gpus} GPUs, mbs {mbs}: the fit says {mine:.3g} s a step, it takes "
                    "{right:.3g} s. Measured: {runs}",
                    case=say(case),
                    gpus=MANY_GPUS,
                    mbs=mbs,
                    mine=mine_us / 1e6,
                    right=right_us / 1e6,
                    runs="; ".join(program.told) or "-",
                )
        if len(program.told) > MOST_RUNS:
            yield over_budget(
                "{case}: {count} runs; {most} are enough",
                case=say(case),
                count=len(program.told),
                most=MOST_RUNS,
            )


@exercise
def honest_error(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(runs, fit)`` is the largest error on a run that the fit has not seen: each run is
    left out once, ``fit`` gets all others and is asked for it.

    ``fit(some)`` is ``planner.fit`` of some of the runs, begun at FSDP's constants. An error is
    the size of predicted / measured - 1.
    """
    for case, runs in _fitted_on():
        told = answer(list(runs), _fit)
        errors = {run.id: _left_out(runs, run) for run in runs}
        worst = max(errors, key=errors.__getitem__)
        mine = abs(float(told)) if isinstance(told, (int, float)) else float("nan")
        if not abs(mine - errors[worst]) <= 1e-3 + 0.01 * errors[worst]:
            yield wrong(
                "{case}: you say {mine}. Left out, {run} is off by {right}; a fit on all runs is "
                "off by {seen} at most, on runs that it has seen",
                case=say(case),
                mine=format_share(mine) if mine == mine else repr(told),
                run=worst,
                right=format_share(errors[worst]),
                seen=format_share(max(_off(_fit(runs), run) for run in runs)),
            )


def _fit(some: Sequence[Row]) -> Fit:
    """What a fit makes of some runs, from FSDP's constants on; of the same ones once."""
    key = tuple((run.id, run.step_us()) for run in some)
    if key not in _known:
        _known[key] = fitting.fit(some, begun=[STACKS["fsdp-a100"]])
    return _known[key]


def _off(found: Fit, run: Row) -> float:
    """How far off a fit is on a run."""
    return abs(predicted_us(run, found.stack(run)) / run.step_us() - 1)


def _left_out(runs: Sequence[Row], run: Row) -> float:
    """How far off a fit on all others is on a run."""
    return _off(_fit([each for each in runs if each is not run]), run)


def _fitted_on() -> Iterator[tuple[str, list[Row]]]:
    """Runs of a program, by what is special about them."""
    _, matmul, nic = _PROGRAMS[0]
    for case, settings in _SETTINGS:
        program = _Program(matmul, nic)
        runs = []
        for gpus, mbs in settings:
            told = program.measure(gpus, mbs, 64 * mbs * 2)
            runs.append(row(told, f"{gpus} GPUs, mbs {mbs}"))
        yield case, runs
    rows, _ = load(DATA / "published" / "megatron_sc21_table2.csv")
    yield to_say("the published runs with ZeRO 3"), [each for each in rows if "z3" in each.id]


class _Program:
    """FSDP with constants that nobody is told, timed by a clock that errs a little."""

    def __init__(self, matmul: float, nic: float) -> None:
        self.stack = STACKS["fsdp-a100"].but(matmul=matmul, nic=nic)
        self.told: list[str] = []

    def measure(self, gpus: int = 8, mbs: int = 1, batch: int = 256) -> dict[str, object]:
        """A run, as ``planner.fit`` takes it. Raises ValueError for more GPUs than can be rented,
        and for what does not fit on them."""
        if gpus > MOST_RENTED:
            raise ValueError(f"you can rent {MOST_RENTED} GPUs at most; got {gpus}")
        plan = self.plan(gpus, mbs, batch)
        if not plan.fits:
            raise ValueError(f"mbs {mbs} does not fit on {gpus} GPUs of 80 GB")
        clock = random.Random(f"{self.stack.nic} {gpus} {mbs} {batch}")
        took_s = plan.time().step_us / 1e6 * clock.uniform(1 - CLOCK_ERROR, 1 + CLOCK_ERROR)
        self.told.append(f"{gpus} GPUs, mbs {mbs}, batch {batch}: {took_s:.3g} s")
        shape = {"layers": _SEVEN.layers, "hidden": _SEVEN.hidden, "seq": plan.seq}
        step = {"gbs": batch, "mbs": mbs, "zero": 3, "flash": 1, "iter_s": took_s}
        return {"gpu": plan.gpu, "n_gpus": gpus, **shape, **step}

    def plan(self, gpus: int, mbs: int, batch: int) -> Plan:
        """What it runs, on any number of GPUs."""
        layout = {"gpus": gpus, "zero": 3, "mbs": mbs, "batch": batch}
        return Plan(model=_SEVEN, stack=self.stack, **layout)
