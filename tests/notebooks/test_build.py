"""The builder, on one small chapter: four builds of one source, and every fault is named."""

import build
import builds
import nbformat
import pytest
from chinese import fingerprint
from law import check_builds
from small import NOTEBOOKS, code_of, edit, load


def test_four_builds_of_one_source(tiny):
    check_builds(tiny, "03_tiny")
    learner = code_of(load(tiny, "03_tiny", "zh", "learner"))[-1]
    solution = code_of(load(tiny, "03_tiny", "zh", "solution"))[-1]
    assert learner == f'def double(x):\n    """Twice x."""\n    if x:\n        {builds.STUB}'
    assert (
        solution
        == 'def double(x):\n    """Twice x."""\n    if x:\n        y = x\n\n        return 2 * y'
    )
    english = load(tiny, "03_tiny", "en", "learner")
    chinese = load(tiny, "03_tiny", "zh", "learner")
    assert english.cells[0].source == "# A tiny chapter\n\nWords."
    assert chinese.cells[0].source == "# 小小一章\n\n字。"
    assert english.cells[-1].metadata == {"tags": ["raises-exception"], "name": "double"}
    assert english.metadata.labkit.title_zh == chinese.metadata.labkit.title_zh == "小小一章"


def test_the_builds_add_the_chapter_to_the_line_that_begins_it(tiny):
    edit(tiny, 'lab.begin("en")', 'lab.begin("en", ranks=4)')
    assert build.main([], tiny) == 0
    check_builds(tiny, "03_tiny")
    first = {
        language: code_of(load(tiny, "03_tiny", language, "learner"))[0].splitlines()[-1]
        for language in ("en", "zh")
    }
    assert first == {
        language: f'lab.begin("{language}", chapter="03", ranks=4)' for language in ("en", "zh")
    }
    edit(tiny, 'lab.begin("en", ranks=4)', 'lab.begin("en")')
    assert build.main([], tiny) == 0
    solved = code_of(load(tiny, "03_tiny", "zh", "solution"))[0]
    assert solved.endswith('\nlab.begin("zh", chapter="03")')


def test_the_law_of_builds_sees_a_wrong_language_and_a_wrong_chapter(tiny):
    path = tiny / "notebooks" / "zh" / "03_tiny.ipynb"
    right = path.read_text(encoding="utf-8")
    for wrong in ('lab.begin(\\"en\\", chapter=\\"03\\")', 'lab.begin(\\"zh\\", chapter=\\"04\\")'):
        text = right.replace('lab.begin(\\"zh\\", chapter=\\"03\\")', wrong)
        assert text != right
        path.write_text(text, encoding="utf-8")
        with pytest.raises(AssertionError):
            check_builds(tiny, "03_tiny")


def test_the_example_for_authors_builds(tmp_path):
    text = (NOTEBOOKS / "README.md").read_text(encoding="utf-8")
    source = tmp_path / "notebooks" / "src" / "08_example.py"
    chinese = tmp_path / "notebooks" / "src" / "zh" / "08_example.md"
    chinese.parent.mkdir(parents=True)
    source.write_text(text.split("```python\n")[1].split("```")[0], encoding="utf-8")
    chinese.write_text(text.split("```markdown\n")[1].split("```")[0], encoding="utf-8")
    (tmp_path / "README.md").write_text("<!-- chapters --><!-- /chapters -->")
    assert build.main([], tmp_path) == 0, "the example's hashes are those of its English"
    check_builds(tmp_path, "08_example")


def test_a_stub_raises_only_when_called(tiny):
    names = {}
    exec(code_of(load(tiny, "03_tiny", "en", "learner"))[-1], names)
    with pytest.raises(NotImplementedError, match="your turn"):
        names["double"](1)


def test_the_same_source_gives_the_same_bytes(tiny):
    folder = tiny / "notebooks"
    before = {path: path.read_bytes() for path in folder.rglob("*.ipynb")}
    assert len(before) == 4
    for path in before:
        path.unlink()
    assert build.main([], tiny) == 0
    assert {path: path.read_bytes() for path in folder.rglob("*.ipynb")} == before


def test_check_lists_what_is_stale_and_writes_nothing(tiny, capsys):
    assert build.main(["--check"], tiny) == 0
    edit(tiny, "return 2 * y", "return y + y")
    (tiny / "notebooks" / "zh" / "03_tiny.ipynb").write_text("edited by hand")
    (tiny / "notebooks" / "02_gone.ipynb").write_text("{}")
    (tiny / "notebooks" / "Untitled.ipynb").write_text("mine")
    capsys.readouterr()
    assert build.main(["--check"], tiny) == 1
    assert sorted(capsys.readouterr().out.split()) == sorted(
        [
            "stale:",
            "notebooks/zh/03_tiny.ipynb",
            "notebooks/solutions/03_tiny.ipynb",
            "notebooks/solutions/zh/03_tiny.ipynb",
            "notebooks/02_gone.ipynb",
        ]
    )
    assert (tiny / "notebooks" / "02_gone.ipynb").exists()
    assert build.main([], tiny) == 0 and build.main(["--check"], tiny) == 0
    assert not (tiny / "notebooks" / "02_gone.ipynb").exists()
    assert (tiny / "notebooks" / "Untitled.ipynb").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name="double"', 'nmae="double"', "has the options ['nmae']; there are only"),
        ("        ### END SOLUTION\n", "", "### BEGIN SOLUTION, lines, ### END SOLUTION"),
        (
            "# %%\nimport labkit as lab",
            "# %%\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n\n# %%\nimport labkit as lab",
            "stands in no function, so its stub would stop Run All",
        ),
        ('lab.begin("en")', "x = 1", 'the first code cell has one line that reads lab.begin("en")'),
        ('lab.begin("en")', 'LANGUAGE = "en"', "the first code cell has one line that reads"),
        (
            'lab.begin("en")',
            'lab.begin("en", seed=1, chapter="09")',
            'one line that reads lab.begin("en")',
        ),
        ('lab.begin("en")', 'lab.begin("en")\nlab.begin("en")', "the first code cell has one line"),
        (
            '"8.10", ',
            "8.10, ",
            "sections (quoted) are those that cells are marked with: [8.1, 'S7'], ['8.10', 'S7']",
        ),
        ("minutes: 5", "minutes: soon", "the header's labkit.minutes is a int; got 'soon'"),
        (
            "minutes: 5",
            "minutes: 5\n#     level: 1",
            "its header's labkit holds sections, needs, minutes, nothing else",
        ),
        ("# # A tiny chapter", "# ## A tiny chapter", "the first cell is the title"),
    ],
)
def test_a_fault_in_a_source_is_named(tiny, capsys, old, new, words):
    edit(tiny, old, new)
    capsys.readouterr()
    assert build.main([], tiny) == 1
    message = capsys.readouterr().err
    assert words in message and message.startswith("03_tiny.py: ")


def test_the_tables_of_chapters_and_of_sections(tiny, capsys):
    assert (tiny / "README.md").read_text(encoding="utf-8") == (
        "head\n<!-- chapters -->\n| chapter | 中文 | sections | minutes | solved |\n| --- | --- | "
        "--- | --- | --- |\n"
        "| 03 [A tiny chapter](notebooks/03_tiny.ipynb) | [小小一章](notebooks/zh/03_tiny.ipynb) "
        "| 8.10, S7 | 5 | "
        "[solved](notebooks/solutions/03_tiny.ipynb) |\n<!-- /chapters -->\ntail\n"
    )
    assert (tiny / "notebooks" / "COVERAGE.md").read_text().splitlines()[2:] == [
        "| section | chapter | heading |",
        "| --- | --- | --- |",
        "| 8.10 | [03_tiny](03_tiny.ipynb) | A tiny chapter |",
        "| S7 | [03_tiny](03_tiny.ipynb) | Exercise |",
    ]
    (tiny / "README.md").write_text("no markers")
    assert build.main([], tiny) == 1
    assert "needs the lines <!-- chapters -->" in capsys.readouterr().err


def test_a_build_is_a_valid_notebook_also_when_checked(tiny):
    chapter = build.read(tiny / "notebooks" / "src" / "03_tiny.py")
    nbformat.validate(builds.notebook(chapter, "zh", "checked"))
    assert fingerprint(" x ") == fingerprint("x") != fingerprint("y")
