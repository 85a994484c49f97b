"""Who reads what when a sharded checkpoint comes back on another number of ranks."""

from dataclasses import dataclass
from itertools import pairwise

from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words
from labkit.pictures.style import CYCLE
from labkit.shown import Shown
from labkit.units import check_whole
from labkit.words import catalogue, sentence, speaking

_WORDS = catalogue(
    [
        ("title", "One weight of {} rows, saved by {} ranks, loaded by {}"),
        ("saved", "saved: a file of each rank"),
        ("loaded", "loaded: what each rank reads, and from which file"),
        ("files", "files"),
        ("rows", "rows"),
        ("file", "file {}: rows {} to {}"),
        ("from", "file {}"),
    ]
)
_TOP_PX, _LOW_PX, _STRIP_PX = 78.0, 172.0, 40.0


def cuts(num_rows: int, ranks: int) -> list[int]:
    """Where each rank's rows begin, and the end: chunks of one size, the last ones smaller, as
    torch cuts a tensor."""
    check_whole(1, num_rows=num_rows)
    check_whole(1, 64, ranks=ranks)
    size = -(-num_rows // ranks)
    return [min(num_rows, size * rank) for rank in range(ranks + 1)]


def reads(rows: int, writers: int, readers: int) -> list[list[tuple[int, int, int]]]:
    """For each reader (file, first row, row after the last) of what it takes."""
    files = list(enumerate(pairwise(cuts(rows, writers))))
    found = []
    for low, high in pairwise(cuts(rows, readers)):
        pieces = [(file, max(low, start), min(high, end)) for file, (start, end) in files]
        found.append([piece for piece in pieces if piece[1] < piece[2]])
    return found


@dataclass(frozen=True, kw_only=True)
class Resharding(Shown):
    """One weight, saved by some ranks and loaded by others. Shows itself in a notebook: two strips
    as long as its rows, above the files, below what each rank takes out of which."""

    rows: int
    """of the weight"""
    writers: int
    """ranks that saved it, a file each"""
    readers: int
    """ranks that load it"""

    def __post_init__(self) -> None:
        check_whole(1, rows=self.rows)
        check_whole(1, 64, writers=self.writers, readers=self.readers)

    def __repr__(self) -> str:
        return f"Resharding(rows={self.rows}, writers={self.writers}, readers={self.readers})"

    def _picture(self, language: str) -> Sketch:
        return speaking(language, lambda words: _drawn(self, words))


def _drawn(about: Resharding, words: dict[str, str]) -> Sketch:
    say = _WORDS[words["code"]]
    rows = [("", say["files"], say["rows"])]
    taken = reads(about.rows, about.writers, about.readers)
    for rank, pieces in enumerate(taken):
        files = ", ".join(str(file) for file, *_ in pieces)
        span = f"{pieces[0][1]}–{pieces[-1][2] - 1}" if pieces else ""
        rows.append((f"rank {rank}", files, span))
    heading = say["title"].format(about.rows, about.writers, about.readers)
    badge = words["predicted"].lower()
    spoken = ("; ".join(" ".join(row) for row in rows[1:]),)
    return Sketch(
        shapes=(
            *_saved(about.rows, about.writers, say),
            *_loaded(about.rows, taken, say),
        ),
        height_px=_LOW_PX + _STRIP_PX + 26,
        badge=badge,
        heading=heading,
        table=tuple(rows),
        summary=sentence(heading, [spoken], badge, words["code"]),
        language=words["code"],
    )


def _saved(num_rows: int, writers: int, say: dict[str, str]) -> list[Shape]:
    """The upper strip: a box for each file."""
    shapes: list[Shape] = [Words(0, _TOP_PX - 9, say["saved"], opacity=0.8)]
    for file, (start, end) in enumerate(pairwise(cuts(num_rows, writers))):
        texts = (say["file"].format(file, start, end - 1), str(file))
        shapes.append(_box(file, start, end, num_rows, _TOP_PX, texts))
    return shapes


def _loaded(num_rows: int, taken: list, say: dict[str, str]) -> list[Shape]:
    """The lower strip: a box for each piece that is read, a line under all that one rank reads."""
    shapes: list[Shape] = [Words(0, _LOW_PX - 9, say["loaded"], opacity=0.8)]
    for rank, pieces in enumerate(taken):
        for file, start, end in pieces:
            texts = (say["from"].format(file), str(file))
            shapes.append(_box(file, start, end, num_rows, _LOW_PX, texts))
        if pieces:
            left, right = (at * WIDTH_PX / num_rows for at in (pieces[0][1], pieces[-1][2]))
            y = _LOW_PX + _STRIP_PX + 5
            shapes.append(Line(((left + 3, y), (right - 3, y))))
            shapes.append(Words((left + right) / 2, y + 16, f"rank {rank}", "middle"))
    return shapes


def _box(
    file: int, start: int, end: int, num_rows: int, top_px: float, texts: tuple[str, ...]
) -> Box:
    """Rows of a file, in its colour."""
    scale = WIDTH_PX / num_rows
    colour, hatch = CYCLE[file % len(CYCLE)]
    return Box(start * scale, top_px, (end - start) * scale, _STRIP_PX, colour, hatch, texts)
