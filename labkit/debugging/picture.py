"""What an all-reduce leaves where; and which calls met, of a run in which a rank waits: a lane for
each rank, a column for each collective of the group, at the end the call that nobody answered.

lab.show(picture.all_reduced([0, 1, 2, 3], [6, 6, 6, 6]))
lab.show(picture.calls(error.outcomes))     # error: what lab.launch raised
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from reprlib import repr as brief

from labkit.launching.verdicts.outcome import Outcome
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words
from labkit.pictures.style import CYCLE, style
from labkit.units import check_real, check_whole
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("heading", "Which calls meet"),
        ("waits", "waits"),
        ("missing", "no call"),
        ("number", "call {}"),
        ("reduced", "An all-reduce of {} ranks"),
        ("before", "before"),
        ("after", "after"),
    ]
)
MOST_LANES = 16
"""ranks that are drawn, the first ones of the group"""
MOST_CALLS = 8
"""columns that are drawn, the last ones"""
_LEFT_PX = 76.0
_TOP_PX = 76.0
_WIDTH_PX = 86.0
_HEIGHT_PX = 26.0
_COLUMN_PX = 102.0
_LANE_PX = 42.0


def calls(endings: Sequence[Outcome], *, language: str | None = None) -> Sketch:
    """The collectives of the group in which a rank waits, as the flight recorder numbered them: in
    a column the calls that met, joined by a line. One that did not is marked, and where a rank
    never made it an empty box stands. ``endings``: how each rank ended.

    The last 8 calls of the first 16 ranks. Raises ValueError where no rank waits in a collective.
    """
    pending = list(chain.from_iterable(each.pending for each in endings))
    if not pending:
        raise ValueError(
            "calls that meet are drawn of a run in which a rank waits in a collective; here the "
            f"ranks ended so: {', '.join(each.how for each in endings) or 'there are none'}"
        )
    group = pending[0]["group"]
    called = {each.rank: each.calls for each in endings}
    ranks = sorted(pending[0]["ranks"])[:MOST_LANES]
    made = {rank: _numbered(called.get(rank, ()), group) for rank in ranks}
    numbers = sorted(set().union(*made.values()))[-MOST_CALLS:]

    def build(words: dict[str, str]) -> Sketch:
        say = _WORDS[words["code"]]
        heads = tuple(say["number"].format(number) for number in numbers)
        rows = [_texts(made, rank, numbers, say) for rank in made]
        table = [(f"rank {rank}", *row) for rank, row in zip(made, rows, strict=True)]
        return Sketch(
            shapes=(*_heads(heads), *_lanes(made, numbers, rows)),
            height_px=_TOP_PX + _LANE_PX * len(made),
            heading=say["heading"],
            badge=words["measured"],
            table=(("", *heads), *table),
            language=words["code"],
        )

    return speaking(language, build)


def all_reduced(
    before: Sequence[float], after: Sequence[float], *, language: str | None = None
) -> Sketch:
    """The numbers of a measured all-reduce: a box for what each rank held ``before`` it, arrows
    into the call and out of it, a box for what it held ``after`` it.

    Raises ValueError for other than 1 to 8 ranks, lists of different lengths, and no numbers.
    """
    check_whole(1, MOST_CALLS, ranks=len(before))
    if len(after) != len(before):
        raise ValueError(
            f"every rank holds a number before and one after; got {brief(before)}, {brief(after)}"
        )
    for number in (*before, *after):
        check_real(-1e18, number=number)
    ins = [f"{number:g}" for number in before]
    outs = [f"{number:g}" for number in after]
    ranks = tuple(f"rank {rank}" for rank in range(len(before)))

    def build(words: dict[str, str]) -> Sketch:
        say = _WORDS[words["code"]]
        rows = [(say["before"], *ins), (say["after"], *outs)]
        return Sketch(
            shapes=tuple(chain(_heads(ranks), _reduced(rows))),
            height_px=_TOP_PX + 5 * _HEIGHT_PX + 12,
            heading=say["reduced"].format(len(before)),
            badge=words["measured"],
            table=(("", *ranks), *rows),
            language=words["code"],
        )

    return speaking(language, build)


def _reduced(rows: Sequence[Sequence[str]]) -> Iterator[Shape]:
    """A row of boxes, the call that all go through, the row of boxes after it."""
    colour = style("all_reduce").colour
    width_px = _COLUMN_PX * (len(rows[0]) - 2) + _WIDTH_PX
    middle_px = _TOP_PX + 2 * _HEIGHT_PX
    yield Box(_LEFT_PX, middle_px, width_px, _HEIGHT_PX, colour, "", ("all_reduce",))
    for y, (name, *texts) in zip((_TOP_PX, middle_px + 2 * _HEIGHT_PX), rows, strict=True):
        yield Words(_LEFT_PX - 12, y + 17, name, "end")
        for column, text in enumerate(texts):
            x = _LEFT_PX + _COLUMN_PX * column
            mine = CYCLE[column][0] if y < middle_px else colour
            yield Box(x, y, _WIDTH_PX, _HEIGHT_PX, mine, "", (text,))
            start_px = min(y, middle_px) + _HEIGHT_PX
            ends = tuple((x + _WIDTH_PX / 2, start_px + down) for down in (2, _HEIGHT_PX - 2))
            yield Line(ends, arrow=True)


def _numbered(called: Sequence[dict], group: str) -> dict[int, str]:
    """What a rank called in the group: number -> collective."""
    return {call["seq"]: call["op"] for call in called if call["group"] == group}


def _met(made: Mapping[int, Mapping[int, str]], number: int) -> bool:
    """Whether every rank came to a call."""
    return all(number in each for each in made.values())


def _texts(
    made: Mapping[int, Mapping[int, str]], rank: int, numbers: Sequence[int], say: Mapping[str, str]
) -> list[str]:
    """What stands in the boxes of a rank's lane."""
    return [_text(made, rank, number, say) for number in numbers]


def _text(
    made: Mapping[int, Mapping[int, str]], rank: int, number: int, say: Mapping[str, str]
) -> str:
    """What stands in a rank's box of a call."""
    if number not in made[rank]:
        return say["missing"]
    return made[rank][number] if _met(made, number) else say["waits"]


def _heads(heads: Sequence[str]) -> list[Shape]:
    """The number of each call, above its column."""
    middle = _LEFT_PX + _WIDTH_PX / 2
    return [
        Words(middle + _COLUMN_PX * column, _TOP_PX - 10, head, "middle", opacity=0.8)
        for column, head in enumerate(heads)
    ]


def _lanes(
    made: Mapping[int, Mapping[int, str]], numbers: Sequence[int], rows: Sequence[Sequence[str]]
) -> list[Shape]:
    """A lane of boxes for each rank, and a line down each column in which the calls met."""
    shapes: list[Shape] = []
    for lane, (rank, row) in enumerate(zip(made, rows, strict=True)):
        y = _TOP_PX + _LANE_PX * lane
        shapes.append(Words(_LEFT_PX - 12, y + 17, f"rank {rank}", "end"))
        for column, (number, text) in enumerate(zip(numbers, row, strict=True)):
            x = _LEFT_PX + _COLUMN_PX * column
            met = _met(made, number)
            called = made[rank].get(number, "")
            colour = style(called).colour if called else ""
            alone = bool(called) and not met
            shapes.append(Box(x, y, _WIDTH_PX, _HEIGHT_PX, colour, "", (text,), marked=alone))
            if met and lane:
                middle = x + _WIDTH_PX / 2
                shapes.append(Line(((middle, y - _LANE_PX + _HEIGHT_PX), (middle, y))))
    return shapes
