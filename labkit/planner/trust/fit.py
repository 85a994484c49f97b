"""A stack's constants from measured rows: at most four, and one for every two rows.

Each shipped stack is a beginning; Gauss and Newton move its constants in their logarithms, held to
where they began by how far such constants differ between stacks, so that two rows can't pull a
constant out of the world. The stack that fits best is taken.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np

from labkit.planner.plan import steptime
from labkit.planner.plan.stacks import CONSTANTS, STACKS, Stack, nearest
from labkit.planner.trust.rows import Row
from labkit.planner.trust.rows import row as row_of
from labkit.units import check_word

MOST_CONSTANTS = 4
HELD = {"matmul": 0.25, "nic": 0.7, "layer_us": 0.8, "attention": 0.35}
"""How far, in logarithms, a constant of one stack lies from another's: one standard deviation."""
NOISE = 0.03
"""How far repeated measurements of one configuration lie apart (published repeats: 2 to 6 %)."""
ROUNDS = 12
STEP = 1e-3
SETTLED = 1e-3
ODDS_OF_ANOTHER = 0.2
"""How likely rows of one generation of GPUs are like a stack of another, before a look at them."""
LIKELY = 3
"""How many of the shipped stacks are kept once the first constant was moved."""
Engine = tuple[str, bool]
"""(generation of GPU, whether parameters are sharded): what one stack serves."""
Moved = tuple[Engine, str]
"""a constant of an engine's stack"""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Stacks with constants of their own, and how well they do."""

    stacks: dict[Engine, Stack]
    """engine -> its stack"""
    moved: tuple[Moved, ...]
    """which constants were fitted; the others are shipped"""
    misfit: float
    """root mean square of log(predicted / published) over the rows it was fitted on"""

    def stack(self, row: Row | Mapping[str, object]) -> Stack:
        """The stack for a row, or for a mapping that ``fit`` takes as one: its engine's, else the
        nearest shipped one."""
        row = row if isinstance(row, Row) else row_of(row, "run")
        return self.stacks.get(engine(row)) or nearest(row.cluster.gpu.name, row.layout.zero)

    def constants(self) -> dict[str, float]:
        """ "A100 80 GB, sharded: nic" -> value, of those that were fitted."""
        found = {}
        for each, name in self.moved:
            found[f"{label(each)}: {name}"] = getattr(self.stacks[each], name)
        return found

    def leans_on(self, row: Row | Mapping[str, object], less: float = 0.1) -> dict[str, float]:
        """How much longer a row's step would take, were one of its constants by ``less`` smaller:
        {constant that was fitted: share of the step}. It says which constant a run can teach.
        Raises ValueError for a ``less`` that isn't between 0 and 1."""
        if not 0 < less < 1:
            raise ValueError(f"less lies between 0 and 1; got {less:g}")
        row = row if isinstance(row, Row) else row_of(row, "run")
        stack = self.stack(row)
        whole_us = predicted_us(row, stack)
        found = {}
        for name in _of(self.moved, engine(row)):
            smaller = stack.but(**{name: getattr(stack, name) * (1 - less)})
            found[name] = predicted_us(row, smaller) / whole_us - 1
        return found


def label(each: Engine) -> str:
    """An engine in words."""
    return f"{each[0]}{', sharded' if each[1] else ''}"


def engine(row: Row) -> Engine:
    """What one stack serves."""
    return row.cluster.gpu.family, row.layout.zero == 3


def predicted_us(row: Row, stack: Stack) -> float:
    """How long a row's step should take under a stack."""
    return steptime.step_time(row.shape, row.cluster, row.layout, stack).step_us


def log_errors(rows: Sequence[Row], stack: Stack) -> np.ndarray:
    """log(predicted / published) of each row's step, shape (num_rows,)."""
    ratios = [predicted_us(row, stack) / row.step_us() for row in rows]
    return np.log(ratios)


def fit(
    rows: Sequence[Row | Mapping[str, object]],
    begun: Sequence[Stack] = tuple(STACKS.values()),
    constants: Sequence[str] = CONSTANTS,
) -> Fit:
    """The stacks that fit rows best, one for each engine among them. A row is a ``rows.Row``, or a
    mapping with the columns of ``rows.HEADER``. ``begun``: where constants may begin, the shipped
    stacks unless said otherwise. ``constants``: of ``stacks.CONSTANTS``, those that may move, the
    first before all others. Raises ValueError for fewer than two rows with a time, for no stack
    and for what are no constants."""
    _check(begun, constants)
    timed = _timed(rows)
    most = min(MOST_CONSTANTS, len(timed) // 2)
    engines: dict[Engine, list[Row]] = {}
    for row in timed:
        engines.setdefault(engine(row), []).append(row)
    largest = sorted(engines, key=lambda each: -len(engines[each]))
    moved: list[Moved] = [(each, constants[0]) for each in largest[:most]]
    best = {}
    likely = {}
    for each, its_rows in engines.items():
        tried = _tried(its_rows, _of(moved, each), begun)
        best[each] = (tried[0].loss, tried[0].stack)
        likely[each] = [one.begun for one in tried[:LIKELY]]
    while len(moved) < most:
        offers = []
        for each, its_rows in engines.items():
            for name in set(constants) - set(_of(moved, each)):
                one = _tried(its_rows, (*_of(moved, each), name), likely[each])[0]
                offers.append((best[each][0] - one.loss, each, name, one))
        if not offers:
            break
        gain, each, name, one = max(offers, key=lambda offer: offer[0])
        if gain <= 0:
            break
        moved.append((each, name))
        best[each] = (one.loss, one.stack)
    moved_of = {each for each, _ in moved}
    stacks = {
        each: best[each][1].but(fitted_on=len(engines[each]) if each in moved_of else 0)
        for each in best
    }
    errors = [log_errors(engines[each], stacks[each]) for each in engines]
    misfit = float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))
    return Fit(stacks=stacks, moved=tuple(moved), misfit=misfit)


def _check(begun: Sequence[Stack], constants: Sequence[str]) -> None:
    """Raises ValueError for a fit that begins nowhere or moves nothing."""
    if not begun:
        raise ValueError("a fit begins at one stack or more; got none")
    if not constants:
        raise ValueError("a fit moves one constant or more; got none")
    for name in constants:
        check_word(name, CONSTANTS, "a constant")


def _timed(rows: Sequence[Row | Mapping[str, object]]) -> list[Row]:
    """The rows that have a time. Raises ValueError for fewer than two."""
    read = [
        each if isinstance(each, Row) else row_of(each, str(at)) for at, each in enumerate(rows)
    ]
    timed = [row for row in read if row.step_us()]
    if len(timed) < 2:
        raise ValueError(f"a fit needs two rows with a time or more; got {len(timed)}")
    return timed


def _of(moved: Sequence[Moved], wanted: Engine) -> tuple[str, ...]:
    """The constants of an engine's stack that are moved."""
    return tuple(name for each, name in moved if each == wanted)


class _Tried(NamedTuple):
    """A shipped stack, its constants moved."""

    loss: float
    begun: Stack
    stack: Stack


def _tried(rows: Sequence[Row], chosen: Sequence[str], stacks: Iterable[Stack]) -> list[_Tried]:
    """Each stack with the chosen constants moved, the best first."""
    tried = []
    for one in stacks:
        stack = _moved(rows, one, chosen) if chosen else one
        tried.append(_Tried(_loss(rows, one, stack, chosen), one, stack))
    return sorted(tried, key=lambda found: found.loss)


def _loss(rows: Sequence[Row], begun: Stack, stack: Stack, chosen: Sequence[str]) -> float:
    """What the fit makes small: errors in units of NOISE, large ones counted less, and how far the
    constants went."""
    errors = np.abs(log_errors(rows, stack)) / NOISE
    huber = np.where(errors < 2, errors**2 / 2, 2 * errors - 2)
    total = float(huber.sum()) - log(begun.odds)
    usual = nearest(rows[0].cluster.gpu.name, rows[0].layout.zero)
    if begun.generation != usual.generation:
        total -= log(ODDS_OF_ANOTHER)
    if not chosen:
        return total
    gone = _logs(stack, chosen) - _logs(begun, chosen)
    held = np.array([HELD[name] for name in chosen])
    return total + float(((gone / held) ** 2).sum() / 2)


def _logs(stack: Stack, chosen: Sequence[str]) -> np.ndarray:
    return np.log([getattr(stack, name) for name in chosen])


def _moved(rows: Sequence[Row], begun: Stack, chosen: Sequence[str]) -> Stack:
    """Gauss and Newton on the chosen constants' logarithms."""
    held = np.array([HELD[name] for name in chosen])
    start = _logs(begun, chosen)

    def stack_at(logs: np.ndarray) -> Stack:
        return begun.but(**dict(zip(chosen, np.exp(logs).tolist(), strict=True)))

    logs = start.copy()
    for _ in range(ROUNDS):
        errors = log_errors(rows, stack_at(logs))
        slopes = _slopes(lambda at: log_errors(rows, stack_at(at)), logs, errors)
        weight = np.sqrt(np.minimum(1.0, 2 * NOISE / np.maximum(np.abs(errors), 1e-9))) / NOISE
        matrix = np.vstack([slopes * weight[:, None], np.diag(1 / held)])
        target = np.concatenate([-errors * weight, (start - logs) / held])
        step = np.linalg.lstsq(matrix, target, rcond=None)[0]
        logs = logs + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < SETTLED:
            break
    return stack_at(logs)


def _slopes(
    errors_at: Callable[[np.ndarray], np.ndarray], logs: np.ndarray, errors: np.ndarray
) -> np.ndarray:
    """d errors / d logs, shape (num_rows, num_constants)."""
    columns = []
    for number in range(len(logs)):
        moved = logs.copy()
        moved[number] += STEP
        columns.append((errors_at(moved) - errors) / STEP)
    return np.stack(columns, axis=1)
