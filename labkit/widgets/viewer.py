"""The trace viewer: any Timeline on one canvas, zoomed, searched and asked in the browser
(``viewer*.js``), without the kernel. Python's half: binary columns out of a Scene, and the widget
that carries them."""

import re
from pathlib import Path

import anywidget
import numpy as np
import traitlets

from labkit.pictures import style
from labkit.pictures.drawing import Row, Scene
from labkit.pictures.style import HATCHES
from labkit.words import WORDS, catalogue

PARTS = ("viewer_data.js", "viewer_painter.js", "viewer.js")
SOURCE = "".join(Path(__file__).with_name(part).read_text(encoding="utf-8") for part in PARTS)
"""The browser's half, as one module: anywidget and pages without a kernel take it as it is."""
_WAY = re.compile(r"\d+>\d+( \[[\d, -]+\])?")
"""label of a message: from a rank to another, and the chunks it carries"""
_WORDS = (
    ("in", "zoom in (+)"),
    ("out", "zoom out (-)"),
    ("all", "show all (0)"),
    ("left", "earlier (←)"),
    ("right", "later (→)"),
    ("previous", "previous of the kind (p)"),
    ("next", "next of the kind (n)"),
    ("zoom", "zoom to selection"),
    ("search", "search labels"),
    ("found", "{} boxes found: n and p walk through them"),
    ("bytes", "bytes"),
    (
        "perfetto",
        "timeline.json: open it at ui.perfetto.dev",
    ),
    (
        "keys",
        "Drag to select, shift-drag to move, ctrl-wheel or + - 0 to zoom, arrows to move, n p to "
        "step.",
    ),
)


class Viewer(anywidget.AnyWidget):
    """One Scene in the browser. ``selection``: the window that was brushed, [start, end] in
    microseconds, or []."""

    _esm = SOURCE
    about = traitlets.Dict().tag(sync=True)
    columns = traitlets.Dict().tag(sync=True)
    selection = traitlets.List().tag(sync=True)

    def __init__(self, scene: Scene) -> None:
        super().__init__(about=about(scene), columns=columns(scene))


def columns(scene: Scene) -> dict[str, bytes]:
    """The boxes as bytes, little-endian, sorted by row, then start; idle time is left out.

    row uint16, look uint8 (index into ``about["looks"]``), label uint32 (into ``about["labels"]``),
    x0 and x1 float64 (microseconds), size float64 (bytes of a message). Raises ValueError beyond
    65,536 rows or 256 looks.
    """
    keep = scene.kind != style.IDLE
    looks = _looks(scene)
    if len(scene.rows) > 65536 or len(looks) > 256:
        raise ValueError(
            f"the viewer takes 65,536 rows and 256 looks; got {len(scene.rows)} and {len(looks)}"
        )
    number = {label: index for index, label in enumerate(_labels(scene))}
    look = {key: index for index, key in enumerate(looks)}
    pairs = zip(scene.kind[keep].tolist(), scene.chunk[keep].tolist(), strict=True)
    texts = map(tuple, scene.texts[keep].tolist())
    parts = {
        "row": scene.row[keep].astype("<u2"),
        "look": np.array([look[pair] for pair in pairs], dtype="<u1"),
        "label": np.array([number[text] for text in texts], dtype="<u4"),
        "x0": scene.x0_us[keep].astype("<f8"),
        "x1": scene.x1_us[keep].astype("<f8"),
        "size": scene.num_bytes[keep].astype("<f8"),
    }
    return {name: part.tobytes() for name, part in parts.items()}


def about(scene: Scene) -> dict:
    """Everything else that the browser needs, as JSON: rows, looks, labels, words, the axis."""
    first_px = min((row.top_px for row in scene.rows), default=0.0)
    top_px = first_px - (16 if scene.headings else 0)
    rows = [_row(scene, row, top_px) for row in scene.rows]
    shades = int(scene.chunk.max(initial=0)) + 1
    looks = [_look(kind, chunk, shades, scene.language) for kind, chunk in _looks(scene)]
    table = {"table": WORDS[scene.language]["table"]}
    return {
        "heading": scene.heading,
        "title": scene.title,
        "summary": scene.summary,
        "words": catalogue(_WORDS)[scene.language] | table,
        "numbers": [list(pair) for pair in scene.numbers],
        "badge": scene.badge,
        "rows": rows,
        "looks": looks,
        "flows": _flows(scene),
        "labels": [list(label) for label in _labels(scene)],
        "headings": [{"text": h.text, "bottom_px": h.bottom_px - top_px} for h in scene.headings],
        "start_us": scene.start_us,
        "end_us": scene.end_us,
        "marks_us": list(scene.marks_us),
        "height_px": max((row["top_px"] + row["height_px"] for row in rows), default=40.0),
    }


def _row(scene: Scene, row: Row, top_px: float) -> dict:
    panel = _panel(scene, row)
    return {
        "name": row.name,
        "rank": row.rank,
        "lane": row.lane,
        "panel": panel,
        "owner": scene.headings[panel].text if scene.headings else "",
        "top_px": row.top_px - top_px,
        "height_px": row.height_px,
    }


def _look(kind: str, chunk: int, num_shades: int, language: str) -> dict:
    look = style.style(kind)
    return {
        "kind": kind,
        "chunk": chunk,
        "letter": look.letter,
        "word": look.words[language],
        "hatch": HATCHES.get(look.hatch),
        "colour": style.shade(look.colour, chunk, num_shades),
    }


def _looks(scene: Scene) -> list[tuple[str, int]]:
    """(kind, chunk) pairs in the picture, in the legend's order."""
    pairs = set(zip(scene.kind.tolist(), scene.chunk.tolist(), strict=True))
    order = scene.kinds
    busy = [(kind, chunk) for kind, chunk in pairs if kind != style.IDLE]
    return sorted(busy, key=lambda pair: (order.index(pair[0]), pair[1]))


def _labels(scene: Scene) -> list[tuple[str, ...]]:
    """What stands in the boxes, each wording once."""
    return list(dict.fromkeys(map(tuple, scene.texts[scene.kind != style.IDLE].tolist())))


def _panel(scene: Scene, row: Row) -> int:
    """Which heading a row stands under; 0 where there is none."""
    return max(0, sum(heading.bottom_px < row.top_px for heading in scene.headings) - 1)


def _flows(scene: Scene) -> list[list[int]]:
    """Pairs of box numbers, from a send to its receive: the n-th send "0>1" and the n-th recv "0>1"
    of a panel."""
    ends: dict[tuple, tuple[list[int], list[int]]] = {}
    kept = np.flatnonzero(scene.kind != style.IDLE)
    for number, box in enumerate(kept.tolist()):
        kind = str(scene.kind[box])
        way = str(scene.texts[box, 0])
        if kind in ("send", "recv") and _WAY.fullmatch(way):
            panel = _panel(scene, scene.rows[scene.row[box]])
            sent, received = ends.setdefault((panel, way), ([], []))
            mine = sent if kind == "send" else received
            mine.append(number)
    flows: list[list[int]] = []
    for sent, received in ends.values():
        flows += [list(pair) for pair in zip(sent, received, strict=False)]
    return flows
