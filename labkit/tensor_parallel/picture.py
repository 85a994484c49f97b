"""A cut layer as a drawing: a row per rank, each matrix with the rank's slice of it, what flows
between them, and the collectives where they must be; moment by moment, forward and backward.

Matrices stand as the papers write them: Y = XA, features in from top to bottom, features out from
left to right. So a column is a strip from top to bottom, and a row a strip from left to right.
"""

from collections.abc import Iterator
from typing import NamedTuple

from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE, KINDS
from labkit.tensor_parallel import cut
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.messages import Message
from labkit.units import check_whole, format_bytes
from labkit.words import catalogue, speaking

MOST_ROWS = 4
"""ranks that are drawn"""
STREAM = "#c9ced6"
"""what every rank holds alike"""
STATIONS = (
    ("X", "stream"),
    ("qkv", "weight"),
    ("attn", "cut"),
    ("out", "weight"),
    ("Σ", "summand"),
    ("X", "stream"),
    ("up", "weight"),
    ("h", "cut"),
    ("down", "weight"),
    ("Σ", "summand"),
    ("X", "stream"),
)
"""What the layer is made of, from left to right: (name, kind)"""
GAPS = {0: "attention", 4: "attention", 5: "mlp", 9: "mlp"}
"""station after which a collective may stand -> the part that it belongs to"""


class Stop(NamedTuple):
    """A moment of the step."""

    key: str
    """its words"""
    way: str
    """"forward" or "backward\""""
    live: tuple[int, ...]
    """the stations that are worked on"""
    gap: int = -1
    """the gap whose collective goes now; -1: none"""


STOPS = (
    Stop("enter", "forward", (0,)),
    Stop("column", "forward", (1, 2), 0),
    Stop("row", "forward", (3, 4)),
    Stop("sum", "forward", (5,), 4),
    Stop("column_mlp", "forward", (6, 7), 5),
    Stop("row", "forward", (8, 9)),
    Stop("sum", "forward", (10,), 9),
    Stop("enter_back", "backward", (10,)),
    Stop("row_back", "backward", (7, 8, 9), 9),
    Stop("column_back", "backward", (6,)),
    Stop("sum_back", "backward", (5,), 5),
    Stop("row_back", "backward", (2, 3, 4), 4),
    Stop("column_back", "backward", (1,)),
    Stop("sum_back", "backward", (0,), 0),
)
"""The moments of a step, forward and backward."""
WORDS = catalogue(
    [
        ("forward", "forward"),
        ("backward", "backward"),
        ("heading", "{}: {}, moment {} of {}"),
        ("holds", "a rank holds"),
        ("hands", "hands in per step"),
        ("computed", "computed"),
        ("all_reduce", "all-reduce"),
        ("all_gather", "all-gather"),
        ("reduce_scatter", "reduce-scatter"),
        ("more", "{} of {} ranks are drawn; the others do the same with their own slices."),
        ("same", "on every rank the same"),
        ("slice", "the rank's own slice or features"),
        ("summand", "a summand: the ranks' sum is what counts"),
        ("message", "a collective: every rank waits for it"),
        ("rank", "rank"),
        ("heads", "heads"),
        ("kv", "heads of keys"),
        ("features", "features of the MLP"),
        ("bytes", "weights"),
    ]
)
_LEFT_PX = 62.0
_TOP_PX = 92.0
_BOX_PX = 46.0
_HIGH_PX = 40.0
_ROW_PX = 52.0
_GAP_PX = 16.0
_WIDE_GAP_PX = 44.0


def layer(step: Layer, moment: int = 0, *, language: str | None = None) -> Sketch:
    """A cut layer at a moment of its step, 0 to 13: what is worked on stands out, what is not is
    pale. Raises ValueError for another moment."""
    check_whole(0, len(STOPS) - 1, moment=moment)
    return speaking(language, _Drawing(step=step, moment=moment).sketch)


def messages_at(step: Layer, moment: int) -> list[Message]:
    """The collectives of a moment, in order. Raises ValueError for a moment that there is not."""
    check_whole(0, len(STOPS) - 1, moment=moment)
    stop = STOPS[moment]
    found = []
    for each in step.messages():
        in_layer = each.way == stop.way and each.place in GAPS.values()
        if in_layer and _gap_of(each) == stop.gap:
            found.append(each)
    return found


def _gap_of(message: Message) -> int:
    """Where a message of attention or MLP stands: f's gap before the column, or g's after the
    row."""
    gaps = [gap for gap, place in GAPS.items() if place == message.place]
    sums = message.collective in ("all_reduce", "reduce_scatter")
    again = message.hides and not sums  # a column's input, gathered once more
    before = again or (message.way == "forward") != sums
    return gaps[0] if before else gaps[1]


class _Drawing(NamedTuple):
    """What ``layer`` draws."""

    step: Layer
    """the layer"""
    moment: int
    """which of STOPS"""

    @property
    def stop(self) -> Stop:
        """The moment."""
        return STOPS[self.moment]

    @property
    def num_rows(self) -> int:
        """Ranks that are drawn."""
        return min(self.step.ranks, MOST_ROWS)

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        say = WORDS[words["code"]]
        shapes: list[Shape] = [*self._names()]
        for rank in range(self.num_rows):
            shapes.append(Words(_LEFT_PX - 10, _top(rank) + 25, f"rank {rank}", "end"))
            for index in range(len(STATIONS)):
                shapes += self._station(index, rank)
            shapes += self._arrows(rank)
        shapes += self._collectives(say)
        keys, end_px = legend(self._keys(say), 0, _top(self.num_rows) + 4)
        step = self.step
        title = step.title(words["code"])
        place = say["heading"].format(title, say[self.stop.way], self.moment + 1, len(STOPS))
        left_out = (say["more"].format(self.num_rows, step.ranks),)
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=place,
            badge=say["computed"],
            numbers=(
                (say["holds"], format_bytes(step.rank_bytes())),
                (say["hands"], format_bytes(sum(step.payload().values()))),
            ),
            notes=left_out if self.num_rows < step.ranks else (),
            table=tuple(self._table(say)),
            language=words["code"],
        )

    def _names(self) -> Iterator[Words]:
        """What stands in each column."""
        for index, (name, _) in enumerate(STATIONS):
            yield Words(_left(index) + _BOX_PX / 2, _TOP_PX - 8, name, "middle", bold=True)

    def _station(self, index: int, rank: int) -> list[Shape]:
        """A matrix: its frame, and what of it the rank has."""
        x = _left(index)
        y = _top(rank)
        frame = Box(x, y, _BOX_PX, _HIGH_PX, marked=index in self.stop.live)
        return [*(self._filled(each, index, x, y, rank) for each in self._held(index, rank)), frame]

    def _arrows(self, rank: int) -> Iterator[Line]:
        """Into each matrix that is worked on, from the one before it in this pass."""
        y = _top(rank) + _HIGH_PX / 2
        for index in self.stop.live:
            if self.stop.way == "forward" and index:
                yield Line(((_left(index - 1) + _BOX_PX, y), (_left(index) - 1, y)), arrow=True)
            elif self.stop.way == "backward" and index < len(STATIONS) - 1:
                yield Line(((_left(index + 1), y), (_left(index) + _BOX_PX + 1, y)), arrow=True)

    def _filled(self, held: "_Part", index: int, x: float, y: float, rank: int) -> Box:
        """A part of a matrix, in full colour where it is worked on."""
        left, top, wide, high = held.place
        colour = CYCLE[rank % 8][0] if held.own else STREAM
        return Box(
            x + left * _BOX_PX,
            y + top * _HIGH_PX,
            wide * _BOX_PX,
            high * _HIGH_PX,
            colour,
            "/" if held.summand else "",
            fill=1.0 if index in self.stop.live else 0.0,
        )

    def _held(self, index: int, rank: int) -> Iterator["_Part"]:
        """The parts of a station that a rank has: (left, top, width, height) of the matrix."""
        name, kind = STATIONS[index]
        pieces = {each.name: each for each in self.step.pieces(rank)}
        if kind == "weight":
            yield from _strips(pieces[f"{name}.weight"])
        elif kind == "cut":
            opened = pieces["qkv.weight" if name == "attn" else "up.weight"]
            total = self.step.hidden if name == "attn" else opened.shape[0]
            first = opened.ranges[0]
            yield _Part((first.start / total, 0.0, len(first) / total, 1.0), True, False)
        elif self._is_summand(index, kind):
            yield _Part((0.0, 0.0, 1.0, 1.0), True, True)
        elif kind == "stream" and self.step.sequence_parallel:
            rows = cut.share(self.step.sequence, self.step.ranks, rank)
            total = self.step.sequence
            yield _Part((0.0, rows.start / total, 1.0, len(rows) / total), True, False)
        else:
            yield _Part((0.0, 0.0, 1.0, 1.0), False, False)

    def _is_summand(self, index: int, kind: str) -> bool:
        """After a row in the forward every rank has a summand of the stream."""
        return kind == "summand" and self.stop.way == "forward"

    def _collectives(self, say: dict[str, str]) -> Iterator[Shape]:
        """A bar across all ranks where a collective must be in this pass; the one that goes now
        stands out."""
        bottom = _top(self.num_rows) - (_ROW_PX - _HIGH_PX)
        for gap, names in self._by_gap().items():
            x = _left(gap) + _BOX_PX + _WIDE_GAP_PX / 2
            now = gap == self.stop.gap
            for number, name in enumerate(names):
                at = x + 10 * (number - (len(names) - 1) / 2)
                look = KINDS[name]
                fill = 1.0 if now else 0.0
                high = bottom - _TOP_PX
                yield Box(at - 4, _TOP_PX, 8, high, look.colour, look.hatch, fill=fill, marked=now)
            if now:
                yield Words(x, _TOP_PX - 26, say[names[-1]], "middle", bold=True)
                yield Line(((x, _TOP_PX - 21), (x, _TOP_PX - 3)), width_px=1.2, arrow=True)

    def _by_gap(self) -> dict[int, list[str]]:
        """Gap -> the collectives there in this pass, in order."""
        found: dict[int, list[str]] = {}
        for each in self.step.messages():
            if each.way == self.stop.way and each.place in GAPS.values():
                found.setdefault(_gap_of(each), []).append(each.collective)
        return found

    def _keys(self, say: dict[str, str]) -> list[tuple[list[Shape], str]]:
        """What looks mean."""
        own = CYCLE[0][0]
        message = KINDS["reduce_scatter" if self.step.sequence_parallel else "all_reduce"]
        return [
            ([Box(0, -7, 22, 14, STREAM)], say["same"]),
            ([Box(0, -7, 22, 14, own)], say["slice"]),
            ([Box(0, -7, 22, 14, own, "/")], say["summand"]),
            ([Box(7, -7, 8, 14, message.colour, message.hatch)], say["message"]),
        ]

    def _table(self, say: dict[str, str]) -> Iterator[tuple[str, ...]]:
        """What each rank has, for who reads."""
        yield tuple(say[key] for key in ("rank", "heads", "kv", "features", "bytes"))
        shape = self.step.shape()
        for rank in range(self.num_rows):
            queries, pairs = cut.heads(shape.heads, shape.num_kv_heads, self.step.ranks, rank)
            features = cut.share(shape.ffn_width, self.step.ranks, rank)
            ranges = [_written(each) for each in (queries, pairs, features)]
            yield str(rank), *ranges, format_bytes(self.step.rank_bytes(rank))


class _Part(NamedTuple):
    """What a rank has of a matrix."""

    place: tuple[float, float, float, float]
    """left, top, width and height, as shares of the matrix"""
    own: bool
    """whether the other ranks have something else"""
    summand: bool
    """whether only the sum over the ranks counts"""


def _strips(piece: cut.Piece) -> Iterator[_Part]:
    """A weight's slices. torch's dimension 0 is features out: from left to right here."""
    size = piece.shape[piece.dim]
    for each in piece.ranges:
        at = each.start / size
        long = len(each) / size
        place = (at, 0.0, long, 1.0) if piece.dim == 0 else (0.0, at, 1.0, long)
        yield _Part(place, True, False)


def _left(index: int) -> float:
    """Where a station begins."""
    wide = sum(gap < index for gap in GAPS)
    return _LEFT_PX + index * (_BOX_PX + _GAP_PX) + wide * (_WIDE_GAP_PX - _GAP_PX)


def _top(rank: int) -> float:
    return _TOP_PX + rank * _ROW_PX


def _written(each: range) -> str:
    """A range as people read it: its first and its last."""
    if not each:
        return "-"
    return str(each.start) if len(each) == 1 else f"{each.start}-{each.stop - 1}"
