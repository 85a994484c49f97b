"""The experiment of this subject: one training step of a pipeline, as theory sees it and as real
ranks do it."""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment, Reading
from labkit.pipeline import runtime
from labkit.pipeline.difference import CAUSES, residual
from labkit.pipeline.schedule import Schedule
from labkit.pipeline.schedules import SCHEDULES, TITLES
from labkit.pipeline.simulation import Cost, bubble_formula, simulate
from labkit.timeline import Timeline, bubble
from labkit.units import check_real, check_whole, format_share

if TYPE_CHECKING:
    from labkit.launching.job import Job

_WORDS = words.catalogue(
    [
        ("title", "{}, {} ranks, {} microbatches"),
        ("bubble", "bubble"),
        ("idle", "Idle time of all ranks together"),
        ("durations", "actions longer or shorter than stated"),
        ("messages", "messages slower than predicted"),
        ("start-up", "late starts"),
        (
            "runtime",
            "loss, sends and Python between actions",
        ),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What the pipeline trains."""

    num_steps: int = 1
    """optimizer steps after the warm-up step; the last one is traced"""
    num_layers: int | None = None
    """blocks of the transformer; one per stage if not given"""
    dim: int = 32
    """width of the transformer: small, so that stated times can be kept by many ranks on few
    cores"""
    num_heads: int = 2
    """attention heads"""
    seq_len: int = 32
    """bytes of story in a sequence"""
    microbatch_size: int = 1
    """sequences in a microbatch"""
    learning_rate: float = 0.1
    """of plain stochastic gradient descent"""
    seed: int = 0
    """of the weights and of the passages of the story"""
    keep_gradients: bool = False
    """also return the gradients of the last step, under the names they have in the whole model"""


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """One training step of a pipeline.

    ``run()[r]`` is a dict: losses (per step, on the rank of the last stage), step_s,
    peak_activation_bytes, peak_in_flight, peak_rss_bytes, num_overruns. Raises ValueError for what
    is no pipeline.
    """

    schedule: str | Schedule = "1f1b"
    """a key of SCHEDULES; or a Schedule of your own, which then says ranks and microbatches"""
    ranks: int = 4
    """p, the length of the pipeline"""
    microbatches: int = 8
    """m, the pieces of the batch"""
    chunks: int = 2
    """stages of each rank, where the schedule is interleaved"""
    forward_ms: float | None = 50.0
    """stated time of a microbatch's forward through all stages of one rank; None runs at the
    machine's own pace, which theory does not predict"""
    backward_ratio: float = 2.0
    """backward over forward time, when stated"""
    input_share: float = 0.5
    """the share of a split backward that the input's half takes, when stated"""
    message_ms: float = 0.0
    """what a message is predicted to take"""
    gap_ms: float = 0.0
    """what the runtime is predicted to need between two actions of a rank"""
    post_ms: float = 0.0
    """and for each message that it posts there"""
    training: Training = Training()
    """what is trained"""

    reading: ClassVar[Reading] = Reading(words.in_every("bubble", _WORDS), bubble, format_share)
    """what ``sweep`` draws of it: the idle share of the ranks' time"""

    def __post_init__(self) -> None:
        if isinstance(self.schedule, Schedule):
            object.__setattr__(self, "ranks", self.schedule.num_ranks)
            object.__setattr__(self, "microbatches", self.schedule.num_microbatches)
        elif self.schedule not in SCHEDULES:
            raise ValueError(
                f"a schedule is one of {', '.join(SCHEDULES)}, or a Schedule; got {self.schedule!r}"
            )
        counts = {
            "ranks": self.ranks,
            "microbatches": self.microbatches,
            "chunks": self.chunks,
        }
        check_whole(1, 100_000, **counts)
        predicted = {
            "message_ms": self.message_ms,
            "gap_ms": self.gap_ms,
            "post_ms": self.post_ms,
        }
        check_real(0.0, 1e9, **predicted)
        if self.forward_ms is not None:
            check_real(0.0, 1e9, forward_ms=self.forward_ms, backward_ratio=self.backward_ratio)
        check_real(0.0, 1.0, input_share=self.input_share)

    def order(self) -> Schedule:
        """What the ranks run, action by action. Raises ValueError where there is no such
        schedule."""
        if isinstance(self.schedule, Schedule):
            return self.schedule
        counts = (self.ranks, self.microbatches)
        if self.schedule.startswith("interleaved"):
            counts = (*counts, self.chunks)
        return _order(self.schedule, *counts)

    def cost(self) -> Cost:
        """What each action and message is predicted to take. Raises ValueError where no time is
        stated."""
        if self.forward_ms is None:
            raise ValueError(
                "a prediction needs a stated time, and forward_ms=None runs at the machine's own "
                "pace. Give forward_ms, e.g. 50"
            )
        order = self.order()
        return runtime.cost(
            order.num_stages // order.num_ranks,
            forward_us=1e3 * self.forward_ms,
            backward_ratio=self.backward_ratio,
            input_share=self.input_share,
            message_us=1e3 * self.message_ms,
            gap_us=1e3 * self.gap_ms,
            post_us=1e3 * self.post_ms,
        )

    def predict(self) -> Timeline:
        """The simulated step."""
        return simulate(self.order(), self.cost())

    def formula(self) -> float | None:
        """The literature's bubble, which knows free messages only; None where it has none."""
        if self.message_ms or self.gap_ms or self.post_ms:
            return None
        return bubble_formula(self.order(), cost=self.cost())

    def refusal(self, language: str | None = None) -> str | None:
        """Why torch's runtime will not run it; None where it will."""
        if isinstance(self.schedule, Schedule):
            return None
        return runtime.refusal(self.schedule, self.ranks, self.microbatches, self.chunks)

    def start(self) -> "Job":
        """Trains on real ranks, through torch.distributed.pipelining, in the background."""
        from labkit.pipeline import run

        return run.start(self)

    def calibrated(self) -> "Step":
        """The same with message_ms, gap_ms and post_ms as they were in a run of its own, never the
        one that is predicted: twice as many microbatches as ranks, 20 ms a forward."""
        from labkit.pipeline import run

        return run.calibrated(self)

    def as_run(self) -> "Step":
        """The ranks know nothing of what a message was predicted to take."""
        return replace(self, message_ms=0.0, gap_ms=0.0, post_ms=0.0)

    def difference(self, predicted: Timeline, measured: Timeline) -> Difference:
        """Why the ranks idled longer (or less), by cause."""
        causes_us = residual(predicted, measured)
        return Difference(
            of=words.in_every("idle", _WORDS),
            causes={name: causes_us[name] for name in CAUSES},
            names={name: words.in_every(name, _WORDS) for name in CAUSES},
        )

    def title(self, language: str | None = None) -> str:
        """Schedule, ranks and microbatches."""
        language = words.spoken_in(language)
        name = self.order().name if isinstance(self.schedule, Schedule) else TITLES[self.schedule]
        name = words.translated(name, language)
        return _WORDS[language]["title"].format(name, self.ranks, self.microbatches)


@functools.lru_cache(maxsize=8)
def _order(name: str, *counts: int) -> Schedule:
    """A schedule, made once: its prediction, cost and formula each ask for it."""
    return SCHEDULES[name](*counts)
