"""One update of an Accelerate loop, line by line: which collectives each line calls under each
engine, and where the weights change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from labkit.data_parallel import buckets
from labkit.sharding import step

ENGINES = ("one process", "ddp", "fsdp", "zero2")
"""those whose update is predicted"""
LINES = ("forward", "backward", "clip", "step", "zero_grad")
"""what a loop calls for a microbatch, in order"""
SHAPE = {"num_layers": 2, "dim": 128, "num_heads": 2, "max_len": 16}
"""of the model whose step is looked at"""

Row = dict[str, dict]
"""a batch: line -> {"calls": collectives by name, "moved": whether the weights change}; lines that
are not called are left out"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An engine and how it is used."""

    accumulation: int
    """batches per update"""
    engine: str
    """one of ENGINES"""
    precision: str
    """mixed_precision: "no" or "bf16\""""
    ranks: int
    """how many ranks; one process has one"""

    @property
    def num_ranks(self) -> int:
        """As many as are started."""
        return 1 if self.engine == "one process" else self.ranks


def predicted(setting: Setting) -> list[Row]:
    """Per batch of an update and per line that is called: the collectives by name, and whether the
    weights change.

    DDP: an all-reduce per bucket, in the last batch only. FSDP2: blocks and root are gathered in
    every batch, reduced in the last; the norm is summed. ZeRO-2: gradients are reduced in every
    batch; the last backward also sums the norm (and, in bf16, looks for overflow), updates, and
    gathers the weights.
    """
    updating = "backward" if setting.engine == "zero2" else "step"
    rows = []
    for index in range(setting.accumulation):
        last = index == setting.accumulation - 1
        calls = _calls(setting.engine, setting.precision, last)
        row = {}
        for line in LINES:
            if last or line != "clip":
                moved = last and line == updating
                row[line] = {"calls": calls.get(line, {}), "moved": moved}
        rows.append(row)
    return rows


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
    units = step.transformer(
        num_layers=SHAPE["num_layers"],
        dim=SHAPE["dim"],
        num_heads=SHAPE["num_heads"],
        batch=1,
        seq_len=SHAPE["max_len"],
    )
    sizes = [4 * prod(shape) for shape in step.shapes(units).values()]
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
