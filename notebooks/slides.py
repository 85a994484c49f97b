"""Writes a chapter's slides, ``out/slides/`` (Chinese: ``out/slides/zh/``), each one file that
needs no network: arrows turn them, boards are alive, and the browser prints them, a slide a page.

    python notebooks/slides.py            every chapter, executing what has changed
    python notebooks/slides.py 08         only this chapter
    python notebooks/slides.py --english  not the Chinese
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import book
import checked
import front
from chapter import read, sources
from deck import Slide, slides
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent
SHEETS = ("book.css", "deck.css")
SCRIPTS = ("boards.js", "deck.js")


def page(root: Path, copy: checked.Copy, notebook: NotebookNode) -> str:
    """The slides of a chapter in a language as one file; ``notebook`` is the learner's, with the
    outputs to show."""
    language, name = copy
    chapter = read(root / "notebooks" / "src" / f"{name}.py")
    card = front.cards(root, [chapter], language)[0]
    say = book.WORDS[language]
    return written(slides(chapter, notebook, language, card.question, say), card.title, language)


def written(deck: list[Slide], title: str, language: str) -> str:
    """Slides as a page, with all that it needs."""
    cells = [{"outputs": [each.figure]} for each in deck]
    template = book.site_templates().get_template("deck.html.j2")
    return template.render(
        title=title,
        site=book.TITLE,
        say=book.WORDS[language],
        slides=deck,
        style="\n".join((book.SITE / each).read_text(encoding="utf-8") for each in SHEETS),
        script="\n".join((book.SITE / each).read_text(encoding="utf-8") for each in SCRIPTS),
        viewer=book.viewer_of(cells),
    )


def of_copy(root: Path, copy: checked.Copy) -> str:
    """The slides with the outputs of a chapter's executed copy, which is there."""
    return page(root, copy, book.outputs(root, copy))


def write(out: Path, copy: checked.Copy, text: str) -> Path:
    """Writes a chapter's page, and returns where it lies."""
    language, name = copy
    path = out / ("zh" if language == "zh" else "") / f"{name[:2]}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def command(
    arguments: list[str] | None,
    root: Path,
    called: str,
    made: Callable[[Path, checked.Copy], str],
) -> int:
    """The command line of slides and of handouts: executes the chapters, and writes what is made of
    each into the folder ``out/called``. Returns the exit status."""
    names = {path.stem[:2]: path.stem for path in sources(root)}
    parser = argparse.ArgumentParser(description=f"Writes the {called}")
    parser.add_argument("chapters", nargs="*", help=f"of {' '.join(names)}; all by default")
    parser.add_argument("--out", type=Path, default=root / "out" / called, help="where to")
    parser.add_argument("--english", action="store_true", help="not the Chinese")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.chapters) - set(names)):
        parser.error(f"no such chapter: {' '.join(unknown)}; there are {' '.join(names)}")
    began = time.monotonic()
    languages = ["en"] if options.english else ["en", "zh"]
    chosen = [names[number] for number in options.chapters] or list(names.values())
    wanted = list(product(languages, chosen))
    if not checked.execute(root, wanted):
        print("The chapters that passed are kept: the next call runs the others.", file=sys.stderr)
        return 1
    for copy in wanted:
        write(options.out, copy, made(root, copy))
    print(f"{len(wanted)} {called} in {time.monotonic() - began:.0f} s: {options.out}")
    return 0


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    return command(arguments, root, "slides", of_copy)


if __name__ == "__main__":
    sys.exit(main())
