"""A Scene as characters, for terminals; a Sketch as its table.

A capital letter begins a box, small letters continue it, dots are idle.
"""

import numpy as np

from labkit.pictures import layout
from labkit.pictures.drawing import Scene
from labkit.pictures.sketch import Sketch
from labkit.pictures.style import IDLE, style
from labkit.units import check_whole


def render(scene: Scene | Sketch, width: int = 100) -> str:
    """The picture in ``width`` columns, then what the letters mean, then its numbers."""
    strips = [] if isinstance(scene, Sketch) else _strips(scene, max(20, width - 10))
    widths = [max(map(len, column)) for column in zip(*scene.table, strict=True)]
    table = (
        "  ".join(cell.rjust(size) for cell, size in zip(line, widths, strict=True))
        for line in scene.table
    )
    return "\n".join([scene.title, "", *strips, *table, "", scene.summary])


def _strips(scene: Scene, columns: int) -> list[str]:
    lines, headings = [], list(scene.headings)
    for index, row in enumerate(scene.rows):
        if headings and headings[0].bottom_px < row.top_px:
            heading = headings.pop(0)
            lines.append(f"{heading.text}: {heading.detail}")
        name = f"rank {row.rank}" if index == 0 or scene.rows[index - 1].rank != row.rank else ""
        lines.append(f"{name:<9} {''.join(cells(scene, index, columns))}".rstrip())
    ticks, unit = layout.ticks(scene)
    kinds = (f"{style(kind).letter} {style(kind).words[scene.language]}" for kind in scene.kinds)
    return [
        *lines,
        " " * 10 + _ruler(scene, ticks, columns) + f" {unit}",
        "",
        "   ".join(kinds),
        "",
    ]


def cells(scene: Scene, row: int, columns: int) -> list[str]:
    """One character per column: the box that lies at the column's middle."""
    check_whole(1, 10_000, columns=columns)
    cells = [" "] * columns
    per_us = columns / (scene.end_us - scene.start_us)
    for i in np.flatnonzero(scene.row == row).tolist():
        first = int(np.ceil((scene.x0_us[i] - scene.start_us) * per_us - 0.5 - 1e-9))
        last = int(np.ceil((scene.x1_us[i] - scene.start_us) * per_us - 0.5 - 1e-9))
        letter = style(str(scene.kind[i])).letter
        if last <= first:
            continue
        text = next(
            (t for t in scene.texts[i] if 0 < len(t) <= last - first and not t.isdigit()), letter
        )
        filler = "." if scene.kind[i] == IDLE else letter.lower()
        cells[first:last] = list(text.ljust(last - first, filler))
    return cells


def _ruler(scene: Scene, ticks: list[tuple[float, str]], columns: int) -> str:
    out = [" "] * (columns + 8)
    for at, text in ticks:
        start = int((at - scene.start_us) * columns / (scene.end_us - scene.start_us))
        out[start : start + len(text)] = text
    return "".join(out).rstrip()
