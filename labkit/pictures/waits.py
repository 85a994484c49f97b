"""A run that went wrong, as a sketch: a row per rank, what it does, an arrow to each rank it waits
for, the odd one marked."""

import re
import signal
from collections.abc import Sequence

from labkit.launching.diagnosis import waits_for
from labkit.launching.outcome import FAULTS, Finding, Outcome, is_echo
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import clipped
from labkit.words import speaking

STATES = {
    "returned": ("#43b08a", "", "returned", "已返回"),
    "failed": ("#f2954b", "/", "raised", "抛出异常"),
    "echo": ("#f6cf65", "", "lost its peer", "失去对端"),
    "died": ("#e0788f", "x", "died", "已死亡"),
    "waiting": ("#a3a8b0", "", "waits", "等待"),
    "busy": ("#4f9fe3", "", "runs", "运行中"),
    "stopped": ("#cf8fc2", "-", "stopped", "被暂停"),
    "silent": ("#9a8fdc", "\\", "no answer", "无应答"),
}
"""How a rank is, as a colour, a hatch, and in words"""
_WORDS = (
    ("for", "waits for rank {}", "等 rank {}"),
    ("own", "in its own code", "在自己的代码里"),
    ("line", "line {line} of {file}: {text}", "{file} 第 {line} 行：{text}"),
    ("colon", ": ", "："),
    ("comma", ", ", "、"),
    ("odd", "the odd one", "出错者"),
    ("arrow", "waits for", "在等"),
    ("unknown", "A run that did not end well", "未能正常结束的运行"),
    ("summary", "{fault}: {odd}. {rows}.", "{fault}：{odd}。{rows}。"),
    ("nobody", "no single rank", "并非单个 rank"),
)
WORDS = {"en": {key: en for key, en, _ in _WORDS}, "zh": {key: zh for key, _, zh in _WORDS}}
_NOISE = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")
"""What torch's allocator says before it comes to the point"""
_ROW_PX, _LEFT_PX, _BOX_PX, _MOST = 40.0, 96.0, 150.0, 16


def sketch(
    endings: Sequence[Outcome], finding: Finding | None = None, *, language: str = "en"
) -> Sketch:
    """The picture of a diagnosis. ``endings``: one per rank, of which the first 16 are drawn.
    Raises ValueError where there are none."""
    if not endings:
        raise ValueError(
            "a report draws how ranks ended; got no endings. A run that was refused has none."
        )
    odd, waits = finding.ranks if finding else (), waits_for(endings)

    def build(words: dict[str, str]) -> Sketch:
        names, code = WORDS[words["code"]], words["code"]
        rows, shapes = [], []
        for ending in endings[:_MOST]:
            state = state_of(ending, waits)
            label = STATES[state][2 if code == "en" else 3]
            first, second = _says(ending, waits, names)
            y = 58 + _ROW_PX * ending.rank
            shapes += [
                Box(
                    _LEFT_PX,
                    y,
                    _BOX_PX,
                    28,
                    *STATES[state][:2],
                    (names["colon"].join((f"rank {ending.rank}", label)), label),
                    marked=ending.rank in odd,
                ),
                Words(
                    _LEFT_PX + _BOX_PX + 14,
                    y + 12,
                    clipped(first, 620, 12),
                    bold=ending.rank in odd,
                ),
                Words(
                    _LEFT_PX + _BOX_PX + 14,
                    y + 27,
                    clipped(second, 700, 11),
                    size_px=11,
                    opacity=0.85,
                ),
            ]
            rows.append(
                (
                    f"rank {ending.rank}",
                    label,
                    first,
                    second,
                    names["odd"] if ending.rank in odd else "",
                )
            )
        shapes += _arrows({rank: ranks for rank, ranks in waits.items() if rank < _MOST})
        seen = {state_of(ending, waits): None for ending in endings}
        samples = [
            ((Box(0, -7, 22, 14, *STATES[state][:2]),), STATES[state][2 if code == "en" else 3])
            for state in STATES
            if state in seen
        ]
        samples += [((Box(0, -7, 22, 14, marked=True),), names["odd"])] * bool(odd)
        samples += [((Line(((0, 0), (22, 0)), arrow=True),), names["arrow"])] * bool(waits)
        more, end_px = legend(samples, 0, 62 + _ROW_PX * len(rows))
        heading = FAULTS[finding.fault][0 if code == "en" else 1] if finding else names["unknown"]
        who = names["comma"].join(f"rank {rank}" for rank in odd) or names["nobody"]
        said = "; ".join(
            ": ".join(filter(None, (f"{name} {label}", first))) for name, label, first, *_ in rows
        )
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=heading,
            badge=words["measured"],
            numbers=((names["odd"], who),) if odd else (),
            table=(("", "", "", "", ""), *rows),
            summary=names["summary"].format(fault=heading, odd=who, rows=said),
            language=code,
        )

    return speaking(language, build)


def state_of(ending: Outcome, waits: dict[int, tuple[int, ...]]) -> str:
    """A rank's state, a key of STATES."""
    if ending.how != "stuck":
        return "echo" if is_echo(ending) else ending.how
    if ending.state == "stopped":
        return "stopped"
    if ending.rank in waits or ending.pending or ending.where.get("call"):
        return "waiting"
    return "busy" if ending.where else "silent"


def _says(
    ending: Outcome, waits: dict[int, tuple[int, ...]], names: dict[str, str]
) -> tuple[str, str]:
    """What a rank does, and where: two lines."""
    where, what = ending.where, ending.where.get("call") or ""
    if ending.how == "failed":
        where = ending.error.get("where", {})
        said = _NOISE.sub("", ending.error["message"])
        what = "" if is_echo(ending) else f"{ending.error['type']}: {said}"
    elif ending.how == "died":
        code = ending.status or 0
        where, what = {}, signal.Signals(-code).name if code < 0 else f"exit code {code}"
    elif ending.how == "returned":
        where, what = {}, ""
    elif ending.pending:
        what = (
            f"{ending.pending[0]['op']} {', '.join(map(str, ending.pending[0]['shapes']))}".strip()
        )
    elif not what and where:
        what = names["own"]
    if ending.rank in waits:
        what += names["colon"] + names["for"].format(
            names["comma"].join(map(str, waits[ending.rank]))
        )
    place = names["line"].format(**where) if where.get("line") else ""
    return (what.splitlines()[0], place) if what else (place, "")


def _arrows(waits: dict[int, tuple[int, ...]]) -> list[Shape]:
    """From each waiting rank, left of the boxes, to those it waits for; each waiting rank has a
    track of its own."""
    lines, step = [], min(16.0, (_LEFT_PX - 30) / max(1, len(waits)))
    for track, (rank, ranks) in enumerate(sorted(waits.items())):
        x, y = _LEFT_PX - 22 - step * track, 72 + _ROW_PX * rank
        for other in (each for each in ranks if each < _MOST):
            end = 72 + _ROW_PX * other + (4 if other < rank else -4)
            lines.append(
                Line(((_LEFT_PX, y), (x, y), (x, end), (_LEFT_PX - 2, end)), "", 1.5, arrow=True)
            )
    return lines
