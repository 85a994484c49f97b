"""One step of mixed precision as a circle of tensors, each with its type and its bytes."""

from typing import NamedTuple

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, origin
from labkit.pictures.style import CYCLE
from labkit.units import check_word
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("mixed", "One step with master weights"),
        ("autocast", "One step with autocast"),
        ("masters", "master weights"),
        ("moments", "two moments"),
        ("weights", "weights"),
        ("casts", "cast weights"),
        ("activations", "activations"),
        ("gradients", "gradients"),
        ("copies", "fp32 gradients"),
        ("rounded", "rounded"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("update", "update"),
        ("long", "fp32"),
        ("short", "bf16"),
        ("both", "bf16, some fp32"),
        ("bytes", "{} bytes for each parameter"),
        ("few", "{} bytes"),
        ("batch", "grow with the batch"),
        ("each", "bytes: for each parameter"),
        ("tensor", "tensor"),
        ("type", "type"),
        ("size", "size"),
    ]
)
_LOOKS = {"long": CYCLE[0], "short": CYCLE[1], "both": ("#f6cf65", "/")}
"""type -> colour and hatch"""
_TOP_PX = 64.0
_BOX_PX = 152.0
_ARROW_PX = (WIDTH_PX - 4 * _BOX_PX) / 3
_BYTE_PX = 13.0
_UP_PX = 26.0
"""how far from a box's side the update leaves it or reaches it, beside what stands under it"""


class _Held(NamedTuple):
    """A tensor of the step."""

    name: str
    type: str
    num_bytes: int
    """for each parameter; 0 for what grows with the batch"""


_STEPS = {
    "mixed": (
        _Held("masters", "long", 4),
        _Held("weights", "short", 2),
        _Held("activations", "short", 0),
        _Held("gradients", "short", 2),
    ),
    "autocast": (
        _Held("masters", "long", 4),
        _Held("casts", "short", 2),
        _Held("activations", "both", 0),
        _Held("gradients", "long", 4),
    ),
}
_MOMENTS = _Held("moments", "long", 8)
_COPIES = _Held("copies", "long", 4)
"""what the update of the masters takes instead of 16-bit gradients"""


def step(way: str, *, language: str | None = None) -> Sketch:
    """Masters, weights, activations, gradients and back: ``way`` is "mixed" (16-bit weights beside
    their masters) or "autocast". A box is as high as its bytes for each parameter."""
    check_word(way, _STEPS, "way")
    return speaking(language, lambda words: _sketch(way, words))


def _sketch(way: str, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    shapes: list[Shape] = []
    for number, held in enumerate(_STEPS[way]):
        left_px = number * (_BOX_PX + _ARROW_PX)
        shapes += _drawn(held, left_px, _TOP_PX, names)
        if number:
            text = names[("rounded", "forward", "backward")[number - 1]]
            ends = (left_px - _ARROW_PX + 8, left_px - 8)
            y = _TOP_PX + _BYTE_PX
            shapes.append(Words(sum(ends) / 2, y - 7, text, "middle"))
            shapes.append(Line(tuple((x, y) for x in ends), arrow=True))
    low_px = _TOP_PX + 4 * _BYTE_PX + 38
    right = WIDTH_PX - _UP_PX
    under_px = low_px + 4 * _BYTE_PX
    from_px = _TOP_PX + _BYTE_PX * _STEPS[way][-1].num_bytes + 5
    if way == "mixed":
        copy_px = under_px - 2 * _BYTE_PX
        left_px = WIDTH_PX - _BOX_PX
        shapes += _drawn(_COPIES, left_px, copy_px, names)
        shapes.append(Line(((right, from_px), (right, copy_px - 5)), arrow=True))
        path = ((left_px - 8, under_px), (_BOX_PX + 8, under_px))
    else:
        path = ((right, from_px), (right, under_px), (_BOX_PX + 8, under_px))
    shapes += _drawn(_MOMENTS, 0, low_px, names)
    shapes.append(Line(path, arrow=True))
    up = ((_UP_PX, low_px - 5), (_UP_PX, _TOP_PX + 4 * _BYTE_PX + 5))
    shapes.append(Line(up, arrow=True))  # by the moments to the masters
    shapes.append(Words((right + _BOX_PX) / 2, under_px - 7, names["update"], "middle"))
    types = dict.fromkeys(held.type for held in _STEPS[way])
    samples = [((Box(0, -7, 22, 14, *_LOOKS[each]),), names[each]) for each in types]
    keys, end_px = legend([*samples, ((), names["each"])], 0, low_px + 8 * _BYTE_PX + 26)
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=names[way],
        badge=origin("computed", words),
        table=_table(way, names),
        language=words["code"],
    )


def _drawn(held: _Held, left_px: float, top_px: float, names: dict[str, str]) -> list[Shape]:
    """A tensor: its name in a box of its type's colour, and under it its bytes; dashed where it
    has no fixed size."""
    height_px = _BYTE_PX * (held.num_bytes or 4)
    texts = (names[held.name],)
    box = Box(left_px, top_px, _BOX_PX, height_px, *_LOOKS[held.type], texts)
    middle_px = left_px + _BOX_PX / 2
    size = _size(held, names, "few")
    words = Words(middle_px, top_px + height_px + 15, size, "middle", 11, opacity=0.85)
    if held.num_bytes:
        return [box, words]
    right_px = left_px + _BOX_PX
    end_px = top_px + height_px
    corners = ((left_px, top_px), (right_px, top_px), (right_px, end_px), (left_px, end_px))
    return [box, Line((*corners, corners[0]), dash=(6.0, 4.0), width_px=2), words]


def _size(held: _Held, names: dict[str, str], unit: str) -> str:
    """How large a tensor is, in words."""
    return names[unit].format(held.num_bytes) if held.num_bytes else names["batch"]


def _table(way: str, names: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """The same in words."""
    rows = [(names["tensor"], names["type"], names["size"])]
    copies = (_COPIES,) if way == "mixed" else ()
    for held in (*_STEPS[way], *copies, _MOMENTS):
        rows.append((names[held.name], names[held.type], _size(held, names, "bytes")))
    return tuple(rows)
