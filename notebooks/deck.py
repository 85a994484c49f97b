"""A chapter as slides: its scene, each guess before its answer, a picture for each idea, the few
lines of code that matter, its exercises and its summary. ``slides.py`` writes them as a page."""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import outline
from chapter import Chapter
from nbconvert.filters import Highlight2HTML
from nbformat import NotebookNode
from outline import Guess, Piece
from pages import prose, shown

CODE_LINES = 32
"""of a cell that a room can still read"""
UNITS = {"lead": 70, "beside": 38, "scene": 100}
"""words of prose on a slide: alone, beside a picture, at the opening"""
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z\d`*$\"(\[])|(?<=[。？！])(?![”）])\s*")
PICTURE = re.compile(r"<svg |labkit-board|labkit-trace")
DEFINES = re.compile(r"^(def|class) ", re.MULTILINE)
BOLD = re.compile(r"<b>(.*?)</b>", re.DOTALL)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, kw_only=True)
class Slide:
    """One slide; every part of it is HTML, and may be empty."""

    kind: str
    """title, words, guess, answer, picture, code, list"""
    title: str
    """its heading"""
    words: str = ""
    """what stands under the heading"""
    figure: str = ""
    """a picture, a board, a table or code, which may be made smaller"""
    foot: str = ""
    """what is said of the figure, or the answer"""


@dataclass
class _Part:
    """What is known while the pieces under one heading are read."""

    title: str
    lead: str = ""  # prose that no slide has said yet
    drawn: bool = False  # whether a picture was shown
    coded: bool = False  # whether code was
    asked: list[Guess] = field(default_factory=list)  # guesses without their answer
    held: str = ""  # the picture that comes with the answer


def slides(
    chapter: Chapter, notebook: NotebookNode, language: str, question: str, say: dict[str, str]
) -> list[Slide]:
    """The slides of a chapter; ``notebook`` is the learner's, with outputs where it was executed.
    ``question`` is the chapter's own in a sentence, ``say`` are the words of a page."""
    told = outline.pieces(chapter, language)
    asked = {each.name: each for each in outline.guesses(chapter, language)}
    about = f"{chapter.name[:2]} · {chapter.header['minutes']} {say['minutes']}"
    found = [
        Slide(kind="title", title=told[0].title, words=html_of(question), foot=html.escape(about))
    ]
    stubs = {each.place for each in outline.exercises(chapter, language)}
    waiting: list[Guess] = []
    for part in _parts(told):
        if outline.ASIDE.search(part[0].name) or stubs & {piece.place for piece in part}:
            continue
        scene = part[0].level == 1
        known = _Part(title=say["scene"] if scene else part[0].title, asked=waiting)
        for number, piece in enumerate(part):
            following = next((each for each in part[number + 1 :] if each.text), None)
            if piece.kind == "markdown":
                found += _prose(piece, known, scene)
            elif piece.place not in stubs:
                cell = notebook.cells[piece.place]
                source = outline.spoken(chapter, piece.text, language)
                found += _left(known, scene) if scene else ()
                coming = next((each for each in part[number + 1 :] if each.kind == "code"), None)
                asks = bool(coming and "= lab.guess(" in coming.text)
                found += _code(cell, source, known, following, asked, asks=asks)
        found += _left(known, scene)
        waiting = known.asked
    return [*found, *_close(chapter, language, say)]


def _parts(told: list[Piece]) -> list[list[Piece]]:
    """The pieces under each heading."""
    parts: list[list[Piece]] = []
    for piece in told:
        if piece.level:
            parts.append([])
        parts[-1].append(piece)
    return parts


def _prose(piece: Piece, known: _Part, scene: bool) -> Iterator[Slide]:
    """A formula gets a slide with the sentences before it; other prose waits for what it leads
    to."""
    text = outline.bare(piece.text)
    formula = outline.BLOCK.search(text)
    if not formula:
        known.lead = text
        return
    before = paragraphs(text[: formula.start()])
    said = _ending(before[-1], UNITS["lead"]) if before else ""
    figure = prose(formula[0])[0]
    yield Slide(kind="formula", title=known.title, words=html_of(said), figure=figure)
    known.lead = text[formula.end() :].strip()


def _code(
    cell: NotebookNode,
    source: str,
    known: _Part,
    following: Piece | None,
    asked: dict[str, Guess],
    *,
    asks: bool,
) -> Iterator[Slide]:
    """What a cell of code brings: a question, its answer, a picture, or itself. ``asks`` says
    whether the next cell of code is a guess."""
    guessed = [
        each for each in asked.values() if re.search(rf"^{each.name} = lab\.guess", source, re.M)
    ]
    scored = [each for each in known.asked if f"{each.name}.score(" in source]
    figure = _figure(cell, tables=not known.drawn)
    if guessed:
        yield _question(guessed, known)
        known.asked += guessed
        known.lead = ""
    elif _is_shown(source, known, asks):
        blocks = paragraphs(known.lead)
        said = (
            _ending(blocks[-1], UNITS["beside"])
            if known.coded and blocks
            else beginning(known.lead, UNITS["beside"])
        )
        yield Slide(kind="code", title=known.title, words=html_of(said), figure=coloured(source))
        known.lead, known.coded = "", True
    after = (
        beginning(outline.bare(following.text), UNITS["beside"])
        if (following and following.kind == "markdown" and not following.level)
        else ""
    )
    if figure and known.asked and not scored:
        known.held = known.held or figure
    elif scored:
        known.asked = [each for each in known.asked if each not in scored]
        answer = _answers(cell)
        yield Slide(
            kind="answer",
            title=" / ".join(html.escape(each.question) for each in scored),
            words=answer,
            figure=known.held or figure,
            foot=html_of(after),
        )
        known.held, known.drawn, known.lead = "", True, ""
    elif figure:
        words = beginning(known.lead, UNITS["beside"])
        yield Slide(
            kind="picture",
            title=known.title,
            words=html_of(words),
            figure=figure,
            foot=html_of(after),
        )
        known.drawn, known.lead = True, ""


def _is_shown(source: str, known: _Part, asks: bool) -> bool:
    """Whether code gets a slide: the first of its part that defines something, and, where prose
    leads to it, what a guess is about."""
    wanted = not known.coded or (asks and known.lead)
    return bool(wanted and DEFINES.search(source)) and source.count("\n") < CODE_LINES


def _question(guessed: list[Guess], known: _Part) -> Slide:
    """What is asked, with the prose that leads to it."""
    blocks = paragraphs(known.lead)
    asking = [each for each in blocks if re.search(r"[?？]", each)]
    last = asking[-1] if asking else ""
    before = beginning(known.lead.partition(last)[0] if last else known.lead, UNITS["lead"])
    words = html_of("\n\n".join(filter(None, [before, last])))
    rows = []
    for each in guessed:
        choices = "".join(f"<li>{html.escape(one)}</li>" for one in each.choices)
        rows.append(f"<p><b>{html.escape(each.question)}</b></p><ul>{choices}</ul>")
    return Slide(kind="guess", title=known.title, words=words, figure="".join(rows))


def _left(known: _Part, scene: bool) -> Iterator[Slide]:
    """Prose that led to no picture, if nothing of its part was shown yet."""
    if known.lead and not known.drawn:
        words = beginning(known.lead, UNITS["scene" if scene else "lead"])
        if words:
            yield Slide(kind="words", title=known.title, words=html_of(words))
    known.lead = ""


def _close(chapter: Chapter, language: str, say: dict[str, str]) -> Iterator[Slide]:
    """The exercises by name, and the summary."""
    exercises = outline.exercises(chapter, language)
    if exercises:
        rows = "\n".join(f"- **{each.title}** {beginning(each.words, 24)}" for each in exercises)
        yield Slide(kind="list", title=say["exercises"], words=html_of(rows))
    points, words = outline.summary(chapter, language)
    if points:
        rows = "\n".join(f"- {each}" for each in points)
        foot = f"**{say['words']}** {say['comma'].join(word for word, _ in words)}" if words else ""
        yield Slide(kind="list", title=say["summary"], words=html_of(rows), foot=html_of(foot))


def _figure(cell: NotebookNode, *, tables: bool) -> str:
    """The picture or board among a cell's outputs, else its table where ``tables`` are wanted."""
    markups = [shown(output) for output in cell.get("outputs", ())]
    pictures = [each for each in markups if PICTURE.search(each)]
    rows = [each for each in markups if "labkit-table" in each]
    return next(iter(pictures or (rows if tables else [])), "")


def _answers(cell: NotebookNode) -> str:
    """What scores say of the answer, without the guess."""
    found = []
    for output in cell.get("outputs", ()):
        markup = output.get("data", {}).get("text/html", "")
        if not PICTURE.search(markup) and "labkit-table" not in markup:
            found += BOLD.findall(markup)
    return "".join(f"<p><b>{each}</b></p>" for each in found)


coloured = Highlight2HTML(pygments_lexer="ipython3")


def html_of(markdown: str) -> str:
    """Markdown as HTML; "" stays so."""
    return prose(markdown)[0] if markdown else ""


def paragraphs(markdown: str) -> list[str]:
    """The paragraphs and lists of Markdown; no tables, code or boxes."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    blocks = [each.strip() for each in re.split(r"\n\s*\n", text)]
    return [each for each in blocks if each and each[0] not in "|<!" and not _italic(each)]


def _italic(block: str) -> bool:
    """Whether a paragraph is a remark about the chapter: minutes, needs, sections."""
    return bool(re.fullmatch(r"\*[^*].*\*", block, re.DOTALL))


def length(text: str) -> float:
    """About how many English words a text is as long as: a Chinese character counts as 0.6."""
    chinese = len(CHINESE.findall(text))
    return 0.6 * chinese + len(CHINESE.sub(" ", text).split())


def sentences(block: str) -> list[str]:
    """The sentences of a paragraph, or the lines of a list. What stands in brackets is not torn
    apart."""
    if re.match(r"([-*]|\d+\.) ", block):
        return block.splitlines()
    found: list[str] = []
    for part in re.split(SENTENCE, block):
        if found and any(found[-1].count(a) > found[-1].count(b) for a, b in ("()", "（）", "“”")):
            found[-1] = f"{found[-1]} {part}"
        else:
            found.append(part)
    return found


def beginning(markdown: str, limit: float) -> str:
    """The first whole sentences that fit; at least one."""
    kept: list[str] = []
    for block in paragraphs(markdown):
        said: list[str] = []
        for sentence in sentences(block):
            if (kept or said) and length("\n".join([*kept, *said, sentence])) > limit:
                return "\n\n".join([*kept, _joined(said)] if said else kept)
            said.append(sentence)
        kept.append(_joined(said))
    return "\n\n".join(kept)


def _joined(said: list[str]) -> str:
    """Sentences as a paragraph again, or lines as a list."""
    listed = said and re.match(r"([-*]|\d+\.) ", said[0])
    text = ("\n" if listed else " ").join(said)
    return re.sub(r"(?<=[。？！”）]) (?=\S)", "", text)


def _ending(block: str, limit: float) -> str:
    """The last whole sentences of a paragraph that fit; at least one."""
    kept: list[str] = []
    for sentence in reversed(sentences(block)):
        if kept and length(_joined([sentence, *kept])) > limit:
            break
        kept.insert(0, sentence)
    return _joined(kept)
