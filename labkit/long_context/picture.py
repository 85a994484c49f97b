"""Attention over a cut sequence as a sketch: the table of pairs, and which rank computes which of
them in a round."""

import itertools
from dataclasses import dataclass

from labkit.long_context.attention import Attention
from labkit.pictures.sketch import Box, Shape, Sketch, Words, legend
from labkit.pictures.style import KINDS
from labkit.units import check_whole
from labkit.words import catalogue, speaking

WORDS = catalogue(
    [
        ("heading", "Round {} of {}"),
        ("swapped", "After the all-to-all: every token is here, for some of the heads"),
        ("badge", "computed"),
        ("now", "computed now"),
        ("done", "computed before"),
        ("open", "still to come"),
        ("never", "never: a token may only look back"),
        ("half", "a piece with itself counts half"),
        ("keys", "keys, by piece of the sequence"),
        ("rank", "rank {}"),
        ("piece", "piece {}"),
        ("has", "has the keys of rank {}: {:g} pairs"),
        ("heads", "rank {}, heads {} to {}: {:g} pairs"),
        ("table rank", "rank"),
        ("table pieces", "pieces of queries"),
        ("table keys", "pieces of keys"),
        ("table pairs", "pairs"),
        ("all", "all"),
    ]
)
_LEFT_PX = 74.0
_TOP_PX = 88.0
_SIDE_PX = 310.0
"""of the table of pairs, at most"""
_CELL_PX = 30.0
_BAR_PX = 26.0
"""of a whole pair, in the bars at the right"""


def table(attention: Attention, number: int, language: str | None = None) -> Sketch:
    """The pairs of pieces, those of round ``number`` marked. Raises ValueError for a round that
    there is not."""
    check_whole(0, len(attention.rounds()) - 1, **{"number of the round": number})
    drawing = _Table(attention=attention, number=number)
    return speaking(language, drawing.sketch)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """What ``table`` draws."""

    attention: Attention
    """whose pairs"""
    number: int
    """of the round"""

    @property
    def is_ring(self) -> bool:
        """Whether keys go round."""
        return self.attention.way == "ring"

    @property
    def num_pieces(self) -> int:
        """Rows, and columns."""
        return 2 * self.attention.ranks

    @property
    def cell_px(self) -> float:
        """Of a pair."""
        return min(_CELL_PX, _SIDE_PX / self.num_pieces)

    def rows(self) -> list[int]:
        """The piece of queries of each row: a ring's rank by rank."""
        if not self.is_ring:
            return list(range(self.num_pieces))
        return list(itertools.chain(*self.attention.held()))

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        own = WORDS[words["code"]]
        rounds = len(self.attention.rounds())
        heading = own["heading"].format(self.number + 1, rounds) if self.is_ring else own["swapped"]
        bottom_px = _TOP_PX + self.num_pieces * self.cell_px
        keys, end_px = legend(self._looks(own), 0, bottom_px + 10)
        return Sketch(
            shapes=(*self._heads(own), *self._cells(), *self._ranks(own), *keys),
            height_px=end_px,
            heading=heading,
            badge=own["badge"],
            table=self._numbers(own),
            language=words["code"],
            summary=f"{heading}.",
        )

    def _state(self, query: int, key: int) -> str:
        """Of a pair: now, done, open or never."""
        attention = self.attention
        if attention.causal and key > query:
            return "never"
        if not self.is_ring:
            return "now"
        turn = (self._owner(query) - self._owner(key)) % attention.ranks
        if turn == self.number:
            return "now"
        return "done" if turn < self.number else "open"

    def _owner(self, piece: int) -> int:
        """The rank that holds a piece."""
        return next(rank for rank, held in enumerate(self.attention.held()) if piece in held)

    def _cells(self) -> list[Shape]:
        shapes: list[Shape] = []
        side = self.cell_px
        for row, query in enumerate(self.rows()):
            for key in range(self.num_pieces):
                x = _LEFT_PX + key * side
                y = _TOP_PX + row * side
                shapes.append(self._cell(self._state(query, key), x, y, side))
        return shapes

    def _cell(self, state: str, x: float, y: float, side: float) -> Box:
        """A pair as it looks."""
        colour, hatch = KINDS["forward"].colour, ""
        if state == "never":
            return Box(x + 1, y + 1, side - 2, side - 2, KINDS["wait"].colour, "x", fill=0.0)
        if state == "open":
            return Box(x + 1, y + 1, side - 2, side - 2)
        if state == "done":
            colour = KINDS["optimizer"].colour
        return Box(x + 1, y + 1, side - 2, side - 2, colour, hatch, marked=state == "now")

    def _heads(self, own: dict[str, str]) -> list[Shape]:
        """The columns' names."""
        shapes: list[Shape] = [Words(_LEFT_PX, 64, own["keys"], size_px=11)]
        for key in range(self.num_pieces):
            middle = _LEFT_PX + (key + 0.5) * self.cell_px
            shapes.append(Words(middle, _TOP_PX - 6, str(key), "middle", 11))
        return shapes

    def _ranks(self, own: dict[str, str]) -> list[Shape]:
        """The rows' names, and what each rank does in this round."""
        shapes: list[Shape] = []
        side = self.cell_px
        x = _LEFT_PX + self.num_pieces * side + 24
        works = self.attention.rounds()[self.number]
        for rank, num_pairs in enumerate(works.tolist()):
            y = _TOP_PX + (2 * rank + 1) * side
            if self.is_ring:
                shapes.append(Words(_LEFT_PX - 8, y + 4, own["rank"].format(rank), "end", 11))
            shapes.append(Words(x, y - 5, self._told(own, rank, num_pairs), size_px=11))
            if num_pairs:
                long_px = _BAR_PX * num_pairs
                shapes.append(Box(x, y + 1, long_px, 14, KINDS["forward"].colour))
        if not self.is_ring:
            for row, piece in enumerate(self.rows()):
                y = _TOP_PX + (row + 0.5) * side + 4
                shapes.append(Words(_LEFT_PX - 8, y, own["piece"].format(piece), "end", 11))
        return shapes

    def _told(self, own: dict[str, str], rank: int, num_pairs: float) -> str:
        """What a rank does in this round."""
        attention = self.attention
        if self.is_ring:
            return own["has"].format((rank - self.number) % attention.ranks, num_pairs)
        heads = attention.heads // attention.ranks
        return own["heads"].format(rank, rank * heads, (rank + 1) * heads - 1, num_pairs)

    def _looks(self, own: dict[str, str]) -> list[tuple[tuple[Shape, ...], str]]:
        """The legend: the states that there are, and what counts half."""
        rows = self.rows()
        there = {self._state(*pair) for pair in itertools.product(rows, range(len(rows)))}
        states = [state for state in ("now", "done", "open", "never") if state in there]
        looks = [((self._cell(state, 3, -8, 16),), own[state]) for state in states]
        half: tuple[tuple[Shape, ...], str] = ((), own["half"])
        return [*looks, half] if self.attention.causal else looks

    def _numbers(self, own: dict[str, str]) -> tuple[tuple[str, ...], ...]:
        """The picture as a table."""
        attention = self.attention
        held = attention.held()
        head = tuple(own[f"table {name}"] for name in ("rank", "pieces", "keys", "pairs"))
        rows = [head]
        works = attention.rounds()[self.number].tolist()
        for rank, num_pairs in enumerate(works):
            mine, theirs = own["all"], own["all"]
            if self.is_ring:
                other = held[(rank - self.number) % attention.ranks]
                mine, theirs = (" + ".join(map(str, each)) for each in (held[rank], other))
            rows.append((str(rank), mine, theirs, f"{num_pairs:g}"))
        return tuple(rows)
