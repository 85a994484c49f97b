"""What an all-reduce leaves where; and which calls of a run met: a lane for each rank, a column for
each collective of the group; where a rank waits, at the end the call that nobody answered.

lab.show(picture.all_reduced([0, 1, 2, 3], [6, 6, 6, 6]))
lab.show(picture.calls(error.outcomes))     # error: what lab.launch raised
lab.show(picture.calls(run.calls()))        # run: what it returned
"""

import re
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


def calls(
    told: Sequence[Outcome] | Sequence[Sequence[dict]], *, language: str | None = None
) -> Sketch:
    """The collectives of a group, as the flight recorder numbered them: in a column the calls that
    met, joined by a line. In a box stands the name of what the line sends, where it has one, else
    the collective. Marked are calls that met while they send different things, and one that met
    none; where a rank never made it an empty box stands. ``told``: how each rank of a run that
    waits ended, or what each rank of a run that ended well has called, whose first group is drawn.

    The last 8 calls of the first 16 ranks. Raises ValueError where no rank waits in a collective,
    or none has called one.
    """
    waits = all(isinstance(each, Outcome) for each in told)
    made = _of_endings(told) if waits else _of_calls(told)
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


def _of_calls(called: Sequence[Sequence[dict]]) -> dict[int, dict[int, dict]]:
    """Rank -> the number of a call -> that call, of the group that was called first."""
    group = next((each["group"] for each in chain.from_iterable(called)), None)
    made = {rank: _numbered(each, group) for rank, each in enumerate(called)}
    if group is None:
        raise ValueError("calls that meet are drawn of a run that has called a collective")
    return dict([(rank, each) for rank, each in made.items() if each][:MOST_LANES])


def _of_endings(endings: Sequence[Outcome]) -> dict[int, dict[int, dict]]:
    """The same, of the group in which a rank waits."""
    pending = list(chain.from_iterable(each.pending for each in endings))
    if not pending:
        raise ValueError(
            "calls that meet are drawn of a run in which a rank waits in a collective; here the "
            f"ranks ended so: {', '.join(each.how for each in endings) or 'there are none'}"
        )
    called = {each.rank: each.calls for each in endings}
    ranks = sorted(pending[0]["ranks"])[:MOST_LANES]
    return {rank: _numbered(called.get(rank, ()), pending[0]["group"]) for rank in ranks}


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


_Made = Mapping[int, Mapping[int, dict]]


def _numbered(called: Sequence[dict], group: str | None) -> dict[int, dict]:
    """What a rank called in the group: number -> call."""
    return {call["seq"]: call for call in called if call["group"] == group}


def _met(made: _Made, number: int) -> bool:
    """Whether every rank came to a call."""
    return all(number in each for each in made.values())


def _name(call: dict) -> str:
    """What a call's line sends, where that is a name; else the collective."""
    found = re.search(r"\(([A-Za-z_]\w*)\)", call.get("text", ""))
    return found[1] if found else call["op"]


def _agree(made: _Made, number: int) -> bool:
    """Whether all that came to a call send the same thing."""
    return len({_name(each[number]) for each in made.values() if number in each}) == 1


def _texts(made: _Made, rank: int, numbers: Sequence[int], say: Mapping[str, str]) -> list[str]:
    """What stands in the boxes of a rank's lane."""
    return [_text(made, rank, number, say) for number in numbers]


def _text(made: _Made, rank: int, number: int, say: Mapping[str, str]) -> str:
    """What stands in a rank's box of a call."""
    if number not in made[rank]:
        return say["missing"]
    return _name(made[rank][number]) if _met(made, number) else say["waits"]


def _colours(made: _Made, numbers: Sequence[int]) -> dict[str, str]:
    """Name of what is sent -> its colour: a collective's own, one after the other for tensors."""
    colours: dict[str, str] = {}
    for number in numbers:
        for call in (each[number] for each in made.values() if number in each):
            name = _name(call)
            own = style(name).colour if name == call["op"] else CYCLE[len(colours) % len(CYCLE)][0]
            colours.setdefault(name, own)
    return colours


def _heads(heads: Sequence[str]) -> list[Shape]:
    """The number of each call, above its column."""
    middle = _LEFT_PX + _WIDTH_PX / 2
    return [
        Words(middle + _COLUMN_PX * column, _TOP_PX - 10, head, "middle", opacity=0.8)
        for column, head in enumerate(heads)
    ]


def _lanes(made: _Made, numbers: Sequence[int], rows: Sequence[Sequence[str]]) -> list[Shape]:
    """A lane of boxes for each rank, and a line down each column in which the calls met."""
    shapes: list[Shape] = []
    colours = _colours(made, numbers)
    for lane, (rank, row) in enumerate(zip(made, rows, strict=True)):
        y = _TOP_PX + _LANE_PX * lane
        shapes.append(Words(_LEFT_PX - 12, y + 17, f"rank {rank}", "end"))
        for column, (number, text) in enumerate(zip(numbers, row, strict=True)):
            x = _LEFT_PX + _COLUMN_PX * column
            met = _met(made, number)
            called = made[rank].get(number)
            colour = colours[_name(called)] if called else ""
            odd = called is not None and not (met and _agree(made, number))
            shapes.append(Box(x, y, _WIDTH_PX, _HEIGHT_PX, colour, "", (text,), marked=odd))
            if met and lane:
                middle = x + _WIDTH_PX / 2
                shapes.append(Line(((middle, y - _LANE_PX + _HEIGHT_PX), (middle, y))))
    return shapes
