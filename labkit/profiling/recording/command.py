"""``python -m labkit record``: a script of one's own, recorded, drawn, advised, written down."""

import argparse
import sys
from html import escape
from pathlib import Path

from labkit import words
from labkit.launching.verdicts.verdict import LaunchError
from labkit.measure import trace
from labkit.pictures.painters import mpl, svg
from labkit.profiling.recording.record_run import Record, record
from labkit.words import say

STARTERS = ("torchrun", "accelerate", "python")
_PAGE = """<!doctype html><html lang="{language}"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 sans-serif;max-width:1080px;margin:2em auto;padding:0 1em}}</style>
<h1>{title}</h1>{words}{picture}{table}</html>
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The launcher, how many ranks, how long, where to, the script and its own arguments."""
    parser.add_argument(
        "--using", choices=STARTERS, default="torchrun", help="what starts it (%(default)s)"
    )
    parser.add_argument("--ranks", type=int, help="how many (2; by python always 1)")
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="a deadline (default: %(default)g)"
    )
    parser.add_argument("--out", type=Path, default=Path("out/record"), help="a folder")
    parser.add_argument("script", help="the script, unchanged")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script is given")


def main(chosen: argparse.Namespace) -> int:
    """Records, prints what there is to say, and writes it down; 1 where the script failed."""
    alone = chosen.using == "python"
    ranks = chosen.ranks or (1 if alone else 2)
    try:
        found = record(
            chosen.script,
            *chosen.arguments,
            ranks=ranks,
            using=chosen.using,
            timeout_s=chosen.seconds,
        )
    except LaunchError as failed:
        print(failed, file=sys.stderr)
        print(say("Nothing could be recorded to its end."), file=sys.stderr)
        return 1
    print(found.told())
    print(found.advice.table())
    for path in write(found, chosen.out, Path(chosen.script).name):
        print(say("written: {path}", path=path))
    return 0


def write(found: Record, folder: Path, name: str) -> list[Path]:
    """The picture (SVG, PNG), the timeline, everything that Kineto recorded (both for Perfetto),
    and one page of HTML; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    picture = found.picture()
    drawn = svg.html(picture)
    (folder / "timeline.svg").write_text(drawn, encoding="utf-8")
    (folder / "timeline.png").write_bytes(mpl.png(picture))
    found.timeline.save(folder / "timeline.json")
    trace.merge_chrome(found.folder, folder / "perfetto.json")
    lines = "".join(f"<p>{escape(line)}</p>" for line in found.told().split("\n"))
    page = _PAGE.format(
        language=words.language(),
        title=escape(say("Recorded: {name}", name=name)),
        words=lines,
        picture=drawn,
        table=found.advice.table()._repr_html_(),
    )
    (folder / "report.html").write_text(page, encoding="utf-8")
    names = ("report.html", "timeline.svg", "timeline.png", "timeline.json", "perfetto.json")
    return [folder / each for each in names]
