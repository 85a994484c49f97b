"""Writes a chapter's handout, ``out/handouts/`` (Chinese: ``out/handouts/zh/``): its question, a
picture, what was learned, formulas, words, the guesses to fill in, and the exercises without their
solutions. Each is one file that prints on two
pages of A4 at most.

    python notebooks/handouts.py            every chapter, executing what has changed
    python notebooks/handouts.py 08         only this chapter
    python notebooks/handouts.py --english  not the Chinese
"""

import re
import sys
from pathlib import Path

import book
import checked
import front
import glossary
import outline
import slides
import thumbnails
from chapter import Chapter, read
from deck import coloured, html_of
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent


def page(root: Path, copy: checked.Copy, picture: str) -> str:
    """The handout of a chapter in a language as one file; ``picture`` is an SVG."""
    language, name = copy
    chapter = read(root / "notebooks" / "src" / f"{name}.py")
    card = front.cards(root, [chapter], language)[0]
    points, words = outline.summary(chapter, language)
    exercises = outline.exercises(chapter, language)
    style = "\n".join(
        (book.SITE / each).read_text(encoding="utf-8") for each in ("book.css", "handout.css")
    )
    return (
        book.site_templates()
        .get_template("handout.html.j2")
        .render(
            card=card,
            site=book.TITLE,
            say=book.WORDS[language],
            style=style,
            picture=picture,
            points=[html_of(each) for each in points],
            formulas=[(each, html_of(text)) for each, text in outline.formulas(chapter, language)],
            meanings=_meanings(root, words, language),
            guesses=outline.guesses(chapter, language),
            exercises=[
                {
                    "title": each.title,
                    "words": html_of(each.words),
                    "stub": coloured(stub(each.stub)),
                }
                for each in exercises
            ],
        )
    )


def stub(code: str) -> str:
    """The functions of a stub, each by its first line and its docstring; other lines are left to
    the notebook."""
    kept = re.findall(r'^def [^\n]*(?:\n[^\n]+)*?:\n(?: +"""[^"]*""")?', code, re.MULTILINE)
    return "\n\n".join(each.rstrip() for each in kept) or code


def _meanings(root: Path, words: list[tuple[str, str]], language: str) -> list[tuple[str, str]]:
    """A chapter's words, each with the glossary's sentence."""
    known = {glossary.anchor(term): term for term in glossary.terms(root)}
    return [
        (word, html_of(getattr(known[anchor], f"means_{language}")))
        for word, anchor in words
        if anchor in known
    ]


def picture(root: Path, chapter: Chapter, english: NotebookNode, notebook: NotebookNode) -> str:
    """The picture of the first page, out of a chapter's outputs in a language; ``english`` are
    those in which its title is looked for. "" where the chapter has none."""
    begins = front.told(root).get("chapter", {}).get(chapter.name[:2], {}).get("picture")
    for place, cell in enumerate(english.cells):
        for number, output in enumerate(cell.get("outputs", ())):
            found = thumbnails.drawn(output)
            if found and thumbnails.title(found).startswith(begins or ""):
                outputs = notebook.cells[place].get("outputs", ())
                own = thumbnails.drawn(outputs[number]) if number < len(outputs) else ""
                return own or found
    return ""


def of_copy(root: Path, copy: checked.Copy) -> str:
    """The handout with the picture of the executed copies, which are there."""
    _, name = copy
    chapter = read(root / "notebooks" / "src" / f"{name}.py")
    english = book.outputs(root, ("en", name))
    return page(root, copy, picture(root, chapter, english, book.outputs(root, copy)))


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    return slides.command(arguments, root, "handouts", of_copy)


if __name__ == "__main__":
    sys.exit(main())
