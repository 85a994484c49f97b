"""What every painter must decide alike: round times on the axis, labels that fit, the legend, the
level of detail."""

import re
from dataclasses import replace

import numpy as np

from labkit.pictures import sketch
from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.sketch import Box, Line, Sketch
from labkit.pictures.style import clipped, shade, style, text_px
from labkit.units import check_real
from labkit.words import WORDS

MAX_BOXES = 2000
"""more than these, and boxes under a pixel are merged"""
MAX_BLOCKS = 24_000
"""rows times pixels of a merged picture"""
_LINE_PX = 18
"""of a note"""
_TALL_PX = 13
"""a box that bears text"""
Rectangle = tuple[float, float, float, float]
"""x, y, width, height"""
_SIDES = {
    "o": (16, 0.0),
    "s": (4, 0.5),
    "^": (3, 0.5),
    "D": (4, 0.0),
    "v": (3, 0.0),
    ">": (3, 0.75),
    "<": (3, 0.25),
    "p": (5, 0.5),
}
"""of a mark: how many, and the turn of the first"""


def ticks(scene: Scene) -> tuple[list[tuple[float, str]], str]:
    """Round times for the axis as (microseconds, text), at most nine, and their unit."""
    if scene.end_us >= 1e6:
        factor, unit = 1e6, "s"
    elif scene.end_us >= 1e3:
        factor, unit = 1e3, "ms"
    else:
        factor, unit = 1.0, "us"
    round_times = sketch.ticks(scene.start_us / factor, scene.end_us / factor)
    return [(float(time * factor), f"{time:.10g}") for time in round_times], unit


def fitted(scene: Scene, advance: float = 6.7, pad: float = 3.0, unit_px: float = 1.0) -> list[str]:
    """The text of each box: per kind the longest form that fits its usual box, "" where none does.

    No kind speaks more than one form longer than another, so that a picture does not mix "3" and
    "0B3". ``unit_px`` is the width of what ``advance`` counts: a pixel, or a character cell. A box
    somewhat narrower than usual keeps its text, with half of ``pad``.
    """
    check_real(1e-9, 1e6, advance=advance, unit_px=unit_px)
    check_real(0, 1e6, pad=pad)
    width = (scene.x1_us - scene.x0_us) * PLOT_PX / (scene.end_us - scene.start_us) / unit_px
    need = np.where(scene.texts == "", 0.0, advance * np.strings.str_len(scene.texts) + pad)
    tall = np.array([row.height_px >= _TALL_PX for row in scene.rows], dtype=bool)[scene.row]
    worded = (need[:, 0] > 0) & tall
    groups = [np.flatnonzero((scene.kind == kind) & worded) for kind in scene.kinds]
    groups = [mine for mine in groups if len(mine)]
    forms = [_usual_form(need[mine], width[mine]) for mine in groups]
    out = np.full(len(scene.kind), "", dtype=object)
    for mine, form in zip(groups, forms, strict=True):
        shown = max(form, max(forms) - 1)
        fits = need[mine, shown] - pad / 2 <= width[mine]
        out[mine] = np.where(fits, scene.texts[mine, shown], "")
    return out.tolist()


def _usual_form(need: np.ndarray, width: np.ndarray) -> int:
    """The longest form of a kind's texts that fits its usual box."""
    usual = np.median(width)
    for form in (0, 1):
        if need[:, form].max() <= usual:
            return form
    return 2


def mark_pieces(scene: Scene, top_px: float) -> list[tuple[float, float]]:
    """A mark's upright line as pieces (top, bottom), so that it strikes through no heading."""
    pieces = []
    for heading in scene.headings:
        if heading.bottom_px > top_px:
            pieces.append((top_px, heading.bottom_px - 12))
            top_px = heading.bottom_px + 5
    return [*pieces, (top_px, scene.bottom_px)]


def legend(scene: Scene) -> list[tuple[float, float, str, str]]:
    """What the colours mean, as (left, middle, kind, words) in pixels; kind "" for a remark."""
    words = [(kind, scene.called(kind)) for kind in scene.kinds]
    if scene.chunk.any():
        words.append(("", WORDS[scene.language]["chunk"]))
    if not words:
        words.append(("", WORDS[scene.language]["nothing"]))
    out = []
    x = float(LEFT_PX)
    y = scene.bottom_px + 46
    for kind, text in words:
        width = text_px(text) + (28 if kind else 0)
        if x + width > WIDTH_PX:
            x = float(LEFT_PX)
            y += 24
        out.append((x, y, kind, text))
        x += width + 20
    return out


def letters(scene: Scene) -> dict[str, str]:
    """What stands on each kind's sample in the legend: the letter of its narrow boxes; of messages
    only where one of them has it, which in thin strips none has."""
    found = {kind: style(kind).letter for kind in scene.kinds}
    drawn = {*fitted(scene)}
    return {
        kind: letter
        for kind, letter in found.items()
        if letter not in "|." and (letter in drawn or not letter.islower())
    }


def heading(scene: Scene | Sketch) -> str:
    """What the picture shows, cut where the badge begins."""
    badge_px = 0 if scene.headings else text_px(scene.badge)
    return clipped(scene.heading, WIDTH_PX - 20 - badge_px, 16.5)


def height_px(scene: Scene | Sketch) -> float:
    """The height of the whole picture, legend and notes included."""
    lines = note_lines(scene)
    return lines[-1][0] + 10 if lines else _drawn_px(scene)


def note_lines(scene: Scene | Sketch) -> list[tuple[float, str]]:
    """The lines of the notes under a picture: each one's baseline and text."""
    told: list[str] = []
    for note in scene.notes:
        told += _lines(note)
    first_px = _drawn_px(scene) + 14
    return [(first_px + _LINE_PX * index, line) for index, line in enumerate(told)]


def _drawn_px(scene: Scene | Sketch) -> float:
    return scene.height_px if isinstance(scene, Sketch) else legend(scene)[-1][1] + 14


def _lines(note: str) -> list[str]:
    """A note in lines as wide as the picture, broken after spaces and Chinese commas."""
    lines = [""]
    for piece in re.findall(r"[^ \uff0c\uff1b]+[ \uff0c\uff1b]?", note):
        if lines[-1] and text_px(lines[-1] + piece.rstrip()) > WIDTH_PX:
            lines.append("")
        lines[-1] += piece
    return [line.rstrip() for line in lines if line]


def fills(drawn: Sketch) -> list[tuple[str, str, list[Rectangle]]]:
    """(colour, hatch, the rectangles of it); what is pale of partly filled boxes comes first."""
    pale: dict[str, list[Rectangle]] = {}
    full: dict[tuple[str, str], list[Rectangle]] = {}
    for box in drawn.only(Box):
        if not box.colour:
            continue
        if box.fill < 1:
            pale.setdefault(shade(box.colour, 3, 3), []).append(box[:4])
        if box.fill > 0:
            filled = box.x_px, box.y_px, box.fill * box.width_px, box.height_px
            full.setdefault((box.colour, box.hatch), []).append(filled)
    below = [(colour, "", boxes) for colour, boxes in pale.items()]
    above = [(colour, hatch, boxes) for (colour, hatch), boxes in full.items()]
    return below + above


def edges(drawn: Sketch, marked: bool) -> list[Rectangle]:
    """The boxes that have a thick edge, or a thin one: a coloured box under 3 pixels would look
    wider by it."""
    boxes = [box for box in drawn.only(Box) if box.marked == marked]
    if not marked:
        boxes = [box for box in boxes if not box.colour or min(box.width_px, box.height_px) >= 3]
    return [box[:4] for box in boxes]


def inner_edges(drawn: Sketch) -> list[Rectangle]:
    """What lies within the thick edges of coloured boxes: a dark stroke there shows on a pale box
    whatever the page's colour."""
    boxes = [box for box in drawn.only(Box) if box.marked and box.colour]
    boxes = [box for box in boxes if min(box.width_px, box.height_px) >= 8]
    return [(box.x_px + 1.5, box.y_px + 1.5, box.width_px - 3, box.height_px - 3) for box in boxes]


def middles(drawn: Sketch) -> list[tuple[float, float, str, bool]]:
    """What stands in boxes: (middle, baseline, the longest text that fits, whether on a colour)."""
    found = []
    for box in drawn.only(Box):
        fitting = [text for text in box.texts if text_px(text, 11) <= box.width_px - 3]
        if fitting and fitting[0] and box.height_px >= _TALL_PX:
            middle = box.x_px + box.width_px / 2
            baseline = box.y_px + box.height_px / 2 + 4
            found.append((middle, baseline, fitting[0], bool(box.colour)))
    return found


def stroke(line: Line) -> list[tuple[float, float]]:
    """The points of a line as it is stroked: up to the base of its arrow head, not to the tip."""
    if not line.arrow:
        return list(line.points_px)
    *before, _ = line.points_px
    _, *base = solids(line)[0]
    return [*before, tuple(np.mean(base, axis=0).tolist())]


def solids(line: Line) -> list[list[tuple[float, float]]]:
    """The filled polygons of a line: its marks, or its arrow head."""
    if line.arrow:
        return [_arrow_head(line)]
    if line.mark not in _SIDES:
        return []
    sides, turn = _SIDES[line.mark]
    angles = 2 * np.pi * (np.arange(sides) + turn) / sides
    ring = 2.4 * line.width_px * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return [(ring + point).tolist() for point in line.points_px]


def _arrow_head(line: Line) -> list[tuple[float, float]]:
    """A triangle: the tip, and the ends of its base."""
    tip = np.array(line.points_px[-1])
    back = np.array(line.points_px[-2]) - tip
    length = np.hypot(*back) or 1.0
    away = back / length * (5 + 2 * line.width_px)
    side = 0.42 * away[::-1] * (1, -1)
    return [tuple(tip.tolist()), (away + side + tip).tolist(), (away - side + tip).tolist()]


def merged(scene: Scene) -> Scene:
    """The level of detail: with more than MAX_BOXES boxes, some under a pixel, each pixel of a row
    shows one kind.

    Which one is chosen by carrying what a pixel could not show to the next (error diffusion), so
    that along a row the share of every kind stays what it was, to a pixel. Runs of equal pixels
    become one box.
    """
    if not _is_crowded(scene):
        return scene
    num_pixels = int(PLOT_PX / np.ceil(PLOT_PX * len(scene.rows) / MAX_BLOCKS))
    edges_us = np.linspace(scene.start_us, scene.end_us, num_pixels + 1)
    kind = np.unique(scene.kind, return_inverse=True)[1]
    look = np.unique(kind * (1 + scene.chunk.max()) + scene.chunk, return_inverse=True)[1]
    shown = _diffused(_cover(scene, look, edges_us))
    return _runs(scene, shown, look, edges_us)


def _is_crowded(scene: Scene) -> bool:
    """Whether there are more boxes than can be drawn one by one, or seen."""
    num_boxes = len(scene.kind)
    if num_boxes <= MAX_BOXES or num_boxes > 4 * MAX_BOXES:
        return num_boxes > MAX_BOXES
    pixel_us = (scene.end_us - scene.start_us) / PLOT_PX
    return bool((scene.x1_us - scene.x0_us).min() < pixel_us)


def _cover(scene: Scene, look: np.ndarray, edges_us: np.ndarray) -> np.ndarray:
    """The share of each pixel that each look covers, and at the end paper: (pixels, rows, looks +
    1)."""
    num_pixels = len(edges_us) - 1
    num_looks = look.max() + 1
    cover = np.zeros((num_pixels, len(scene.rows), num_looks + 1))
    for row in range(len(scene.rows)):
        for number in range(num_looks):
            mine = (scene.row == row) & (look == number)
            cover[:, row, number] = _covered(scene.x0_us[mine], scene.x1_us[mine], edges_us)
    cover *= num_pixels / (scene.end_us - scene.start_us)
    cover /= np.maximum(1.0, cover.sum(axis=2, keepdims=True))
    cover[:, :, -1] = 1 - cover.sum(axis=2)
    return cover


def _diffused(cover: np.ndarray) -> np.ndarray:
    """The look that each pixel shows (rows, pixels), from the shares of each look in it."""
    num_pixels, num_rows, _ = cover.shape
    owed = np.zeros(cover.shape[1:])
    shown = np.zeros((num_rows, num_pixels), dtype=np.int64)
    for pixel in range(num_pixels):
        owed += cover[pixel]
        most = owed.argmax(axis=1)
        shown[:, pixel] = most
        owed[np.arange(num_rows), most] -= 1
    return shown


def _covered(x0_us: np.ndarray, x1_us: np.ndarray, edges_us: np.ndarray) -> np.ndarray:
    """How much of each pixel the boxes cover, from the running total of covered time at the pixel's
    edges."""
    if not len(x0_us):
        return np.zeros(len(edges_us) - 1)
    times = np.concatenate([x0_us, x1_us])
    order = np.argsort(times, kind="stable")
    times = times[order]
    slope = np.cumsum(np.repeat([1.0, -1.0], len(x0_us))[order])
    total = np.concatenate([[0.0], np.cumsum(np.diff(times) * slope[:-1])])
    return np.diff(np.interp(edges_us, times, total))


def _runs(scene: Scene, shown: np.ndarray, look: np.ndarray, edges_us: np.ndarray) -> Scene:
    """Boxes from a grid (rows, pixels) of looks; the highest number is paper and becomes no box."""
    first = np.ones(shown.shape, dtype=bool)
    first[:, 1:] = shown[:, 1:] != shown[:, :-1]
    row, start = np.nonzero(first)
    same_row = row[1:] == row[:-1]
    end = np.append(np.where(same_row, start[1:], shown.shape[1]), shown.shape[1])
    number = shown[row, start]
    inked = number <= look.max()
    example = np.unique(look, return_index=True)[1][number[inked]]
    return replace(
        scene,
        row=row[inked],
        kind=scene.kind[example],
        chunk=scene.chunk[example],
        num_bytes=scene.num_bytes[example],
        texts=np.full((len(example), 3), ""),
        x0_us=edges_us[start[inked]],
        x1_us=edges_us[end[inked]],
    )
