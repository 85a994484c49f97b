"""Pictures as pixels: painted by Chromium or by matplotlib, then read like a person reads them, by
colour and length.

Whoever reads says where to look, in pixels of the picture; what is there comes from the image
alone. A pixel that has none of the colours asked for (letters, edges, hatches) is counted to the
nearest one on its line that has.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from browser.lab import browser
from matplotlib import image

from labkit.pictures.painters import layout, mpl, svg
from labkit.pictures.scene import WIDTH_PX, Scene
from labkit.pictures.sketch import Sketch

INK = (0x10, 0x16, 0x1F)
THEMES = {"light": ("#ffffff", "rgba(0,0,0,.87)"), "dark": ("#111111", "#ffffff")}
"""Paper and text as JupyterLab's themes have them."""
PAPER = "paper"
_SURE = 42  # a pixel this far from a colour, all channels together, has it
_HATCHED = (
    (0, INK),
    (0.12, INK),
    (0.22, INK),
    (0.22, (0, 0, 0)),
)  # how much darker, by what: strokes of hatches
_LINED = ((0.35, INK), (0.5, INK))
_LEFT, _WIDE = 0.012, 0.976  # where matplotlib's axes lie in its figure
_SCALE = 4  # so fine that a box of two pixels and its edge are told apart


@dataclass(frozen=True, kw_only=True, eq=False)
class Painted:
    """One painting of a picture."""

    pixels: np.ndarray
    """float64, shape (height, width, 3), 0 to 255"""
    renderer: str
    """"svg", "mpl" or "canvas\""""
    theme: str
    """"light" or "dark\""""
    left: float = 0.0
    """where the picture's x = 0 lies, in pixels of the image"""
    scale: float = _SCALE
    """pixels of the image for one of the picture, from left to right"""
    high: float = _SCALE
    """the same downwards"""

    @property
    def paper(self) -> np.ndarray:
        """The colour of what is not painted."""
        return rgb(THEMES[self.theme][0])

    @property
    def text(self) -> np.ndarray:
        """The colour that text and axes have."""
        if self.renderer == "mpl":
            return rgb(mpl.INK)
        return np.array([33.0] * 3 if self.theme == "light" else [255.0] * 3)

    def faint(self, share: float) -> np.ndarray:
        """The text's colour on paper, as faint as this."""
        return self.paper + share * (self.text - self.paper)

    def cut(self, x0: float, x1: float, y0: float, y1: float) -> np.ndarray:
        """The pixels of a part of the picture; at least one line of them."""
        top = round(y0 * self.high)
        left = round(self.left + x0 * self.scale)
        return self.pixels[
            top : max(top + 1, round(y1 * self.high)),
            left : max(left + 1, round(self.left + x1 * self.scale)),
        ]

    def shares(
        self,
        looks: Mapping[str, Sequence],
        x0: float,
        x1: float,
        y0: float,
        y1: float,
        *,
        upright: bool = False,
        edged: bool = True,
        area: bool = False,
    ) -> dict[str, float]:
        """How much of the lines from x0 to x1 (``upright``: from y0 to y1) each look has: the
        median line's share.

        ``looks``: name -> colours, as "#rrggbb" or as rgb. Paper is always one. ``edged``: boxes
        have thin edges of the text's colour, which belong half to either side; else a dark line at
        one end of a box is a part of it. ``area``: the mean of the lines.
        """
        part = self.cut(x0, x1, y0, y1)
        if upright:
            part = part.swapaxes(0, 1)
        fifteen = np.unique(np.linspace(0, len(part) - 1, 15).round().astype(int))
        part = part[::4] if area else part[fifteen]
        names, colours = self._palette(looks, edged)
        away = np.abs(part[:, :, None, :] - np.array(colours)).sum(axis=3)
        order = [name for name in dict.fromkeys(names) if name]
        index = np.array([order.index(name) if name else -1 for name in names])
        found = filled(np.where(away.min(axis=2) < _SURE, index[away.argmin(axis=2)], -1))
        middle = np.mean if area else np.median
        return {
            name: float(middle((found == number).mean(axis=1))) for number, name in enumerate(order)
        }

    def _palette(
        self, looks: Mapping[str, Sequence], edged: bool
    ) -> tuple[list[str], list[np.ndarray]]:
        """Every colour that a pixel may have, and what it belongs to: a look, paper, or "" where
        its neighbours decide."""
        names = [PAPER, ""]
        colours = [self.paper, np.array(INK, dtype=float)]
        darker = _HATCHED
        if edged:
            names += [PAPER, ""]
            colours += [self.faint(0.12 if self.theme == "dark" else 0), self.faint(0.45)]
        else:
            darker = _HATCHED + _LINED
        for name, own in looks.items():
            for colour in own:
                if isinstance(colour, str):
                    plain = rgb(colour)
                    soft = [plain + dark * (np.array(ink) - plain) for dark, ink in darker]
                else:
                    plain = np.asarray(colour, dtype=float)
                    soft = [plain]
                names += [name] * len(soft)
                colours += soft
                if edged:
                    names.append("")
                    colours.append(plain + 0.45 * (self.text - plain))
        return names, colours

    def length(
        self, looks: Mapping[str, Sequence], x0: float, x1: float, y0: float, y1: float
    ) -> dict[str, float]:
        """The same in pixels of the picture."""
        return {
            name: share * (x1 - x0) for name, share in self.shares(looks, x0, x1, y0, y1).items()
        }

    def upright_line(self, x0: float, x1: float, y0: float, y1: float) -> float:
        """Where the boldest upright line lies: the column that differs most from paper, the middle
        of its ink."""
        part = np.abs(self.cut(x0, x1, y0, y1) - self.paper).sum(axis=(0, 2))
        at = int(part.argmax())
        near = slice(max(0, at - 2), at + 3)
        ink = np.where(part[near] > 0.3 * part[at], part[near], 0.0)
        place = float((np.arange(len(part))[near] * ink).sum() / ink.sum()) + 0.5
        return (round(self.left + x0 * self.scale) + place - self.left) / self.scale

    def at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Colours at places of the image, between pixels as well."""
        u = x * _SCALE - 0.5
        v = y * _SCALE - 0.5
        left = np.floor(u).astype(int)
        top = np.floor(v).astype(int)
        out = 0.0
        for i, j, weight in (
            (0, 0, (1 - u + left) * (1 - v + top)),
            (1, 0, (u - left) * (1 - v + top)),
            (0, 1, (1 - u + left) * (v - top)),
            (1, 1, (u - left) * (v - top)),
        ):
            row, column = (
                np.clip(p, 0, n - 1)
                for p, n in zip((top + j, left + i), self.pixels.shape, strict=False)
            )
            out = out + weight[..., None] * self.pixels[row, column]
        return out

    def thickness(
        self,
        colour: str,
        start: tuple[float, float],
        end: tuple[float, float],
        reach: float = 9.0,
        opacity: float = 1.0,
    ) -> float:
        """How thick a line between two points is: ink summed up across it, the least that many
        places have."""
        a, b = (
            np.array([self.left + x * self.scale, y * self.high]) / _SCALE for x, y in (start, end)
        )
        side = np.array([a[1] - b[1], b[0] - a[0]]) / np.hypot(*(b - a))
        along = np.linspace(0.03, 0.97, 120)
        step = 0.1
        across = np.arange(-reach, reach + step / 2, step)
        places = (a + along[:, None] * (b - a))[:, None, :] + across[None, :, None] * side
        full = opacity * (rgb(colour) - self.paper)
        cover = np.clip(
            ((self.at(places[..., 0], places[..., 1]) - self.paper) @ full) / (full @ full), 0, 1
        )
        middle = cover.shape[1] // 2
        near = [
            np.minimum.accumulate(half > 0.1, axis=1) * half
            for half in (cover[:, middle:], cover[:, middle::-1])
        ]
        found = (sum(half.sum(axis=1) for half in near) - cover[:, middle]) * step
        often = found[
            (np.abs(found[:, None] - found) < 0.15).sum(axis=1) >= 6
        ]  # elsewhere others join or cross it
        return (
            float(found[np.abs(found - often.min(initial=99)) < 0.15].mean())
            if len(often)
            else float(found.min())
        )


def rgb(colour: str) -> np.ndarray:
    """ "#rrggbb" as three numbers."""
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)


def filled(labels: np.ndarray) -> np.ndarray:
    """Labels of lines of pixels, each -1 given the nearest label on its line; a tie goes to the
    left."""
    places = np.arange(labels.shape[1])
    known = labels >= 0
    before = np.maximum.accumulate(np.where(known, places, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, places, 10**9)[:, ::-1], axis=1)[:, ::-1]
    left = (before >= 0) & ((places - before <= after - places) | (after == 10**9))
    nearest = np.where(left, before, np.minimum(after, labels.shape[1] - 1))
    return np.take_along_axis(labels, nearest, axis=1)


def by_matplotlib(drawn: Scene | Sketch) -> Painted:
    """The PNG that a notebook shows, but finer."""
    pixels = 255.0 * image.imread(io.BytesIO(mpl.png(drawn, dpi=100 * _SCALE)))[:, :, :3]
    assert (
        pixels.shape[1] == WIDTH_PX * _SCALE
        and abs(pixels.shape[0] - layout.height_px(drawn) * _SCALE) < 2
    )
    return Painted(
        pixels=pixels,
        renderer="mpl",
        theme="light",
        left=_LEFT * WIDTH_PX * _SCALE,
        scale=_WIDE * _SCALE,
    )


@contextmanager
def chromium() -> Iterator[Callable[[str, str, str], list[np.ndarray]]]:
    """``shoot(html, selector, theme)``: the pixels of each element of a page that the selector
    finds."""
    with browser() as running:
        context = running.new_context(
            viewport={"width": 1000, "height": 800}, device_scale_factor=_SCALE
        )
        page = context.new_page()

        def shoot(html: str, selector: str, theme: str) -> list[np.ndarray]:
            paper, text = THEMES[theme]
            look = f"margin:8px;width:940px;background:{paper};color:{text}"
            page.set_content(f'<body style="{look}">{html}</body>')
            page.wait_for_selector(selector, state="attached", timeout=30_000)
            return [
                255.0 * image.imread(io.BytesIO(one.screenshot(timeout=30_000)))[:, :, :3]
                for one in page.locator(selector).all()
            ]

        yield shoot


def by_chromium(
    shoot: Callable[[str, str, str], list[np.ndarray]], drawn: Sequence[Scene | Sketch], theme: str
) -> list[Painted]:
    """The SVGs of pictures on a page of a theme."""
    body = "".join(f'<div style="width:900px">{svg.render(each)}</div>' for each in drawn)
    return [
        Painted(pixels=pixels, renderer="svg", theme=theme) for pixels in shoot(body, "svg", theme)
    ]
