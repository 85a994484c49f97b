"""Models and devices as published (data/models.csv, data/hardware.csv), what training one takes,
and bars of that."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit.pictures.bytes_held import LOOKS
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import clipped, text_px
from labkit.sharding import states as sharding_states
from labkit.units import format_bytes
from labkit.words import sentence

DATA = Path(__file__).resolve().parents[2] / "data"
PARTS = ("parameters", "gradients", "optimizer", "activations")


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
        self, batch: int, recipe: str = "mixed", attention: str = "flash"
    ) -> float:
        """What all blocks keep for the backward: ``memory.layer_activation_bytes``, at fp32 twice
        that less the masks of dropout, which have a byte an element in either."""
        recompute = "full" if attention == "recompute" else "none"
        layer = sharding_states.layer_activation_bytes(
            self.seq_len,
            batch,
            self.dim,
            self.heads,
            recompute=recompute,
            flash=attention == "flash",
        )
        if sharding_states.recipe(recipe).dtypes["parameter"] == "float32":
            masks = {
                "flash": 2 * self.dim,
                "stored": 2 * self.dim + self.heads * self.seq_len,
                "recompute": 0,
            }
            layer = 2 * layer - self.seq_len * batch * masks[attention]
        return self.layers * layer

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
        states = sharding_states.by_category(
            sharding_states.state_bytes(self.params, num_ranks, stage, recipe)
        )
        return {**states, "activations": self.activation_bytes(batch, recipe, attention)}


def _rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((DATA / name).read_text(encoding="utf-8").splitlines()))


MODELS = {
    row["name"]: Model(
        name=row["name"],
        params=float(row["params"]),
        **{column: float(row[column] or 0) or None for column in ("train_tokens", "a100_hours")},
        **{column: int(row[column]) for column in ("layers", "dim", "heads", "seq_len")},
    )
    for row in _rows("models.csv")
}
DEVICES = {row["name"]: 1e9 * float(row["memory_gb"]) for row in _rows("hardware.csv")}
"""Bytes of memory by device, as the vendor prints them."""
TFLOPS = {row["name"]: float(row["tflops_16bit"]) for row in _rows("hardware.csv")}
"""Dense 16-bit TFLOP/s by device."""


def stacked(
    rows: Sequence[tuple[str, Mapping[str, float]]],
    say: Mapping[str, str],
    *,
    title: str,
    badge: str,
    numbers: Sequence[tuple[str, str]] = (),
    mark: tuple[str, float] | None = None,
    code: str = "en",
) -> Sketch:
    """Bars of bytes by PARTS, one row after another, with their sums; ``mark`` is a line at (words,
    bytes)."""
    parts = [part for part in PARTS if any(row.get(part) for _, row in rows)]
    left = 10 + min(230.0, max(text_px(label) for label, _ in rows))
    most = max([sum(row.values()) for _, row in rows] + [mark[1] if mark else 0.0])
    scale, y = (WIDTH_PX - left - 76) / most, (84.0 if mark else 60.0)
    shapes: list[Shape] = []
    for label, row in rows:
        x = left
        shapes.append(Words(left - 8, y + 16, clipped(label, left - 8), "end"))
        for part in (part for part in parts if row.get(part)):
            wide = row[part] * scale
            shapes.append(Box(x, y, wide, 24, *LOOKS[part], (format_bytes(row[part]),)))
            x += wide
        shapes.append(
            Words(WIDTH_PX - 4, y + 16, format_bytes(sum(row.values())), "end", bold=True)
        )
        y += 32
    if mark:
        at = left + mark[1] * scale
        anchor, shift = ("end", -4) if at > WIDTH_PX * 0.6 else ("start", 4)
        shapes += [
            Line(((at, top), (at, end)), dash=(4, 3), width_px=1.6, opacity=0.9)
            for top, end in _beside(len(rows))
        ]
        shapes += [Words(at + shift, 72, mark[0], anchor)]
    more, end_px = legend(
        [((Box(0, -7, 22, 14, *LOOKS[part]),), say[part]) for part in parts], left, y
    )
    table = [
        (
            label,
            *(format_bytes(row.get(part, 0)) for part in parts),
            format_bytes(sum(row.values())),
        )
        for label, row in rows
    ]
    spoken_rows = "; ".join(f"{row[0]} {row[-1]}" for row in table)
    return Sketch(
        shapes=(*shapes, *more),
        height_px=end_px,
        heading=title,
        badge=badge,
        numbers=tuple(numbers),
        summary=sentence(title, [(spoken_rows,)], badge, code),
        language=code,
        table=((say["table"], *(say[part] for part in parts), "Σ"), *table),
    )


def _beside(num_rows: int) -> list[tuple[float, float]]:
    """Stretches of the mark's line, above, between and below the words in the middle of the
    bars."""
    gaps = [(72.0 + 32 * row, 88.0 + 32 * row) for row in range(1, num_rows)]
    return [(62.0, 88.0), *gaps, (72.0 + 32 * num_rows, 80.0 + 32 * num_rows)]
