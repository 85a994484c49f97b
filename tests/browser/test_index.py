"""The course's first page in JupyterLab, as a clone has it: untrusted, its pictures beside it."""

import shutil
from pathlib import Path

import pytest
from browser.lab import browse

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
WIDTHS = "() => [...document.querySelectorAll('.jp-Notebook img')].map(img => img.naturalWidth)"
CHAPTER = ".jp-Notebook h1:visible"


@pytest.fixture(scope="module")
def course(jupyterlab):
    """The notebooks that learners open, in a folder of the server."""
    target = jupyterlab.root / "course"
    for path in (*NOTEBOOKS.glob("*.ipynb"), *NOTEBOOKS.glob("zh/*.ipynb")):
        copy = target / path.relative_to(NOTEBOOKS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    shutil.copytree(NOTEBOOKS / "pictures", target / "pictures")
    return "course"


@pytest.mark.again
@pytest.mark.parametrize(
    ("name", "link", "title"),
    [
        ("index.ipynb", "Pipeline parallelism", "Pipeline parallelism"),
        ("zh/index.ipynb", "流水线并行", "流水线并行"),
        ("index.ipynb", "中文", "一个模型，许多张卡"),
    ],
)
def test_the_index_shows_its_pictures_and_opens_chapters(
    chrome, jupyterlab, course, name, link, title
):
    num_chapters = len(list((NOTEBOOKS / "pictures").glob("[0-9]*.svg")))
    with browse(chrome, jupyterlab, f"{course}/{name}") as lab:
        lab.until(lambda: sorted(lab.page.evaluate(WIDTHS)) == [240] * num_chapters + [900])
        lab.page.locator(".jp-Notebook a", has_text=link).first.click()
        lab.page.locator(CHAPTER, has_text=title).first.wait_for()
    for opened in jupyterlab.root.glob("course/**/*.ipynb"):
        jupyterlab.end_kernel(str(opened.relative_to(jupyterlab.root)))
