"""One update of an Accelerate loop, line by line: which collectives each line calls under each
engine, and where the weights change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from labkit.data_parallel import buckets
from labkit.experiment import Experiment
from labkit.sharding import moments
from labkit.units import check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = ("one process", "ddp", "fsdp", "zero2")
"""those whose update is predicted"""
PRECISIONS = ("no", "bf16")
"""of Accelerate's mixed_precision"""
LINES = ("forward", "backward", "clip", "step", "zero_grad")
"""what a loop calls for a microbatch, in order"""
SHAPE = {"num_layers": 2, "dim": 128, "num_heads": 2, "max_len": 16}
"""of the model whose step is looked at"""

Row = dict[str, dict]
"""a batch: line -> {"calls": collectives by name, "moved": whether the weights change}; lines that
are not called are left out"""


@dataclass(frozen=True, kw_only=True)
class Update(Experiment):
    """One update of the usual loop under an engine of Accelerate.

    ``run()[r]`` is a dict, see ``run.step``.
    """

    engine: str = "ddp"
    """one of ENGINES"""
    precision: str = "no"
    """mixed_precision: one of PRECISIONS"""
    accumulation: int = 2
    """batches per update"""
    ranks: int = 2
    """how many ranks; one process has one, whatever is said here"""

    def __post_init__(self) -> None:
        check_word(self.engine, ENGINES, "an engine")
        check_word(self.precision, PRECISIONS, "a precision")
        check_whole(1, 100_000, accumulation=self.accumulation, ranks=self.ranks)

    @property
    def num_ranks(self) -> int:
        """As many as are started."""
        return 1 if self.engine == "one process" else self.ranks

    def predict(self) -> list[Row]:
        """Per batch of an update and per line that is called: the collectives by name, and whether
        the weights change.

        DDP: an all-reduce per bucket, in the last batch only. FSDP2: blocks and root are gathered
        in every batch, reduced in the last; the norm is summed. ZeRO-2: gradients are reduced in
        every batch; the last backward also sums the norm (and, in bf16, looks for overflow),
        updates, and gathers the weights.
        """
        updating = "backward" if self.engine == "zero2" else "step"
        rows = []
        for index in range(self.accumulation):
            last = index == self.accumulation - 1
            calls = _calls(self.engine, self.precision, last)
            row = {}
            for line in LINES:
                if last or line != "clip":
                    moved = last and line == updating
                    row[line] = {"calls": calls.get(line, {}), "moved": moved}
            rows.append(row)
        return rows

    def start(self) -> "Job":
        """The usual loop with a real Accelerator, in the background."""
        from labkit.accelerate import run

        return run.start(self)

    def as_run(self) -> "Update":
        """One process is one process, however many ranks are chosen."""
        return replace(self, ranks=self.num_ranks)

    def measured(self, run: "Run") -> list[Row]:
        """What rank 0 called, per batch and line."""
        return run[0]["lines"]

    def title(self, language: str | None = None) -> str:
        """Engine, ranks and precision."""
        return f"{self.engine}, {self.num_ranks}, {self.precision}"


def _calls(engine: str, precision: str, last: bool) -> dict[str, dict[str, int]]:
    """Collectives by line that calls any; ``last``: of the update's batches."""
    if engine == "ddp":
        return {"backward": {"all_reduce": _num_buckets()}} if last else {}
    if engine == "fsdp":
        num_units = SHAPE["num_layers"] + 1
        backward = {"all_gather": num_units - 1}
        if last:
            backward["reduce_scatter"] = num_units
        return {
            "forward": {"all_gather": num_units},
            "backward": backward,
            "clip": {"all_reduce": 1},
        }
    if engine == "zero2" and not last:
        return {"backward": {"all_reduce": 1}}
    if engine == "zero2":
        sums = 3 if precision == "bf16" else 2
        return {"backward": {"all_reduce": sums, "all_gather": 1}}
    return {}


def _num_buckets() -> int:
    """DDP's own, with its default sizes."""
    units = moments.transformer(
        num_layers=SHAPE["num_layers"],
        dim=SHAPE["dim"],
        num_heads=SHAPE["num_heads"],
        batch=1,
        seq_len=SHAPE["max_len"],
    )
    sizes = [4 * prod(shape) for shape in moments.shapes(units).values()]
    return len(buckets.assign(sizes, 25 * buckets.MIB, buckets.MIB))


def differing(rows: Sequence[Row], found: Sequence[Row]) -> int:
    """How many lines called other collectives than predicted, or changed the weights elsewhere."""
    count = 0
    for row, other in zip(rows, found, strict=True):
        if row.keys() != other.keys():
            count += 1
        for line in row.keys() & other.keys():
            if not _alike(row[line], other[line]):
                count += 1
    return count


def _alike(line: Mapping, other: Mapping) -> bool:
    return line["calls"] == other["calls"] and line["moved"] == other["moved"]
