"""Published runs as rows of one table: what was trained on what, and what was read there.

One header for all files of data/published/ that hold runs; a file of the same header may come from
anywhere. A row gives one or more of ``tflops_gpu``, ``iter_s``, ``tok_s_gpu`` and ``mem_gib``.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, isfinite
from pathlib import Path
from reprlib import repr as brief

from labkit.planner.plan import cluster as clusters
from labkit.planner.plan.cluster import Cluster
from labkit.planner.plan.layout import PRECISIONS, Layout, usual_recipe
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.shape import Shape
from labkit.units import check_real, check_word

HEADER = (
    "id",
    "table",
    "source",
    "seen",
    "gpu",
    "n_gpus",
    "gpus_per_node",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "glu",
    "vocab",
    "tied",
    "seq",
    "tp",
    "cp",
    "pp",
    "vpp",
    "dp",
    "zero",
    "sp",
    "mbs",
    "gbs",
    "recompute",
    "precision",
    "flash",
    "tflops_gpu",
    "flops_kind",
    "iter_s",
    "tok_s_gpu",
    "mfu_pct",
    "mem_gib",
    "notes",
)
QUANTITIES = ("iter_s", "tok_s_gpu", "tflops_gpu", "mem_gib")
"""What a row may give, the nearest to a clock first."""
NEEDED = ("gpu", "n_gpus", "layers", "hidden", "seq", "gbs")
"""Columns without which nothing can be said."""
USUAL = {"gpus_per_node": 8, "tp": 1, "cp": 1, "pp": 1, "vpp": 1, "mbs": 1, "vocab": 50_257}
"""What stands where a cell is empty; elsewhere 0."""
USUAL_HEAD = 128
"""Width of a head, where a row does not say how many there are."""
SCHEDULES = {
    "gpipe": "gpipe",
    "zb-h1": "zb_h1",
    "zb-1p": "zb_1p",
    "zb-h2": "zb_h2",
    "zb-2p": "zb_2p",
    "zbv": "zbv",
    "zb-v": "zbv",
}
"""How notes name a schedule ("schedule ZB-2p"), and what it is here; anything else is 1F1B."""
RECOMPUTE = {"": "none", "none": "none", "selective": "selective", "selective-op": "operators"}
"""How rows say it, and what it is here; anything else is full."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published run."""

    id: str
    """as its file names it"""
    source: str
    """the paper or page, and the table"""
    shape: Shape
    """the model"""
    cluster: Cluster
    """the machine"""
    layout: Layout
    """how the step was divided"""
    told: dict[str, float]
    """quantity -> what was published"""
    flops_kind: str
    """"model" or "hardware": which FLOPs ``tflops_gpu`` counts"""
    notes: str
    """what else the row says"""

    @property
    def tokens(self) -> float:
        """Tokens of a step."""
        return self.layout.gbs * self.layout.seq

    def step_flops(self) -> float:
        """FLOPs of a step as ``flops_kind`` counts them: attention in full, as Narayanan et al.
        2021 (equation 3); "hardware" counts what is recomputed once more, without the head."""
        token = self.shape.token_flops(self.layout.seq)
        if self.flops_kind == "hardware":
            attention = self.shape.attention_flops(self.layout.seq)
            again = {"none": 0.0, "selective": attention}
            full = self.shape.layer_flops() + attention
            token += self.shape.layers * again.get(self.layout.recompute, full)
        return self.tokens * token

    def step_us(self) -> float | None:
        """How long a step took, from what was published; None where only memory was."""
        if "iter_s" in self.told:
            return 1e6 * self.told["iter_s"]
        if "tok_s_gpu" in self.told:
            return 1e6 * self.tokens / self.told["tok_s_gpu"] / self.cluster.num_gpus
        if "tflops_gpu" in self.told:
            return self.step_flops() / self.told["tflops_gpu"] / 1e6 / self.cluster.num_gpus
        return None

    def tflops(self, step_us: float) -> float:
        """TFLOP/s of each GPU at a step's time, as ``flops_kind`` counts."""
        check_real(1e-3, 1e18, step_us=step_us)
        return self.step_flops() / step_us / 1e6 / self.cluster.num_gpus

    def quantity(self) -> str:
        """The quantity that stands for its time."""
        return next((name for name in QUANTITIES[:3] if name in self.told), "")

    def read(self, quantity: str, step_us: float) -> float:
        """What a step's time is in a quantity."""
        check_real(1e-3, 1e18, step_us=step_us)
        check_word(quantity, QUANTITIES[:3], "a quantity")
        if quantity == "iter_s":
            return step_us / 1e6
        if quantity == "tok_s_gpu":
            return 1e6 * self.tokens / step_us / self.cluster.num_gpus
        return self.tflops(step_us)

    @property
    def model(self) -> tuple:
        """Rows of the same model and GPU have the same: among them an order can be asked for."""
        return (self.shape.layers, self.shape.hidden, self.layout.seq, self.cluster.gpu.name)


def load(path: str | Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """(rows, refused) of a file: refused are (id, why). Raises ValueError for a file that can't be
    read, or lacks a column that is needed."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"rows are a CSV file in UTF-8; got {str(path)!r}: {error}") from None
    table = csv.DictReader(text.splitlines())
    lines = list(table)
    columns = table.fieldnames or ()
    if missing := [name for name in NEEDED if name not in columns]:
        raise ValueError(f"rows have the columns {', '.join(HEADER)}; {path} lacks {missing}")
    if not lines:
        raise ValueError(f"a file of rows has a row under its header; {path} has none")
    kept = []
    refused = []
    for number, line in enumerate(lines):
        name = line.get("id") or f"row {number + 1}"
        try:
            kept.append(row(line, name))
        except ValueError as error:
            refused.append((name, str(error)))
    return kept, refused


def timed(plan: Plan, step_us: float, name: str) -> Row:
    """A step of a plan that somebody timed, as a Row. Raises ValueError for a time that can't
    be."""
    check_real(1e-3, 1e15, step_us=step_us)
    return Row(
        id=name,
        source="timed here",
        shape=plan.shape,
        cluster=plan.cluster,
        layout=plan.layout,
        told={"iter_s": step_us / 1e6},
        flops_kind="model",
        notes="",
    )


def row(cells: Mapping[str, object], name: str = "") -> Row:
    """A Row from one line's cells, words or numbers. Raises ValueError, naming the cell, for what
    can't be read."""
    if not isinstance(cells, Mapping):
        raise ValueError(f"a row is a mapping from column to cell; got {cells!r}")
    line = {column: "" if cell is None else str(cell) for column, cell in cells.items()}
    if empty := [column for column in NEEDED if not (line.get(column) or "").strip()]:
        told = f"a row gives {', '.join(NEEDED)}; got none of: {', '.join(empty)}; its columns: "
        raise ValueError(told + brief([*line]))
    shape = Shape(
        name=name,
        layers=_whole(line, "layers"),
        hidden=_whole(line, "hidden"),
        heads=_whole(line, "heads") or max(1, _whole(line, "hidden") // USUAL_HEAD),
        kv_heads=_whole(line, "kv_heads"),
        ffn=_whole(line, "ffn"),
        glu=bool(_whole(line, "glu")),
        vocab=_whole(line, "vocab"),
        tied=bool(_whole(line, "tied")),
        experts=_whole(line, "experts") or 1,
        active_experts=_whole(line, "active_experts") or 1,
    )
    num_gpus = _whole(line, "n_gpus")
    cluster = Cluster(
        gpu=clusters.gpu(line["gpu"]),
        num_gpus=num_gpus,
        per_node=gcd(_whole(line, "gpus_per_node"), num_gpus),  # nodes are full
    )
    told = {each: _number(line, each) for each in QUANTITIES if (line.get(each) or "").strip()}
    return Row(
        id=name,
        source=line.get("source", ""),
        shape=shape,
        cluster=cluster,
        layout=_layout(line, cluster),
        told={each: value for each, value in told.items() if value > 0},
        flops_kind=line.get("flops_kind") or "model",
        notes=line.get("notes") or "",
    )


def _layout(line: dict[str, str], cluster: Cluster) -> Layout:
    inner = _whole(line, "tp") * _whole(line, "cp") * _whole(line, "pp")
    precision = _precision((line.get("precision") or "").strip().lower())
    recompute = (line.get("recompute") or "none").strip().lower()
    zero = _whole(line, "zero")
    dp = _whole(line, "dp") or max(1, cluster.num_gpus // inner)
    if dp * inner != cluster.num_gpus:
        raise ValueError(
            f"tp x cp x pp x dp are all GPUs of a run; got {inner} x {dp} on {cluster.num_gpus}"
        )
    return Layout(
        tp=_whole(line, "tp"),
        cp=_whole(line, "cp"),
        pp=_whole(line, "pp"),
        vpp=max(1, _whole(line, "vpp")),
        dp=dp,
        ep=max(1, _whole(line, "ep")),
        zero=zero,
        sp=bool(_whole(line, "sp")),
        mbs=_whole(line, "mbs"),
        gbs=_whole(line, "gbs"),
        seq=_whole(line, "seq"),
        recompute=RECOMPUTE.get(recompute, "full"),
        precision=precision,
        flash=bool(_whole(line, "flash")),
        recipe=usual_recipe(zero, precision),
        schedule=_schedule(line.get("notes") or ""),
    )


def _precision(told: str) -> str:
    """However it is written: "bf16-mixed", "mxfp8"."""
    named = [each for each in PRECISIONS if each in told]
    if named:
        return named[0]
    return "fp8" if "8" in told or "fp4" in told else "bf16"


def _schedule(notes: str) -> str:
    named = notes.lower().partition("schedule ")[2].split()
    return SCHEDULES.get(named[0].strip(",.;"), "1f1b") if named else "1f1b"


def _number(line: dict[str, str], column: str) -> float:
    cell = (line.get(column) or "").strip()
    if cell.lower() in ("", "nan"):
        return float(USUAL.get(column, 0))
    try:
        value = float(cell)
    except ValueError:
        raise ValueError(f"{column} is a number; got {cell!r}") from None
    if not isfinite(value):
        raise ValueError(f"{column} is a finite number; got {cell!r}")
    return value


def _whole(line: dict[str, str], column: str) -> int:
    value = _number(line, column)
    if value != int(value):
        raise ValueError(f"{column} is a whole number; got {line[column]!r}")
    return int(value)
