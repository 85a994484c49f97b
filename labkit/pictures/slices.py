"""Who holds which slice, as boxes: a column per kind of state, in it a strip per rank.

A column is as wide as the whole model in its type; a strip is full where the rank holds it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Words
from labkit.pictures.style import clipped, text_px
from labkit.shards import CATEGORIES, ITEMSIZE, NO_TENSOR, Shards
from labkit.units import format_bytes

LEFT_PX = 64.0
"""room for the names of ranks"""
RIGHT_PX = 108.0
"""room for their sums"""
TOP_PX = 84.0
"""where the first strip begins"""
LOOKS = {
    "parameters": ("#4f9fe3", ""),
    "gradients": ("#f2954b", "\\"),
    "optimizer": ("#43b08a", "."),
    "buffers": ("#a3a8b0", "-"),
    "gathered": ("#9a8fdc", "|"),
    "activations": ("#f6cf65", "/"),
    "temporary": ("#cf8fc2", "x"),
}
"""Colour and hatch of each part of the bill."""
SHARD_LOOKS = LOOKS | {"cache": ("#6fb7b7", "")}
"""The same of each category of shards; a cache stands alone, in inference."""
SPARE_LOOK = ("#a3a8b0", "+")
HOST_HATCH = "/"
_GAP_PX = 5
_SEEN_PX = 0.6
"""a gap between slices that can be seen"""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where each kind of state lies across the picture."""

    widths: dict[str, float]
    """kind -> bytes of its column: the whole model, and room for what belongs to no tensor"""
    offsets: dict[str, int]
    """tensor -> where it begins when all are laid behind each other, in elements"""
    num_elements: int
    """where the last of them ends"""

    @property
    def scale(self) -> float:
        """Pixels per byte."""
        gaps_px = _GAP_PX * len(self.widths)
        room_px = WIDTH_PX - LEFT_PX - RIGHT_PX - gaps_px
        return room_px / (sum(self.widths.values()) or 1.0)

    @property
    def places(self) -> dict[str, float]:
        """Kind -> left edge of its column, in pixels."""
        places = {}
        x = LEFT_PX
        for kind, width in self.widths.items():
            places[kind] = x
            x += width * self.scale + _GAP_PX
        return places


def columns(both: Sequence[Shards]) -> Columns:
    """Columns wide enough for all shards of a picture."""
    offsets = {}
    end = 0
    for tensor, size in _sizes(both).items():
        offsets[tensor] = end
        end += size
    widths = {kind: _width(kind, both, end) for kind in CATEGORIES if kind != "step"}
    seen = {kind: width for kind, width in widths.items() if width}
    return Columns(widths=seen, offsets=offsets, num_elements=end)


def _sizes(both: Sequence[Shards]) -> dict[str, int]:
    """Elements of each tensor of the model."""
    sizes: dict[str, int] = {}
    for each in both:
        for _, kind, tensor, _, stop, _, _ in each.rows():
            of_model = kind in CATEGORIES and kind not in ("step", "buffer")
            if of_model and tensor not in NO_TENSOR:
                sizes[tensor] = max(sizes.get(tensor, 0), stop)
    return sizes


def _width(kind: str, both: Sequence[Shards], num_elements: int) -> float:
    """Bytes of a kind's column; 0 where nobody holds any."""
    held = [each.select(each.kind == kind) for each in both]
    held = [each for each in held if len(each)]
    if not held:
        return 0.0
    if kind == "buffer":
        return float(max(each.rank_bytes.max() for each in held))
    itemsize = 0
    spare = 0
    for each in held:
        rows = zip(each.tensor.tolist(), each.dtype.tolist(), each.num_bytes.tolist(), strict=True)
        for tensor, dtype, num_bytes in rows:
            itemsize = max(itemsize, ITEMSIZE[dtype])
            if tensor in NO_TENSOR:
                spare = max(spare, num_bytes)
    return float(num_elements * itemsize + spare)


def heads(found: Columns, names: Mapping[str, str]) -> list[Shape]:
    """The columns' names; what does not fit stands higher."""
    shapes = []
    for number, (kind, x) in enumerate(found.places.items()):
        room = found.widths[kind] * found.scale
        level = 0 if text_px(names[kind], 11) < room else 1 + number % 2
        name = clipped(names[kind], max(room, 90), 11)
        shapes.append(Words(x, TOP_PX - 6 - 12 * level, name, size_px=11))
    return shapes


def by_rank_and_kind(held: Shards) -> dict[tuple[int, str], list[tuple]]:
    """The rows of each rank and kind."""
    found: dict[tuple[int, str], list[tuple]] = {}
    for row in held.rows():
        found.setdefault(row[:2], []).append(row)
    return found


def strip(rows: Sequence[tuple], kind: str, found: Columns, y: float, height: float) -> list[Shape]:
    """One rank's column: a frame for the whole model, boxes for what it holds."""
    if not rows:
        return []
    x, scale = found.places[kind], found.scale
    size = ITEMSIZE[rows[0][5]]
    whole_px = found.num_elements * size * scale
    shapes: list[Shape] = []
    if kind != "buffer":
        shapes.append(Box(x, y, whole_px, height))
    spans = _behind_each_other(rows) if kind == "buffer" else _in_the_model(rows, found, size)
    drawn = _seen((begin * scale, end * scale, device) for begin, end, device in sorted(spans))
    told = format_bytes(sum(end - begin for begin, end, _ in spans))
    texts = (told,) if len(drawn) == 1 and height > 11 else ()
    colour, plain = SHARD_LOOKS[CATEGORIES[kind]]
    for begin, end, device in drawn:
        hatch = HOST_HATCH if device == "host" else plain
        shapes.append(Box(x + begin, y, end - begin, height, colour, hatch, texts))
    spare = sum((row[4] - row[3]) * ITEMSIZE[row[5]] for row in rows if row[2] in NO_TENSOR)
    if spare:
        shapes.append(Box(x + whole_px, y, spare * scale, height, *SPARE_LOOK))
    return shapes


Span = tuple[float, float, str]
"""begin, end, device"""


def _in_the_model(rows: Iterable[tuple], found: Columns, size: int) -> list[Span]:
    """Slices where their tensors lie, in bytes."""
    spans = []
    for _, _, tensor, start, stop, _, device in rows:
        if tensor not in NO_TENSOR:
            first = found.offsets[tensor]
            spans.append(((first + start) * size, (first + stop) * size, device))
    return spans


def _behind_each_other(rows: Iterable[tuple]) -> list[Span]:
    """Buffers, which are no part of the model, one behind the other, in bytes."""
    spans = []
    at = 0
    for _, _, tensor, start, stop, dtype, device in rows:
        if tensor not in NO_TENSOR:
            end = at + (stop - start) * ITEMSIZE[dtype]
            spans.append((at, end, device))
            at = end
    return spans


def _seen(spans: Iterable[Span]) -> list[Span]:
    """Slices in pixels, from left to right, as they can be seen: what is thinner than a pixel is
    drawn together with the next, and gaps thinner than that move on to the next gap. All together
    are as wide as they were."""
    spans = list(spans)
    drawn: list[Span] = []
    owed = 0.0
    for begin, end, device in spans:
        owed += end - begin
        before = drawn[-1] if drawn else None
        if before and before[2] == device and begin - before[1] < _SEEN_PX:
            drawn[-1] = (before[0], before[1] + owed, device)
            owed = 0.0
        elif owed >= 1:
            drawn.append((max(end - owed, before[1] if before else 0.0), end, device))
            owed = 0.0
    if not drawn and spans:
        begin, _, device = spans[0]
        drawn.append((begin, begin + max(0.8, owed), device))
    return drawn
