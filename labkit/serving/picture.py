"""What a server did as a sketch: how many wait, and under it the slots, each with its requests one
after another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from labkit.pictures.style import IDLE, KINDS
from labkit.serving.queue import Visit
from labkit.serving.served import Served
from labkit.units import check_real, format_share, format_us
from labkit.words import catalogue, speaking

WORDS = catalogue(
    [
        ("heading", "Queue and slots"),
        ("simulated", "Simulated"),
        ("measured", "Measured"),
        ("queue", "queue"),
        ("slot", "slot {}"),
        ("most", "at most {}"),
        ("prefill", "prefill"),
        ("decode", "decode, request number"),
        ("held", "done, its slot still taken"),
        ("latency", "latency p50 {}, p95 {}"),
        ("first", "first token p95 {}"),
        ("tokens", "{:.0f} tokens/s"),
        ("used", "slots used {}"),
        ("table name", "server"),
        ("table p50", "latency p50"),
        ("table p95", "latency p95"),
        ("table first", "first token p95"),
        ("table tokens", "tokens a second"),
        ("table used", "slots used"),
        ("nobody", "Nobody came."),
    ]
)
_LEFT_PX = 66.0
_TOP_PX = 46.0
_RIGHT_PX = 10.0
_QUEUE_PX = 34.0
_ROW_PX = 20.0
_ROOM_PX = 200.0
"""for the slots of one panel"""
LOOKS = {
    "prefill": (KINDS["B"].colour, ""),
    "decode": (KINDS["F"].colour, ""),
    "held": (KINDS[IDLE].colour, ""),
}
"""part of a visit -> colour and hatch"""


def slots(
    predicted: Served,
    measured: Served | None = None,
    *,
    title: Said = "",
    span_us: float = 0.0,
    language: str | None = None,
) -> Sketch:
    """The queue and the slots in time; a measurement below, on the same axis. ``span_us`` lengthens
    the axis."""
    check_real(0.0, 1e18, span_us=span_us)
    panels = (predicted,) if measured is None else (predicted, measured)
    ends_us = [1.0, span_us]
    for panel in panels:
        ends_us += [each.left_us for each in panel.visits]
    drawing = _Panels(panels=panels, title=title, end_us=max(ends_us))
    return speaking(language, drawing.sketch)


@dataclass(frozen=True, kw_only=True)
class _Panels:
    """What ``slots`` draws."""

    panels: tuple[Served, ...]
    """one, or a prediction and a measurement"""
    title: Said
    """the heading, or "" for the usual one"""
    end_us: float
    """where the axis ends"""

    def x_px(self, at_us: float) -> float:
        """Where a moment lies."""
        return _LEFT_PX + (WIDTH_PX - _LEFT_PX - _RIGHT_PX) * at_us / self.end_us

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        own = WORDS[words["code"]]
        shapes: list[Shape] = []
        y = _TOP_PX
        for panel in self.panels:
            drawn, y = self._panel(panel, own, words, y)
            shapes += drawn
        shapes += self._axis(y)
        keys, end_px = legend(self._looks(own), 0, y + 26)
        badges = [panel.badge for panel in self.panels]
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=said(self.title, words["code"]) or own["heading"],
            badge=origin(" / ".join(badges), words),
            table=self._table(own),
            language=words["code"],
        )

    def _panel(
        self, panel: Served, own: dict[str, str], words: dict[str, str], y: float
    ) -> tuple[list[Shape], float]:
        """One server from y on, and where the next thing may begin."""
        shapes: list[Shape] = [Words(0, y + 12, self._told(panel, own), size_px=12)]
        if len(self.panels) > 1:
            name = own["measured" if panel.origin != "simulated" else "simulated"]
            told = f"{name}{words['colon']}{self._told(panel, own)}"
            shapes = [Words(0, y + 12, told, size_px=12)]
        y += 24
        shapes += self._queue(panel, own, y)
        y += _QUEUE_PX + 6
        row_px = min(_ROW_PX, _ROOM_PX / panel.slots)
        for slot in range(panel.slots):
            shapes += self._slot(panel, slot, own, y + slot * row_px, row_px)
        return shapes, y + panel.slots * row_px + 8

    def _told(self, panel: Served, own: dict[str, str]) -> str:
        """Its figures in one line."""
        if not panel.visits:
            return own["nobody"]
        found = panel.figures()
        latency = own["latency"].format(
            format_us(found.latency_p50_us), format_us(found.latency_p95_us)
        )
        parts = (
            latency,
            own["first"].format(format_us(found.first_p95_us)),
            own["tokens"].format(found.tokens_per_s),
            own["used"].format(format_share(found.used_share)),
        )
        return " · ".join(parts)

    def _queue(self, panel: Served, own: dict[str, str], y: float) -> Iterator[Shape]:
        """How many wait, as bars between changes."""
        changes = panel.waiting()
        longest = max((number for _, number in self._all_waiting()), default=0)
        yield Words(_LEFT_PX - 8, y + _QUEUE_PX - 4, own["queue"], "end", 11)
        mine = max((number for _, number in changes), default=0)
        if mine:
            yield Words(_LEFT_PX - 8, y + 10, own["most"].format(mine), "end", 11, opacity=0.8)
        foot = y + _QUEUE_PX
        ends = [at_us for at_us, _ in changes[1:]]
        for (at_us, number), end_us in zip(changes, ends, strict=False):
            high = _QUEUE_PX * number / max(1, longest)
            left = self.x_px(at_us)
            if number:
                yield Box(left, foot - high, self.x_px(end_us) - left, high, KINDS["send"].colour)
        yield Line(((_LEFT_PX, foot), (WIDTH_PX - _RIGHT_PX, foot)), width_px=1, opacity=0.5)

    def _all_waiting(self) -> list[tuple[float, int]]:
        """Of all panels: they share a height."""
        found: list[tuple[float, int]] = []
        for panel in self.panels:
            found += panel.waiting()
        return found

    def _slot(
        self, panel: Served, slot: int, own: dict[str, str], y: float, row_px: float
    ) -> Iterator[Shape]:
        """A slot's requests one after another."""
        if row_px > 11 or slot % 4 == 0:
            name = own["slot"].format(slot)
            yield Words(_LEFT_PX - 8, y + row_px / 2 + 4, name, "end", 11)
        for each in panel.visits:
            if each.slot == slot:
                yield from self._visit(each, y + 1, row_px - 2)

    def _visit(self, visit: Visit, y: float, high: float) -> Iterator[Shape]:
        """Prefill, decode, and what is held after it."""
        times_us = (visit.admitted_us, visit.first_us, visit.last_us, visit.left_us)
        for part, begin_us, end_us in zip(LOOKS, times_us, times_us[1:], strict=False):
            left = self.x_px(begin_us)
            wide = self.x_px(end_us) - left
            if wide < 0.3:
                continue
            colour, hatch = LOOKS[part]
            texts = (str(visit.number),) if part == "decode" and high > 11 else ()
            yield Box(left, y, wide, high, colour, hatch, texts)

    def _axis(self, y: float) -> Iterator[Shape]:
        """Round numbers below the rows."""
        yield Line(((_LEFT_PX, y), (WIDTH_PX - _RIGHT_PX, y)), width_px=1)
        for at_us in ticks(0.0, self.end_us, most=8):
            x = self.x_px(float(at_us))
            yield Line(((x, y), (x, y + 4)), width_px=1)
            anchor = "end" if x > WIDTH_PX - 40 else "middle"
            yield Words(x, y + 17, short(format_us(float(at_us))), anchor, opacity=0.85)

    def _looks(self, own: dict[str, str]) -> list[tuple[Sequence[Shape], str]]:
        """The legend: what there is."""
        holds = any(each.left_us > each.last_us + 1e3 for each in self._visits())
        names = [part for part in LOOKS if part != "held" or holds]
        found: list[tuple[Sequence[Shape], str]] = []
        for part in names:
            colour, hatch = LOOKS[part]
            sample = Box(0, -8, 22, 16, colour, hatch)
            found.append(((sample,), own[part]))
        return found

    def _visits(self) -> list[Visit]:
        found: list[Visit] = []
        for panel in self.panels:
            found += panel.visits
        return found

    def _table(self, own: dict[str, str]) -> tuple[tuple[str, ...], ...]:
        """The same in numbers."""
        names = ("name", "p50", "p95", "first", "tokens", "used")
        rows = [tuple(own[f"table {name}"] for name in names)]
        for panel in self.panels:
            if not panel.visits:
                continue
            found = panel.figures()
            rows.append(
                (
                    own["simulated" if panel.origin == "simulated" else "measured"],
                    format_us(found.latency_p50_us),
                    format_us(found.latency_p95_us),
                    format_us(found.first_p95_us),
                    f"{found.tokens_per_s:.0f}",
                    format_share(found.used_share),
                )
            )
        return tuple(rows)
