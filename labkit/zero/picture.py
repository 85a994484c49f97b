"""A step with offload on an axis of time: device, link and host in three rows; and stage 3's whole
layers over a step."""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.pictures.axes import Series
from labkit.pictures.curves import curves
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import (
    Box,
    Line,
    Said,
    Shape,
    Sketch,
    Words,
    legend,
    origin,
    said,
    short,
    ticks,
)
from labkit.pictures.style import style
from labkit.units import brief, check_real, check_whole, format_bytes, format_us
from labkit.words import both, catalogue, speaking
from labkit.zero.offload_times import Phase

WORDS = catalogue(
    [
        ("device", "device computes"),
        ("link", "link carries"),
        ("host", "host updates"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("step", "update"),
        ("hidden", "all at once"),
        ("turn", "one after another"),
        ("alone", "computing alone"),
        ("times", "A step with offload, in time"),
    ]
)
ROWS = ("device", "link", "host")
LOOKS = {"device": {"forward": "F", "backward": "B"}, "link": "send", "host": "optimizer"}
_LEFT_PX = 150.0
_TOP_PX = 62.0
_ROW_PX = 30.0
_PER_EVENT = 40  # points between one gather or free and the next


def whole_layers(whole_bytes: Sequence[int], *, language: str | None = None) -> Sketch:
    """The bytes of whole layers after each gather and free of a step, in order, as stairs from 0:
    each number holds until the next. ``whole_bytes`` as ``by_hand_run.after_three`` returns it.
    Raises ValueError for none, or for what are no bytes."""
    if not isinstance(whole_bytes, (list, tuple)) or not whole_bytes:
        raise ValueError(f"stairs need one number of bytes or more; got {brief(whole_bytes)}")
    for each in whole_bytes:
        check_whole(0, 10**15, **{"bytes of whole layers": each})
    levels = [0, *whole_bytes]
    xs = [step / _PER_EVENT for step in range(_PER_EVENT * len(levels))]
    stairs = [levels[step // _PER_EVENT] for step in range(len(xs))]
    return curves(
        [Series(both("whole"), xs, stairs, points=True, joined=True)],
        title=both("Bytes of whole layers over a step of stage 3"),
        badge="measured",
        x_name=both("gathers and frees, in order"),
        y_format=format_bytes,
        language=language,
    )


def times(
    found: Sequence[Phase],
    *,
    in_turn: bool = False,
    span_us: float = 0.0,
    badge: str = "simulated",
    title: Said = "",
    language: str | None = None,
) -> Sketch:
    """The phases of a step, one beside the other; in each, device, link and host go on at once, or
    (``in_turn``) one after another. ``span_us``: how long the axis is at least."""
    check_real(0.0, 1e18, span_us=span_us)
    drawing = _Times(found=tuple(found), in_turn=in_turn, span_us=span_us, badge=badge, title=title)
    return speaking(language, drawing.sketch)


@dataclass(frozen=True, kw_only=True)
class _Times:
    """What ``times`` draws."""

    found: tuple[Phase, ...]
    """the phases in order"""
    in_turn: bool
    """whether each waits for the other"""
    span_us: float
    """the axis, at least"""
    badge: str
    """"simulated", or "measured" and what must be said with it"""
    title: Said
    """its heading, or "" for the usual one"""

    @property
    def lasts_us(self) -> list[float]:
        """How long each phase is."""
        return [each.in_turn_us if self.in_turn else each.hidden_us for each in self.found]

    def x_px(self, at_us: float) -> float:
        """Where a moment lies."""
        end_us = max(self.span_us, sum(self.lasts_us)) or 1.0
        return _LEFT_PX + (WIDTH_PX - _LEFT_PX - 10) * at_us / end_us

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        names = WORDS[words["code"]]
        shapes: list[Shape] = []
        for number, row in enumerate(ROWS):
            y = _TOP_PX + number * _ROW_PX + 17
            shapes.append(Words(_LEFT_PX - 10, y, names[row], "end"))
        begin_us = 0.0
        for phase, lasts_us in zip(self.found, self.lasts_us, strict=True):
            shapes += self._bars(phase, begin_us, names)
            begin_us += lasts_us
            x = self.x_px(begin_us)
            shapes.append(Line(((x, _TOP_PX - 4), (x, self._bottom_px)), dash=(2, 3), opacity=0.5))
        keys, end_px = legend(self._samples(names), 0, self._bottom_px + 26)
        return Sketch(
            shapes=(*shapes, *keys, *self._axis()),
            height_px=end_px,
            heading=said(self.title, words["code"]) or names["times"],
            badge=origin(self.badge, words),
            numbers=self._numbers(names),
            table=(("", *(names[row] for row in ROWS)), *self._rows(names)),
            language=words["code"],
        )

    @property
    def _bottom_px(self) -> float:
        return _TOP_PX + len(ROWS) * _ROW_PX

    def _bars(self, phase: Phase, begin_us: float, names: dict[str, str]) -> list[Shape]:
        """What each of the three does in a phase."""
        bars: list[Shape] = []
        for number, row in enumerate(ROWS):
            lasts_us = phase[1 + number]
            if lasts_us:
                look = LOOKS[row]
                kind = style(look[phase.name] if isinstance(look, dict) else look)
                left = self.x_px(begin_us)
                text = f"{names[phase.name]} {format_us(lasts_us)}"
                texts = (text, format_us(lasts_us), names[phase.name])
                y = _TOP_PX + number * _ROW_PX
                width = self.x_px(begin_us + lasts_us) - left
                bars.append(Box(left, y + 2, width, 24, kind.colour, kind.hatch, texts))
            if self.in_turn:
                begin_us += lasts_us
        return bars

    def _samples(self, names: dict[str, str]) -> list[tuple[tuple[Box, ...], str]]:
        """The legend's entries: the colours of the device's forward and backward."""
        found: list[tuple[tuple[Box, ...], str]] = []
        for phase, kind in LOOKS["device"].items():
            look = style(kind)
            found.append(((Box(0, -7, 22, 14, look.colour, look.hatch),), names[phase]))
        return found

    def _axis(self) -> list[Shape]:
        """Round numbers below the rows."""
        end_us = max(self.span_us, sum(self.lasts_us)) or 1.0
        shapes: list[Shape] = [
            Line(((_LEFT_PX, self._bottom_px), (WIDTH_PX - 10, self._bottom_px)), width_px=1)
        ]
        for at_us in ticks(0.0, end_us, most=6):
            x = self.x_px(float(at_us))
            shapes.append(Line(((x, self._bottom_px), (x, self._bottom_px + 4)), width_px=1))
            anchor = "end" if x > WIDTH_PX - 40 else "middle"
            label = short(format_us(float(at_us))) if at_us else "0"
            shapes.append(Words(x, self._bottom_px + 17, label, anchor, opacity=0.85))
        return shapes

    def _numbers(self, names: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """The step, its bounds, and what it would be without offload."""
        alone_us = sum(each.device_us for each in self.found)
        in_turn_us = sum(each.in_turn_us for each in self.found)
        if self.in_turn:
            return ((names["turn"], format_us(in_turn_us)),)
        return (
            (names["hidden"], format_us(sum(self.lasts_us))),
            (names["turn"], format_us(in_turn_us)),
            (names["alone"], format_us(alone_us)),
        )

    def _rows(self, names: dict[str, str]) -> list[tuple[str, ...]]:
        """The same for who reads."""
        return [(names[each.name], *map(format_us, each[1:])) for each in self.found]
