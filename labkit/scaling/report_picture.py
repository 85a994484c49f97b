"""A report of scaling: one page of HTML that needs nothing else, its pictures inside.

scaling.report([measured], "out/scaling.html")
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from reprlib import repr as brief

from labkit import tables
from labkit.pictures.painters import svg
from labkit.scaling import picture
from labkit.scaling.aims import targets
from labkit.scaling.series import Scaled
from labkit.words import both, language, say, to_say

STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; max-width: 1000px; padding: 1.5em; font: 15px/1.5 system-ui, sans-serif; }
table { font-size: 13px; } figure, .labkit-table { margin: 1em 0; }
"""
MEANING = to_say(
    "Efficiency is the actual over the theoretical speedup. What it lacks to 100 % is lost to what "
    "does not divide (a rank alone, with its share), to contention (all compute, nobody sends), to "
    "waiting (from a rank's last gradient to the slowest rank's) and to communication (the rest of "
    "the step)."
)


def report(found: Sequence[Scaled], path: str | Path) -> Path:
    """Writes the page for one series or more, each with its curve, its times and the rules of
    thumb. Returns where it is. Raises ValueError for no series."""
    if not isinstance(found, Sequence) or not found:
        raise ValueError(f"a report is of one series or more, in a list; got {brief(found)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_page(found), encoding="utf-8")
    return path


def _page(found: Sequence[Scaled]) -> str:
    title = escape(say("Does it scale?"))
    machines = dict.fromkeys(each.machine for each in found if each.machine)
    lines = [*machines, say(MEANING)]
    body = [f"<h1>{title}</h1>", *(f"<p>{escape(line)}</p>" for line in lines)]
    body.append(_figure(svg.html(picture.efficiency(found))))
    heads = {f"{part}_us": said for part, said in picture.LOST.items() if part != "efficiency"}
    heads["ideal_us"] = both("used")
    for each in found:
        name = say("strong scaling") if each.kind == "strong" else say("weak scaling")
        body.append(f"<h2>{escape(name)} ({escape(each.badge)})</h2>")
        body.append(_figure(svg.html(picture.lost(each))))
        body.append(tables.table(each.rows(), heads=heads)._repr_html_())
        rows = [target._asdict() for target in targets(each)]
        body.append(tables.table(rows)._repr_html_())
    return (
        f'<!doctype html>\n<html lang="{language()}"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{chr(10).join(body)}</main></body></html>\n"
    )


def _figure(drawn: str) -> str:
    return f"<figure>{drawn}</figure>"
