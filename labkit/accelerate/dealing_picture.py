"""How samples are dealt out to ranks, drawn."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from reprlib import repr as brief

from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend, moved, origin
from labkit.pictures.style import KINDS, text_px
from labkit.words import catalogue, speaking

_WORDS = (
    ("deal", "The samples of each rank, batch by batch"),
    ("rank", "rank {}"),
    ("batch", "batch {}"),
    ("a rank", "rank"),
    ("a batch", "number of the batch"),
    ("samples", "samples"),
    ("fresh", "dealt for the first time"),
    ("again", "dealt again"),
)
_FRESH = KINDS["F"].colour
_SAMPLE_PX = 26.0
_RANK_PX = 62.0


Hands = Sequence[Sequence[Sequence[int]]]
"""the samples of a deal: by rank, then by step, each by its number"""


def draw_deal(deals: Mapping[str, Hands], language: str | None = None) -> Sketch:
    """The samples that ranks drew from a prepared loader, for each of several named deals: a row
    for each rank, a column for each step. A sample is empty where its deal has had it before.

    Raises ValueError for what is no deal.
    """
    if not isinstance(deals, Mapping) or not all(map(_is_deal, deals.values())):
        raise ValueError(
            "deals are names with the samples of each rank and batch, as in "
            f'{{"batches of 2": [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]}}; got {brief(deals)}'
        )

    def build(base: dict[str, str]) -> Sketch:
        code = base["code"]
        say = catalogue(_WORDS)[code]
        shapes: list[Shape] = []
        table = [("", say["a rank"], say["a batch"], say["samples"])]
        x, y, below = 0.0, 44.0, 0.0
        for name, hands in deals.items():
            drawn, wide, high = _grid(name, hands, say)
            if x and x + wide > WIDTH_PX:
                x, y = 0.0, below
            shapes += [moved(shape, x, y) for shape in drawn]
            below = max(below, y + high)
            x += wide + 44
            table += _dealt(name, hands)
        if any(box.texts and not box.colour for box in shapes if isinstance(box, Box)):
            fresh = (Box(0, -7, 22, 14, _FRESH),), say["fresh"]
            again = (Box(0, -7, 22, 14),), say["again"]
            legends, below = legend([fresh, again], 0, below)
            shapes += legends
        return Sketch(
            shapes=tuple(shapes),
            height_px=below,
            heading=say["deal"],
            badge=origin("measured", base),
            language=code,
            table=tuple(table),
        )

    return speaking(language, build)


def _is_deal(hands: object) -> bool:
    """Whether all ranks have as many steps, of whole numbers."""
    try:
        steps = {len(hand) for hand in hands}
        batches = [batch for _, _, batch in _batches(hands)]
        numbers = list(chain.from_iterable(batches))
    except TypeError:
        return False
    return len(steps) == 1 and bool(numbers) and all(isinstance(each, int) for each in numbers)


def _grid(name: str, hands: Hands, say: Mapping[str, str]) -> tuple[list[Shape], float, float]:
    """One deal from (0, 0) on, and how wide and high it is."""
    shapes: list[Shape] = [Words(0, 16, name, bold=True)]
    for rank in range(len(hands)):
        shapes.append(Words(0, 64 + 30 * rank, say["rank"].format(rank)))
    seen: set[int] = set()
    x = _RANK_PX
    for index, batches in enumerate(zip(*hands, strict=True)):
        wide = _SAMPLE_PX * max(map(len, batches))
        shapes.append(Words(x + wide / 2, 38, say["batch"].format(index + 1), "middle"))
        for rank, batch in enumerate(batches):
            for place, sample in enumerate(batch):
                colour = "" if sample in seen else _FRESH
                left = x + _SAMPLE_PX * place
                words = (str(sample),)
                shapes.append(Box(left, 48 + 30 * rank, _SAMPLE_PX - 2, 24, colour, texts=words))
                seen.add(sample)
        x += wide + 14
    return shapes, max(x - 14, text_px(name)), 48.0 + 30 * len(hands) + 10


def _batches(hands: Hands) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Each batch with its rank and its step."""
    for rank, hand in enumerate(hands):
        for index, batch in enumerate(hand):
            yield rank, index, batch


def _dealt(name: str, hands: Hands) -> list[tuple[str, ...]]:
    """A row for each batch: deal, rank, step, samples."""
    return [
        (name, str(rank), str(index + 1), ", ".join(map(str, batch)))
        for rank, index, batch in _batches(hands)
    ]
