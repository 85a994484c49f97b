"""A run that went wrong: a row per rank, what it does, an arrow to each rank it waits for, the odd
one marked."""

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from labkit.launching.verdicts.diagnosis import waits_for
from labkit.launching.verdicts.outcome import FAULTS, Finding, Outcome, is_echo
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import clipped
from labkit.words import catalogue, speaking, translated

Waits = dict[int, tuple[int, ...]]
"""rank -> the ranks it waits for"""
STATES = {
    "returned": ("#43b08a", ""),
    "failed": ("#f2954b", "/"),
    "echo": ("#f6cf65", ""),
    "died": ("#e0788f", "x"),
    "waiting": ("#a3a8b0", ""),
    "busy": ("#4f9fe3", ""),
    "stopped": ("#cf8fc2", "-"),
    "silent": ("#9a8fdc", "\\"),
}
"""How a rank is, as a colour and a hatch."""
_WORDS = (
    ("returned", "returned"),
    ("failed", "raised"),
    ("echo", "lost its peer"),
    ("died", "died"),
    ("waiting", "waits"),
    ("busy", "runs"),
    ("stopped", "stopped"),
    ("silent", "no answer"),
    ("for", "waits for rank {}"),
    ("own", "in its own code"),
    ("line", "line {line} of {file}: {text}"),
    ("colon", ": "),
    ("comma", "list|, "),
    ("odd", "the suspect"),
    ("who", "whom|suspect"),
    ("one", "rank {}"),
    ("many", "ranks {}"),
    ("calls", "{mine}, but rank {rank}: {theirs}"),
    ("room", "{wanted} wanted, {free} free of {capacity}"),
    ("arrow", "waits for"),
    ("unknown", "A run that did not end well"),
    ("summary", "{fault}: {odd}. {rows}."),
    ("nobody", "no single rank"),
)
WORDS = catalogue(_WORDS)
_NOISE = re.compile(r"^\[enforce fail at [^\]]*\] err == 0\. ")
"""What torch's allocator says before it comes to the point"""
_CALLS = re.compile(r"OpType=(\w+), TensorShape=(\[[\d, ]*\])")
"""What a rank called, as TORCH_DISTRIBUTED_DEBUG=DETAIL tells it"""
_OTHER = re.compile(r"but Rank (\d+) is running")
_ROOM = re.compile(
    r"Tried to allocate (\S+ \w+).* capacity of (\S+ \w+) of which (\S+ \w+) is free"
)
"""A device that is full, in torch's words"""
MOST_ROWS = 16
_ROW_PX = 40.0
_LEFT_PX = 96.0
_BOX_PX = 150.0


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What is said of one rank."""

    rank: int
    """which one"""
    state: str
    """a key of STATES"""
    does: str
    """what it does"""
    where: str
    """the line it does that on"""
    odd: bool
    """whether it is the odd one"""


def diagnosis(
    endings: Sequence[Outcome], finding: Finding | None = None, *, language: str | None = None
) -> Sketch:
    """How each rank ended and whom it waits for. ``endings``: one per rank, of which the first 16
    are drawn. Raises ValueError where there are none."""
    if not endings:
        raise ValueError(
            "a report draws how ranks ended; got no endings. A run that was refused has none."
        )
    ranks = finding.ranks if finding else ()
    odd = ranks if len(ranks) < len(endings) else ()  # among others
    waits = waits_for(endings)

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        names = WORDS[code]
        shapes_differ = finding is not None and finding.fault == "mismatched_shape"
        rows = [
            _row(ending, waits, odd, names, brought=shapes_differ) for ending in endings[:MOST_ROWS]
        ]
        states = {state_of(ending, waits) for ending in endings}
        keys, end_px = legend(_keys(states, odd, waits, names), 0, 62 + _ROW_PX * len(rows))
        heading = translated(FAULTS[finding.fault], code) if finding else names["unknown"]
        who = _listed(ranks, names)
        told = "; ".join(_told(row, names) for row in rows)
        return Sketch(
            shapes=(*_drawn(rows, names, _LEFT_PX if waits else 0), *_arrows(waits), *keys),
            height_px=end_px,
            heading=heading[:1].upper() + heading[1:],
            badge=words["measured"],
            numbers=((names["who"], who),) if odd else (),
            table=(("", "", "", "", ""), *(_cells(row, names) for row in rows)),
            summary=names["summary"].format(fault=heading, odd=who, rows=told),
            language=code,
        )

    return speaking(language, build)


def _row(
    ending: Outcome,
    waits: Waits,
    odd: Collection[int],
    names: Mapping[str, str],
    *,
    brought: bool,
) -> _Row:
    """A rank's row; where it has only lost its peer, it says what its last call ``brought``."""
    does, where = _says(ending, waits, names)
    if brought and is_echo(ending) and ending.calls:
        where = does
        does = _call(ending.calls[-1])
    return _Row(
        rank=ending.rank,
        state=state_of(ending, waits),
        does=does,
        where=where,
        odd=ending.rank in odd,
    )


def _listed(ranks: Sequence[int], names: Mapping[str, str]) -> str:
    """ "rank 1", "ranks 0, 2", or that there is none."""
    if not ranks:
        return names["nobody"]
    form = names["many" if len(ranks) > 1 else "one"]
    return form.format(names["comma"].join(map(str, ranks)))


def _drawn(rows: Sequence[_Row], names: Mapping[str, str], left: float) -> list[Shape]:
    """A box per rank, ``left`` pixels from the edge, and beside it two lines of words."""
    shapes: list[Shape] = []
    right = left + _BOX_PX + 14
    for row in rows:
        y = 58 + _ROW_PX * row.rank
        label = names[row.state]
        texts = names["colon"].join((f"rank {row.rank}", label)), label
        look = STATES[row.state]
        shapes.append(Box(left, y, _BOX_PX, 28, *look, texts, marked=row.odd))
        shapes.append(Words(right, y + 12, clipped(_sentences(row.does), 620, 12), bold=row.odd))
        where = clipped(row.where, 700, 11)
        shapes.append(Words(right, y + 27, where, size_px=11, opacity=0.85))
    return shapes


def _sentences(text: str) -> str:
    """The whole sentences of a text that fit into a line; the text where not even the first
    does."""
    if clipped(text, 620, 12) == text:
        return text
    kept = ""
    for sentence in text.split(". "):
        longer = f"{kept} {sentence}.".strip()
        if clipped(longer, 620, 12) != longer:
            break
        kept = longer
    return kept or text


def _cells(row: _Row, names: Mapping[str, str]) -> tuple[str, ...]:
    """A rank's line of the table."""
    odd = names["odd"] if row.odd else ""
    return f"rank {row.rank}", names[row.state], row.does, row.where, odd


def _told(row: _Row, names: Mapping[str, str]) -> str:
    """A rank's part of the summary."""
    state = f"rank {row.rank} {names[row.state]}"
    return f"{state}: {row.does}" if row.does else state


def _keys(
    states: Collection[str], odd: Collection[int], waits: Waits, names: Mapping[str, str]
) -> list[tuple[tuple[Shape, ...], str]]:
    """What boxes, edges and arrows mean."""
    keys: list[tuple[tuple[Shape, ...], str]] = [
        ((Box(0, -7, 22, 14, *look),), names[state])
        for state, look in STATES.items()
        if state in states
    ]
    if odd:
        keys.append(((Box(0, -7, 22, 14, marked=True),), names["odd"]))
    if waits:
        keys.append(((Line(((0, 0), (22, 0)), arrow=True),), names["arrow"]))
    return keys


def state_of(ending: Outcome, waits: Waits) -> str:
    """A rank's state, a key of STATES."""
    if ending.how != "stuck":
        return "echo" if is_echo(ending) else ending.how
    if ending.state == "stopped":
        return "stopped"
    if ending.rank in waits or ending.pending or ending.where.get("call"):
        return "waiting"
    return "busy" if ending.where else "silent"


def _says(ending: Outcome, waits: Waits, names: Mapping[str, str]) -> tuple[str, str]:
    """What a rank does, and where: two lines."""
    does = _does(ending, names)
    where = _where(ending)
    if ending.rank in waits:
        ranks = names["comma"].join(map(str, waits[ending.rank]))
        does += names["colon"] + names["for"].format(ranks)
    place = names["line"].format(**where) if where.get("line") else ""
    return (does.splitlines()[0], place) if does else (place, "")


def _does(ending: Outcome, names: Mapping[str, str]) -> str:
    """What a rank did last; "" where its state says it all."""
    if ending.how == "returned" or is_echo(ending):
        return ""
    if ending.how == "failed":
        return f"{ending.error['type']}: {_raised(ending.error['message'], names)}"
    if ending.how == "died":
        status = ending.status or 0
        return signal.Signals(-status).name if status < 0 else f"exit code {status}"
    if ending.pending:
        return _call(ending.pending[0])
    if ending.where.get("call"):
        return ending.where["call"]
    return names["own"] if ending.where else ""


def _call(work: Mapping) -> str:
    """A collective and the shapes that it was given."""
    return f"{work['op']} {', '.join(map(str, work['shapes']))}".strip()


def _raised(message: str, names: Mapping[str, str]) -> str:
    """What an exception says, without the words that are the same on every rank."""
    calls = _CALLS.findall(message)
    other = _OTHER.search(message)
    room = _ROOM.search(message)
    if other and len(calls) == 2:
        mine, theirs = map(" ".join, calls)
        return names["calls"].format(mine=mine, rank=other[1], theirs=theirs)
    if room:
        return names["room"].format(wanted=room[1], capacity=room[2], free=room[3])
    return _NOISE.sub("", message)


def _where(ending: Outcome) -> dict:
    """File, line and text of the place; {} where there is none, or it is stale."""
    if ending.how == "failed":
        return ending.error.get("where", {})
    return {} if ending.how in ("died", "returned") else ending.where


def _arrows(waits: Waits) -> list[Shape]:
    """From each waiting rank, left of the boxes, to those it waits for. Ranks that wait for the
    same ones share a track: together they are a bracket. Arrows leave a box above its middle and
    reach one below it."""
    drawn = {rank: ranks for rank, ranks in waits.items() if rank < MOST_ROWS}
    tracks = list(dict.fromkeys(drawn[rank] for rank in sorted(drawn)))
    step = min(16.0, (_LEFT_PX - 30) / max(1, len(tracks)))
    lines: list[Shape] = []
    for rank, ranks in sorted(drawn.items()):
        x = _LEFT_PX - 22 - step * tracks.index(ranks)
        y = 66 + _ROW_PX * rank
        for other in ranks:
            if other < MOST_ROWS:
                end = 78 + _ROW_PX * other
                way = ((_LEFT_PX, y), (x, y), (x, end), (_LEFT_PX - 2, end))
                lines.append(Line(way, "", 1.5, arrow=True))
    return lines
