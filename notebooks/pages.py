"""A chapter of the book as HTML: nbconvert renders prose, code and terminal colours, latex2mathml
the formulas."""

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from builds import COLLAPSED
from latex2mathml.converter import convert as mathml
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from labkit.pictures import mime

LONG = re.compile(r"^ *(?!\s)(?:[^<\n]|<span[^>]*>[^<\n]*</span>){50,}$", re.MULTILINE)
LEAF = re.compile(r"^(?:\.\./)*(GLOSSARY|ERRATA|CHEAT_SHEET)\.md")
SECTION = re.compile(r"##? ")
ANCHORED = re.compile(r'<h\d id="([^"]+)">(.*?) <a class="anchor".*?</h\d>', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Page:
    """One chapter in one language."""

    name: str
    """the notebook's name without .ipynb"""
    language: str
    """en or zh"""
    notebook: NotebookNode
    """as the learner sees it; without outputs where it was not executed"""
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


class Prose(IPythonRenderer):
    """Markdown as HTML: formulas as MathML, headings with the cell's number as their anchor, links
    to pages."""

    def __init__(self, cell: int) -> None:
        super().__init__(escape=False)
        self.cell = cell
        self.headings = []

    def heading(self, text: str, level: int, **attrs: object) -> str:
        """A heading with an anchor that is the same in both languages."""
        anchor = f"c{self.cell}" + (f"-{len(self.headings)}" if self.headings else "")
        self.headings.append((level, anchor, text))
        link = f'<a class="anchor" href="#{anchor}" tabindex="-1" aria-hidden="true">#</a>'
        return f'<h{level} id="{anchor}">{text} {link}</h{level}>\n'

    def inline_math(self, body: str) -> str:
        """A formula in a line."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """A formula of its own."""
        return mathml(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A link; one to another chapter's notebook, or to a page of the folder, goes to its
        page here."""
        url = re.sub(r"^(\d\d_\w+)\.ipynb", r"\1.html", url)
        url = LEAF.sub(lambda found: f"{found[1].lower()}.html", url)
        return super().link(text, url, title)

    def table(self, text: str) -> str:
        """A table that scrolls by itself where the window is narrow."""
        return f'<div class="scroll"><table>{text}</table></div>\n'


def shown(output: NotebookNode) -> str:
    """One output of a cell as HTML: a board's offline form, or the richest form that can be
    shown."""
    data = output.get("data", {})
    plain_text = data.get("text/plain", "")
    if markup := data.get(mime.OFFLINE) or data.get("text/html"):
        return f'<div class="rich">{markup}</div>'
    if image := data.get("image/png"):
        return f'<img src="data:image/png;base64,{image}" alt="{html.escape(plain_text)}">'
    text = output.get("text") or plain_text or "\n".join(output.get("traceback", []))
    if not text.strip():
        return ""
    return f'<pre class="text">{LONG.sub(breakable, ansi2html(text))}</pre>'


def breakable(line: re.Match) -> str:
    """A line of words, which may break; one with gaps, as tables have, scrolls instead."""
    return line[0] if "  " in line[0].strip() else f'<span class="words">{line[0]}</span>'


def rendered(
    page: Page, answer: str = "", hint: str = ""
) -> tuple[list[dict], list[tuple[int, str, str]]]:
    """The cells of a page, each with its HTML, and the headings as (level, anchor, HTML). What lies
    between a guess and its score is folded under the word ``answer``, another guess apart: the
    reader guesses first, and opens one fold for cells without prose between them. A hint is folded
    under the word ``hint``, and an optional section under its heading."""
    cells = []
    headings = []
    colour = Highlight2HTML(pygments_lexer="ipython3")
    waiting = 0
    ends = _ends(page.notebook.cells)
    for number, cell in enumerate(page.notebook.cells):
        fold = opens = ""
        if cell.cell_type == "markdown":
            body, found = prose(cell.source, number)
            if cell.metadata.get(COLLAPSED):
                opens, _, body = body.partition("\n")
            outputs = []
            headings += found
        else:
            body = colour(cell.source)
            outputs = [text for text in map(shown, cell.get("outputs", ())) if text]
            fold = answer if waiting and "lab.guess(" not in cell.source else ""
            fold = hint if ".hint(" in cell.source else fold
            waiting += cell.source.count("lab.guess(") - cell.source.count(".score(")
        cells.append(
            {
                "number": number,
                "kind": cell.cell_type,
                "body": body,
                "outputs": outputs,
                "fold": fold,
                "opens": opens,
                "ends": ends[number],
            }
        )
    for cell, after in itertools.pairwise(cells):
        if answer and cell["fold"] == after["fold"] == answer:
            after["outputs"] = cell["outputs"] + after["outputs"]
            cell["outputs"] = []
    return cells, headings


def _ends(cells: list[NotebookNode]) -> list[bool]:
    """For each cell, whether an optional section ends with it: the next one has a heading of its
    rank, or there is none."""
    found = []
    inside = False
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        inside = inside or bool(cell.metadata.get(COLLAPSED))
        last = after is None or (after.cell_type == "markdown" and SECTION.match(after.source))
        found.append(inside and bool(last))
        inside = inside and not last
    return found


def prose(markdown: str, number: int = 0) -> tuple[str, list[tuple[int, str, str]]]:
    """Markdown as HTML, and its headings; ``number`` is that of its cell."""
    renderer = Prose(number)
    return MarkdownWithMath(renderer=renderer).render(markdown), renderer.headings


def words_of(page: Page, cells: list[dict]) -> Iterator[list[str]]:
    """What the search knows of a page: [page, anchor, heading, text] for each part under a heading;
    code included."""
    parts = [["", page.title, ""]]
    for cell, raw in zip(cells, page.notebook.cells, strict=True):
        if raw.cell_type == "code":
            parts[-1][2] += " " + raw.source
            continue
        for piece in re.split(r"(?=<h[1-6] id=)", cell["body"]):
            if found := ANCHORED.match(piece):
                parts.append([found[1], plain(found[2]), ""])
                piece = piece[found.end() :]
            parts[-1][2] += " " + plain(piece)
    for anchor, heading, text in parts:
        if text.strip() or anchor:
            yield [page.name, anchor, heading, " ".join(text.split())]


def plain(markup: str) -> str:
    """The text of HTML."""
    return html.unescape(re.sub(r"<[^>]+>", " ", markup))
