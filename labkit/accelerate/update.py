"""One update of an Accelerate loop, line by line: which collectives each line calls under each
engine, and where the weights change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from labkit import words
from labkit.data_parallel import buckets
from labkit.experiment import Experiment
from labkit.sharding import moments
from labkit.units import check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = ("one process", "ddp", "fsdp", "zero2")
"""those whose update is predicted"""
PRECISIONS = ("no", "bf16", "fp16")
"""of Accelerate's mixed_precision"""
FIRST_SCALE = 2.0**16
"""what torch's GradScaler multiplies a loss by at first"""
BACKOFF = 0.5
"""what it multiplies that by when a gradient has overflowed; after 2,000 updates without, it
doubles"""
SPIKE = 2.0**30
"""how many times larger the loss of a spike is"""
LINES = ("forward", "backward", "clip", "step", "zero_grad")
"""what a loop calls for a microbatch, in order"""
SHAPE = {"num_layers": 2, "dim": 128, "num_heads": 2, "max_len": 16}
"""of the model whose step is looked at"""
_WORDS = words.catalogue([("zero2", "DeepSpeed has an fp16 of its own, which needs a GPU")])

Row = dict[str, dict]
"""a batch: line -> {"calls": collectives by name, "moved": whether the weights change}, and for the
step of fp16 "scale": the loss scale before and after it; lines that are not called are left out"""


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
    spike: bool = False
    """whether the last batch's loss is SPIKE times as large, too much for fp16's gradients"""
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

    @property
    def skips(self) -> bool:
        """Whether the update is left out: a gradient does not fit into fp16."""
        return self.spike and self.precision == "fp16"

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't run: DeepSpeed has an fp16 of its own."""
        if self.engine == "zero2" and self.precision == "fp16":
            return _WORDS[words.spoken_in(language)]["zero2"]
        return None

    def predict(self) -> list[Row]:
        """Per batch of an update and per line that is called: the collectives by name, and whether
        the weights change.

        DDP: an all-reduce per bucket, in the last batch only. FSDP2: blocks and root are gathered
        in every batch, reduced in the last; the norm is summed, and in fp16 whether a slice has
        overflowed. ZeRO-2: gradients are reduced in every batch; the last backward also sums the
        norm (and, in bf16, looks for overflow), updates, and gathers the weights.

        fp16: the loss is multiplied by a scale, so that small gradients are not rounded to 0; clip
        divides them by it again. If one of them is infinite, the step is skipped and the scale
        halved (Micikevicius et al. 2018, section 3.2).
        """
        updating = "backward" if self.engine == "zero2" else "step"
        rows = []
        for index in range(self.accumulation):
            last = index == self.accumulation - 1
            calls = _calls(self.engine, self.precision, last)
            row = {}
            for line in LINES:
                if last or line != "clip":
                    moved = last and line == updating and not self.skips
                    row[line] = {"calls": calls.get(line, {}), "moved": moved}
            if last and self.precision == "fp16":
                factor = BACKOFF if self.skips else 1.0
                row["step"]["scale"] = (FIRST_SCALE, FIRST_SCALE * factor)
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
            "clip": {"all_reduce": 2 if precision == "fp16" else 1},
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
    if _factor(line) != _factor(other):
        return False
    return line["calls"] == other["calls"] and line["moved"] == other["moved"]


def _factor(line: Mapping) -> float | None:
    """What a step does to the loss scale. Where it stands is not predicted: an update before this
    one may have been skipped as well."""
    if "scale" not in line:
        return None
    before, after = line["scale"]
    return after / before
