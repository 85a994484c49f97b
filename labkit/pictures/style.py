"""How kinds of work look and what they are called, in English and Chinese: the words and colours of
every picture."""

import itertools
import re
from dataclasses import dataclass

from labkit.units import check_whole
from labkit.words import both, to_say


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one kind of work looks: a colour and, for eyes or printers that do not see it, a letter
    and a hatch."""

    letter: str
    """one character, different for every kind"""
    colour: str
    """"#rrggbb", readable under dark ink, on white and on near-black; "" follows the text's
    colour"""
    hatch: str
    """a matplotlib hatch character, or "" for plain"""
    name: str
    """what it is called"""

    @property
    def words(self) -> dict[str, str]:
        """Its name in each language."""
        return both(self.name)


def _kind(letter: str, colour: str, hatch: str, name: str) -> Kind:
    return Kind(letter=letter, colour=colour, hatch=hatch, name=name)


IDLE = "idle"
KINDS = {
    "F": _kind("F", "#4f9fe3", "", to_say("forward")),
    "B": _kind("B", "#f2954b", "", to_say("backward")),
    "I": _kind("I", "#f6cf65", "\\", to_say("backward for inputs")),
    "W": _kind("W", "#43b08a", ".", to_say("backward for weights")),
    "forward": _kind("→", "#4f9fe3", "", to_say("forward")),
    "backward": _kind("←", "#f2954b", "", to_say("backward")),
    "compute": _kind("C", "#4f9fe3", "", to_say("compute")),
    "optimizer": _kind("O", "#43b08a", ".", to_say("optimizer")),
    "input": _kind("L", "#d9b08c", "/", to_say("loading data")),
    "save": _kind("S", "#b7a3d0", "|", to_say("saving")),
    "send": _kind("s", "#cf8fc2", "", to_say("send")),
    "recv": _kind("r", "#9a8fdc", "\\", to_say("receive")),
    "all_reduce": _kind("a", "#e0788f", "x", to_say("all-reduce")),
    "all_reduce_tp": _kind("t", "#e0788f", "o", to_say("all-reduce along tp")),
    "all_reduce_dp": _kind("d", "#6fb7b7", "/", to_say("all-reduce along dp")),
    "all_gather": _kind("g", "#bfa45f", "|", to_say("all-gather")),
    "reduce_scatter": _kind("e", "#95b552", "-", to_say("reduce-scatter")),
    "all_to_all": _kind("A", "#cf8fc2", "x", to_say("all-to-all")),
    "broadcast": _kind("b", "#6fb7b7", ".", to_say("broadcast")),
    "reduce": _kind("R", "#bfa45f", "x", to_say("reduce")),
    "barrier": _kind("|", "#a3a8b0", "", to_say("barrier")),
    "wait": _kind("w", "#a3a8b0", "+", to_say("wait")),
    "mark": _kind("M", "#a3a8b0", "", to_say("named by the program")),
    IDLE: _kind(".", "", "/", to_say("idle (bubble)")),
}
_COLOURS = (
    "#4f9fe3",
    "#f2954b",
    "#43b08a",
    "#cf8fc2",
    "#bfa45f",
    "#9a8fdc",
    "#e0788f",
    "#f6cf65",
)
CYCLE = tuple(itertools.product(_COLOURS, [""])) + tuple(itertools.product(_COLOURS, ["/"]))
"""(colour, hatch) of things that are counted, not named: chunks, lines, bars; sixteen of them"""

HATCHES = {
    "/": (6, "M-1 1l2-2M0 6l6-6M5 7l2-2"),
    "\\": (8, "M-1 7l2 2M0 0l8 8M7-1l2 2"),
    "x": (6, "M0 6l6-6M0 0l6 6"),
    "|": (4, "M2 0v4"),
    "-": (4, "M0 2h4"),
    "+": (6, "M3 0v6M0 3h6"),
    "o": (7, "M1.5 3.5a2 2 0 1 0 4 0a2 2 0 1 0-4 0"),
    ".": (6, "M1 1h1.6M4 4h1.6"),
}
"""SVG's tile of each hatch: size in pixels, path of its strokes"""


def style(kind: str) -> Kind:
    """How a kind looks; a kind this table does not know is grey, its letter a question mark."""
    return KINDS.get(kind) or _kind("?", "#a3a8b0", "", kind)


def shade(colour: str, chunk: int, num_chunks: int) -> str:
    """A kind's colour for a rank's stage number ``chunk``: each later one is lighter."""
    if not colour:
        return "currentColor"
    check_whole(0, chunk=chunk, num_chunks=num_chunks)
    if not re.fullmatch("#[0-9a-f]{6}", colour):
        raise ValueError(f'a colour is "#rrggbb" or ""; got {colour!r}')
    white = min(1.0, 0.45 * chunk / max(1, num_chunks - 1))
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    mixed = [round(part * (1 - white) + 255 * white) for part in parts]
    return "#" + "".join(f"{part:02x}" for part in mixed)


def clipped(text: str, width_px: float, size_px: float = 12.0) -> str:
    """The text, or its beginning and an ellipsis where it is wider than ``width_px``."""
    while len(text) > 1 and text_px(text, size_px) > width_px:
        text = text[:-2].rstrip() + "…"
    return text


def text_px(text: str, size_px: float = 12.0) -> float:
    """About how wide a text is: a Chinese character is as wide as it is high, a Latin one a little
    over half."""
    return size_px * sum(1.02 if ord(character) > 0x2E80 else 0.58 for character in text)
