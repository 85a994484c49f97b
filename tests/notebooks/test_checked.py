"""The checked builds: which cells they hold, when they are executed again, and (marked notebooks)
what the executed copies of the real chapters say."""

import re
import shutil
import subprocess

import builds
import checked
import nbformat
import pytest
from chapter import read
from small import CHAPTERS, NOTEBOOKS, ROOT, code_of, edit, load

CHECK = "\n# %%\nprint(double(1))\n\n# %%\ncheck.status()\n"
STANDARD = checked.standard(ROOT)
NAMES = [f"{language}-{name}" for language, name in STANDARD]


@pytest.fixture
def exercise(tiny):
    """The tiny chapter with a check after its exercise."""
    edit(tiny, "        ### END SOLUTION\n", f"        ### END SOLUTION\n{CHECK}")
    return tiny


def test_a_checked_build_holds_each_exercise_twice(exercise):
    chapter = read(exercise / "notebooks" / "src" / "03_tiny.py")
    notebook = builds.notebook(chapter, "en", "checked")
    learner = code_of(builds.notebook(chapter, "en", "learner"))
    solution = code_of(builds.notebook(chapter, "en", "solution"))
    assert code_of(notebook) == [builds.BOOK, *learner[:3], *solution[1:3], learner[3]]
    tagged = [
        cell.source
        for cell in notebook.cells
        if builds.CHECKED_ONLY in cell.metadata.get("tags", ())
    ]
    assert tagged == [builds.BOOK, *solution[1:3]]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_checked_build_holds_every_cell_of_both_others(chapter):
    read_chapter = read(NOTEBOOKS / "src" / f"{chapter}.py")
    for language in ("en", "zh"):
        notebook = builds.notebook(read_chapter, language, "checked")
        learner = load(ROOT, chapter, language, "learner")
        assert [cell.source for cell in builds.of_learners(notebook).cells] == [
            cell.source for cell in learner.cells
        ]
        assert set(code_of(load(ROOT, chapter, language, "solution"))) <= set(code_of(notebook))


def test_the_learner_is_not_shown_where_the_solutions_stand(exercise):
    chapter = read(exercise / "notebooks" / "src" / "03_tiny.py")
    notebook = builds.notebook(chapter, "en", "checked")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [nbformat.v4.new_output("stream", text=cell.source)]
    shown = builds.of_learners(notebook)
    assert [bool(cell.get("outputs")) for cell in shown.cells] == [
        *(False, True, False, True, True, False),
    ]
    assert notebook.cells[-1].outputs, "the copy itself keeps what it printed"


def test_a_copy_is_written_again_where_it_is_stale_or_did_not_end(tiny, monkeypatch):
    ran = []

    def nbmake(root, paths):
        for path in paths:
            notebook = nbformat.read(path, as_version=4)
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.execution_count = 1
            nbformat.write(notebook, path)
        ran.extend(path.relative_to(root).as_posix() for path in paths)
        return True

    monkeypatch.setattr(checked, "nbmake", nbmake)
    both = [("en", "03_tiny"), ("zh", "03_tiny")]
    paths = ["out/checked/03_tiny.ipynb", "out/checked/zh/03_tiny.ipynb"]
    assert checked.execute(tiny, both) and ran == paths
    assert checked.execute(tiny, both) and ran == paths
    edit(tiny, "字。", "文字。", "zh/03_tiny.md")
    assert checked.execute(tiny, both) and ran == [*paths, paths[1]]
    notebook = nbformat.read(tiny / paths[0], as_version=4)
    notebook.cells[-1].execution_count = None
    nbformat.write(notebook, tiny / paths[0])
    assert checked.execute(tiny, both) and ran[3:] == [paths[0]]
    notebook.cells[-1].execution_count = 1
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])
    notebook.cells[2].outputs = [error]
    nbformat.write(notebook, tiny / paths[0])
    assert checked.faults(notebook) == ["ValueError: no in: import labkit as lab"]
    assert checked.execute(tiny, both) and ran[4:] == [paths[0]]


def test_a_warning_or_a_folder_of_this_machine_among_the_outputs_is_named(tiny, monkeypatch):
    notebook = checked.build(tiny, ("zh", "03_tiny"))
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    quiet = nbformat.v4.new_output("stream", name="stderr", text="Warnings are rare\n")
    loud = "a/b.py:3: UserWarning: Glyph 1 missing from font(s) DejaVu Sans.\n"
    shown = {"text/plain": "see /x/site-packages/torch"}
    cell.outputs = [quiet]
    assert checked.warnings(notebook) == []
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stderr", text=f"one\n{loud}"),
        nbformat.v4.new_output("display_data", data=shown),
    ]
    first_line = cell.source.partition("\n")[0]
    assert checked.warnings(notebook) == [
        f"{loud.strip()} in: {first_line}",
        f"{shown['text/plain']} in: {first_line}",
    ]
    monkeypatch.setattr(checked, "execute", lambda root, wanted: True)
    monkeypatch.setattr(checked, "load", lambda root, copy: notebook)
    with pytest.raises(checked.Failed, match=r"shows what no reader should find:\na/b.py:3"):
        checked.executed(tiny, ("zh", "03_tiny"))


def test_what_a_copy_stands_on(tiny):
    def stands_on():
        checked._foundation.cache_clear()
        return checked.build(tiny, ("en", "03_tiny")).metadata.labkit.stands_on

    before = stands_on()
    edit(tiny, "return 2 * y", "return y + y")
    assert stands_on() != before
    edit(tiny, "return y + y", "return 2 * y")
    assert stands_on() == before
    (tiny / "labkit").mkdir()
    (tiny / "labkit" / "x.py").write_text("")
    assert stands_on() != before
    shutil.rmtree(tiny / "labkit")
    (tiny / "pyproject.toml").write_text("[project]\n")
    assert stands_on() != before
    (tiny / "pyproject.toml").write_text("")
    assert stands_on() == before


def test_every_chapter_in_both_languages_can_be_asked_for(tiny, monkeypatch):
    asked = []
    monkeypatch.setattr(checked, "execute", lambda root, wanted: asked.append(wanted) or True)
    for line in (["--languages"], ["03", "--languages"]):
        assert checked.main(line, tiny) == 0
    assert asked == [[("en", "03_tiny"), ("zh", "03_tiny")]] * 2


def test_an_unknown_chapter_is_refused(tiny, capsys):
    with pytest.raises(SystemExit):
        checked.main(["07"], tiny)
    assert "no such chapter: 07; there are 03" in capsys.readouterr().err


def test_the_copies_are_written_for_a_run_by_hand(tiny, capsys):
    assert checked.main(["--write"], tiny) == 0
    assert capsys.readouterr().out == "wrote:\n  out/checked/03_tiny.ipynb\n"
    assert checked.main(["--write", "03"], tiny) == 0
    found = checked.faults(checked.load(tiny, ("en", "03_tiny")))
    assert found[:2] == ["not executed: import os", "not executed: import labkit as lab"]


def saved(path, num_cells, source="1"):
    """A notebook of so many cells of code, and one of prose, in a file."""
    cells = [nbformat.v4.new_code_cell(source) for _ in range(num_cells)]
    cells.append(nbformat.v4.new_markdown_cell("words"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_three_are_executed_at_once_and_begun_are_those_with_the_most_to_do(tmp_path, monkeypatch):
    asked = []
    given = {}

    def run(command, env, **_):
        asked.append([str(word) for word in command])
        given.update(env)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(checked.subprocess, "run", run)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    few, most, more = (saved(tmp_path / f"{num}.ipynb", num_cells=num) for num in (1, 3, 2))
    assert checked.nbmake(tmp_path, [few, most, more]) and checked.nbmake(tmp_path, [few])
    assert asked[0][-3:] == [str(most), str(more), str(few)]
    assert asked[0][asked[0].index("-n") + 1] == "3" and "-n" not in asked[1]
    assert given["OMP_WAIT_POLICY"] == "PASSIVE", "threads that wait leave the cores alone"
    script = saved(tmp_path / "4.ipynb", num_cells=2, source="lab.launch_script(path)")
    (tmp_path / "zh").mkdir()
    chinese = saved(tmp_path / "zh" / "3.ipynb", num_cells=9)
    assert checked.longest_first([few, chinese, most, script]) == [script, most, few, chinese]


# --- the real chapters, executed ----------------------------------------------------------------


def verdicts(notebook):
    """What the checks of exercises said: of the stubs, and of the solutions."""
    stubs = []
    solved = []
    for cell in notebook.cells:
        if not re.match(r"(\w+_)?check\.(?!hint|status|language|trace|watch)\w+\(", cell.source):
            continue
        tagged = builds.CHECKED_ONLY in cell.metadata.get("tags", ())
        said = cell.outputs[-1].data["text/plain"] if cell.outputs else "nothing"
        (solved if tagged else stubs).append(said)
    return stubs, solved


def standing(notebook):
    """What the last check.status() printed: (passed, all), or None."""
    printed = "".join(
        output.text for output in code_outputs(notebook) if output.output_type == "stream"
    )
    counts = re.findall(r"^(\d+) of (\d+) passed$", printed, re.MULTILINE)
    return tuple(map(int, counts[-1])) if counts else None


def code_outputs(notebook):
    """All outputs of a notebook."""
    found = []
    for cell in notebook.cells:
        found += cell.get("outputs", [])
    return found


@pytest.mark.notebooks
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("copy", STANDARD, ids=NAMES)
def test_every_cell_of_a_chapter_runs(copies, copy):
    notebook = checked.load(ROOT, copy)
    assert checked.faults(notebook) == [] and checked.warnings(notebook) == []
    fresh = checked.build(ROOT, copy)
    assert notebook.metadata.labkit.stands_on == fresh.metadata.labkit.stands_on
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in fresh.cells]


@pytest.mark.notebooks
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_stubs_are_not_attempted_and_solutions_pass(copies, chapter):
    notebook = checked.load(ROOT, ("en", chapter))
    source = (NOTEBOOKS / "src" / f"{chapter}.py").read_text(encoding="utf-8")
    exercises = [cell for cell in code_of(notebook) if builds.STUB in cell]
    assert bool(exercises) == ("### BEGIN SOLUTION" in source)
    stubs, solved = verdicts(notebook)
    assert len(stubs) == len(solved) == len(exercises)
    assert [said for said in stubs if not said.startswith("○ not attempted")] == []
    assert [said for said in solved if not said.startswith("✓ passed")] == []
    counts = standing(notebook)
    if exercises:
        assert counts is not None and counts[0] == counts[1] >= 1, counts
    else:
        assert not counts, counts


@pytest.mark.notebooks
@pytest.mark.parametrize("name", ["02_collectives", "08_pipeline_parallel", "11_communication"])
def test_the_copies_were_executed_on_pretend_devices(name, copies):
    notebook = checked.load(ROOT, ("en", name))
    outputs = "".join(str(cell.get("outputs", "")) for cell in notebook.cells)
    assert "pretend device" in outputs
