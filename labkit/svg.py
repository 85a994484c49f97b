"""A Scene as an SVG string. Text and axes take the page's colour (``currentColor``), so light and dark themes both work.

Boxes of one kind on one row are one ``<path>``: horizontal strokes as thick as the row, each exactly as long as its time.
"""

import secrets
from collections.abc import Iterable
from html import escape

import numpy as np

from labkit.scene import LEFT_PX, PLOT_PX, RIGHT_PX, WIDTH_PX, Scene
from labkit.style import IDLE, WORDS, shade, style

INK = "#10161f"  # text on a coloured box, in both themes
_FONT = ("system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', 'Noto Sans CJK SC', "
         "sans-serif")
_HATCHES = {  # strokes of one tile: size, path, rotation
    "/": (6, "M0 0V6", 45), "\\": (5, "M0 0V5", -45), "x": (5, "M0 0V5M0 0H5", 45), "|": (4, "M2 0V4", 0), "-": (4, "M0 2H4", 0),
    "+": (6, "M3 0V6M0 3H6", 0), ".": (6, "M2 3h1.6", 45),
}


def render(scene: Scene, uid: str | None = None) -> str:
    """The picture as one ``<svg>``. ``uid`` makes its ids unique in the page; by default it is random."""
    uid = uid or f"lk{secrets.token_hex(4)}"
    height_px = scene.bottom_px + 66
    return "".join((
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {_n(height_px)}" width="{WIDTH_PX}" role="img" ',
        f'aria-labelledby="{uid}-t {uid}-d" font-family="{_FONT}" font-size="12" fill="currentColor" ',
        'style="max-width:100%;height:auto;font-variant-numeric:tabular-nums">',
        f'<title id="{uid}-t">{escape(scene.title)}</title><desc id="{uid}-d">{escape(scene.summary)}</desc>',
        _patterns(scene, uid), _head(scene), _axis(scene), _boxes(scene, uid), _texts(scene), _names(scene), _legend(scene, uid),
        "</svg>"))


def html(scene: Scene) -> str:
    """The picture, and under it its numbers as a table that opens on a click: for screen readers and for copying."""
    head, *lines = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in line)
                    for tag, line in zip(("th", *["td"] * len(scene.table)), scene.table, strict=False))
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (f'<div>{render(scene)}<details style="font-size:12px;opacity:.85"><summary>{WORDS[scene.language]["table"]}</summary>'
            f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details></div>')


def _n(number: float) -> str:
    """A coordinate with at most two decimals, as short as it can be."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{more and " " + more}>{escape(words)}</text>'


def _patterns(scene: Scene, uid: str) -> str:
    parts = []
    for kind in scene.kinds:
        hatch = style(kind).hatch
        if hatch:
            size, path, angle = _HATCHES[hatch]
            ink = "currentColor" if kind == IDLE else INK
            parts.append(f'<pattern id="{uid}-{ord(style(kind).letter)}" width="{size}" height="{size}" '
                         f'patternUnits="userSpaceOnUse" patternTransform="rotate({angle})"><path d="{path}" stroke="{ink}" '
                         f'stroke-width="1.1" stroke-opacity=".38" fill="none"/></pattern>')
    return f"<defs>{''.join(parts)}</defs>" if parts else ""


def _head(scene: Scene) -> str:
    numbers = "".join(f'<tspan dx="{0 if i == 0 else 18}" opacity=".72">{escape(name)}</tspan>'
                      f'<tspan dx="6" font-weight="600">{escape(value)}</tspan>' for i, (name, value) in enumerate(scene.numbers))
    parts = [_text(0, 18, scene.heading, 'font-size="16" font-weight="600"'), f'<text x="0" y="41" font-size="13">{numbers}</text>',
             _text(WIDTH_PX, 18, scene.badge, 'text-anchor="end" font-style="italic" opacity=".8"') if scene.badge else ""]
    for heading in scene.headings:
        parts.append(f'<text x="{LEFT_PX}" y="{_n(heading.bottom_px)}"><tspan font-weight="600">{escape(heading.text)}</tspan>'
                     f'<tspan dx="10" opacity=".78">{escape(heading.detail)}</tspan></text>')
    return "".join(parts)


def _axis(scene: Scene) -> str:
    ticks, unit = scene.ticks()
    bottom = scene.bottom_px
    top = min((row.top_px for row in scene.rows), default=62) - 3
    grid = "".join(f"M{_n(scene.x_px(at))} {_n(top)}V{_n(bottom)}" for at, _ in ticks)
    marks = "".join(f"M{_n(scene.x_px(at))} {_n(top)}V{_n(bottom)}" for at in scene.marks_us)
    parts = [f'<path d="{grid}" stroke="currentColor" stroke-opacity=".13"/>',
             f'<path d="M{LEFT_PX} {_n(bottom)}H{LEFT_PX + PLOT_PX}" stroke="currentColor" stroke-opacity=".5"/>',
             f'<path d="{marks}" stroke="currentColor" stroke-opacity=".7" stroke-dasharray="3 3"/>' if marks else "",
             '<g text-anchor="middle" font-size="11" opacity=".8">']
    parts += [_text(scene.x_px(at), bottom + 16, text) for at, text in ticks]
    parts += ["</g>", _text(LEFT_PX + PLOT_PX + 8, bottom + 16, unit, 'font-size="11" opacity=".8"')]
    return "".join(parts)


def _strokes(x0_px: Iterable[float], x1_px: Iterable[float]) -> str:
    """Horizontal strokes as relative moves in hundredths of a pixel, rounded so that errors do not add up."""
    at, parts = 0, []
    for x0, x1 in zip(x0_px, x1_px, strict=True):
        x0, x1 = round(100 * x0), round(100 * x1)
        parts.append(f"m{_n((x0 - at) / 100)} 0h{_n((x1 - x0) / 100)}")
        at = x1
    return "".join(parts)


def _boxes(scene: Scene, uid: str) -> str:
    scene = scene.merged()
    x0_px, x1_px = scene.x_px(scene.x0_us), scene.x_px(scene.x1_us)
    num_chunks = int(scene.chunk.max(initial=0)) + 1
    parts = []
    for kind in scene.kinds:
        for chunk in np.unique(scene.chunk[scene.kind == kind]).tolist():
            mine = (scene.kind == kind) & (scene.chunk == chunk)
            paths = ""
            for row in np.unique(scene.row[mine]).tolist():
                strip, here = scene.rows[row], mine & (scene.row == row)
                middle = strip.top_px + strip.height_px / 2
                paths += (f'<path stroke-width="{_n(strip.height_px)}" '
                          f'd="M0 {_n(middle)}{_strokes(x0_px[here].tolist(), x1_px[here].tolist())}"/>')
            parts.append(_painted(kind, chunk, num_chunks, paths, uid))
    wide = np.flatnonzero((x1_px - x0_px > 3) & (scene.kind != IDLE))
    edges = "".join(f"M{_n(x0_px[i] + 0.4)} {_n(scene.rows[scene.row[i]].top_px)}v{_n(scene.rows[scene.row[i]].height_px)}"
                    for i in wide.tolist())
    return "".join(parts) + f'<path d="{edges}" stroke="{INK}" stroke-opacity=".5" stroke-width=".8"/>'


def _painted(kind: str, chunk: int, num_chunks: int, paths: str, uid: str) -> str:
    look = style(kind)
    if not look.colour:
        return (f'<g data-kind="{escape(kind)}" stroke="currentColor" stroke-opacity=".06">{paths}</g>'
                f'<g stroke="url(#{uid}-{ord(look.letter)})">{paths}</g>')
    plain = f'<g data-kind="{escape(kind)}" stroke="{shade(look.colour, chunk, num_chunks)}">{paths}</g>'
    return plain + (f'<g stroke="url(#{uid}-{ord(look.letter)})">{paths}</g>' if look.hatch else "")


def _texts(scene: Scene) -> str:
    middle = scene.x_px((scene.x0_us + scene.x1_us) / 2)
    parts = [_text(middle[i], scene.rows[scene.row[i]].top_px + scene.rows[scene.row[i]].height_px / 2 + 4, text)
             for i, text in enumerate(scene.fitted()) if text]
    return f'<g text-anchor="middle" font-size="11" fill="{INK}">{"".join(parts)}</g>'


def _names(scene: Scene) -> str:
    parts, bars, left = [], [], LEFT_PX + PLOT_PX + 10
    for row in scene.rows:
        middle = row.top_px + row.height_px / 2
        if row.name:
            parts.append(_text(LEFT_PX - 8, middle + 4, row.name, 'text-anchor="end" font-size="11.5"'))
        if row.side_text:
            parts.append(_text(left + 66, middle + 4, row.side_text, 'font-size="11.5"'))
        if row.side:
            bars.append(f'<path d="M{left} {_n(middle)}h{_n(60 * row.side)}" stroke-width="{_n(0.6 * row.height_px)}"/>')
    if bars:
        parts.append(_text(left, 54, scene.side_name, 'font-size="11" opacity=".8"'))
    return "".join(parts) + f'<g stroke="currentColor" stroke-opacity=".38">{"".join(bars)}</g>'


def _legend(scene: Scene, uid: str) -> str:
    y, parts = scene.bottom_px + 46, []
    for x, kind, words in scene.legend():
        if not kind:
            parts.append(_text(x, y + 4, words, 'opacity=".75"'))
            continue
        parts.append(_painted(kind, 0, 1, f'<path stroke-width="16" d="M{_n(x)} {_n(y)}h22"/>', uid))
        if style(kind).letter.isupper():
            parts.append(_text(x + 11, y + 4, style(kind).letter, f'text-anchor="middle" font-size="11" fill="{INK}"'))
        parts.append(_text(x + 28, y + 4, words))
    return "".join(parts) or _text(LEFT_PX, y, WORDS[scene.language]["nothing"])
