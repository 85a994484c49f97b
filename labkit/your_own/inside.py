"""The operators of a small function in the order in which they run, and whose results autograd
keeps, as a picture."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend
from labkit.pictures.slices import LOOKS
from labkit.pictures.style import text_px
from labkit.units import brief
from labkit.words import catalogue, speaking

if TYPE_CHECKING:
    from torch import Tensor

WORDS = catalogue(
    [
        ("heading", "Operators in their order"),
        ("badge", "measured"),
        ("kept", "kept for the backward"),
        ("gone", "made and let go"),
        ("count", "{} kept"),
        ("way", "way"),
        ("operators", "operators"),
    ]
)
INPUT = "x"
MOST = 14
"""operators of a row"""
_COLOUR, _HATCH = LOOKS["activations"]
_TOP_PX, _BOX_PX, _ROW_PX = 62.0, 26.0, 38.0
_RIGHT_PX = 66.0
"""room for the counts"""


class Made(NamedTuple):
    """A tensor as large as the input."""

    operator: str
    """whose result it is; INPUT for what was given"""
    kept: bool
    """whether autograd holds it after the forward"""


def operators(ways: Mapping[str, Callable], width: int = 8) -> Sketch:
    """For ``lab.show``: a row for each function, called with a tensor of two rows of ``width``
    numbers: the operators whose results are as large as that, and which of them autograd keeps.

    Raises ValueError for functions that don't take such a tensor, or make more than MOST.
    """
    if not isinstance(ways, Mapping) or not ways or not all(map(callable, ways.values())):
        raise ValueError(f"ways are functions, each by its name; got {brief(ways)}")
    found = {str(name): recorded(way, width) for name, way in ways.items()}
    for name, row in found.items():
        if len(row) > MOST:
            raise ValueError(f"a row has {MOST} operators at most; {name!r} has {len(row)}")

    def build(words: dict[str, str]) -> Sketch:
        return _drawn(found, WORDS[words["code"]], words["code"])

    return speaking(None, build)


def recorded(way: Callable, width: int = 8) -> list[Made]:
    """What ``operators`` draws of one function: its input, then a result a row."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    given = torch.randn(2, width, requires_grad=True)
    made: list[tuple[str, Tensor]] = [(INPUT, given)]  # alive, so that no storage is used twice

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.numel() == given.numel():
                made.append((func.overloadpacket.__name__, found))
            return found

    kept: set[int] = set()

    def pack(tensor: "Tensor") -> "Tensor":
        kept.add(_storage(tensor))
        return tensor

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), Watch():
            way(given)
    except (RuntimeError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"a way takes a tensor of 2 x {width} numbers: {error}") from error
    first: dict[int, str] = {}
    for name, tensor in made:
        first.setdefault(_storage(tensor), name)
    return [Made(name, storage in kept) for storage, name in first.items()]


def _storage(tensor: "Tensor") -> int:
    return tensor.untyped_storage().data_ptr()


def _drawn(found: dict[str, list[Made]], own: dict[str, str], language: str) -> Sketch:
    left_px = 8 + max(text_px(name) for name in found)
    step_px = (WIDTH_PX - left_px - _RIGHT_PX) / max(map(len, found.values()))
    shapes: list[Shape] = []
    table = [(own["way"], own["operators"], own["kept"])]
    for number, (name, row) in enumerate(found.items()):
        y_px = _TOP_PX + number * _ROW_PX
        middle_px = y_px + _BOX_PX / 2 + 4
        shapes.append(Words(left_px - 8, middle_px, name, anchor="end"))
        for place, each in enumerate(row):
            x_px = left_px + place * step_px
            shapes.append(_box(x_px, y_px, step_px - 4, each.kept, each.operator))
        count = own["count"].format(sum(each.kept for each in row))
        shapes.append(Words(WIDTH_PX - 2, middle_px, count, anchor="end", bold=True))
        every = " ".join(each.operator for each in row)
        kept = " ".join(each.operator for each in row if each.kept)
        table.append((name, every, kept))
    samples = [((_box(0, -7, 22, kept),), own[key]) for key, kept in (("kept", 1), ("gone", 0))]
    keys, end_px = legend(samples, left_px, _TOP_PX + len(found) * _ROW_PX + 2)
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=own["heading"],
        badge=own["badge"],
        table=tuple(table),
        language=language,
        summary=f"{own['heading']}.",
    )


def _box(x_px: float, y_px: float, width_px: float, kept: float, text: str = "") -> Box:
    texts = (text,) if text else ()
    height_px = _BOX_PX if text else 14
    if kept:
        return Box(x_px, y_px, width_px, height_px, _COLOUR, _HATCH, texts)
    return Box(x_px, y_px, width_px, height_px, texts=texts)
