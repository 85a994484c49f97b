"""Laws of the characters: as wide as asked, every column the kind that runs there, the same numbers
as the pictures."""

import itertools

import pytest
from drawn import busy, predicted, shares

from labkit.pictures import scene
from labkit.pictures.painters import text
from labkit.pictures.style import IDLE, style
from labkit.timeline import from_rows


def strips(drawn: scene.Scene, width: int) -> list[str]:
    lines = text.render(drawn, width).splitlines()
    return [
        line[10:] for line in lines if line.startswith("rank ") and not line.startswith("rank  ")
    ]


def test_gpipe_reads_like_the_picture() -> None:
    assert strips(scene.timeline(predicted()), 43)[0] == "FFFFFFFF.........B0B1B2B3B4B5B6B7"


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zbv"])
def test_columns_have_the_shares_of_the_timeline(name: str) -> None:
    drawn = scene.timeline(predicted(name))
    columns = [text.cells(drawn, row, 400) for row in range(4)]
    for kind, share in shares(drawn).items():
        letter = style(kind).letter
        count = 0
        current = ""
        for character in itertools.chain.from_iterable(columns):
            current = character if not character.isdigit() else current
            count += current.upper() == letter.upper()
        assert count / 1600 == pytest.approx(share, abs=0.02), kind


def test_numbers_are_those_of_the_scene() -> None:
    drawn = scene.compare(predicted(), predicted(message_us=300.0))
    said = text.render(drawn)
    for words in (drawn.title, drawn.summary, *(heading.detail for heading in drawn.headings)):
        assert words in said
    assert all(cell in said for cell in itertools.chain.from_iterable(drawn.table))


def test_lines_are_no_wider_than_asked() -> None:
    for drawn in (
        scene.timeline(busy(4000)),
        scene.timeline(from_rows([], num_ranks=1, origin="recorded")),
    ):
        assert all(len(strip) <= 70 for strip in strips(drawn, 80))
    assert IDLE not in scene.timeline(from_rows([], num_ranks=1, origin="recorded")).kinds
