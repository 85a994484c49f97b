"""``python -m labkit classroom assignments FOLDER``: chapters as a course for nbgrader."""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

WRITER = Path(__file__).resolve().parents[2] / "notebooks" / "assignments.py"
"""what writes the course; it lies beside the chapters, not in the package"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where to, which chapters, and in which language."""
    parser.add_argument("folder", type=Path, help="a new folder, or one written by this before")
    parser.add_argument("--chapters", nargs="+", metavar="NN", help="which (default: all)")
    parser.add_argument(
        "--in",
        dest="written_in",
        choices=("en", "zh"),
        help="the language of the notebooks (default: what --language says)",
    )


def main(chosen: argparse.Namespace) -> int:
    """Writes the course; 1 where that failed, and the writer has said why."""
    return write(chosen.folder, chosen.chapters or (), chosen.written_in or chosen.language)


def write(folder: Path, chapters: tuple[str, ...] | list[str], language: str) -> int:
    """Has the course's own writer do it. Raises ValueError where the chapters' sources, or what
    reads them, are not there."""
    if not WRITER.is_file():
        raise ValueError(
            "assignments are written from the chapters' sources, and there are none at "
            f"{WRITER.parent}. Clone the course and install labkit from there: make env"
        )
    if importlib.util.find_spec("jupytext") is None:
        raise ValueError(
            "assignments are written with jupytext, and this Python has none. "
            "Install the extras of the tests: pip install -e '.[test]'"
        )
    options = ["--in", language]
    if chapters:
        options += ["--chapters", *chapters]
    return subprocess.run([sys.executable, WRITER, folder, *options], check=False).returncode
