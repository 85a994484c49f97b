"""What every painter must decide alike: round times on the axis, labels that fit, the legend, the
level of detail."""

from dataclasses import replace

import numpy as np

from labkit.pictures import sketch
from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.sketch import Box, Line, Sketch
from labkit.pictures.style import clipped, shade, style, text_px
from labkit.units import check_real
from labkit.words import WORDS

MAX_BOXES, MAX_BLOCKS = 2000, 24_000
_SIDES = {
    "o": (16, 0.0),
    "s": (4, 0.5),
    "^": (3, 0.5),
    "D": (4, 0.0),
    "v": (3, 0.0),
    ">": (3, 0.75),
    "<": (3, 0.25),
    "p": (5, 0.5),
}  # of a mark: how many, and the turn of the first


def ticks(scene: Scene) -> tuple[list[tuple[float, str]], str]:
    """Round times for the axis as (microseconds, text), at most nine, and their unit."""
    factor, unit = next(
        ((f, u) for f, u in ((1e6, "s"), (1e3, "ms")) if scene.end_us >= f), (1.0, "us")
    )
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
    tall = np.array([row.height_px >= 13 for row in scene.rows], dtype=bool)[scene.row]
    groups = [
        np.flatnonzero((scene.kind == kind) & (need[:, 0] > 0) & tall) for kind in scene.kinds
    ]
    groups = [mine for mine in groups if len(mine)]
    levels = [
        next((i for i in range(3) if need[mine, i].max() <= np.median(width[mine])), 2)
        for mine in groups
    ]
    out = np.full(len(scene.kind), "", dtype=object)
    for mine, level in zip(groups, levels, strict=True):
        form = max(level, max(levels) - 1)
        out[mine] = np.where(need[mine, form] - pad / 2 <= width[mine], scene.texts[mine, form], "")
    return out.tolist()


def legend(scene: Scene) -> list[tuple[float, float, str, str]]:
    """What the colours mean, as (left, middle, kind, words) in pixels; kind "" for a remark."""
    words = [(kind, style(kind).words[scene.language]) for kind in scene.kinds]
    if scene.chunk.any():
        words.append(("", WORDS[scene.language]["chunk"]))
    if not words:
        words.append(("", WORDS[scene.language]["nothing"]))
    out, x, y = [], float(LEFT_PX), scene.bottom_px + 46
    for kind, text in words:
        width = text_px(text) + (28 if kind else 0)
        if x + width > WIDTH_PX:
            x, y = float(LEFT_PX), y + 24
        out.append((x, y, kind, text))
        x += width + 20
    return out


def letter(kind: str) -> str:
    """What stands on a kind's sample in the legend: the letter of its narrow boxes; "" for thin
    strips and remarks."""
    found = style(kind).letter if kind else ""
    return "" if found.islower() or found in "|." else found


def heading(scene: Scene | Sketch) -> str:
    """What the picture shows, cut where the badge begins."""
    return clipped(
        scene.heading, WIDTH_PX - 20 - (0 if scene.headings else text_px(scene.badge)), 16.5
    )


def height_px(scene: Scene | Sketch) -> float:
    """The height of the whole picture, legend included."""
    return scene.height_px if isinstance(scene, Sketch) else legend(scene)[-1][1] + 14


def fills(drawn: Sketch) -> list[tuple[str, str, list[tuple[float, float, float, float]]]]:
    """(colour, hatch, the rectangles (x, y, width, height) of it); what is pale of partly filled
    boxes comes first."""
    pale, full = {}, {}
    for x, y, width, height, colour, hatch, _, fill, _ in drawn.only(Box):
        if colour and fill < 1:
            pale.setdefault((shade(colour, 3, 3), ""), []).append((x, y, width, height))
        if colour and fill > 0:
            full.setdefault((colour, hatch), []).append((x, y, fill * width, height))
    return [(*look, boxes) for part in (pale, full) for look, boxes in part.items()]


def edges(drawn: Sketch, marked: bool) -> list[tuple[float, float, float, float]]:
    """The boxes that have a thick edge, or a thin one: a coloured box under 3 pixels would look
    wider by it."""
    return [
        box[:4]
        for box in drawn.only(Box)
        if box.marked == marked
        and (marked or not box.colour or min(box.width_px, box.height_px) >= 3)
    ]


def middles(drawn: Sketch) -> list[tuple[float, float, str, bool]]:
    """What stands in boxes: (middle, baseline, the longest text that fits, whether on a colour)."""
    return [
        (box.x_px + box.width_px / 2, box.y_px + box.height_px / 2 + 4, text, bool(box.colour))
        for box in drawn.only(Box)
        if box.height_px >= 13
        for text in [next((t for t in box.texts if text_px(t, 11) <= box.width_px - 3), "")]
        if text
    ]


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
        (x0, y0), (x, y) = line.points_px[-2:]
        away = (
            np.array([x0 - x, y0 - y]) / (np.hypot(x0 - x, y0 - y) or 1.0) * (5 + 2 * line.width_px)
        )
        side = 0.42 * away[::-1] * (1, -1)
        return [[(x, y), *((away + way * side + (x, y)).tolist() for way in (1, -1))]]
    sides, turn = _SIDES.get(line.mark, (0, 0.0))
    angles = 2 * np.pi * (np.arange(sides) + turn) / max(1, sides)
    ring = 2.4 * line.width_px * np.stack([np.sin(angles), np.cos(angles)], axis=1)
    return [(ring + point).tolist() for point in line.points_px] if sides else []


def merged(scene: Scene) -> Scene:
    """The level of detail: with more than MAX_BOXES boxes, some under a pixel, each pixel of a row
    shows one kind.

    Which one is chosen by carrying what a pixel could not show to the next (error diffusion), so
    that along a row the share of every kind stays what it was, to a pixel. Runs of equal pixels
    become one box.
    """
    span_us = scene.end_us - scene.start_us
    width_us = scene.x1_us - scene.x0_us
    if len(width_us) <= MAX_BOXES or (
        len(width_us) <= 4 * MAX_BOXES and width_us.min() >= span_us / PLOT_PX
    ):
        return scene
    num_pixels = int(PLOT_PX / np.ceil(PLOT_PX * len(scene.rows) / MAX_BLOCKS))
    kind = np.unique(scene.kind, return_inverse=True)[1]
    looks, look = np.unique(kind * (1 + scene.chunk.max()) + scene.chunk, return_inverse=True)
    edges_us = np.linspace(scene.start_us, scene.end_us, num_pixels + 1)
    cover = np.zeros((num_pixels, len(scene.rows), len(looks) + 1))  # the last column is paper
    for row in range(len(scene.rows)):
        for number in range(len(looks)):
            mine = (scene.row == row) & (look == number)
            cover[:, row, number] = _covered(scene.x0_us[mine], scene.x1_us[mine], edges_us)
    cover *= num_pixels / span_us
    cover /= np.maximum(1.0, cover.sum(axis=2, keepdims=True))
    cover[:, :, -1] = 1 - cover.sum(axis=2)
    owed, shown = np.zeros(cover.shape[1:]), np.zeros(cover.shape[:2], dtype=np.int64)
    for pixel in range(num_pixels):
        owed += cover[pixel]
        shown[pixel] = owed.argmax(axis=1)
        owed[np.arange(len(scene.rows)), shown[pixel]] -= 1
    return _runs(scene, shown.T, look, edges_us)


def _covered(x0_us: np.ndarray, x1_us: np.ndarray, edges_us: np.ndarray) -> np.ndarray:
    """How much of each pixel the boxes cover, from the running total of covered time at the pixel's
    edges."""
    if not len(x0_us):
        return np.zeros(len(edges_us) - 1)
    times = np.concatenate([x0_us, x1_us])
    order = np.argsort(times, kind="stable")
    times, slope = times[order], np.cumsum(np.repeat([1.0, -1.0], len(x0_us))[order])
    total = np.concatenate([[0.0], np.cumsum(np.diff(times) * slope[:-1])])
    return np.diff(np.interp(edges_us, times, total))


def _runs(scene: Scene, shown: np.ndarray, look: np.ndarray, edges_us: np.ndarray) -> Scene:
    """Boxes from a grid (rows, pixels) of looks; the highest number is paper and becomes no box."""
    first = np.ones(shown.shape, dtype=bool)
    first[:, 1:] = shown[:, 1:] != shown[:, :-1]
    row, start = np.nonzero(first)
    end = np.append(np.where(row[1:] == row[:-1], start[1:], shown.shape[1]), shown.shape[1])
    number = shown[row, start]
    example = np.searchsorted(np.sort(look), number)
    keep = number <= look.max()
    example = np.argsort(look, kind="stable")[example[keep]]
    return replace(
        scene,
        row=row[keep],
        kind=scene.kind[example],
        chunk=scene.chunk[example],
        num_bytes=scene.num_bytes[example],
        texts=np.full((int(keep.sum()), 3), ""),
        x0_us=edges_us[start[keep]],
        x1_us=edges_us[end[keep]],
    )
