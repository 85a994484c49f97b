"""A Scene as characters, for terminals; a Sketch as its table.

A capital letter begins a box, small letters continue it, dots are idle.
"""

import numpy as np

from labkit.pictures.drawing import Scene
from labkit.pictures.painters import layout
from labkit.pictures.sketch import Sketch
from labkit.pictures.style import IDLE, style
from labkit.units import check_whole, columns_of, padded


def render(scene: Scene | Sketch, width: int = 100) -> str:
    """The picture in ``width`` columns, then what the letters mean, then its numbers."""
    strips = [] if isinstance(scene, Sketch) else _strips(scene, max(20, width - 10))
    told = [scene.summary, *scene.notes]
    return "\n".join([scene.title, "", *strips, *_table(scene.table), "", *told])


def _table(rows: tuple[tuple[str, ...], ...]) -> list[str]:
    """Lines of cells, each column as wide as its widest."""
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [padded(cell, size, left=True) for cell, size in zip(row, widths, strict=True)]
        lines.append("  ".join(cells))
    return lines


def _strips(scene: Scene, columns: int) -> list[str]:
    lines: list[str] = []
    headings = list(scene.headings)
    for index, row in enumerate(scene.rows):
        if headings and headings[0].bottom_px < row.top_px:
            heading = headings.pop(0)
            lines.append(f"{heading.text}: {heading.detail}")
        is_first = index == 0 or scene.rows[index - 1].rank != row.rank
        name = f"rank {row.rank}" if is_first else ""
        lines.append(f"{name:<9} {''.join(cells(scene, index, columns))}".rstrip())
    ticks, unit = layout.ticks(scene)
    lines.append(f"{' ' * 10}{_ruler(scene, ticks, columns)} {unit}")
    kinds = "   ".join(f"{style(kind).letter} {scene.called(kind)}" for kind in scene.kinds)
    return [*lines, "", kinds, ""]


def cells(scene: Scene, row: int, columns: int) -> list[str]:
    """One character per column: the box that lies at the column's middle."""
    check_whole(1, 10_000, columns=columns)
    cells = [" "] * columns
    per_us = columns / (scene.end_us - scene.start_us)
    for i in np.flatnonzero(scene.row == row).tolist():
        first = int(np.ceil((scene.x0_us[i] - scene.start_us) * per_us - 0.5 - 1e-9))
        last = int(np.ceil((scene.x1_us[i] - scene.start_us) * per_us - 0.5 - 1e-9))
        if last > first:
            cells[first:last] = _box(str(scene.kind[i]), scene.texts[i], last - first)
    return cells


def _box(kind: str, texts: np.ndarray, width: int) -> list[str]:
    """A box ``width`` characters wide: the longest of its texts that fits and is more than a
    number, then the kind's letter again and again."""
    letter = style(kind).letter
    fitting = [text for text in texts if 0 < len(text) <= width and not text.isdigit()]
    text = fitting[0] if fitting else letter
    return list(text.ljust(width, "." if kind == IDLE else letter.lower()))


def _ruler(scene: Scene, ticks: list[tuple[float, str]], columns: int) -> str:
    out = [" "] * (columns + 8)
    for at, text in ticks:
        start = int((at - scene.start_us) * columns / (scene.end_us - scene.start_us))
        out[start : start + len(text)] = text
    return "".join(out).rstrip()
