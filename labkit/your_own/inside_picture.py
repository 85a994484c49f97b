"""The operators of a small function in the order in which they run, and whose results autograd
keeps, as a picture."""

from collections.abc import Mapping, Sequence

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend
from labkit.pictures.slices import LOOKS
from labkit.pictures.style import clipped, text_px
from labkit.units import brief
from labkit.words import catalogue, speaking

Row = Sequence[tuple[str, bool]] | Mapping[str, int]
"""operators with whether their results are kept, or with the bytes kept of them"""

WORDS = catalogue(
    [
        ("heading", "Operators in their order"),
        ("kept", "kept for the backward"),
        ("gone", "made and let go"),
        ("count", "{} kept"),
        ("bytes", "{} bytes"),
        ("way", "way"),
        ("operators", "operators"),
    ]
)
MOST = 14
"""operators of a row"""
_COLOUR, _HATCH = LOOKS["activations"]
_TOP_PX, _BOX_PX, _ROW_PX = 46.0, 26.0, 38.0
_NAME_PX = 17.0
"""above the boxes of a row that have bytes: their operators"""
_GAP_PX = 4.0
_RIGHT_PX = 66.0
"""room for the counts"""


def operators(ways: Mapping[str, Row], *, counted: bool = False) -> Sketch:
    """For ``lab.show``: a row for each name -> what ``recorded`` returned of a function: its
    operators, those marked whose results autograd keeps. A row may also be a dict, operator ->
    bytes kept of its result; then a box is as wide as its bytes, and their sum is shown.
    ``counted``: they were counted by hand, not recorded.

    Raises ValueError for other things, or more than MOST operators.
    """
    if not isinstance(ways, Mapping) or not ways or not all(map(_is_row, ways.values())):
        raise ValueError(
            f"ways are what recorded() returned, or dicts of bytes, each by its name, {MOST} "
            f"operators at most; got {brief(ways)}"
        )
    found = {str(name): row for name, row in ways.items()}

    def build(words: dict[str, str]) -> Sketch:
        badge = words["computed" if counted else "measured"]
        return _drawn(found, WORDS[words["code"]], badge, words["code"])

    return speaking(None, build)


def _is_row(row: object) -> bool:
    """Whether it is a list of (operator, kept), or a dict of operator -> bytes."""
    if isinstance(row, Mapping):
        named = all(isinstance(name, str) for name in row)
        sizes = all(type(size) is int and size >= 0 for size in row.values())
        return 0 < len(row) <= MOST and named and sizes
    if not isinstance(row, list) or not 0 < len(row) <= MOST:
        return False
    pairs = [each for each in row if isinstance(each, tuple) and len(each) == 2]
    return len(pairs) == len(row) and all(isinstance(name, str) for name, _ in pairs)


def _marked(row: Row) -> list[tuple[str, bool]]:
    """(operator, kept) of a row, its bytes written behind the operator, if it has any."""
    if isinstance(row, Mapping):
        return [(f"{name}: {size}", size > 0) for name, size in row.items()]
    return list(row)


def _total(row: Row, own: dict[str, str]) -> str:
    """How much of a row is kept, in words."""
    if isinstance(row, Mapping):
        return own["bytes"].format(sum(row.values()))
    return own["count"].format(sum(kept for _, kept in row))


def _drawn(found: dict[str, Row], own: dict[str, str], badge: str, code: str) -> Sketch:
    left_px = 8 + max(text_px(name) for name in found)
    widths_px = _widths(list(found.values()), WIDTH_PX - left_px - _RIGHT_PX)
    shapes: list[Shape] = []
    table = [(own["way"], own["operators"], own["kept"])]
    y_px = _TOP_PX
    for (name, given), wide_px in zip(found.items(), widths_px, strict=True):
        row = _marked(given)
        names = list(given) if isinstance(given, Mapping) else []
        y_px += _NAME_PX if names else 0
        middle_px = y_px + _BOX_PX / 2 + 4
        shapes.append(Words(left_px - 8, middle_px, name, anchor="end"))
        x_px = left_px
        for place, (operator, is_kept) in enumerate(row):
            text = operator
            if names:
                text = str(given[names[place]])
                above = clipped(names[place], wide_px[place] + _GAP_PX, 11)
                at_px = x_px + wide_px[place] / 2
                shapes.append(Words(at_px, y_px - 5, above, "middle", 11))
            shapes.append(_box(x_px, y_px, wide_px[place], is_kept, text))
            x_px += wide_px[place] + _GAP_PX
        kept = [operator for operator, is_kept in row if is_kept]
        total = _total(given, own)
        shapes.append(Words(WIDTH_PX - 2, middle_px, total, anchor="end", bold=True))
        every = " ".join(operator for operator, _ in row)
        table.append((name, every, " ".join(kept)))
        y_px += _ROW_PX
    samples = [((_box(0, -7, 22, key == "kept"),), own[key]) for key in ("kept", "gone")]
    keys, end_px = legend(samples, left_px, y_px + 2)
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=own["heading"],
        badge=badge,
        table=tuple(table),
        language=code,
        summary=f"{own['heading']}.",
    )


def _widths(rows: Sequence[Row], room_px: float) -> list[list[float]]:
    """How wide each row's boxes are: alike, or where they have bytes, as those; one of no bytes is
    as wide as the longest name of these."""
    alike_px = room_px / max(map(len, rows)) - _GAP_PX
    counted = [row for row in rows if isinstance(row, Mapping)]
    gone: list[str] = []
    for row in counted:
        gone += [name for name, size in row.items() if not size]
    gone_px = min(0.6 * alike_px, max((text_px(name, 11) for name in gone), default=0.0))
    byte_px = room_px
    for row in counted:
        left_px = room_px - len(row) * _GAP_PX - gone_px * sum(not size for size in row.values())
        byte_px = min(byte_px, left_px / max(1, sum(row.values())))
    found = []
    for row in rows:
        wide_px = [alike_px] * len(row)
        if isinstance(row, Mapping):
            wide_px = [size * byte_px or gone_px for size in row.values()]
        found.append(wide_px)
    return found


def _box(x_px: float, y_px: float, width_px: float, kept: bool, text: str = "") -> Box:
    texts = (text,) if text else ()
    height_px = _BOX_PX if text else 14
    if kept:
        return Box(x_px, y_px, width_px, height_px, _COLOUR, _HATCH, texts)
    return Box(x_px, y_px, width_px, height_px, texts=texts)
