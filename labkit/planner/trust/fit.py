"""A stack's constants from measured rows: at most four, and one for every two rows.

Each shipped stack is a beginning; Gauss and Newton move its constants in their logarithms, held to
where they began by how far such constants differ between stacks, so that two rows can't pull a
constant out of the world. The stack that fits best is taken.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from labkit.planner.plan import steptime
from labkit.planner.plan.stacks import CONSTANTS, STACKS, Stack
from labkit.planner.trust.rows import Row

MOST_CONSTANTS = 4
HELD = {"matmul": 0.25, "nic": 0.7, "layer_us": 0.8, "attention": 0.35}
"""How far, in logarithms, a constant of one stack lies from another's: one standard deviation."""
NOISE = 0.03
"""How far repeated measurements of one configuration lie apart (published repeats: 2 to 6 %)."""
ROUNDS = 12
STEP = 1e-3


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A stack with constants of its own, and how well it does."""

    stack: Stack
    """the stack"""
    begun: str
    """the shipped stack that it began as"""
    fitted: tuple[str, ...]
    """which constants were moved"""
    misfit: float
    """root mean square of log(predicted / published) over the rows it was fitted on"""


def predicted_us(row: Row, stack: Stack) -> float:
    """How long a row's step should take under a stack."""
    return steptime.step_time(row.shape, row.cluster, row.layout, stack).step_us


def log_errors(rows: Sequence[Row], stack: Stack) -> np.ndarray:
    """log(predicted / published) of each row's step, shape (num_rows,)."""
    ratios = [predicted_us(row, stack) / row.step_us() for row in rows]
    return np.log(ratios)


def fit(rows: Sequence[Row]) -> Fit:
    """The stack that fits rows best. Raises ValueError for fewer than two rows with a time."""
    timed = [row for row in rows if row.step_us()]
    if len(timed) < 2:
        raise ValueError(f"a fit needs two rows with a time or more; got {len(timed)}")
    num_constants = min(MOST_CONSTANTS, len(timed) // 2)
    tried = []
    for name, stack in STACKS.items():
        for chosen in itertools.combinations(CONSTANTS, num_constants):
            moved = _moved(timed, stack, chosen)
            tried.append((_loss(timed, stack, moved, chosen), name, chosen, moved))
    _, name, chosen, stack = min(tried, key=lambda each: each[0])
    misfit = float(np.sqrt(np.mean(log_errors(timed, stack) ** 2)))
    return Fit(stack=stack, begun=name, fitted=chosen, misfit=misfit)


def _loss(rows: Sequence[Row], begun: Stack, stack: Stack, chosen: Sequence[str]) -> float:
    """What the fit makes small: errors in units of NOISE, large ones counted less, and how far the
    constants went."""
    errors = np.abs(log_errors(rows, stack)) / NOISE
    huber = np.where(errors < 2, errors**2 / 2, 2 * errors - 2)
    gone = _logs(stack, chosen) - _logs(begun, chosen)
    held = np.array([HELD[name] for name in chosen])
    return float(huber.sum() + ((gone / held) ** 2).sum() / 2)


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
        if np.abs(step).max() < 1e-4:
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
