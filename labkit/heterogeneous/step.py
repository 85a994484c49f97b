"""The experiment: one training step on ranks of unlike speed, by theory and on real ranks."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit import words
from labkit.experiment import Experiment
from labkit.heterogeneous import split
from labkit.timeline import Timeline
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job

GRADIENT_BYTES = 4 * 26_122
"""of the classifier of digits, in float32"""
SPLITS = (*split.SPLITS, "probed")
_WORDS = words.catalogue(
    [
        ("title", "{samples} samples at speeds {speeds}"),
        ("probed", "{batch} samples dealt by measured speed, speeds {speeds}"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """One training step of a classifier of digits; a rank of speed v takes ``sample_ms`` / v for a
    sample.

    Messages are real, computing is paced. ``run()[r]`` is a dict: samples (of this rank),
    samples_per_s (of each rank, as the probe measured it), step_us (per step), overruns,
    weight_difference (largest, from one process that trained on whole batches), payload_bytes of a
    step. Raises ValueError for what is no step.
    """

    speeds: tuple[float, ...] = (1.0, 3.0)
    """of each rank; only their ratios and ``sample_ms`` matter"""
    batch: int = 64
    """samples of all ranks together"""
    split: str = "by speed"
    """"equal", "by speed" (largest remainder), "fastest" (shortest step), or "probed": by the
    speeds that a short probe on the ranks measured"""
    sample_ms: float = 3.0
    """forward and backward of a sample at speed 1"""
    link_ms: float = 2.0
    """the all-reduce of the gradient, from when the last rank is ready"""
    weighted: bool = True
    """whether a rank's mean gradient counts by its samples, b / B; else all alike, 1 / N, as DDP
    does"""
    num_steps: int = field(default=3, repr=False)
    """after one of warm-up; the last one is recorded"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "speeds", tuple(self.speeds))
        split.check(self.speeds, self.batch)
        check_whole(1, split.MOST_SAMPLES, batch=self.batch)
        check_whole(1, 1000, num_steps=self.num_steps)
        check_word(self.split, SPLITS, "a split")
        check_real(1e-6, 1e6, sample_ms=self.sample_ms)
        check_real(0, 1e6, link_ms=self.link_ms)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.speeds)

    def samples(self) -> tuple[int, ...]:
        """Of each rank; "probed" is predicted as a probe without error."""
        word = "by speed" if self.split == "probed" else self.split
        return split.dealt(word, self.speeds, self.batch)

    def idle_share(self) -> float:
        """The share of the ranks' time in which they wait for the last one."""
        return split.idle_share(self.samples(), self.speeds)

    def predict(self) -> Timeline:
        """The step, simulated."""
        return split.timeline(
            self.samples(),
            self.speeds,
            sample_us=1e3 * self.sample_ms,
            link_us=1e3 * self.link_ms,
            num_bytes=GRADIENT_BYTES,
        )

    def start(self) -> "Job":
        """Trains on real ranks at these speeds, in the background."""
        from labkit.heterogeneous import run

        return run.start(self)

    def title(self, language: str | None = None) -> str:
        """Samples and speeds of the ranks."""
        key = "probed" if self.split == "probed" else "title"
        return _WORDS[words.spoken_in(language)][key].format(
            samples="+".join(map(str, self.samples())),
            speeds=":".join(f"{each:g}" for each in self.speeds),
            batch=self.batch,
        )
