"""The pace of a chapter is counted as a reader meets it."""

from dataclasses import asdict

import pace
import pytest
from chapter import Cell, Chapter, read
from small import CHAPTERS, NOTEBOOKS

PROSE = """# A title

Three plain words. What is $x^2$ then?

| a | table |
| --- | --- |

<details><summary>Erratum 8.1: it says</summary>

Not counted.
</details>
"""
CODE = """import labkit as lab
from labkit import pipeline
from labkit.pipeline import check
from labkit.units import format_bytes as written

step = pipeline.Step(ranks=2)
lab.launch(len, [1], timeout_s=4, backend="gloo")
written(3)
lab.begin("en", deadline_s=3)
check.order(step)
check.status()
"""


def chapter(*cells):
    made = []
    for source in cells:
        kind = "markdown" if source.startswith("#") else "code"
        made.append(Cell(kind=kind, source=source, options={}))
    return Chapter(name="08_pipeline", header={}, cells=tuple(made), remarks={})


def test_what_is_counted():
    wide = "value = " + " + ".join(["1"] * 30)
    found = pace.pace(chapter(PROSE, CODE, "## More\n\nOne two.", f"{wide}\nguess.score(1)"))
    assert found.chapter == "08"
    assert found.words == 13
    assert found.words_before_picture == found.words_per_picture == 13
    assert (found.cell_median, found.cell_p90) == (6, 2)
    assert found.wide_lines == 1
    assert found.plumbing == 2
    assert found.labkit_names == 5
    assert found.guesses == 1
    assert found.words_per_question == 13
    assert found.words_per_heading == 6


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("step.board()", True),
        ("step", True),
        ("x = 1\nlab.table(rows)", True),
        ("x = 1", False),
        ("print(x)", False),
        ("check.order(order)", False),
        ("ring_check.order(order)", False),
        ("guess.score(3)", False),
        ('lab.begin("en")', False),
        ("", False),
    ],
)
def test_a_cell_that_shows_something(source, shown):
    assert pace.shows(source) == shown


def test_the_first_picture_ends_the_count():
    assert pace.pace(chapter(PROSE, "step.board()", PROSE)).words_before_picture == 9
    assert (
        pace.pace(chapter("# A\n\n![map](map.svg) below", PROSE, "x = 1")).words_before_picture == 4
    )


def test_the_table_has_a_row_for_each_chapter_and_the_aims():
    lines = pace.table([chapter(PROSE, "step.board()")]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| 08 | 9 | 9 |")
    assert lines[3].startswith("| *aim* |  | 150 | 300 | 4 | 12 | 0 |")


FAR_OFF = {
    **pace.AIMS,
    "cell_p90": 14,
    "labkit_names": 24,
    "words_per_heading": 165,
}
"""The aims, and the worst chapter of today where one misses them; of guesses there are so many or
more, of everything else so many or fewer."""


@pytest.mark.parametrize("name", CHAPTERS)
def test_no_chapter_is_far_off(name):
    found = asdict(pace.pace(read(NOTEBOOKS / "src" / f"{name}.py")))
    assert found["guesses"] >= FAR_OFF["guesses"]
    far = {key: found[key] for key in FAR_OFF if key != "guesses" and found[key] > FAR_OFF[key]}
    assert far == {}
