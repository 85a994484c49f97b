"""How often to save: what saving and failing cost together, and the interval that costs least; and
what saves took in a run, ``Times``."""

from dataclasses import dataclass, field
from math import exp, expm1
from typing import Any

from labkit.shown import Shown
from labkit.units import check_real, check_whole
from labkit.words import both

Parts = dict[str, tuple[float, float]]

GPU_HOURS = 16_384 * 54 * 24 / 419
"""GPU-hours between two failures: Llama 3's training was interrupted 419 times unexpectedly in 54
days on 16,384 GPUs (Llama Team 2024, The Llama 3 Herd of Models, section 3.3.4)"""


def mtbf_s(num_gpus: int) -> float:
    """Seconds between two failures of so many GPUs, each as reliable as Llama 3's."""
    check_whole(1, num_gpus=num_gpus)
    return 3600 * GPU_HOURS / num_gpus


def slowdown(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Wall time over useful time for one checkpoint every ``interval_s``, failures at random (Daly
    2006, the complete cost function): M e^(R/M) (e^((T+C)/M) - 1) / T."""
    check_real(1e-9, interval_s=interval_s, mtbf_s=mtbf_s)
    check_real(0.0, save_s=save_s, restart_s=restart_s)
    if (interval_s + save_s + restart_s) / mtbf_s > 600:
        return float("inf")
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + save_s) / mtbf_s) / interval_s


def lost_share(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """The share of all time that is no training: saves, what failures undo, restarts."""
    return 1 - 1 / slowdown(interval_s, save_s, mtbf_s, restart_s)


def cheapest_s(save_s: float, mtbf_s: float) -> float:
    """The interval with the least ``slowdown``, by cutting down the part of the axis that must hold
    it. The time to restart does not move it."""
    check_real(0.0, save_s=save_s)
    check_real(1e-9, mtbf_s=mtbf_s)
    low = 1e-6 * mtbf_s
    high = 2 * mtbf_s
    for _ in range(200):
        third = (high - low) / 3
        if slowdown(low + third, save_s, mtbf_s) < slowdown(high - third, save_s, mtbf_s):
            high -= third
        else:
            low += third
    return low


@dataclass(frozen=True, kw_only=True)
class Times(Shown):
    """When this rank's steps and its asynchronous saves began and ended, in seconds. Shows the
    first save between two steps in a notebook: the steps beside it, what training waited for, what
    the thread did."""

    steps_s: list[tuple[float, float]] = field(default_factory=list)
    """begin and end of each step"""
    saves: dict[int, Parts] = field(default_factory=dict)
    """the step before a save -> its parts, as ``checkpoint.parts_s`` has them"""
    end_s: float = 0.0
    """when the last step was done, and the last save"""

    def __repr__(self) -> str:
        return f"Times({len(self.steps_s)} steps, {len(self.saves)} saves)"

    @property
    def trained_s(self) -> float:
        """Seconds in steps."""
        return sum(end_s - began_s for began_s, end_s in self.steps_s)

    @property
    def still_s(self) -> float:
        """Seconds between the steps, and after the last one."""
        return self.total_s - self.trained_s

    @property
    def total_s(self) -> float:
        """Seconds from the first step's begin to the end."""
        return self.end_s - self.steps_s[0][0]

    def strip(self) -> Any:
        """The picture, a Strip. Raises ValueError where no save lies between two steps."""
        from labkit.recovery.strip_picture import Strip

        within = [step for step in self.saves if step + 1 < len(self.steps_s)]
        if not within:
            raise ValueError("a picture needs a save between two steps; these times have none")
        step = within[0]
        parts = self.saves[step]
        last = min([*(other for other in self.saves if other > step), len(self.steps_s) - 1])
        zero_s = self.steps_s[step][0]

        def span(name: object, edges_s: tuple[float, float]) -> tuple:
            return name, edges_s[0] - zero_s, edges_s[1] - zero_s

        steps = [span(str(each), self.steps_s[each]) for each in range(step, last + 1)]
        ended_s, begins_s = self.steps_s[step][1], self.steps_s[step + 1][0]
        waited = [
            span(both("look up"), (ended_s, parts["list"][1])),  # the first save waits for none
            span(both("copy"), parts["copy"]),
            span(both("start the thread"), (parts["copy"][1], begins_s)),
        ]
        thread = [span(both("write"), parts["write"]), span(both("seal"), parts["seal"])]
        return Strip(
            title=both("A save, and the steps beside it"),
            badge=both("measured"),
            lanes=[
                (both("lane|steps"), steps),
                (both("the gap"), waited),
                (both("the thread"), thread),
            ],
        )

    def _picture(self, language: str) -> Any:
        return self.strip()._picture(language)
