"""Models and devices as published (data/models.csv, data/hardware.csv), and what training one
takes."""

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from labkit.sharding import states

DATA = Path(__file__).resolve().parents[2] / "data"
PARTS = ("parameters", "gradients", "optimizer", "activations")
"""parts of a bill, in the order in which they are drawn"""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row of data/models.csv."""

    name: str
    """as the field says it"""
    params: float
    """parameters, as published"""
    layers: int
    """blocks"""
    dim: int
    """width"""
    heads: int
    """attention heads"""
    seq_len: int
    """tokens of its longest sequence"""
    train_tokens: float | None
    """what it was trained on; None where the paper does not say"""
    a100_hours: float | None
    """how long that took, on one A100 80 GB if one had done it; None where the paper does not
    say"""

    def activation_bytes(
        self,
        batch: int,
        recipe: str = "mixed",
        attention: str = "flash",
        *,
        tensor_parallel: int = 1,
    ) -> float:
        """What all blocks keep for the backward: ``states.layer_activation_bytes``, at fp32 twice
        that less the masks of dropout, which have a byte an element in either."""
        layer = states.layer_activation_bytes(
            self.seq_len,
            batch,
            self.dim,
            self.heads,
            recompute="full" if attention == "recompute" else "none",
            flash=attention == "flash",
            tensor_parallel=tensor_parallel,
        )
        if states.recipe(recipe).dtypes["parameter"] == "float32":
            layer = 2 * layer - self.seq_len * batch * self._mask_bytes(attention, tensor_parallel)
        return self.layers * layer

    def _mask_bytes(self, attention: str, tensor_parallel: int) -> float:
        """Masks of dropout that a block keeps for a token; those of its heads are split."""
        masks = {
            "flash": 2 * self.dim,
            "stored": 2 * self.dim + self.heads * self.seq_len / tensor_parallel,
            "recompute": 0,
        }
        return masks[attention]

    def bill(
        self,
        batch: int,
        recipe: str = "mixed",
        attention: str = "flash",
        *,
        num_ranks: int = 1,
        stage: int = 0,
    ) -> dict[str, float]:
        """Bytes on each of ``num_ranks`` devices, by PARTS."""
        kinds = states.state_bytes(self.params, num_ranks, stage, recipe)
        activations = self.activation_bytes(batch, recipe, attention)
        return {**states.by_category(kinds), "activations": activations}


def _rows(name: str) -> list[dict[str, str]]:
    """The rows that the boards of chapter 01 offer; the planner knows the others, too."""
    return [row for row in rows(name) if row["board"] == "1"]


@functools.cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """All rows of a table of data/, read once; nobody changes them."""
    return tuple(csv.DictReader((DATA / table).read_text(encoding="utf-8").splitlines()))


def _model(row: dict[str, str]) -> Model:
    whole = {column: int(row[column]) for column in ("layers", "dim", "heads", "seq_len")}
    published = {
        column: float(row[column] or 0) or None for column in ("train_tokens", "a100_hours")
    }
    return Model(name=row["name"], params=float(row["params"]), **whole, **published)


MODELS = {row["name"]: _model(row) for row in _rows("models.csv")}
DEVICES = {row["name"]: 1e9 * float(row["memory_gb"]) for row in _rows("hardware.csv")}
"""Bytes of memory by device, as the vendor prints them."""
TFLOPS = {row["name"]: float(row["tflops_16bit"]) for row in _rows("hardware.csv")}
"""Dense 16-bit TFLOP/s by device."""


def names(table: str) -> list[str]:
    """What a table of data/ has rows of, those that only the planner knows too."""
    return [row["name"] for row in rows(table)]


def training_tokens(name: str) -> float | None:
    """What a model of data/models.csv was trained on, as its paper says; None where it does not, or
    for a model of another name."""
    found = {row["name"]: float(row["train_tokens"] or 0) for row in rows("models.csv")}
    return found.get(name) or None
