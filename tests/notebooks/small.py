"""Small courses that the tests of this folder build, and what they share."""

import re
from pathlib import Path

import build
import builds
import nbformat
import pages

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
CHAPTERS = sorted(path.stem for path in (NOTEBOOKS / "src").glob("*.py"))
BUILDS = sorted(builds.FOLDERS)

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

# %%
import labkit as lab

lab.begin("en")

# %% [markdown] sections="S7"
# ## Exercise

# %% tags=["raises-exception"] name="double"
def double(x):
    """Twice x."""
    if x:
        ### BEGIN SOLUTION
        y = x

        return 2 * y
        ### END SOLUTION
'''
TINY_CHINESE = """<!-- cell: a-tiny-chapter · renders: 3d9a0b1c -->
# 小小一章

字。

<!-- cell: exercise -->
## 练习
"""
HEAD = """# ---
# jupyter:
#   labkit:
#     sections: ["{0}"]
#     needs: ["a core"]
#     minutes: 5
# ---

"""
WORDS = """# %% [markdown] sections="1.1"
# # Words
#
# The share is $\\frac{p-1}{m}$ and `$HOME` is none. Next: [boards](02_boards.ipynb).

# %%
import labkit as lab

lab.begin("en")
print("\\x1b[31mzebra\\x1b[0m")  # <b>

# %% [markdown]
# ## Farther down
#
# | a | b |
# | --- | --- |
# | 1 | 2 |
#
# A pelican.
"""
WORDS_CHINESE = """<!-- cell: words -->
# 文字

占比是 $\\frac{p-1}{m}$，`$HOME` 不是公式。下一章：[板](02_boards.ipynb)。

<!-- cell: farther-down -->
## 更下面

一只鹈鹕。
"""
BOARDS = """# %% [markdown] sections="1.2"
# # Boards

# %%
import labkit as lab

lab.begin("en")
from labkit import pipeline, widgets
from labkit.pictures import scene
widgets.show(scene.timeline(pipeline.simulate(pipeline.gpipe(2, 2))))

# %%
widgets.pipeline_parallelism()

# %%
widgets.collectives()
"""
BOARDS_CHINESE = """<!-- cell: boards -->
# 板
"""
COURSE = {
    "01_words": (HEAD.format("1.1") + WORDS, WORDS_CHINESE),
    "02_boards": (HEAD.format("1.2") + BOARDS, BOARDS_CHINESE),
}


def make(root, readme, chapters):
    """A project of small chapters, {name: (source, Chinese)}: translations stamped, and built."""
    folder = root / "notebooks" / "src"
    (folder / "zh").mkdir(parents=True)
    for name, (source, chinese) in chapters.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
        (folder / "zh" / f"{name}.md").write_text(chinese, encoding="utf-8")
        build.stamp(folder / f"{name}.py", None)
    (root / "README.md").write_text(readme)
    (root / "pyproject.toml").write_text("")
    assert build.main([], root) == 0
    return root


def edit(root, old, new, file="03_tiny.py"):
    """Changes a source."""
    source = root / "notebooks" / "src" / file
    text = source.read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new), encoding="utf-8")


def load(root, chapter, language, kind):
    """A built notebook."""
    folder = root / "notebooks" / builds.FOLDERS[language, kind]
    return nbformat.read(folder / f"{chapter}.ipynb", as_version=4)


def code_of(notebook):
    """The sources of its code cells."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def text_of(path):
    """A file's text."""
    return path.read_text(encoding="utf-8")


def loaded(markup):
    """What a page would load by itself: everything but links."""
    found = re.findall(
        r"""<(?!a\b)\w+[^>]*?\s(?:src|href|data|poster)\s*=\s*["']?([^"'>\s]+)""", markup
    )
    found += re.findall(r"url\(\s*[\"']?([^\"')]+)", markup)
    found += re.findall(r"@import\s+(\S+)", markup)
    return [each for each in found if not each.startswith(("#", "data:"))]


def rendered_cells(name, language, notebook):
    """The cells of a notebook as the book's HTML."""
    page = pages.Page(name=name, language=language, notebook=notebook, built=True)
    return pages.rendered(page)[0]


def violations(page, **options):
    """What axe-core finds, by all its rules or as its options say: rule and elements."""
    from axe_playwright_python.base import AXE_FILE_PATH  # only where there is a browser

    if not page.evaluate("'axe' in window"):
        page.evaluate(Path(AXE_FILE_PATH).read_text(encoding="utf-8"))
    options["resultTypes"] = ["violations"]
    return page.evaluate(
        """async options => (await axe.run(options)).violations.map(
        rule => [rule.id, rule.nodes.map(node => node.html.slice(0, 200))])""",
        options,
    )
