"""The book's pages that are no chapters; links to them from every build of a chapter."""

import re

import builds
import leaves
import pytest
from build import SHEETS
from chapter import Cell, Chapter
from small import ROOT


@pytest.mark.parametrize("language", SHEETS)
def test_glossary_cheat_sheet_and_errata_are_pages(language):
    found = {leaf.name: leaf.body for leaf in leaves.leaves(ROOT, language)}
    assert set(found) == {"glossary", "cheat_sheet", "errata"}
    assert '<a id="all-reduce"></a>' in found["glossary"]
    assert "<mfrac>" in found["cheat_sheet"] and "$" not in found["cheat_sheet"]
    assert re.search(r'href="\d\d_\w+\.html"', found["errata"])


def test_a_small_course_has_none(tiny):
    assert leaves.leaves(tiny, "en") == []


def formulas(text):
    return sorted(re.findall(r"\$[^$]+\$", text))


def test_the_cheat_sheets_have_the_same_formulas():
    english, chinese = ((ROOT / file).read_text(encoding="utf-8") for file in SHEETS.values())
    assert formulas(english) == formulas(chinese)
    assert english.count("\n|") == chinese.count("\n|")


@pytest.mark.parametrize(
    ("language", "kind", "up"),
    [
        ("en", "learner", ""),
        ("zh", "learner", "../"),
        ("en", "solution", "../"),
        ("zh", "solution", "../../"),
    ],
)
def test_a_link_to_a_page_leads_there_from_every_folder(language, kind, up):
    words = "A [bubble](GLOSSARY.md#bubble), [see](02_boards.ipynb), [map](https://a.b/MAP.md)."
    cells = (Cell(kind="markdown", source=f"# {words}", options={}, chinese=f"# {words}"),)
    header = {"sections": ["8.1"], "needs": ["a core"], "minutes": 1}
    chapter = Chapter(name="08_small", header=header, cells=cells, remarks={})
    text = builds.notebook(chapter, language, kind).cells[0].source
    assert f"]({up}GLOSSARY.md#bubble)" in text
    assert "](02_boards.ipynb)" in text and "](https://a.b/MAP.md)" in text
