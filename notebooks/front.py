"""The first page of the course: its map, each chapter with a picture, a question and its minutes,
and ways through it. ``build.py`` makes ``index.ipynb`` of it, ``book.py`` the book's contents.

What it says stands in ``src/index.toml``; a course without that file has no such page. Chapters
without an entry there are listed without question and picture.
"""

import base64
import html
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import builds
from chapter import Chapter, heading, read, sources
from chinese import fingerprint
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from pages import prose

from labkit.check import course
from labkit.pictures.painters import svg
from labkit.pictures.sketch import origin
from labkit.pipeline.demo import THEMES
from labkit.words import WORDS

SOURCE = Path("notebooks", "src", "index.toml")
FOLDERS = {"en": Path("notebooks"), "zh": Path("notebooks", "zh")}
STOOD_ON = r"gloo|nccl|pretend device|shared GPU|slurm|torchrun|\d+ nodes|clocks .*"
PAGE = "<style>svg{background:#fff}@media (prefers-color-scheme:dark){svg{background:#14171c}}"
"""The map as a file of its own is an image, which knows the system's theme, but not JupyterLab's:
so it brings its background along."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A chapter on the first page."""

    number: str
    """"08\""""
    name: str
    """its notebook's name without .ipynb"""
    title: str
    """in the page's language"""
    question: str
    """in a sentence; "" where the page has none"""
    minutes: int
    """of its header"""
    picture: str
    """the text of its small SVG; "" where there is none"""
    shows: str
    """what the picture is called"""
    badge: str
    """where its numbers come from"""

    @property
    def image(self) -> str:
        """The picture as an address, for a page that is one file."""
        return f"data:image/svg+xml;base64,{base64.b64encode(self.picture.encode()).decode()}"


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way through the course."""

    words: str
    """for whom it is, and what it leads to; Markdown"""
    hours: float
    """how many there are for it"""
    cards: tuple[Card, ...]
    """its chapters, in order"""

    @property
    def minutes(self) -> int:
        """Of all its chapters together."""
        return sum(card.minutes for card in self.cards)


def told(root: Path) -> dict:
    """What the source says; {} where there is none."""
    path = root / SOURCE
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def picture_file(number: str) -> Path:
    """Where a chapter's small picture lies."""
    return Path("notebooks", "pictures", f"{number}.svg")


def map_file(language: str) -> Path:
    """Where the map lies, in a language."""
    return Path("notebooks", "pictures", f"map-{language}.svg")


def cards(root: Path, chapters: list[Chapter], language: str) -> list[Card]:
    """Every chapter, as the page shows it."""
    entries = told(root).get("chapter", {})
    return [_card(root, each, entries.get(each.name[:2], {}), language) for each in chapters]


def _card(root: Path, chapter: Chapter, entry: dict[str, str], language: str) -> Card:
    title = chapter.cells[0].chinese if language == "zh" else chapter.cells[0].source
    path = root / picture_file(chapter.name[:2])
    picture = path.read_text(encoding="utf-8") if path.exists() else ""
    called = re.search(r"<title>(.*?)</title>", picture, re.DOTALL)
    shows, _, badge = html.unescape(called[1]).rpartition(" (") if called else ("", "", "")
    return Card(
        number=chapter.name[:2],
        name=chapter.name,
        title=heading(title),
        question=entry.get(language, ""),
        minutes=chapter.header["minutes"],
        picture=picture,
        shows=shows.partition(": ")[0],
        badge=_sources(badge.removesuffix(")"), language),
    )


def _sources(badge: str, language: str) -> str:
    """A badge in a language, without what its ranks stood on: gloo, a pretend device, nodes."""
    parts = []
    for part in badge.split(" / "):
        words = [word for word in part.split(", ") if not re.fullmatch(STOOD_ON, word)]
        parts.append(", ".join(words))
    english = " / ".join(parts)
    return english if language == "en" else origin(english, WORDS[language])


def ways(root: Path, known: list[Card], language: str) -> list[Way]:
    """The ways through the course. Raises ValueError for one that names a chapter that there is
    not, or takes longer than it says."""
    found = []
    by_number = {card.number: card for card in known}
    for row in told(root).get("path", ()):
        if unknown := [number for number in row["chapters"] if number not in by_number]:
            raise ValueError(
                f"{SOURCE.name}: there is no chapter {', '.join(unknown)}: {row['en']}"
            )
        chosen = tuple(by_number[number] for number in row["chapters"])
        way = Way(words=row[language], hours=row["hours"], cards=chosen)
        if way.minutes > 60 * way.hours:
            raise ValueError(
                f"{SOURCE.name}: the chapters of a path fit into its hours; {row['en']!r} has "
                f"{way.hours}, its chapters take {way.minutes} minutes. Take one out"
            )
        found.append(way)
    return found


def duration(minutes: int, say: dict[str, str]) -> str:
    """Minutes in words: from 100 on, in hours and minutes."""
    if minutes < 100:
        return say["minutes"].format(minutes)
    hours, rest = divmod(minutes, 60)
    return say["hours_minutes"].format(hours, rest) if rest else say["hours"].format(hours)


def course_map(known: list[Card], language: str) -> str:
    """The map of these chapters as an SVG, nothing passed yet."""
    stops = [
        course.Stop(
            number=card.number,
            titles={language: card.title},
            minutes=card.minutes,
            exercises=0,
            passed=0,
        )
        for card in known
    ]
    drawn = course.Course(lanes=course.in_lanes(stops)).picture(language=language)
    return svg.render(drawn, uid=f"map-{language}")


def map_image(known: list[Card], language: str) -> str:
    """The map as a file of its own, legible before any background."""
    head, body = course_map(known, language).split(">", 1)
    wide = head.replace('viewBox="0 0 ', 'viewBox="-12 -8 ').replace("min-width:720px;", "")
    box = re.search(r'viewBox="-12 -8 ([\d.]+) ([\d.]+)"', wide)
    grown = f'viewBox="-12 -8 {float(box[1]) + 24:g} {float(box[2]) + 16:g}"'
    head = wide.replace(box[0], grown)
    return f"{head}>{PAGE}</style>{THEMES}{body}\n"


def begin(known: list[Card], say: dict[str, str], kind: str) -> str:
    """The line that says where to begin; ``kind`` is the ending of chapters' files."""
    first = known[0]
    minutes = duration(first.minutes, say)
    return say["begin"].format(title=first.title, link=f"{first.name}.{kind}", minutes=minutes)


def map_name(known: list[Card], say: dict[str, str]) -> str:
    """What the map is called where it is not seen."""
    rows = course.in_lanes([_Numbered(card.number) for card in known])
    return say["map_name"].format(count=len(known), rows=len(rows))


@dataclass(frozen=True)
class _Numbered:
    number: str


def notebook(root: Path, chapters: list[Chapter], language: str) -> NotebookNode:
    """The page as a notebook: prose only, so that it needs neither a kernel nor trust."""
    say = told(root)["words"][language]
    known = cards(root, chapters, language)
    up = "../" if language == "zh" else ""
    texts = [
        f"# {say['title']}\n\n{say['other']}\n\n{say['about']}\n\n{begin(known, say, 'ipynb')}",
        f"![{map_name(known, say)}]({up}pictures/map-{language}.svg)\n\n{say['map']}",
        f"## {say['chapters']}\n\n{say['drawn']}\n\n{_table(known, say, up)}",
        f"## {say['paths']}\n\n{say['time']}\n\n{_ways(ways(root, known, language), say)}",
        say["more"],
    ]
    cells = []
    for place, text in enumerate(texts):
        linked = builds.PAGE_LINK.sub(f"]({up}", text)
        cells.append(new_markdown_cell(linked, id=fingerprint(f"{place} {text}")))
    metadata = {"kernelspec": builds.KERNEL, "language_info": {"name": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def _table(known: list[Card], say: dict[str, str], up: str) -> str:
    lines = [f"| {say['picture']} | {say['chapter']} | |", "| :--- | :--- | :--- |"]
    for card in known:
        picture = ""
        if card.picture:
            picture = f"![{card.shows}]({up}pictures/{card.number}.svg)<br>*{card.badge}*"
        words = f"**{card.number} [{card.title}]({card.name}.ipynb)**<br>{card.question}"
        lines.append(f"| {picture} | {words} | {duration(card.minutes, say)} |")
    return "\n".join(lines)


def _ways(found: list[Way], say: dict[str, str]) -> str:
    lines = [f"| {say['path']} | {say['chapters']} | {say['together']} |"]
    lines.append("| :--- | :--- | :--- |")
    for way in found:
        linked = " · ".join(f"[{card.number}]({card.name}.ipynb)" for card in way.cards)
        lines.append(f"| {way.words} | {linked} | {duration(way.minutes, say)} |")
    return "\n".join(lines)


def of_book(root: Path, language: str, built: Collection[str], say: dict) -> dict:
    """The page as the book's template takes it; ``built`` are the chapters that have a page, and
    ``say`` are the book's own words."""
    chapters = [read(path) for path in sources(root)]
    known = cards(root, chapters, language)
    words = told(root).get("words", {}).get(language)
    if not words:
        return {
            "title": say["site"],
            "about": prose(say["about"])[0],
            "chapters": say["home"],
            "drawn": "",
            "cards": known,
            "map": "",
            "ways": "",
        }
    about = f"{words['about']}\n\n{begin(known, words, 'ipynb')}"
    texts = {name: words[name] for name in ("drawn", "time", "more")}
    texts |= {"about": about, "how": words["map"]}
    texts["ways"] = _ways(ways(root, known, language), words)
    page = {name: _alive(prose(text)[0], built) for name, text in texts.items()}
    page |= {name: words[name] for name in ("title", "chapters", "paths")}
    page["map_name"] = map_name(known, words)
    return page | {"cards": known, "map": course_map(known, language)}


def _alive(markup: str, built: Collection[str]) -> str:
    """HTML in which a chapter without a page is named, not linked."""

    def kept(link: re.Match) -> str:
        return link[0] if link[1] in built else link[2]

    return re.sub(r'<a href="(\d\d_\w+)\.html">(.*?)</a>', kept, markup)


def files(root: Path, chapters: list[Chapter]) -> dict[Path, str]:
    """The notebooks of the page and its maps, each with the text that it must have."""
    found = {}
    if not told(root):
        return found
    for language, folder in FOLDERS.items():
        known = cards(root, chapters, language)
        found[root / map_file(language)] = map_image(known, language)
        page = builds.text(notebook(root, chapters, language))
        found[root / folder / "index.ipynb"] = page
    return found
