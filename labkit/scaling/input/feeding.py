"""A step that waits for its data: batches are read by workers ahead of the step, or not.

    feeding = scaling.Feeding(workers=0, read_ms=30, step_ms=20)
    feeding.predict()      # Timeline: reading and computing in turn
    feeding.but(workers=2).compare()

The step can't begin before its batch is there. One process that reads and computes takes the sum of
both; workers that read ahead leave the larger of the two.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment, Reading, step_difference
from labkit.timeline import COMPUTE, Timeline, from_rows, step_us
from labkit.units import check_real, check_whole, format_us

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

INPUT = "input"
"""lane and kind of what is read"""
_WORDS = words.catalogue(
    [
        ("title", "{} steps, batches read by {} workers"),
        ("one", "{} steps, batches read by 1 worker"),
        ("none", "{} steps, batches read by the step itself"),
        ("all", "all steps"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Feeding(Experiment):
    """Some steps and the DataLoader that feeds them, both at a stated pace, on every rank.

    ``run()[r]`` is a dict: spans_us (lane, kind, label, start and end of every read and every step,
    by the machine's clock), waited_us (for data, all steps together), in_order (whether each batch
    came in its turn).
    """

    read_ms: float = 30.0
    """a batch from a disk and decoded, by one worker"""
    step_ms: float = 20.0
    """a training step once the batch is there"""
    workers: int = 0
    """DataLoader's num_workers; 0: the process that computes reads as well"""
    ahead: int = 2
    """DataLoader's prefetch_factor: batches that each worker may have ready"""
    batches: int = 8
    """how many steps"""
    ranks: int = 2
    """how many read and compute side by side"""

    reading: ClassVar[Reading] = Reading(words.in_every("all", _WORDS), step_us, format_us)
    """what ``sweep`` draws of it"""

    def __post_init__(self) -> None:
        check_real(0.0, 1e5, read_ms=self.read_ms, step_ms=self.step_ms)
        check_whole(0, 64, workers=self.workers)
        check_whole(1, 64, ahead=self.ahead)
        check_whole(1, 500, batches=self.batches)
        check_whole(1, 256, ranks=self.ranks)

    def predict(self) -> Timeline:
        """Worker k reads batches k, k + workers, ... A batch beyond those that may be ready is
        begun when an earlier one is taken, as torch's DataLoader does it."""
        rows: list[tuple] = []
        free_us = [0.0] * max(1, self.workers)
        taken_us: list[float] = []
        done_us = 0.0
        for batch in range(self.batches):
            begin_us = max(free_us[batch % len(free_us)], self._asked_us(batch, taken_us, done_us))
            ready_us = begin_us + 1e3 * self.read_ms
            free_us[batch % len(free_us)] = ready_us
            start_us = max(ready_us, done_us)
            taken_us.append(start_us)
            done_us = start_us + 1e3 * self.step_ms
            rows.append((INPUT, INPUT, f"batch {batch}", begin_us, ready_us, 0))
            rows.append((COMPUTE, COMPUTE, f"step {batch}", start_us, done_us, 0))
        every = []
        for rank in range(self.ranks):
            every += [(rank, *row) for row in rows]
        return from_rows(every, num_ranks=self.ranks, origin="simulated")

    def _asked_us(self, batch: int, taken_us: list[float], done_us: float) -> float:
        """When a batch may be begun."""
        if not self.workers:
            return done_us
        earlier = batch - self.workers * self.ahead
        return taken_us[earlier] if earlier >= 0 else 0.0

    def start(self) -> "Job":
        """Real DataLoaders on real ranks, in the background."""
        from labkit.scaling.input import feeding_run

        return feeding_run.start(self)

    def difference(self, predicted: Timeline, measured: Timeline) -> Difference:
        """Where the time went, of all its steps."""
        return step_difference(predicted, measured, several=self.batches > 1)

    def title(self, language: str | None = None) -> str:
        """How many steps, and who reads."""
        say = _WORDS[words.spoken_in(language)]
        key = {0: "none", 1: "one"}.get(self.workers, "title")
        return say[key].format(self.batches, self.workers)

    def measured(self, run: "Run") -> Timeline:
        """What the clocks of ranks and workers say: reads, and steps."""
        first_us = min(told["spans_us"][0][3] for told in run)
        rows = []
        for rank, told in enumerate(run):
            for lane, kind, label, start_us, end_us in told["spans_us"]:
                times_us = start_us - first_us, end_us - first_us
                rows.append((rank, lane, kind, label, *times_us, 0))
        return from_rows(rows, num_ranks=len(run), origin=run.origin, notes=run.notes)
