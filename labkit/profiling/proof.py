"""The advice for a slow step, and what its cure really brought: predicted beside achieved."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit import words
from labkit.profiling.advice import Advice, Change
from labkit.profiling.kinds import NAMES
from labkit.shown import Shown
from labkit.timeline import Timeline, step_us
from labkit.units import format_share
from labkit.words import LANGUAGES, both, say

if TYPE_CHECKING:
    from labkit.shown import Picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Proof(Shown):
    """A slow run, the advice that it got, and the run with the cure of its kind."""

    kind: str
    """what was made slow"""
    advice: Advice
    """what the slow run got"""
    cured: Timeline
    """of the second run"""

    @property
    def right(self) -> bool:
        """Whether the advice names the kind."""
        return self.advice.best is not None and self.advice.best.kind == self.kind

    @property
    def change(self) -> Change | None:
        """The change of this kind, whether or not it is the best; None where it is not advised."""
        found = [change for change in self.advice.changes if change.kind == self.kind]
        return found[0] if found else None

    @property
    def predicted(self) -> float:
        """The gain that the advice simulated for this kind, as a share of the slow run's time."""
        return self.change.gain if self.change else 0.0

    @property
    def achieved(self) -> float:
        """The gain of the second run."""
        before_us = step_us(self.advice.timeline)
        return 1 - step_us(self.cured) / before_us if before_us else 0.0

    def told(self, language: str | None = None) -> str:
        """Both gains in a sentence."""
        with words.meanwhile(words.spoken_in(language)):
            return say(
                "{kind}: {predicted} less was predicted, {achieved} less was achieved.",
                kind=say(NAMES[self.kind]),
                predicted=format_share(self.predicted),
                achieved=format_share(self.achieved),
            )

    def _picture(self, language: str) -> "Picture":
        from labkit.profiling import picture

        note = {code: self.told(code) for code in LANGUAGES}
        names = (both("As it is"), both("With the cure"))
        title = both(NAMES[self.kind])
        return picture.pair(self.advice.timeline, self.cured, names, title, [note], language)

    def __repr__(self) -> str:
        return self.told()
