"""A Scene or a Sketch on a matplotlib Figure, for PNG, PDF and pages that show nothing else. No
pyplot: no global state."""

import functools
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path as MplPath
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.painters import layout
from labkit.pictures.sketch import Line, Sketch, Words
from labkit.pictures.style import IDLE, shade, style
from labkit.units import check_real

INK = "#1f2328"
PAPER = "#ffffff"
_SHADOW = "#00000038"
"""a hatch on a colour"""
_LATIN = "DejaVu Sans"
_CHINESE = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
)


@functools.cache
def chinese_font() -> str | None:
    """The first installed font with Chinese glyphs, or None.

    matplotlib keeps the list of fonts that it once found (3.11.2); one that was installed later is
    looked for on the disk, by its file's name, and added.
    """
    if _first_listed() is None:
        known = [name.replace(" ", "").lower() for name in _CHINESE]
        for path in font_manager.findSystemFonts():
            file = Path(path).stem.replace("-", "").lower()
            if any(file.startswith(name.removesuffix("sc").removesuffix("jp")) for name in known):
                font_manager.fontManager.addfont(path)
    return _first_listed()


def _first_listed() -> str | None:
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return next((name for name in _CHINESE if name in installed), None)


@functools.cache
def painted() -> frozenset[int]:
    """The characters that can be painted here: DejaVu's, which matplotlib brings, and those of the
    Chinese font."""
    found: set[int] = set()
    for name in filter(None, (_LATIN, chinese_font())):
        file = font_manager.findfont(FontProperties(family=name), fallback_to_default=False)
        found |= font_manager.get_font(file).get_charmap().keys()
    return frozenset(found)


def paintable(text: str) -> str:
    """The text, with "…" for each run of characters that no font has here: a caller's words in
    Chinese without a Chinese font, and no English beside them. The title that goes with the PNG,
    and the notebook's alternative text, keep them."""
    lacking = [ord(character) not in painted() for character in text]
    parts = []
    for place, character in enumerate(text):
        if not lacking[place]:
            parts.append(character)
        elif place == 0 or not lacking[place - 1]:
            parts.append("…")
    return "".join(parts)


def figure(scene: Scene | Sketch, dpi: int = 100) -> Figure:
    """The picture as a Figure of 9 inches; in English where a Chinese scene finds no font. Words
    are as wide as they are at ``dpi``, so that what follows them stands clear when it is saved."""
    check_real(10, 1200, dpi=dpi)
    if scene.in_english and not chinese_font():
        scene = scene.in_english()
    height_px = layout.height_px(scene)
    fig = Figure(figsize=(WIDTH_PX / 100, height_px / 100), dpi=dpi, facecolor=PAPER)
    FigureCanvasAgg(fig)
    ax = fig.add_axes((0.012, 0, 0.976, 1), xlim=(0, WIDTH_PX), ylim=(height_px, 0))
    ax.set_axis_off()
    _head(ax, scene)
    if isinstance(scene, Sketch):
        _sketch(ax, scene)
    else:
        _timeline(ax, scene)
    for y, line in layout.note_lines(scene):
        _words(ax, 0, y, line, alpha=0.85)
    ax.set(xlim=(0, WIDTH_PX), ylim=(height_px, 0))
    return fig


def png(scene: Scene | Sketch, dpi: int = 120) -> bytes:
    """The picture as PNG; at 100 dpi it is 900 pixels wide."""
    check_real(10, 1200, dpi=dpi)
    out = io.BytesIO()
    figure(scene, dpi).savefig(
        out, format="png", dpi=dpi, metadata={"Software": None, "Title": scene.title}
    )
    return out.getvalue()


def save(scene: Scene | Sketch, path: str | Path) -> Path:
    """Writes the picture as the file name says: .png, .pdf, .svg or another format matplotlib
    knows."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure(scene, 200).savefig(path, dpi=200, metadata={"Title": scene.title})
    return path


def _timeline(ax: Axes, scene: Scene) -> None:
    _axis(ax, scene)
    _boxes(ax, layout.merged(scene))
    _names(ax, scene)
    _legend(ax, scene)


def _words(ax: Axes, x: float, y: float, text: str, size_px: float = 12, **more: object) -> float:
    """Writes text with its baseline at y; returns the right edge, in pixels of the scene."""
    fonts = [font for font in (_LATIN, chinese_font()) if font]
    looks = {"fontsize": size_px * 0.68, "color": INK, "va": "baseline", "family": fonts}
    artist = ax.text(x, y, paintable(text), **looks | more)
    artist.set_parse_math(False)
    if more.get("ha"):
        return x
    box = artist.get_window_extent(ax.figure.canvas.get_renderer())
    return float(ax.transData.inverted().transform((box.x1, 0))[0])


def _head(ax: Axes, scene: Scene | Sketch) -> None:
    _words(ax, 0, 18, layout.heading(scene), 16, weight="bold")
    _words(ax, WIDTH_PX, 18, "" if scene.headings else scene.badge, ha="right", alpha=0.8)
    x = 0.0
    for name, value in scene.numbers:
        end = _words(ax, x, 41, name, 13, alpha=0.72)
        x = _words(ax, end + 9, 41, value, 13, weight="bold") + 18
    for heading in scene.headings:
        end = _words(ax, LEFT_PX, heading.bottom_px, heading.text, weight="bold")
        _words(ax, end + 10, heading.bottom_px, heading.detail, alpha=0.78)


def _axis(ax: Axes, scene: Scene) -> None:
    ticks, unit = layout.ticks(scene)
    top = min((row.top_px for row in scene.rows), default=62) - 3
    bottom = scene.bottom_px
    grid = [scene.x_px(at) for at, _ in ticks]
    marks = [scene.x_px(at) for at in scene.marks_us]
    ax.vlines(grid, top, bottom, color=INK, alpha=0.13, lw=0.7, zorder=0)
    for piece in layout.mark_pieces(scene, top):
        ax.vlines(marks, *piece, color=INK, alpha=0.7, lw=0.7, ls="--", zorder=0)
    ax.hlines(bottom, LEFT_PX, LEFT_PX + PLOT_PX, color=INK, alpha=0.5, lw=0.7)
    for at, text in ticks:
        _words(ax, scene.x_px(at), bottom + 16, text, 11, ha="center", alpha=0.8)
    _words(ax, LEFT_PX + PLOT_PX + 20, bottom + 16, unit, 11, alpha=0.8)


def _boxes(ax: Axes, scene: Scene) -> None:
    num_chunks = int(scene.chunk.max(initial=0)) + 1
    x0 = scene.x_px(scene.x0_us)
    x1 = scene.x_px(scene.x1_us)
    top = np.array([row.top_px for row in scene.rows] or [0.0])[scene.row]
    end = top + np.array([row.height_px for row in scene.rows] or [0.0])[scene.row]
    corners = np.stack([x0, top, x1, top, x1, end, x0, end], axis=1).reshape(-1, 4, 2)
    wide = x1 - x0 > 3
    for kind in scene.kinds:
        for chunk in np.unique(scene.chunk[scene.kind == kind]).tolist():
            mine = (scene.kind == kind) & (scene.chunk == chunk)
            _kind(ax, kind, chunk, num_chunks, corners[mine & wide])
            _kind(ax, kind, chunk, num_chunks, corners[mine & ~wide], hatched=False)
    edged = corners[wide & (scene.kind != IDLE)][:, [0, 3]] + (0.4, 0)
    ax.add_collection(LineCollection(edged, colors=INK, alpha=0.5, linewidths=0.58), autolim=False)
    middles = np.stack([(x0 + x1) / 2, (top + end) / 2 + 4], axis=1)
    _labels(ax, np.array(layout.fitted(scene), dtype=str), middles)


def _labels(ax: Axes, texts: np.ndarray, at: np.ndarray, size_px: float = 11) -> None:
    """The same few words in many boxes: each is outlined once and stamped, which is ten times
    faster than text."""
    inches = Affine2D().scale(1 / 72) + ax.figure.dpi_scale_trans
    for text in np.unique(texts[texts != ""]).tolist():
        told = paintable(text)
        family = (max(told) > "\u2e80" and chinese_font()) or _LATIN
        outline = TextPath((0, 0), told, size=size_px * 0.68, prop=FontProperties(family=family))
        middle = Affine2D().translate(-outline.get_extents().width / 2, 0)
        stamps = PathCollection(
            [middle.transform_path(outline)],
            offsets=at[texts == text],
            zorder=4,
            facecolors=INK,
            linewidths=0,
            offset_transform=ax.transData,
        )
        stamps.set_transform(inches)
        ax.add_collection(stamps, autolim=False)


def _kind(
    ax: Axes, kind: str, chunk: int, num_chunks: int, corners: np.ndarray, hatched: bool = True
) -> None:
    look = style(kind)
    hatch = look.hatch if hatched else ""
    if look.colour:
        _paint(ax, shade(look.colour, chunk, num_chunks), hatch, corners)
    else:
        _paint(ax, "#f2f2f3" if hatched else "#e4e5e7", hatch, corners, "#a6a9ad")


def _paint(ax: Axes, fill: str, hatch: str, corners: np.ndarray, ink: str = _SHADOW) -> None:
    ax.add_collection(
        PolyCollection(corners, facecolors=fill, linewidths=0, zorder=1), autolim=False
    )
    if hatch and len(corners):  # one path for all boxes: its hatch is drawn once
        outline = MplPath.make_compound_path_from_polys(corners)
        look = {"facecolor": "none", "edgecolor": ink, "linewidth": 0, "hatch": 3 * hatch}
        ax.add_patch(PathPatch(outline, zorder=1, **look))


def _corners(boxes: Iterable[layout.Rectangle]) -> np.ndarray:
    """Rectangles as polygons, (num_boxes, 4, 2)."""
    found = [
        [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        for x, y, width, height in boxes
    ]
    return np.array(found, dtype=float).reshape(-1, 4, 2)


def _sketch(ax: Axes, drawn: Sketch) -> None:
    for colour, hatch, boxes in layout.fills(drawn):
        _paint(ax, colour, hatch, _corners(boxes))
    _outlines(ax, layout.edges(drawn, False), linewidths=0.58, alpha=0.45)
    _outlines(ax, layout.edges(drawn, True), linewidths=1.4)
    for line in drawn.only(Line):
        _line(ax, line)
    middles = layout.middles(drawn)
    if middles:
        texts = np.array([text for _, _, text, _ in middles])
        _labels(ax, texts, np.array([(x, y) for x, y, _, _ in middles]))
    for words in drawn.only(Words):
        look = {
            "ha": {"start": "left", "middle": "center", "end": "right"}[words.anchor],
            "weight": "bold" if words.bold else "normal",
            "alpha": words.opacity,
        }
        _words(ax, words.x_px, words.y_px, words.text, words.size_px, **look)


def _outlines(ax: Axes, boxes: Iterable[layout.Rectangle], **look: float) -> None:
    edges = PolyCollection(_corners(boxes), facecolors="none", edgecolors=INK, zorder=1.5, **look)
    ax.add_collection(edges, autolim=False)


def _line(ax: Axes, line: Line) -> None:
    """A line up to its arrow head, or the marks at its points."""
    look = {"alpha": line.opacity, "zorder": 2}
    colour = line.colour or INK
    dash = (0, [length / line.width_px for length in line.dash]) if line.dash else "solid"
    stroke = LineCollection(
        [] if line.mark else [layout.stroke(line)],
        colors=colour,
        linewidths=0.72 * line.width_px,
        linestyles=[dash],
        **look,
    )
    ax.add_collection(stroke, autolim=False)
    filled = {"facecolors": colour, "linewidths": 0}
    if line.hollow:
        filled = {"facecolors": "none", "edgecolors": colour, "linewidths": 1.2}
    solids = PolyCollection(layout.solids(line), **filled, **look)
    ax.add_collection(solids, autolim=False)


def _names(ax: Axes, scene: Scene) -> None:
    left = LEFT_PX + PLOT_PX + 10
    for row in scene.rows:
        middle = row.top_px + row.height_px / 2
        _words(ax, LEFT_PX - 8, middle + 4, row.name, 11.5, ha="right")
        _words(ax, left + 66, middle + 4, row.side_text, 11.5, ha="left")
        ax.barh(middle, 60 * row.side, 0.6 * row.height_px, left=left, color=INK, alpha=0.38)
    if scene.rows:
        _words(ax, left, scene.rows[0].top_px - 8, scene.side_name, 11, alpha=0.8)


def _legend(ax: Axes, scene: Scene) -> None:
    letters = layout.letters(scene)
    for x, y, kind, words in layout.legend(scene):
        if kind:
            _kind(ax, kind, 0, 1, _corners([(x, y - 8, 22, 16)]))
        if letter := letters.get(kind):
            _words(ax, x + 11, y + 4, letter, 11, ha="center", zorder=4)
        _words(ax, x + (28 if kind else 0), y + 4, words, ha="left")
