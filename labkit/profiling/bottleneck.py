"""The experiment of this subject: a step that is slow in one of ten ways, or cured of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import words
from labkit.experiment import Experiment
from labkit.profiling.kinds import NAMES, slow
from labkit.profiling.step import Step
from labkit.timeline import Timeline
from labkit.words import say

if TYPE_CHECKING:
    from labkit.launching.job import Job


@dataclass(frozen=True, kw_only=True)
class Bottleneck(Experiment):
    """Three steps that are slow in one way. ``run()[r]`` is a dict: overruns (times that were not
    kept), sums (one per message, the same on every rank). Raises ValueError for another kind."""

    kind: str = "input"
    """one of ``profiling.KINDS``"""
    severity: float = 0.5
    """how bad it is, from 0 (just felt) to 1"""
    cured: bool = False
    """with the one change that cures it"""

    def __post_init__(self) -> None:
        slow(self.kind, self.severity)

    @property
    def step(self) -> Step:
        """The step."""
        made = slow(self.kind, self.severity)
        return made.cured if self.cured else made.step

    def predict(self) -> Timeline:
        """The steps, simulated."""
        return self.step.predict()

    def start(self) -> "Job":
        """The steps on real ranks at their stated times, recorded, in the background."""
        from labkit.profiling import run

        return run.start(self.step)

    def title(self, language: str | None = None) -> str:
        """What is wrong with it."""
        with words.meanwhile(words.spoken_in(language)):
            name = say(NAMES[self.kind])
            return say("{name}, cured", name=name) if self.cured else name
