"""What a chapter holds for one who teaches it: its parts, guesses, exercises and summary, read from
its sources. The teacher's book, the slides and the handouts are made from these."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import builds
import comments
from chapter import SOLUTION, Chapter

CHECK = re.compile(r"check\.(\w+)\(")
FOLDED = re.compile(r"<details>(?:(?!<details>|</details>).)*</details>\n?", re.DOTALL)
"""a folded box that holds no other"""
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")
WORD = re.compile(r"\[([^\]]+)\]\((?:\.\./)*GLOSSARY\.md#([^)]+)\)")
HEADING = re.compile(r"^(?P<marks>#{1,4}) +(?P<title>.+)$", re.MULTILINE)
ASIDE = re.compile(r"exercise|errata|further reading|summary", re.IGNORECASE)
"""English headings of what is not the story"""
POINTS = re.compile(r"^- .+(?:\n- .+)*", re.MULTILINE)
BLOCK = re.compile(r"\$\$.*?\$\$", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A cell of code, or what stands in a cell of prose from one heading to the next."""

    place: int
    """the number of its cell"""
    kind: str
    """code or markdown"""
    level: int
    """of the heading that it begins with; 0 without one"""
    name: str
    """the English heading nearest above, or its own"""
    title: str
    """the same in the language asked for"""
    text: str
    """code, or Markdown without the heading"""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What the reader is asked before the answer is there."""

    place: int
    """the number of its cell"""
    name: str
    """the variable that holds it"""
    question: str
    """in the language asked for"""
    choices: tuple[str, ...]
    """of which one is right; empty where the answer is a number, or the names come from a run"""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A function to be written, and who checks it."""

    place: int
    """the number of its stub's cell"""
    title: str
    """the heading above it"""
    words: str
    """what it asks for, Markdown"""
    stub: str
    """the learner's code"""
    check: str
    """the name of its check; "" where none follows"""


def pieces(chapter: Chapter, language: str) -> list[Piece]:
    """A chapter, cell by cell and heading by heading. Raises ValueError where a cell has other
    headings in its Chinese."""
    found = []
    name = title = ""
    for place, cell in enumerate(chapter.cells):
        if cell.kind == "code":
            piece = Piece(
                place=place, kind="code", level=0, name=name, title=title, text=cell.source
            )
            found.append(piece)
            continue
        english = _split(cell.source)
        told = _split(cell.chinese) if language == "zh" else english
        if [level for level, _, _ in english] != [level for level, _, _ in told]:
            raise ValueError(
                f"{chapter.name}: a cell has the same headings in both languages; look at "
                f"{english[0][1] or cell.source[:40]!r} and {told[0][1] or cell.chinese[:40]!r}"
            )
        for (level, own, _), (_, shown, text) in zip(english, told, strict=True):
            name, title = (own, shown) if level else (name, title)
            piece = Piece(
                place=place, kind="markdown", level=level, name=name, title=title, text=text
            )
            found.append(piece)
    return found


def _split(markdown: str) -> list[tuple[int, str, str]]:
    """(level, heading, what follows) of each part of a cell of prose; level 0 before the first."""
    starts = [found for found in HEADING.finditer(markdown) if not _fenced(markdown, found)]
    if not starts:
        return [(0, "", markdown)]
    parts = []
    if before := markdown[: starts[0].start()].strip():
        parts.append((0, "", before))
    ends = [found.start() for found in starts[1:]] + [len(markdown)]
    for found, end in zip(starts, ends, strict=True):
        body = markdown[found.end() : end].strip()
        parts.append((len(found["marks"]), found["title"].strip(), body))
    return parts


def _fenced(markdown: str, found: re.Match) -> bool:
    """Whether a line lies in a block of code."""
    return markdown[: found.start()].count("```") % 2 == 1


def bare(markdown: str) -> str:
    """Markdown without folded boxes, and without the links that lead to other pages of the
    course."""
    while (less := FOLDED.sub("", markdown)) != markdown:
        markdown = less
    return LINK.sub(r"\1", markdown).strip()


def guesses(chapter: Chapter, language: str) -> list[Guess]:
    """The guesses of a chapter, in order."""
    found = []
    for place, cell in enumerate(chapter.cells):
        if cell.kind == "code" and "lab.guess(" in cell.source:
            source = spoken(chapter, cell.source, language)
            found += [_guess(place, node) for node in _asked(source)]
    return found


def spoken(chapter: Chapter, source: str, language: str) -> str:
    """A cell's code with its comments and shown words in a language; the stub where a solution
    stands."""
    code = builds.code(source, language, chapter.name[:2], solved=False)
    return comments.rendered(code, chapter.remarks) if language == "zh" else code


def _asked(source: str) -> Iterator[ast.Assign]:
    """The statements that ask for a guess."""
    for node in ast.parse(source).body:
        called = getattr(node, "value", None)
        if isinstance(called, ast.Call) and ast.unparse(called.func) == "lab.guess":
            yield node


def _guess(place: int, node: ast.Assign) -> Guess:
    choices: tuple[str, ...] = ()
    for keyword in node.value.keywords:
        if keyword.arg == "choices" and isinstance(keyword.value, ast.List | ast.Tuple):
            choices = tuple(each.value for each in keyword.value.elts)
    return Guess(
        place=place,
        name=ast.unparse(node.targets[0]),
        question=ast.literal_eval(node.value.args[0]),
        choices=choices,
    )


def exercises(chapter: Chapter, language: str) -> list[Exercise]:
    """The exercises of a chapter, in order: each function with a solution."""
    found = []
    words: list[str] = []
    told = pieces(chapter, language)
    for number, piece in enumerate(told):
        if piece.kind == "markdown":
            words = [] if piece.level else words
            words.append(bare(piece.text))
        elif SOLUTION.search(piece.text):
            following = [each.text for each in told[number + 1 :] if each.kind == "code"]
            checks = CHECK.findall("\n".join(following))
            found.append(
                Exercise(
                    place=piece.place,
                    title=piece.title,
                    words="\n\n".join(filter(None, words)),
                    stub=spoken(chapter, piece.text, language),
                    check=checks[0] if checks else "",
                )
            )
    return found


def summary(chapter: Chapter, language: str) -> tuple[list[str], list[tuple[str, str]]]:
    """The points of a chapter's summary, and its words, each with its anchor in the glossary; empty
    where it has none."""
    for piece in pieces(chapter, language):
        if piece.kind == "markdown" and piece.level and piece.name == "Summary":
            first_list = POINTS.search(bare(piece.text))
            points = first_list[0].splitlines() if first_list else []
            return [each[2:] for each in points], WORD.findall(piece.text)
    return [], []


def formulas(chapter: Chapter, language: str) -> list[tuple[str, str]]:
    """The formulas that stand alone, each with the heading above it."""
    found = []
    for piece in pieces(chapter, language):
        if piece.kind == "markdown":
            found += [(piece.title, each) for each in BLOCK.findall(bare(piece.text))]
    return found


def sections(chapter: Chapter, language: str) -> list[str]:
    """The headings of the second level, as the chapter tells its story."""
    found = []
    for piece in pieces(chapter, language):
        if piece.level == 2 and not ASIDE.search(piece.name):
            found.append(piece.title)
    return found
