"""Every number of the English prose has something behind it: the chapter's code, formulas and
outputs, a step of arithmetic, or a line of ``src/numbers.toml``. And what has nothing is found."""

import checked
import nbformat
import numerals
import pytest
import sourced
import supported
from chapter import Cell, Chapter, read
from small import CHAPTERS, NOTEBOOKS, ROOT
from sourced import Line

KNOWN = sourced.lines(ROOT)


# Again: a time that one run shows may support a number by chance, and the next run shows another.
@pytest.mark.again
@pytest.mark.notebooks
@pytest.mark.parametrize("name", CHAPTERS)
def test_every_number_of_a_chapter_has_something_behind_it(copies, name):
    chapter = read(NOTEBOOKS / "src" / f"{name}.py")
    found = [*supported.shown(checked.load(ROOT, ("en", name)))]
    assert len(found) > 50
    faults = [*sourced.faults(chapter, found, KNOWN)]
    assert faults == [], "\n".join(faults)


def test_every_line_of_the_list_is_said_and_true():
    chapters = [read(NOTEBOOKS / "src" / f"{name}.py") for name in CHAPTERS]
    faults = [fault for line in KNOWN for fault in sourced.line_faults(ROOT, line, chapters)]
    assert faults == [], "\n".join(faults)


def chapter(*prose, code=("x = 7",)):
    """A chapter of some prose and some code."""
    cells = [Cell(kind="markdown", source=each, options={}) for each in prose]
    cells += [Cell(kind="code", source=each, options={}) for each in code]
    return Chapter(name="03_tiny", header={}, cells=tuple(cells), remarks={})


def output(text):
    """What a cell printed, as numbers."""
    printed = nbformat.v4.new_output("stream", text=text)
    cell = nbformat.v4.new_code_cell("", outputs=[printed])
    return [*supported.shown(nbformat.v4.new_notebook(cells=[cell]))]


def faults(one, shown="", known=()):
    """What is said of a chapter, without the way out."""
    found = sourced.faults(one, output(shown), list(known))
    return [fault.partition(". Mend")[0] for fault in found]


@pytest.mark.parametrize(
    ("prose", "shown"),
    [
        ("It takes 3.2 ms.", "3.21 ms"),
        ("It takes 3.2 ms.", "0.00322 s"),
        ("It is 27 % of it.", "27.3 %"),
        ("It holds 7.5 GB.", "7,524 MB"),
        ("About 65,000 of them.", "65504"),
        ("Some 400 ms.", "408 ms"),
        ("A speed of 400 TFLOP/s.", "400 TFLOP/s"),
        ("There are 6.7 billion.", "6,700,000,000"),
        ("See chapter 03, section 8.5 and table 12; Kaplan et al. 2020.", ""),
        ('<details><summary>Erratum 8.5: "28 GB"</summary></details>', ""),
        ("An H100, ZeRO-3 and LLaMA 70B, on ranks 12 and 13.", ""),
        ("A model of 70 B parameters.", ""),
        ("Seven cards: 7 of them.", ""),
        ("Here is $12 + 5$, so 12.", ""),
        ("Call `f(19)`: 19 it is.", ""),
        ("First 12 ms, then 30 ms, so 18 ms later.", "12 ms 30 ms"),
        ("It sends 30 GB at 10 GB/s, in 3 s.", "30 GB 10 GB/s"),
    ],
)
def test_numbers_with_something_behind_them_are_no_fault(prose, shown):
    assert faults(chapter(prose), shown) == []


@pytest.mark.parametrize(
    ("prose", "shown", "words"),
    [
        ("It takes 3.3 ms.", "3.21 ms", "'3.3 ms' in 'It takes 3.3 ms.'"),
        ("It takes 3.2 ms.", "3.2 GB", "'3.2 ms' in 'It takes 3.2 ms.'"),
        ("It is 28 % of it.", "27.3 %", "'28 %' in 'It is 28 % of it.'"),
        ("About 75,000 of them.", "65504", "'75,000' in 'About 75,000 of them.'"),
        ("First 12 ms, then 30 ms, so 19 ms.", "12 ms 30 ms", "'19 ms' in '30 ms, so 19 ms.'"),
    ],
)
def test_a_number_with_nothing_behind_it_is_named(prose, shown, words):
    assert faults(chapter(prose), shown) == [f"03: nothing supports {words}"]


def test_the_message_is_a_line_to_fill_in():
    (told,) = sourced.faults(chapter("It holds 28 GB in all."), [], [])
    assert "under [03]" in told and '"It holds 28 GB in all." = "= 7 * 16"' in told


def test_a_sum_that_is_none_is_found():
    assert (
        faults(chapter("So 8 * 4 = 32, and 200,000 / 6 = 33,000."), "8 4 32 200000 33000 6") == []
    )
    assert faults(chapter("So 8 * 4 = 34."), "8 4 34") == [
        "03: 8 * 4 = 34 is not so: 8 * 4 makes 32"
    ]
    assert faults(chapter("3 / 11 = 27 %, 3 / 11 = 29 %"), "3 11 27 % 29 %") == [
        "03: 3 / 11 = 29 % is not so: 3 / 11 makes 0.272727"
    ]


def line(words, source, number="03"):
    return Line(chapter=number, words=words, source=source)


def test_a_line_of_the_list_supports_the_number_in_its_words_there():
    one = chapter("It holds\n28 GB. Later it holds 29 GB.")
    assert len(faults(one)) == 2
    assert len(faults(one, known=[line("It holds 28 GB", "= 7 * 4")])) == 1
    assert len(faults(one, known=[line("It holds 28 GB", "= 7 * 4", "all")])) == 1
    assert len(faults(one, known=[line("It holds 28 GB", "= 7 * 4", "04")])) == 2


@pytest.mark.parametrize(
    ("words", "source", "fault"),
    [
        ("holds 28 GB", "= 7 * 4", ""),
        ("holds 28 GB", "= 7e9 * 4", ""),
        ("holds 28 GB", "= 7 * 5", "7 * 5 is 35, the prose says 28 GB"),
        ("holds 28 GB", '= planner.Plan(model="LLaMA 7B").shape.layers', "is 32, the prose says"),
        ("has 80 GB", "data/hardware.csv", ""),
        ("holds 28 GB", "data/hardware.csv", "hardware.csv does not hold 28 GB"),
        ("holds 28 GB", "data/none.csv", "there is no none.csv"),
        ("holds 29 GB", "= 29", "no prose says so any more"),
        ("holds 28 GB", "somewhere", "'somewhere' names no source"),
        ("It holds", "a paper, table 3", "the words have one number"),
    ],
)
def test_a_false_line_is_named(words, source, fault):
    one = chapter("It holds 28 GB. A card has 80 GB.")
    found = [*sourced.line_faults(ROOT, line(words, source), [one])]
    assert (fault in found[0]) if fault else found == []


def test_numbers_are_read_with_their_units():
    text = "112 GB, 6.7 billion, 4,096 tokens, 5, 10 and 20 billion; 3.5T, the 95th, 64x; 50 %"
    read = [(each.text, each.value) for each in numerals.numbers(text)]
    assert read == [
        ("112 GB", 112e9),
        ("6.7 billion", 6.7e9),
        ("4,096", 4096),
        ("5", 5e9),
        ("10", 10e9),
        ("20 billion", 20e9),
        ("95th", 95),
        ("64x", 64),
        ("50 %", 0.5),
    ]
