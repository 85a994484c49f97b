"""The book: every chapter, executed, in both languages, as pages that need neither a kernel nor a
network.

    python notebooks/book.py                  write out/book/, executing only what has changed since the last time
    python notebooks/book.py 00 08            only these chapters; the contents still list all of them
    python notebooks/book.py --readme         also write the README's picture, from chapter 08 as it was executed

nbconvert renders prose, code and terminal colours, latex2mathml the formulas; templates, style and
script lie in ``notebooks/site/``. Executed notebooks are kept in ``out/executed/`` under the hash
of all that they depend on.
"""

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import nbformat
from latex2mathml.converter import convert as mathml
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from labkit.pipeline.demo import THEMES
from labkit.widgets import export

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "notebooks" / "site"
TITLE = "labkit"
LONG = re.compile(r"^ *[^\s<][^<\n]{50,}$", re.MULTILINE)
PICTURE = ("08_pipeline_parallel", "1F1B, p = 4, m = 8"), Path("data", "readme", "pipeline.svg")
WORDS = {
    "en": {
        "code": "en",
        "tag": "en",
        "other": "zh",
        "switch": "中文",
        "home": "Contents",
        "search": "Search",
        "colours": "Colours",
        "system": "system",
        "light": "light",
        "dark": "dark",
        "copy": "Copy",
        "copied": "Copied",
        "none": "Nothing found",
        "previous": "Previous",
        "next": "Next",
        "skip": "To the text",
        "chapter": "Chapter",
        "sections": "Sections",
        "minutes": "Minutes",
        "notebook": "this chapter as a notebook",
        "solved": "the same, solved",
        "about": "A course on distributed training: real ranks start from a cell, and what they "
        "did is drawn beside "
        "what theory predicts.",
        "how": "Every page was executed from top to bottom, with the exercises open. Sliders turn "
        "pages here too; "
        "what needs a running kernel says so. "
        "Sections are numbers in the five documents that the course works through and corrects.",
    },
    "zh": {
        "code": "zh",
        "tag": "zh-Hans",
        "other": "en",
        "switch": "English",
        "home": "目录",
        "search": "搜索",
        "colours": "配色",
        "system": "跟随系统",
        "light": "浅色",
        "dark": "深色",
        "copy": "复制",
        "copied": "已复制",
        "none": "没有找到",
        "previous": "上一章",
        "next": "下一章",
        "skip": "跳到正文",
        "chapter": "章",
        "sections": "小节",
        "minutes": "分钟",
        "notebook": "本章的笔记本",
        "solved": "附解答的笔记本",
        "about": "一门分布式训练课程：在单元格里启动真实的 rank，"
        "把它们做了什么与理论的预测画在一起。",
        "how": "每一页都从头到尾运行过，练习留空。滑块在这里也能翻页；需要内核的地方会说明。"
        "小节是课程所依据的五份材料里的编号。",
    },
}


@dataclass(frozen=True, kw_only=True)
class Page:
    """One chapter in one language."""

    name: str
    """the notebook's name without .ipynb"""
    language: str
    """en or zh"""
    notebook: NotebookNode
    """the executed notebook; without outputs where the chapter is only listed"""
    built: bool
    """whether there is a page, or only a line in the contents"""

    @property
    def about(self) -> dict:
        """What the notebook's metadata say of the chapter."""
        return self.notebook.metadata.labkit

    @property
    def title(self) -> str:
        """Its title in its language."""
        return self.about["title_zh" if self.language == "zh" else "title"]


# --- executing ---


def source(root: Path, name: str, language: str) -> Path:
    """The learner's notebook."""
    return root / "notebooks" / ("zh" if language == "zh" else "") / f"{name}.ipynb"


def execute(path: Path) -> NotebookNode:
    """Runs a notebook in a kernel of its own, in its folder. Outputs carry what the book shows;
    raises on an error."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=notebook.metadata.execution.timeout,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    with tempfile.TemporaryFile("w+") as log:  # a kernel's own words matter only when it dies
        try:
            client.execute(env={**os.environ, "LABKIT_BOOK": "1"}, stderr=log)
        except DeadKernelError:
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
            raise
    notebook.metadata.pop("widgets", None)
    return notebook


@cache
def _foundation(root: Path) -> bytes:
    """A hash of what every chapter stands on: the package, its data, the pins, Python."""
    seen = hashlib.sha256(sys.version.encode() + (root / "pyproject.toml").read_bytes())
    for path in sorted([*(root / "labkit").rglob("*"), *(root / "data").rglob("*")]):
        if path.is_file() and not {"__pycache__", "readme"} & set(
            path.parts
        ):  # the README's picture is made here
            seen.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return seen.digest()


def kept(path: Path, root: Path = ROOT) -> Path:
    """Where a notebook's execution is kept."""
    digest = hashlib.sha256(_foundation(root) + path.read_bytes()).hexdigest()[:16]
    return root / "out" / "executed" / f"{path.parent.name}-{path.stem}-{digest}.ipynb"


def keep(path: Path, notebook: NotebookNode, root: Path = ROOT) -> None:
    """Keeps an execution, in place of earlier ones of that notebook."""
    place = kept(path, root)
    place.parent.mkdir(parents=True, exist_ok=True)
    for old in place.parent.glob(f"{path.parent.name}-{path.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, place)


def executed(path: Path, root: Path = ROOT) -> NotebookNode:
    """A notebook with its outputs: the ones kept, or those of running it now."""
    place = kept(path, root)
    if not place.exists():
        began = time.monotonic()
        print(f"executing {path.relative_to(root)} ...", end=" ", flush=True)
        keep(path, execute(path), root)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    return nbformat.read(place, as_version=4)


# --- rendering ---


class Prose(IPythonRenderer):
    """Markdown as HTML: formulas as MathML, headings with the cell's number as their anchor, links
    to pages."""

    def __init__(self, cell: int) -> None:
        super().__init__(escape=False)
        self.cell, self.headings = cell, []

    def heading(self, text: str, level: int, **attrs: object) -> str:
        """A heading with an anchor that is the same in both languages."""
        anchor = f"c{self.cell}" + (f"-{len(self.headings)}" if self.headings else "")
        self.headings.append((level, anchor, text))
        return f'<h{level} id="{anchor}">{text} <a class="anchor" href="#{anchor}" tabindex="-1" aria-hidden="true">#</a></h{level}>\n'

    def inline_math(self, body: str) -> str:
        """A formula in a line."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """A formula of its own."""
        return mathml(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link; one to another chapter's notebook goes to its page."""
        return super().link(text, re.sub(r"^(\d\d_\w+)\.ipynb", r"\1.html", url), title)

    def table(self, text: str) -> str:
        """A table that scrolls by itself where the window is narrow."""
        return f'<div class="scroll"><table>{text}</table></div>\n'


def shown(output: NotebookNode) -> str:
    """One output of a cell as HTML: a board's offline form, or the richest form that can be
    shown."""
    data = output.get("data", {})
    if markup := data.get(export.MIME) or data.get("text/html"):
        return f'<div class="rich">{markup}</div>'
    if image := data.get("image/png"):
        return f'<img src="data:image/png;base64,{image}" alt="{html.escape(data.get("text/plain", ""))}">'
    text = (
        output.get("text") or data.get("text/plain", "") or "\n".join(output.get("traceback", []))
    )
    return f'<pre class="text">{LONG.sub(breakable, ansi2html(text))}</pre>' if text.strip() else ""


def breakable(line: re.Match) -> str:
    """A line of words, which may break; one with gaps, as tables have, scrolls instead."""
    return line[0] if "  " in line[0].strip() else f'<span class="words">{line[0]}</span>'


def rendered(page: Page) -> tuple[list[dict], list[tuple[int, str, str]]]:
    """The cells of a page, each with its HTML, and the headings as (level, anchor, HTML)."""
    cells, headings, colour = [], [], Highlight2HTML(pygments_lexer="ipython3")
    for number, cell in enumerate(page.notebook.cells):
        if cell.cell_type == "markdown":
            prose = Prose(number)
            body, outputs = MarkdownWithMath(renderer=prose).render(cell.source), []
            headings += prose.headings
        else:
            body = colour(cell.source)
            outputs = [text for output in cell.get("outputs", ()) if (text := shown(output))]
        cells.append({"number": number, "kind": cell.cell_type, "body": body, "outputs": outputs})
    return cells, headings


def words_of(page: Page, cells: list[dict]) -> Iterator[list[str]]:
    """What the search knows of a page: [page, anchor, heading, text] for each part under a heading;
    code included."""
    parts = [["", page.title, ""]]
    for cell, raw in zip(cells, page.notebook.cells, strict=True):
        if raw.cell_type == "code":
            parts[-1][2] += " " + raw.source
            continue
        for piece in re.split(r"(?=<h[1-6] id=)", cell["body"]):
            if found := re.match(
                r'<h\d id="([^"]+)">(.*?) <a class="anchor".*?</h\d>', piece, re.DOTALL
            ):
                parts.append([found[1], plain(found[2]), ""])
                piece = piece[found.end() :]
            parts[-1][2] += " " + plain(piece)
    for anchor, heading, text in parts:
        if text.strip() or anchor:
            yield [page.name, anchor, heading, " ".join(text.split())]


def plain(markup: str) -> str:
    """The text of HTML."""
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


# --- the site ---


def pages(root: Path, language: str, chosen: list[str]) -> list[Page]:
    """Every chapter in a language; those chosen (all, where none is) with their outputs."""
    found = []
    for path in sorted((root / "notebooks" / "src").glob("*.py")):
        notebook = source(root, path.stem, language)
        built = not chosen or path.stem[:2] in chosen
        read = executed(notebook, root) if built else nbformat.read(notebook, as_version=4)
        found.append(Page(name=path.stem, language=language, notebook=read, built=built))
    return found


def write(root: Path, out: Path, chosen: list[str]) -> int:
    """Writes the site and returns how many pages it has."""
    (out / "assets").mkdir(parents=True, exist_ok=True)
    for asset in ("book.css", "book.js"):
        shutil.copy(SITE / asset, out / "assets" / asset)
    return sum(_write(root, out, pages(root, language, chosen)) for language in WORDS)


def _write(root: Path, out: Path, chapters: list[Page]) -> int:
    """One language of the site: its pages, its contents, its search index, and its notebooks to
    take along."""
    language, built = chapters[0].language, [page for page in chapters if page.built]
    say, below = WORDS[language], "zh" if language == "zh" else ""
    common = {
        "say": say,
        "words": json.dumps(say, ensure_ascii=False),
        "up": "../" if below else "",
        "twin": "../" if below else "zh/",
        "chapters": chapters,
        "site": TITLE,
    }
    index, files = (
        [],
        {"index": ("contents", {"page": None, "title": say["home"], "headings": [], "viewer": ""})},
    )
    for place, page in enumerate(built):
        cells, headings = rendered(page)
        index += words_of(page, cells)
        traced = any('class="labkit-trace"' in text for cell in cells for text in cell["outputs"])
        viewer = (ROOT / "labkit" / "viewer.js").read_text(encoding="utf-8") if traced else ""
        files[page.name] = (
            "chapter",
            {
                "page": page,
                "title": page.title,
                "cells": cells,
                "viewer": viewer,
                "headings": [row for row in headings if row[0] == 2],
                "previous": built[place - 1] if place else None,
                "next": (*built, None)[place + 1],
            },
        )
        for kind in ("", "solutions"):
            notebook = Path("notebooks", kind, below, f"{page.name}.ipynb")
            (out / notebook).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / notebook, out / notebook)
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(SITE),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    (out / below).mkdir(exist_ok=True)
    for name, (template, data) in files.items():
        text = templates.get_template(f"{template}.html.j2").render(
            **common, **data, file=f"{name}.html"
        )
        (out / below / f"{name}.html").write_text(text, encoding="utf-8")
    listed = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (out / "assets" / f"search-{language}.js").write_text(
        f"LABKIT_INDEX={listed};\n", encoding="utf-8"
    )
    return len(files)


def picture(notebook: NotebookNode, title: str) -> str:
    """The first picture of an executed notebook whose title begins so, as an SVG that follows the
    reader's theme."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            found = re.search(
                r"<svg .*?</svg>", output.get("data", {}).get(export.MIME, ""), re.DOTALL
            )
            if found and re.search(rf"<title[^>]*>{re.escape(html.escape(title))}", found[0]):
                head, body = found[0].split(">", 1)
                return f"{head}>{THEMES}{body}"
    raise ValueError(f"no picture's title begins with {title!r}")


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    there = [path.stem[:2] for path in sorted((root / "notebooks" / "src").glob("*.py"))]
    parser = argparse.ArgumentParser(description="Writes the book")
    parser.add_argument(
        "chapters", nargs="*", help=f"of {' '.join(there)}; all where none is given"
    )
    parser.add_argument("--out", type=Path, default=root / "out" / "book", help="where to")
    parser.add_argument("--readme", action="store_true", help="write the README's picture too")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.chapters) - set(there)):
        parser.error(f"no such chapter: {' '.join(unknown)}; there are {' '.join(there)}")
    began = time.monotonic()
    try:
        count = write(root, options.out, options.chapters)
    except CellExecutionError as error:
        print(
            f"\n{error}\nThe chapters before it are kept: the next call goes on from here.",
            file=sys.stderr,
        )
        return 1
    if options.readme:
        (chapter, title), place = PICTURE
        (root / place).write_text(
            picture(executed(source(root, chapter, "en"), root), title), encoding="utf-8"
        )
    print(f"{count} pages in {time.monotonic() - began:.0f} s: {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
