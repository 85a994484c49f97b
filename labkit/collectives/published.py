"""Times of NCCL's all-reduce on machines that others measured: data/published/nccl_busbw.csv;
data/README.md names the source."""

import csv
from pathlib import Path

TABLE = Path(__file__).parents[2] / "data" / "published" / "nccl_busbw.csv"


def machines() -> tuple[str, ...]:
    """The machines of the table, as it names them."""
    return tuple(dict.fromkeys(row["node"] for row in _rows()))


def all_reduce_times(machine: str) -> tuple[list[int], list[float]]:
    """Sizes in bytes and times in microseconds of the all-reduce over all GPUs of a machine. Raises
    ValueError for one that the table does not have."""
    if machine not in machines():
        raise ValueError(f"the table has the machines {', '.join(machines())}; got {machine!r}")
    rows = [row for row in _rows() if row["node"] == machine]
    return [int(row["bytes"]) for row in rows], [float(row["time_us"]) for row in rows]


def num_gpus(machine: str) -> int:
    """How many GPUs the all-reduce of a machine was over. Raises ValueError as
    ``all_reduce_times``."""
    all_reduce_times(machine)
    return next(int(row["n"]) for row in _rows() if row["node"] == machine)


def _rows() -> list[dict[str, str]]:
    return list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
