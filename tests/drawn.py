"""Data to draw, and readings of what was drawn: what several files of tests share."""

import io

import numpy as np
from matplotlib import image

from labkit.pictures import scene, style
from labkit.pictures.painters import mpl
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Sketch, Words
from labkit.pipeline import schedules, simulation
from labkit.timeline import COMPUTE, Timeline, from_rows

NS = "{http://www.w3.org/2000/svg}"


def predicted(name: str = "gpipe", **cost: float) -> Timeline:
    return simulation.simulate(schedules.SCHEDULES[name](4, 8), simulation.Cost(**cost))


def busy(num_boxes: int, num_ranks: int = 8) -> Timeline:
    """Many short boxes of random lengths with gaps between them."""
    rng = np.random.default_rng(0)
    rows = []
    for rank in range(num_ranks):
        ends = np.cumsum(rng.random(2 * num_boxes // num_ranks) + 0.1)
        for i, (start, end) in enumerate(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True)):
            rows.append(
                (rank, COMPUTE, "FBW"[i % 3], f"{rank}{'FBW'[i % 3]}{i // 3}", start, end, 0)
            )
    return from_rows(rows, num_ranks=num_ranks, origin="measured")


def shares(drawn: scene.Scene) -> dict[str, float]:
    """The share of all box time that each kind has."""
    width = drawn.x1_us - drawn.x0_us
    return {kind: float(width[drawn.kind == kind].sum() / width.sum()) for kind in drawn.kinds}


def extent(words: Words) -> tuple[float, float, float, float]:
    width = style.text_px(words.text, words.size_px) * 0.95
    left = words.x_px - {"start": 0, "middle": 0.5, "end": 1}[words.anchor] * width
    return left, words.y_px - 0.8 * words.size_px, left + width, words.y_px


def faults(picture: Sketch) -> list[str]:
    """What lies outside of a picture, and words that cover each other."""
    texts = [(words.text, extent(words)) for words in picture.only(Words) if words.text]
    boxes = [
        (box.texts[:1], (box.x_px, box.y_px, box.x_px + box.width_px, box.y_px + box.height_px))
        for box in picture.only(Box)
    ]
    lines = [
        ("line", (*np.min(line.points_px, axis=0), *np.max(line.points_px, axis=0)))
        for line in picture.only(Line)
    ]
    found = [
        f"{name} is outside: {at}"
        for name, at in texts + boxes + lines
        if at[0] < -2
        or at[2] > WIDTH_PX + 2
        or at[1] < (44 if picture.numbers else 26)
        or at[3] > picture.height_px + 0.5
    ]
    for number, (one, (x0, y0, x1, y1)) in enumerate(texts):
        found += [
            f"{one!r} covers {other!r}"
            for other, (u0, v0, u1, v1) in texts[:number]
            if min(x1, u1) - max(x0, u0) > 1 and min(y1, v1) - max(y0, v0) > 1
        ]
    return found


def pixel_share(picture: Sketch, box: Box) -> float:
    """How much of a box has its full colour, from a line of pixels near its upper edge."""
    pixels = 255 * image.imread(io.BytesIO(mpl.png(picture, dpi=200)))[:, :, :3]
    y = round((box.y_px + 3) * pixels.shape[0] / picture.height_px)
    left, right = (
        round((0.012 + 0.976 * x / WIDTH_PX) * pixels.shape[1])
        for x in (box.x_px, box.x_px + box.width_px)
    )
    return float((np.abs(pixels[y, left:right] - rgb(box.colour)).sum(axis=1) < 12).mean())


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
