"""The small pictures of the course's first page: one for each chapter, which the chapter drew when
it ran.

    python notebooks/thumbnails.py         write notebooks/pictures/, executing what has changed
    python notebooks/thumbnails.py 08      only this chapter's
"""

import argparse
import re
import sys
from pathlib import Path

import checked
import front
from chapter import sources
from nbformat import NotebookNode

from labkit.pictures import mime
from labkit.pictures.drawing import LEFT_PX, PLOT_PX

ROOT = Path(__file__).resolve().parent.parent
WIDTH_PX, HEIGHT_PX = 240, 100
INK = "#7d8794"
"""of lines without a colour: seen on white and on black"""
WORDS = re.compile(r"<(text|title|desc)\b.*?</\1>", re.DOTALL)
SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
ROW = re.compile(r'stroke-width="([\d.]+)" d="M0 ([\d.]+)m')
THIN = "<style>path[fill=none]{vector-effect:non-scaling-stroke}</style>"
"""Lines stay as thick as they were."""
MARGIN_PX = 6


def titled(notebook: NotebookNode, begins: str) -> str:
    """The first picture of an executed notebook whose title begins so, as it was drawn. Raises
    ValueError where there is none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            svg = drawn(output)
            if svg and title(svg).startswith(begins):
                return svg
    raise ValueError(f"no picture's title begins with {begins!r}")


def drawn(output: NotebookNode) -> str:
    """The picture of a cell's output; "" where it has none."""
    data = output.get("data", {})
    found = SVG.search(data.get(mime.OFFLINE) or data.get("text/html", ""))
    return found[0] if found else ""


def title(svg: str) -> str:
    """What a picture is called."""
    return re.search(r"<title[^>]*>(.*?)</title>", svg, re.DOTALL)[1]


def rows(svg: str) -> list[float]:
    """The part of a timeline in which its rows are: x, y, width, height. Raises ValueError for a
    picture that is no timeline."""
    strips = [tuple(map(float, each)) for each in ROW.findall(svg)]
    if not strips:
        raise ValueError(f"{title(svg)!r} has no rows: its entry in index.toml needs a crop")
    top = min(middle - height / 2 for height, middle in strips) - MARGIN_PX
    bottom = max(middle + height / 2 for height, middle in strips) + MARGIN_PX
    return [LEFT_PX, top, PLOT_PX, bottom - top]


def small(svg: str, crop: list[float]) -> str:
    """A part of a picture without its words, as an image of its own that says what its numbers
    are."""
    body = WORDS.sub("", svg).partition(">")[2]
    box = " ".join(f"{number:g}" for number in crop)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH_PX}" height="{HEIGHT_PX}" '
        f'viewBox="{box}" preserveAspectRatio="none" color="{INK}" fill="currentColor">'
        f"<title>{title(svg)}</title>{THIN}{body}\n"
    )


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """The command line. Returns the exit status."""
    told = front.told(root)["chapter"]
    names = {path.stem[:2]: path.stem for path in sources(root) if path.stem[:2] in told}
    parser = argparse.ArgumentParser(description="Writes the first page's pictures")
    parser.add_argument("chapters", nargs="*", help=f"of {' '.join(names)}; all if none is given")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.chapters) - set(names)):
        parser.error(f"no such chapter: {' '.join(unknown)}; there are {' '.join(names)}")
    chosen = options.chapters or list(names)
    if not checked.execute(root, [("en", names[number]) for number in chosen]):
        return 1
    for number in chosen:
        notebook = checked.load(root, ("en", names[number]))
        svg = titled(notebook, told[number]["picture"])
        path = root / front.picture_file(number)
        path.parent.mkdir(exist_ok=True)
        crop = told[number].get("crop") or rows(svg)
        path.write_text(small(svg, crop), encoding="utf-8")
        print(f"{path.relative_to(root)}: {title(svg)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
