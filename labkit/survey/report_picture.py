"""A survey on one page, as HTML that needs nothing else, and as text for a terminal."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import chain
from typing import NamedTuple

from labkit.pictures.drawing import Picture, Scene
from labkit.pictures.painters import svg, text
from labkit.survey.picture import PARTS, RUNGS, Found, Others, headlines, pictures, tables
from labkit.survey.summary import Summary, Taken
from labkit.tables import Table
from labkit.units import columns_of, format_bytes, format_us
from labkit.words import language, say, to_say

STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --page: #ffffff; --pale: #f3f5f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --page: #0d1117; --pale: #171d26; }
}
body { margin: 0 auto; max-width: 1080px; padding: 1.5em; color: var(--ink);
  background: var(--page);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC",
    "Microsoft YaHei", "Noto Sans CJK SC", sans-serif; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2em; }
table { font-size: 13px; }
.labkit-table, figure { margin: 1em 0; }
.labkit-table thead th { white-space: normal !important; vertical-align: bottom !important; }
.labkit-table tbody th, .labkit-table td:last-child { white-space: nowrap; }
pre { background: var(--pale); padding: .8em; overflow-x: auto; white-space: pre-wrap; }
"""
MEANINGS = (
    to_say(
        "Predicted: by theory, before anything ran. For collectives: the line latency + "
        "size / bandwidth through the measured times."
    ),
    to_say(
        "Measured: a clock, a counter or an allocator was read for it in this very run. "
        "Throughput and bandwidth are operations and bytes, by formula, over a measured time."
    ),
    to_say(
        "Recorded: measured earlier. A column named after a machine was measured there and "
        "stands in this repository's data folder; what stands in brackets was taken on another "
        "number of ranks."
    ),
)
PACED = to_say(
    "Paced: layers and links take the time that was stated, by the clock, so that "
    "several ranks need not have a core or a GPU each. A step that took longer overran."
)


class Section(NamedTuple):
    """One part of the page."""

    title: str
    """its heading"""
    lines: Sequence[str]
    """sentences"""
    errors: Mapping[str, str]
    """what failed -> why"""
    tables: Sequence[Table]
    """its numbers"""
    pictures: Sequence[Picture]
    """its drawings"""


def page(summary: Summary, found: Mapping[str, Sequence[Found]], others: Others) -> str:
    """The HTML page. ``found``: part -> what was taken of it; ``others``: machine -> what was
    recorded there."""
    body = []
    for number, section in enumerate(_sections(summary, found, others)):
        level = "h2" if number else "h1"
        body.append(f"<section><{level}>{escape(section.title)}</{level}>")
        body += [f"<p>{escape(line)}</p>" for line in section.lines]
        for name, why in section.errors.items():
            body.append(f'<div role="alert"><b>{escape(name)}</b><pre>{escape(why)}</pre></div>')
        body += [f"<figure>{svg.html(each)}</figure>" for each in section.pictures]
        body += [each._repr_html_() for each in section.tables]
        body.append("</section>")
    title = escape(say("What this machine does"))
    return (
        f'<!doctype html>\n<html lang="{language()}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main></body></html>\n"
    )


def lines(summary: Summary, found: Mapping[str, Sequence[Found]], others: Others) -> str:
    """The same as text."""
    told = []
    for section in _sections(summary, found, others):
        told += [section.title, "=" * columns_of(section.title), *section.lines, ""]
        for name, why in section.errors.items():
            told += [f"{name}: {why}", ""]
        for each in section.tables:
            told += [str(each), ""]
        for each in section.pictures:
            if isinstance(each, Scene):  # others are tables already
                told += [text.render(each), ""]
    return "\n".join(told)


def _sections(
    summary: Summary, found: Mapping[str, Sequence[Found]], others: Others
) -> list[Section]:
    """The top of the page, then a section for each part that was taken."""
    top = Section(
        title=say("What this machine does"),
        lines=[*_about(summary), *map(say, MEANINGS)],
        errors={},
        tables=[headlines(summary.numbers, others)],
        pictures=[],
    )
    sections = [top]
    for part in dict.fromkeys(each.part for each in summary.taken):
        numbers = [each for each in summary.numbers if each.part == part]
        taken = [each for each in summary.taken if each.part == part]
        notes = list(dict.fromkeys(chain.from_iterable(each.notes for each in taken)))
        errors = {each.name: each.error for each in taken if each.error}
        drawn = []
        try:
            drawn = pictures(part, numbers, found.get(part, ()), _badge(numbers, notes))
        except Exception as error:  # the numbers stand all the same
            errors[say("the pictures")] = repr(error)
        sections.append(
            Section(
                title=say(PARTS[part]),
                lines=_part_lines(taken, notes),
                errors=errors,
                tables=tables(numbers, others),
                pictures=drawn,
            )
        )
    return sections


def _badge(numbers: Sequence, notes: Sequence[str]) -> str:
    """Where a part's numbers come from, for its pictures."""
    origins = {each.origin for each in numbers}
    own = "recorded" if "recorded" in origins else "measured"
    badge = ", ".join((own, *notes))
    return f"{badge} / computed" if "predicted" in origins else badge


def _about(summary: Summary) -> list[str]:
    """The machine, the versions and what must be said of the whole."""
    machine = summary.machine
    gpus = ", ".join(machine.get("gpu_models", ()))
    told = [
        say(
            "{cpu}, {cores} cores, {memory}, {gpus} GPUs {models}",
            cpu=machine.get("cpu", ""),
            cores=machine.get("cores", "?"),
            memory=format_bytes(machine.get("memory_bytes", 0)),
            gpus=machine.get("gpus", 0),
            models=gpus,
        ).strip(),
        ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
        say(
            "Taken {when} in {seconds} of {minutes:g} minutes.",
            when=summary.started,
            seconds=format_us(1e6 * summary.seconds),
            minutes=summary.minutes,
        ),
    ]
    if summary.stopped:
        told.append(say("It was stopped: what was measured until then is here."))
    if summary.left_out:
        told.append(say("No time was left for {names}.", names=", ".join(summary.left_out)))
    return told


def _part_lines(taken: Sequence[Taken], notes: Sequence[str]) -> list[str]:
    """On what a part ran."""
    stood = dict.fromkeys(say(RUNGS[each.rung]) for each in taken)
    told = [
        say(
            "Ran on {rungs} ({notes}), {count} runs.",
            rungs=", ".join(stood),
            notes=", ".join(map(say, notes)) or "-",
            count=len(taken),
        )
    ]
    if any(note.startswith("paced") for note in notes):
        told.append(say(PACED))
    return told
