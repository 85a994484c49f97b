"""The book: every chapter, executed, in both languages, as pages that need neither a kernel nor a network.

    python notebooks/book.py                  write out/book/, executing only what has changed since the last time
    python notebooks/book.py 00 08            only these chapters; the contents still list all of them
    python notebooks/book.py --readme         also write the README's picture, from chapter 08 as it was executed

nbconvert renders prose, code and terminal colours, latex2mathml the formulas; templates, style and script lie in
``notebooks/site/``. Executed notebooks are kept in ``out/executed/`` under the hash of all that they depend on.
"""

import argparse
import hashlib
import html
import importlib.util
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import nbformat
from latex2mathml.converter import convert as mathml
from nbclient import NotebookClient
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from labkit import export

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ("book.css", "book.js")
TITLE = "labkit"
WORDS = {
    "en": {"code": "en", "tag": "en", "other": "zh", "switch": "中文", "home": "Contents", "search": "Search",
           "colours": "Colours", "system": "system", "light": "light", "dark": "dark", "copy": "Copy",
           "copied": "Copied", "none": "Nothing found", "previous": "Previous", "next": "Next", "skip": "To the text",
           "chapter": "Chapter", "sections": "Sections", "minutes": "Minutes",
           "notebook": "this chapter as a notebook", "solved": "the same, solved", "on_page": "On this page",
           "about": "A course on distributed training: real ranks start from a cell, and what they did is drawn beside "
                    "what theory predicts.",
           "how": "Every page was executed from top to bottom, with the exercises open. Sliders turn pages here too; "
                  "what needs a running kernel says so."},
    "zh": {"code": "zh", "tag": "zh-Hans", "other": "en", "switch": "English", "home": "目录", "search": "搜索",
           "colours": "配色", "system": "跟随系统", "light": "浅色", "dark": "深色", "copy": "复制", "copied": "已复制",
           "none": "没有找到", "previous": "上一章", "next": "下一章", "skip": "跳到正文", "chapter": "章",
           "sections": "小节", "minutes": "分钟", "needs": "需要", "output": "输出", "notebook": "本章的笔记本",
           "solved": "附解答的笔记本", "on_page": "本页内容",
           "about": "一门分布式训练课程：在单元格里启动真实的 rank，把它们做了什么与理论的预测画在一起。",
           "how": "每一页都从头到尾运行过，练习留空。滑块在这里也能翻页；需要内核的地方会说明。"},
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


# --- executing ------------------------------------------------------------------------------------------------------

def source(root: Path, name: str, language: str) -> Path:
    """The learner's notebook."""
    return root / "notebooks" / ("zh" if language == "zh" else "") / f"{name}.ipynb"


def execute(path: Path) -> NotebookNode:
    """Runs a notebook in a kernel of its own, in its folder. Outputs carry what the book shows; raises on an error."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=notebook.metadata.execution.timeout, kernel_name="python3", coalesce_streams=True,
                   resources={"metadata": {"path": str(path.parent)}}).execute(env={**os.environ, "LABKIT_BOOK": "1"})
    notebook.metadata.pop("widgets", None)
    return notebook


@cache
def _foundation(root: Path) -> bytes:
    """A hash of what every chapter stands on: the package, its data, the pins, Python."""
    seen = hashlib.sha256(sys.version.encode() + (root / "pyproject.toml").read_bytes())
    for path in sorted([*(root / "labkit").rglob("*"), *(root / "data").rglob("*")]):
        if path.is_file() and "__pycache__" not in path.parts:
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
        keep(path, execute(path), root)
        print(f"executed {path.relative_to(root)} in {time.monotonic() - began:.1f} s", flush=True)
    return nbformat.read(place, as_version=4)


# --- rendering ------------------------------------------------------------------------------------------------------

class Prose(IPythonRenderer):
    """Markdown as HTML: formulas as MathML, headings with the cell's number as their anchor, links to pages."""

    def __init__(self, cell: int) -> None:
        super().__init__(escape=False)
        self.cell, self.headings = cell, []

    def heading(self, text: str, level: int, **attrs: object) -> str:
        """A heading with an anchor that is the same in both languages."""
        anchor = f"c{self.cell}" + (f"-{len(self.headings)}" if self.headings else "")
        self.headings.append((level, anchor, text))
        return f'<h{level} id="{anchor}">{text} <a class="anchor" href="#{anchor}" aria-label="#">#</a></h{level}>\n'

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
        return f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'


def shown(output: NotebookNode) -> str:
    """One output of a cell as HTML: a board's offline form, or the richest form that can be shown."""
    data = output.get("data", {})
    if markup := data.get(export.MIME) or data.get("text/html"):
        return f'<div class="rich">{markup}</div>'
    if image := data.get("image/png"):
        return f'<img src="data:image/png;base64,{image}" alt="{html.escape(data.get("text/plain", ""))}">'
    text = output.get("text") or data.get("text/plain", "") or "\n".join(output.get("traceback", []))
    return f'<pre class="text" tabindex="0">{ansi2html(text)}</pre>' if text.strip() else ""


def rendered(page: Page) -> tuple[list[dict], list[tuple[int, str, str]]]:
    """The cells of a page, each with its HTML, and the headings as (level, anchor, HTML)."""
    cells, headings, colour = [], [], Highlight2HTML(pygments_lexer="ipython3")
    for number, cell in enumerate(page.notebook.cells):
        if cell.cell_type == "markdown":
            prose = Prose(number)
            body, outputs = MarkdownWithMath(renderer=prose).render(cell.source), []
            headings += prose.headings
        else:
            body = colour(cell.source).replace("<pre>", '<pre tabindex="0">', 1)
            outputs = [text for output in cell.get("outputs", ()) if (text := shown(output))]
        cells.append({"number": number, "kind": cell.cell_type, "body": body, "outputs": outputs})
    return cells, headings


def words_of(page: Page, cells: list[dict]) -> Iterator[list[str]]:
    """What the search knows of a page: [page, anchor, heading, text] for each part under a heading; code included."""
    parts = [["", page.title, ""]]
    for cell, raw in zip(cells, page.notebook.cells, strict=True):
        if raw.cell_type == "code":
            parts[-1][2] += " " + raw.source
            continue
        for piece in re.split(r"(?=<h[1-6] id=)", cell["body"]):
            if found := re.match(r'<h\d id="([^"]+)">(.*?) <a class="anchor".*?</h\d>', piece, re.DOTALL):
                parts.append([found[1], plain(found[2]), ""])
                piece = piece[found.end():]
            parts[-1][2] += " " + plain(piece)
    for anchor, heading, text in parts:
        if text.strip() or anchor:
            yield [page.name, anchor, heading, " ".join(text.split())]


def plain(markup: str) -> str:
    """The text of HTML."""
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))


# --- the site -------------------------------------------------------------------------------------------------------

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
    templates = jinja2.Environment(loader=jinja2.FileSystemLoader(ROOT / "notebooks" / "site"), trim_blocks=True,
                                   lstrip_blocks=True, autoescape=False, undefined=jinja2.StrictUndefined)
    (out / "assets").mkdir(parents=True, exist_ok=True)
    for asset in ASSETS:
        shutil.copy(ROOT / "notebooks" / "site" / asset, out / "assets" / asset)
    viewer = ROOT / "labkit" / "viewer.js"
    count = 0
    for language, say in WORDS.items():
        chapters, index = pages(root, language, chosen), []
        built = [page for page in chapters if page.built]
        folder, up = (out / "zh", "../") if language == "zh" else (out, "")
        folder.mkdir(exist_ok=True)
        common = {"say": say, "words": json.dumps(say, ensure_ascii=False), "up": up, "chapters": chapters,
                  "site": TITLE, "twin": "../" if language == "zh" else "zh/"}
        for place, page in enumerate(built):
            cells, headings = rendered(page)
            index += words_of(page, cells)
            trace = any("labkit-trace" in text for cell in cells for text in cell["outputs"])
            text = templates.get_template("chapter.html.j2").render(
                **common, page=page, file=f"{page.name}.html", cells=cells, title=page.title,
                headings=[(level, anchor, text) for level, anchor, text in headings if level == 2],
                previous=built[place - 1] if place else None, next=(*built, None)[place + 1],
                viewer=viewer.read_text(encoding="utf-8") if trace else "")
            (folder / f"{page.name}.html").write_text(text, encoding="utf-8")
            for kind in ("", "solutions"):
                place_of = Path("notebooks") / kind / ("zh" if language == "zh" else "") / f"{page.name}.ipynb"
                (out / place_of).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / place_of, out / place_of)
        text = templates.get_template("contents.html.j2").render(**common, page=None, file="index.html",
                                                                 title=say["home"], headings=[], viewer="")
        (folder / "index.html").write_text(text, encoding="utf-8")
        data = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
        (out / "assets" / f"search-{language}.js").write_text(f"LABKIT_INDEX={data};\n", encoding="utf-8")
        count += len(built) + 1
    return count


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes the book")
    parser.add_argument("chapters", nargs="*", help="two digits each; all where none is given")
    parser.add_argument("--out", type=Path, default=root / "out" / "book", help="where to")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    count = write(root, options.out, options.chapters)
    print(f"{count} pages in {time.monotonic() - began:.0f} s: {options.out / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
