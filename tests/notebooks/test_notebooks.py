"""Every notebook is what its source says, in both languages and both builds; and (marked notebooks)
every one runs."""

import ast
import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest
from browser.lab import browser

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"


def script(name):
    """``notebooks/NAME.py`` as a module; the folder is no package."""
    spec = importlib.util.spec_from_file_location(f"notebook_{name}", NOTEBOOKS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build, book = script("build"), script("book")

CHAPTERS = sorted(path.stem for path in (NOTEBOOKS / "src").glob("*.py"))
BUILDS = sorted(build.FOLDERS)
CELL_LINES, RANK_CELL_LINES = 15, 25
TINY = '''# ---
# jupyter:
#   labkit:
#     sections: ["8.10", "S7"]
#     needs: ["two cores"]
#     minutes: 5
# ---

# %% [markdown] sections="8.10"
# # A tiny chapter
#
# Words.

# %% [markdown] lang="zh" of="3d9a0b1c"
# # 小小一章
#
# 字。

# %%
LANGUAGE = "en"
print(LANGUAGE)

# %% [markdown] sections="S7"
# ## Exercise

# %% [markdown] lang="zh" of=""
# ## 练习

# %% tags=["raises-exception"] name="double"
def double(x):
    """Twice x."""
    if x:
        ### BEGIN SOLUTION
        y = x

        return 2 * y
        ### END SOLUTION
'''


@pytest.fixture
def tiny(tmp_path):
    """A project with one small chapter, its translations stamped and everything built."""
    source = tmp_path / "notebooks" / "src" / "03_tiny.py"
    source.parent.mkdir(parents=True)
    source.write_text(TINY, encoding="utf-8")
    (tmp_path / "README.md").write_text("head\n<!-- chapters -->\nold\n<!-- /chapters -->\ntail\n")
    build.stamp(source)
    assert build.main([], tmp_path) == 0
    return tmp_path


def edit(root, old, new):
    source = root / "notebooks" / "src" / "03_tiny.py"
    assert old in source.read_text(encoding="utf-8")
    source.write_text(source.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def load(root, chapter, language, kind):
    return nbformat.read(
        root / "notebooks" / build.FOLDERS[language, kind] / f"{chapter}.ipynb", as_version=4
    )


def code_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def neutral(sources):
    """Code cells without the one line that may differ."""
    return [re.sub(r'^LANGUAGE = "(en|zh)"$', "", source, flags=re.MULTILINE) for source in sources]


def check_builds(root, chapter):
    """What holds for the four notebooks of every chapter."""
    for language, kind in BUILDS:
        notebook = load(root, chapter, language, kind)
        nbformat.validate(notebook)
        about = notebook.metadata.labkit
        assert set(about) == {
            "chapter",
            "title",
            "title_zh",
            "sections",
            "needs",
            "minutes",
            "language",
            "build",
        }
        assert (about.chapter, about.language, about.build) == (chapter[:2], language, kind)
        assert about.title and about.title_zh and about.sections and about.minutes > 0
        assert notebook.metadata.kernelspec.name == "python3" and notebook.nbformat_minor == 5
        assert all(
            cell.outputs == [] and cell.execution_count is None
            for cell in notebook.cells
            if "outputs" in cell
        )
        assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
        assert f'LANGUAGE = "{language}"' in code_of(notebook)[0].splitlines()
        assert "### " not in "\n".join(code_of(notebook)) and "BEGIN SOLUTION" not in str(
            notebook.cells
        )
    for kind in ("learner", "solution"):
        english, chinese = (load(root, chapter, language, kind) for language in ("en", "zh"))
        assert neutral(code_of(english)) == neutral(code_of(chinese))
        assert [cell.cell_type for cell in english.cells] == [
            cell.cell_type for cell in chinese.cells
        ]


def oversized(sources):
    """Code cells of more than 15 lines, or 25 where the cell defines a function that is
    launched."""
    launched = set(re.findall(r"\b(?:launch|start|check\.\w+)\(\s*(\w+)", "\n".join(sources)))
    faults = []
    for source in sources:
        defined = {
            node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)
        }
        lines = len([line for line in source.splitlines() if line.strip()])
        if lines > (RANK_CELL_LINES if defined & launched else CELL_LINES):
            faults.append(f"{lines} lines: {source.splitlines()[0]}")
    return faults


def test_generated_files_are_current(capsys):
    assert build.main(["--check"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapters_notebooks_differ_only_where_they_may(chapter):
    check_builds(ROOT, chapter)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_cells_are_short(chapter):
    assert oversized(code_of(load(ROOT, chapter, "en", "solution"))) == []


def test_long_cells_are_found():
    body = "\n".join(["    pass"] * 16)
    assert oversized([f"def f():\n{body}"]) == ["17 lines: def f():"]
    assert oversized([f"def f():\n{body}", "lab.launch(f, ranks=2)"]) == []
    assert oversized([f"def f():\n{body}", "check.pipeline(f)"]) == []
    assert oversized([f"def f():\n{body}\n{body}", "start(f)"]) == ["33 lines: def f():"]


def test_four_builds_of_one_source(tiny):
    check_builds(tiny, "03_tiny")
    learner, solution = (
        code_of(load(tiny, "03_tiny", "zh", kind))[-1] for kind in ("learner", "solution")
    )
    assert learner == f'def double(x):\n    """Twice x."""\n    if x:\n        {build.STUB}'
    assert (
        solution
        == 'def double(x):\n    """Twice x."""\n    if x:\n        y = x\n\n        return 2 * y'
    )
    english, chinese = (load(tiny, "03_tiny", language, "learner") for language in ("en", "zh"))
    assert (
        english.cells[0].source == "# A tiny chapter\n\nWords."
        and chinese.cells[0].source == "# 小小一章\n\n字。"
    )
    assert english.cells[-1].metadata == {"tags": ["raises-exception"], "name": "double"}
    assert english.metadata.labkit.title_zh == chinese.metadata.labkit.title_zh == "小小一章"


def test_the_example_for_authors_builds(tmp_path):
    example = (
        (NOTEBOOKS / "README.md")
        .read_text(encoding="utf-8")
        .split("```python\n")[1]
        .split("```")[0]
    )
    source = tmp_path / "notebooks" / "src" / "08_example.py"
    source.parent.mkdir(parents=True)
    source.write_text(example, encoding="utf-8")
    (tmp_path / "README.md").write_text("<!-- chapters --><!-- /chapters -->")
    assert build.main(["--stamp", "08"], tmp_path) == build.main([], tmp_path) == 0
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
    assert (
        not (tiny / "notebooks" / "02_gone.ipynb").exists()
        and (tiny / "notebooks" / "Untitled.ipynb").exists()
    )


def test_a_stale_translation_fails_the_build_and_says_how_to_go_on(tiny, capsys):
    old, new = (
        build.fingerprint("# A tiny chapter\n\nWords."),
        build.fingerprint("# A tiny chapter\n\nOther words."),
    )
    edit(tiny, "# Words.", "# Other words.")
    capsys.readouterr()
    assert build.main([], tiny) == build.main(["--check"], tiny) == 1
    assert capsys.readouterr().err.splitlines()[0] == (
        f"03_tiny.py: the Chinese of cell '# A tiny chapter' is stale: it renders {old}, the "
        f"English is {new}. "
        f"Bring it up to date, then run: python notebooks/build.py --stamp 03"
    )
    assert build.main(["--stamp", "03"], tiny) == 0
    assert capsys.readouterr().out == "stamped:\n  cell '# A tiny chapter'\n"
    assert build.main([], tiny) == build.main(["--check"], tiny) == 0


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '# %% [markdown] sections="S7"\n# ## Exercise\n',
            "",
            "'## 练习' is Chinese, but no English cell stands right above it",
        ),
        (
            "\n# ## 练习",
            "\n# ## 练习\n\n# %% [markdown]\n# More.",
            "cell 'More.' has no Chinese cell. Write one under it: "
            f'# %% [markdown] lang="zh" of="{build.fingerprint("More.")}"',
        ),
        ('name="double"', 'nmae="double"', "has the options ['nmae']; there are only"),
        ("        ### END SOLUTION\n", "", "### BEGIN SOLUTION, lines, ### END SOLUTION"),
        (
            "# %%\nLANGUAGE",
            "# %%\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION\n\n# %%\nLANGUAGE",
            "stands in no function, so its stub would stop Run All",
        ),
        ('LANGUAGE = "en"', "x = 1", 'the first code cell has one line that reads LANGUAGE = "en"'),
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
        ("# # 小小一章", "# 小小一章", "the first cell is the title"),
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
    assert (
        build.main([], tiny) == 1
        and "README.md needs the lines <!-- chapters -->" in capsys.readouterr().err
    )


def run(chapter, kind, language="en"):
    """Executes a notebook; the book keeps a learner's. Returns what its last check.status()
    printed: (passed, all), or None."""
    path = NOTEBOOKS / build.FOLDERS[language, kind] / f"{chapter}.ipynb"
    notebook = book.execute(path)
    if kind == "learner":
        book.keep(path, notebook)
    printed = "".join(
        output.text
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream"
    )
    counts = re.findall(r"^(\d+) of (\d+) passed$", printed, re.MULTILINE)
    return tuple(map(int, counts[-1])) if counts else None


@pytest.mark.notebooks
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_fresh_learner_notebook_runs_green(chapter):
    counts = run(chapter, "learner")
    exercises = (
        (NOTEBOOKS / "src" / f"{chapter}.py")
        .read_text(encoding="utf-8")
        .count("### BEGIN SOLUTION")
    )
    assert (
        (counts is not None and counts[1] >= 1 and counts[0] == 0) if exercises else not counts
    ), counts


@pytest.mark.notebooks
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_solution_passes_every_check(chapter):
    counts = run(chapter, "solution")
    exercises = (
        (NOTEBOOKS / "src" / f"{chapter}.py")
        .read_text(encoding="utf-8")
        .count("### BEGIN SOLUTION")
    )
    assert (counts is not None and counts[0] == counts[1] >= 1) if exercises else not counts, counts


@pytest.mark.notebooks
@pytest.mark.browser
@pytest.mark.timeout(1800)
def test_the_whole_book_is_made_of_these_runs_and_every_page_can_be_read(tmp_path):
    """Both languages: the English runs are those of the tests above, the Chinese ones are made here
    if none is kept."""
    from test_book import loaded, violations

    book.write(ROOT, tmp_path, [])
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) == 2 * (len(CHAPTERS) + 1)
    with browser() as running:
        for scheme, rules in (("light", ()), ("dark", ("color-contrast",))):
            context = running.new_context(
                viewport={"width": 1280, "height": 900}, color_scheme=scheme
            )
            context.set_offline(True)
            for path in pages:
                text, page, wrong = path.read_text(encoding="utf-8"), context.new_page(), []
                assert all((path.parent / each).exists() for each in loaded(text)), path
                page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
                page.goto(path.as_uri())
                boards = page.locator(".labkit-board:has(.labkit-slider)")
                for board in boards.all():
                    before = board.locator(".labkit-page").inner_html()
                    board.locator(".labkit-slider input").press("ArrowRight")
                    assert board.locator(".labkit-page").inner_html() != before, path
                assert violations(page, *rules) == wrong == [], path
                page.close()
            context.close()
