"""Errata: folded boxes of the chapters, the same in both languages, and the page made of them."""

import errata
import pytest
from chapter import Cell, Chapter, read
from small import CHAPTERS, NOTEBOOKS

ENGLISH = """## The bubble

Words.

<details><summary>Erratum 8.6.1, S7: "about 50 %" | of four</summary>

It is 3 of 7. Run it: `bubble()` gives
0.43.

```python
bubble()
```
</details>
"""
CHINESE = """## 气泡

<details><summary>勘误 8.6.1, S7：“约 50%”</summary>

是 3/7。
</details>
"""


def chapter(english, chinese):
    cells = (Cell(kind="markdown", source=english, options={}, chinese=chinese),)
    return Chapter(name="08_pipeline", header={}, cells=cells, remarks={})


def test_a_box_is_read_in_both_languages():
    one = chapter(ENGLISH, CHINESE)
    (english,) = errata.boxes(one, "en")
    assert english == errata.Erratum(
        "08_pipeline",
        "The bubble",
        "8.6.1, S7",
        '"about 50 %" | of four',
        "It is 3 of 7. Run it: `bubble()` gives 0.43.",
    )
    (chinese,) = errata.boxes(one, "zh")
    assert (chinese.where, chinese.says, chinese.right) == ("8.6.1, S7", "“约 50%”", "是 3/7。")
    assert list(errata.faults(one)) == []


def test_the_page_has_a_row_for_each_in_each_language():
    lines = errata.page([chapter(ENGLISH, CHINESE)]).splitlines()
    assert [line for line in lines if "8.6.1" in line] == [
        '| 8.6.1, S7 | "about 50 %" \\| of four | It is 3 of 7. Run it: `bubble()` gives 0.43. '
        "| [08](08_pipeline.ipynb) The bubble |",
        "| 8.6.1, S7 | “约 50%” | 是 3/7。 | [08](zh/08_pipeline.ipynb) 气泡 |",
    ]


@pytest.mark.parametrize(
    ("english", "chinese", "fault"),
    [
        (ENGLISH, "## 气泡\n", "the Chinese none"),
        (ENGLISH, CHINESE.replace("8.6.1, S7", "8.6.2"), "the Chinese 8.6.2"),
        (ENGLISH.replace("</details>", ""), CHINESE, "1 boxes begin with Erratum, 0 can be read"),
        (ENGLISH, CHINESE.replace("是 3/7。", ""), "does not say what is right"),
    ],
)
def test_a_box_that_is_not_well_is_a_fault(english, chinese, fault):
    assert any(fault in each for each in errata.faults(chapter(english, chinese)))


@pytest.mark.parametrize("name", CHAPTERS)
def test_errata_are_about_sections_of_their_chapter(name):
    one = read(NOTEBOOKS / "src" / f"{name}.py")
    assert list(errata.faults(one)) == []
    known = {section.rstrip("ab") for section in one.header["sections"]}
    for each in errata.boxes(one, "en"):
        named = {section.strip() for section in each.where.split(",")}
        assert named & known, f"{each.where} is none of {sorted(known)}"
