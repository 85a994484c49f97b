"""The book: every chapter, executed, in both languages, as pages that need neither a kernel nor a
network.

    python notebooks/book.py              write out/book/, executing only what has changed
    python notebooks/book.py 00 08        only these chapters; the contents still list all of them
    python notebooks/book.py --readme     also write the README's picture, from chapter 08 as it was
                                          executed

``checked.py`` executes, ``pages.py`` renders a chapter; templates, style, script and words lie in
``notebooks/site/``.
"""

import argparse
import html
import json
import re
import shutil
import sys
import time
from collections.abc import Collection
from itertools import product
from pathlib import Path

import builds
import checked
import front
import jinja2
import nbformat
from chapter import sources
from leaves import Leaf, leaves
from nbformat import NotebookNode
from pages import Page, rendered, words_of

from labkit.pictures import mime
from labkit.pipeline.demo import THEMES
from labkit.widgets import viewer

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "notebooks" / "site"
TITLE = "labkit"
WORDS = json.loads((SITE / "words.json").read_text(encoding="utf-8"))
PICTURE = Path("data", "readme", "pipeline.svg")
STANDING = "check.status()"
PICTURE_CHAPTER = "08_pipeline_parallel"
PICTURE_TITLE = "1F1B, 4 ranks, 8 microbatches"


def learner(root: Path, copy: checked.Copy) -> Path:
    """The learner's notebook of a copy."""
    language, name = copy
    return root / "notebooks" / builds.FOLDERS[language, "learner"] / f"{name}.ipynb"


def outputs(root: Path, copy: checked.Copy) -> NotebookNode:
    """The learner's notebook with the outputs of its checked copy, which is there."""
    return builds.of_learners(checked.load(root, copy))


def pages(root: Path, language: str, built: Collection[str], ran: Collection[str]) -> list[Page]:
    """Every chapter in a language; the names in ``built`` get a page, those in ``ran`` one with
    outputs. The cell that asks how the learner stands is left out: a page knows nobody."""
    found = []
    for path in sources(root):
        copy = (language, path.stem)
        if path.stem in ran:
            notebook = outputs(root, copy)
        else:
            notebook = nbformat.read(learner(root, copy), as_version=4)
        notebook.cells = [each for each in notebook.cells if each.source.strip() != STANDING]
        page = Page(name=path.stem, language=language, notebook=notebook, built=path.stem in built)
        found.append(page)
    return found


def write(root: Path, out: Path, languages: list[list[Page]]) -> int:
    """Writes the site, each language from its pages, and returns how many pages it has."""
    (out / "assets").mkdir(parents=True, exist_ok=True)
    shutil.copy(SITE / "book.css", out / "assets" / "book.css")
    scripts = [(SITE / each).read_text(encoding="utf-8") for each in ("book.js", "boards.js")]
    (out / "assets" / "book.js").write_text("\n".join(scripts), encoding="utf-8")
    return sum(_write_language(root, out, chapters) for chapters in languages)


def _write_language(root: Path, out: Path, chapters: list[Page]) -> int:
    """One language of the site: its pages, its contents, its search index, and its notebooks to
    take along."""
    language = chapters[0].language
    say = WORDS[language]
    below = "zh" if language == "zh" else ""
    built = [page for page in chapters if page.built]
    others = leaves(root, language)
    templates = site_templates()
    templates.globals.update(
        say=say,
        words=json.dumps(say, ensure_ascii=False),
        up="../" if below else "",
        twin="../" if below else "zh/",
        chapters=chapters,
        leaves=others,
        site=TITLE,
    )
    (out / below).mkdir(exist_ok=True)
    names = {page.name for page in built}
    contents = templates.get_template("contents.html.j2").render(
        file="index.html",
        page=None,
        title=say["home"],
        headings=[],
        viewer="",
        built=names,
        front=front.of_book(root, language, names, {"site": TITLE, **say}),
    )
    (out / below / "index.html").write_text(contents, encoding="utf-8")
    index = []
    for place, page in enumerate(built):
        cells, headings = rendered(page, say["answer"], say["hint"])
        index += words_of(page, cells)
        text = templates.get_template("chapter.html.j2").render(
            file=f"{page.name}.html",
            page=page,
            title=page.title,
            cells=cells,
            viewer=viewer_of(cells),
            headings=[row for row in headings if row[0] == 2],
            optional=[f"c{cell['number']}" for cell in cells if cell["opens"]],
            previous=built[place - 1] if place else None,
            next=built[place + 1] if place + 1 < len(built) else None,
        )
        (out / below / f"{page.name}.html").write_text(text, encoding="utf-8")
        _take_along(root, out, below, page)
    _write_leaves(out / below, others, templates, say)
    listed = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    search = out / "assets" / f"search-{language}.js"
    search.write_text(f"LABKIT_INDEX={listed};\n", encoding="utf-8")
    return len(built) + len(others) + 1


def _write_leaves(
    folder: Path, others: list[Leaf], templates: jinja2.Environment, say: dict[str, str]
) -> None:
    """The pages that are no chapters."""
    for leaf in others:
        text = templates.get_template("leaf.html.j2").render(
            file=f"{leaf.name}.html",
            page=None,
            leaf=leaf,
            title=say[leaf.name],
            headings=[],
            viewer="",
        )
        (folder / f"{leaf.name}.html").write_text(text, encoding="utf-8")


def site_templates() -> jinja2.Environment:
    """The pages to be filled."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(SITE),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def viewer_of(cells: list[dict]) -> str:
    """The trace viewer's script, where a page has a trace."""
    for cell in cells:
        if any('class="labkit-trace"' in text for text in cell["outputs"]):
            return viewer.SOURCE
    return ""


def _take_along(root: Path, out: Path, below: str, page: Page) -> None:
    """A page's notebooks, the learner's and the solved one, for its links."""
    for kind in ("", "solutions"):
        notebook = Path("notebooks", kind, below, f"{page.name}.ipynb")
        (out / notebook).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / notebook, out / notebook)


def picture(notebook: NotebookNode, title: str) -> str:
    """The first picture of an executed notebook whose title begins so, as an SVG that follows the
    reader's theme."""
    begins = re.compile(rf"<title[^>]*>{re.escape(html.escape(title))}")
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            markup = output.get("data", {}).get(mime.OFFLINE, "")
            found = re.search(r"<svg .*?</svg>", markup, re.DOTALL)
            if found and begins.search(found[0]):
                head, body = found[0].split(">", 1)
                return f"{head}>{THEMES}{body}"
    raise ValueError(f"no picture's title begins with {title!r}")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    names = {path.stem[:2]: path.stem for path in sources(root)}
    parser = argparse.ArgumentParser(description="Writes the book")
    parser.add_argument(
        "chapters", nargs="*", help=f"of {' '.join(names)}; all where none is given"
    )
    parser.add_argument("--out", type=Path, default=root / "out" / "book", help="where to")
    parser.add_argument("--readme", action="store_true", help="write the README's picture too")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.chapters) - set(names)):
        parser.error(f"no such chapter: {' '.join(unknown)}; there are {' '.join(names)}")
    began = time.monotonic()
    chosen = [names[number] for number in options.chapters] or list(names.values())
    wanted = list(product(WORDS, chosen))
    if options.readme and ("en", PICTURE_CHAPTER) not in wanted:
        wanted.append(("en", PICTURE_CHAPTER))
    if not checked.execute(root, wanted):
        print("The chapters that passed are kept: the next call runs the others.", file=sys.stderr)
        return 1
    count = write(root, options.out, [pages(root, each, chosen, chosen) for each in WORDS])
    if options.readme:
        drawn = picture(outputs(root, ("en", PICTURE_CHAPTER)), PICTURE_TITLE)
        (root / PICTURE).write_text(drawn, encoding="utf-8")
    print(f"{count} pages in {time.monotonic() - began:.0f} s: {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
