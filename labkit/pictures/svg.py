"""A Scene or a Sketch as an SVG string. Text and axes take the page's colour (``currentColor``), so
that light and dark themes both work.

Boxes of one kind on one row are one ``<path>``: strokes as thick as the row, each exactly as long
as its time.
"""

import secrets
from collections.abc import Iterable
from html import escape as escape_html

import numpy as np

from labkit.pictures import layout
from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.sketch import Line, Sketch, Words
from labkit.pictures.style import IDLE, shade, style
from labkit.words import WORDS

INK = "#10161f"  # text on a coloured box, in both themes
_FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', sans-serif"
)
# a page too narrow scrolls the picture, not itself
_FRAME = "display:grid;grid-template-columns:minmax(0,1fr)"
HATCHES = {  # one tile: size in pixels, path of its strokes
    "/": (6, "M-1 1l2-2M0 6l6-6M5 7l2-2"),
    "\\": (8, "M-1 7l2 2M0 0l8 8M7-1l2 2"),
    "x": (6, "M0 6l6-6M0 0l6 6"),
    "|": (4, "M2 0v4"),
    "-": (4, "M0 2h4"),
    "+": (6, "M3 0v6M0 3h6"),
    ".": (6, "M1 1h1.6M4 4h1.6"),
}


def render(scene: Scene | Sketch, uid: str | None = None) -> str:
    """The picture as one ``<svg>``. ``uid`` makes its ids unique in the page; by default it is
    random."""
    uid = uid or f"lk{secrets.token_hex(4)}"
    height_px = layout.height_px(scene)
    body = _sketch(scene, uid) if isinstance(scene, Sketch) else _timeline(scene, uid)
    return "".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {_n(height_px)}" '
            f'width="{WIDTH_PX}" ',
            f'role="img" aria-labelledby="{uid}-t" aria-describedby="{uid}-d" ',
            f'font-family="{_FONT}" font-size="12" fill="currentColor" '
            'style="min-width:720px;max-width:100%;height:auto;font-variant-numeric:tabular-nums">',
            f'<title id="{uid}-t">{escape(scene.title)}</title><desc '
            f'id="{uid}-d">{escape(scene.summary)}</desc>',
            _head(scene),
            body,
            "</svg>",
        )
    )


def html(scene: Scene | Sketch) -> str:
    """The picture, and under it its numbers as a table that opens on a click: for screen readers
    and for copying."""
    head, *lines = (
        "".join(f"<{tag}>{escape(cell)}</{tag}>" if cell else "<td></td>" for cell in line)
        for tag, line in zip(("th", *["td"] * len(scene.table)), scene.table, strict=False)
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    summary = WORDS[scene.language]["table"]
    return (
        f'<div style="{_FRAME}"><div style="overflow-x:auto">{render(scene)}'
        f'<details style="font-size:12px;opacity:.85"><summary>{summary}</summary><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details></div></div>"
    )


def escape(text: str) -> str:
    """Text as XML takes it: markup escaped, control characters dropped."""
    return escape_html("".join(filter(str.isprintable, text)))


def _timeline(scene: Scene, uid: str) -> str:
    shown = layout.merged(scene)
    return "".join(
        (
            _patterns(scene, uid),
            _axis(scene),
            _boxes(shown, uid),
            _edges(shown),
            _texts(shown),
            _names(scene),
            _legend(scene, uid),
        )
    )


def _sketch(drawn: Sketch, uid: str) -> str:
    parts = []
    for number, (colour, hatch, boxes) in enumerate(layout.fills(drawn)):
        paint = f"url(#{uid}-{number})" if hatch else escape(colour)
        parts += [
            _pattern(f"{uid}-{number}", colour, hatch) if hatch else "",
            f'<path data-colour="{escape(colour)}" fill="{paint}" d="{_rectangles(boxes)}"/>',
        ]
    for marked, look in (
        (False, 'stroke-opacity=".45" stroke-width=".8"'),
        (True, 'stroke-width="2"'),
    ):
        edges = _rectangles(layout.edges(drawn, marked))
        parts.append(
            f'<path d="{edges}" fill="none" stroke="currentColor" {look}/>' if edges else ""
        )
    parts += [_line(line) for line in drawn.only(Line)]
    for on_colour, ink in ((True, f' fill="{INK}"'), (False, "")):
        inside = [
            _text(x, y, text)
            for x, y, text, coloured in layout.middles(drawn)
            if coloured == on_colour
        ]
        parts.append(
            f'<g text-anchor="middle" font-size="11"{ink}>{"".join(inside)}</g>' if inside else ""
        )
    for x, y, text, anchor, size, bold, opacity in drawn.only(Words):
        looks = (
            ("text-anchor", anchor, "start"),
            ("font-size", _n(size), "12"),
            ("opacity", _n(opacity), "1"),
            ("font-weight", "600" if bold else "", ""),
        )
        parts.append(
            _text(
                x,
                y,
                text,
                " ".join(f'{name}="{value}"' for name, value, usual in looks if value != usual),
            )
        )
    return "".join(parts)


def _rectangles(boxes: Iterable[tuple[float, ...]]) -> str:
    return "".join(
        f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h-{_n(width)}z" for x, y, width, height in boxes
    )


def _points(points: Iterable[Iterable[float]]) -> str:
    return "M" + "L".join(" ".join(map(_n, point)) for point in points)


def _line(line: Line) -> str:
    colour = escape(line.colour or "currentColor")
    fade = f' opacity="{_n(line.opacity)}"' if line.opacity < 1 else ""
    dash = f' stroke-dasharray="{" ".join(map(_n, line.dash))}"' if line.dash else ""
    solid = "".join(_points(corners) + "z" for corners in layout.solids(line))
    return (
        ""
        if line.mark
        else f'<path d="{_points(layout.stroke(line))}" fill="none" stroke="{colour}" '
        f'stroke-width="{_n(line.width_px)}" stroke-linejoin="round"{dash}{fade}/>'
    ) + (f'<path d="{solid}" fill="{colour}"{fade}/>' if solid else "")


def _n(number: float) -> str:
    """A coordinate with at most two decimals, as short as it can be."""
    text = f"{number:.2f}".rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{more and " " + more}>{escape(words)}</text>'


def _looks(scene: Scene) -> list[tuple[str, int]]:
    """The kinds in the picture, each with the chunks it occurs in; chunk 0 always, for the
    legend."""
    return [
        (kind, chunk)
        for kind in scene.kinds
        for chunk in sorted({0, *scene.chunk[scene.kind == kind].tolist()})
    ]


def _patterns(scene: Scene, uid: str) -> str:
    """Hatched kinds are painted with a tile that holds their colour and their strokes."""
    parts, num_chunks = [], int(scene.chunk.max(initial=0)) + 1
    for kind, chunk in _looks(scene):
        look = style(kind)
        if look.hatch:
            colour = look.colour and shade(look.colour, chunk, num_chunks)
            parts.append(_pattern(f"{uid}-{kind}{chunk}", colour, look.hatch))
    return f"<defs>{''.join(parts)}</defs>" if parts else ""


def _pattern(name: str, colour: str, hatch: str) -> str:
    size, path = HATCHES[hatch]
    fill, ink = f'fill="{colour}"', f'stroke="{INK}" stroke-opacity=".22"'
    if not colour:
        fill, ink = 'fill-opacity=".05"', 'stroke="currentColor" stroke-opacity=".3"'
    return (
        f'<pattern id="{name}" width="{size}" height="{size}" patternUnits="userSpaceOnUse">'
        f'<path d="M0 0h{size}v{size}h-{size}z" {fill}/>'
        f'<path d="{path}" fill="none" {ink} stroke-width="1.1"/></pattern>'
    )


def _paint(kind: str, chunk: int, num_chunks: int, uid: str) -> str:
    look = style(kind)
    return f"url(#{uid}-{kind}{chunk})" if look.hatch else shade(look.colour, chunk, num_chunks)


def _head(scene: Scene | Sketch) -> str:
    numbers = "".join(
        f'<tspan dx="{0 if i == 0 else 18}" opacity=".72">{escape(name)}</tspan>'
        f'<tspan dx="6" font-weight="600">{escape(value)}</tspan>'
        for i, (name, value) in enumerate(scene.numbers)
    )
    parts = [
        _text(0, 18, layout.heading(scene), 'font-size="16" font-weight="600"'),
        f'<text x="0" y="41" font-size="13">{numbers}</text>',
        ""
        if scene.headings
        else _text(WIDTH_PX, 18, scene.badge, 'text-anchor="end" opacity=".8"'),
    ]
    for heading in scene.headings:
        parts.append(
            f'<text x="{LEFT_PX}" y="{_n(heading.bottom_px)}">'
            f'<tspan font-weight="600">{escape(heading.text)}</tspan>'
            f'<tspan dx="10" opacity=".78">{escape(heading.detail)}</tspan></text>'
        )
    return "".join(parts)


def _axis(scene: Scene) -> str:
    ticks, unit = layout.ticks(scene)
    bottom = scene.bottom_px
    top = min((row.top_px for row in scene.rows), default=62) - 3
    grid = "".join(f"M{_n(scene.x_px(at))} {_n(top)}V{_n(bottom)}" for at, _ in ticks)
    marks = "".join(f"M{_n(scene.x_px(at))} {_n(top)}V{_n(bottom)}" for at in scene.marks_us)
    parts = [
        f'<path d="{grid}" stroke="currentColor" stroke-opacity=".13"/>',
        f'<path d="M{LEFT_PX} {_n(bottom)}H{LEFT_PX + PLOT_PX}" stroke="currentColor" '
        'stroke-opacity=".5"/>',
        f'<path d="{marks}" stroke="currentColor" stroke-opacity=".7" stroke-dasharray="3 3"/>'
        if marks
        else "",
        '<g text-anchor="middle" font-size="11" opacity=".8">',
    ]
    parts += [_text(scene.x_px(at), bottom + 16, text) for at, text in ticks]
    parts += [
        "</g>",
        _text(LEFT_PX + PLOT_PX + 20, bottom + 16, unit, 'font-size="11" opacity=".8"'),
    ]
    return "".join(parts)


def _strokes(x0_px: Iterable[float], x1_px: Iterable[float]) -> str:
    """Horizontal strokes as relative moves in hundredths of a pixel, rounded so that errors do not
    add up."""
    at, parts = 0, []
    for x0, x1 in zip(x0_px, x1_px, strict=True):
        x0, x1 = round(100 * x0), round(100 * x1)
        parts.append(f"m{_n((x0 - at) / 100)} 0h{_n((x1 - x0) / 100)}")
        at = x1
    return "".join(parts)


def _boxes(scene: Scene, uid: str) -> str:
    x0_px, x1_px = scene.x_px(scene.x0_us), scene.x_px(scene.x1_us)
    num_chunks = int(scene.chunk.max(initial=0)) + 1
    parts = []
    for kind, chunk in _looks(scene):
        mine = (scene.kind == kind) & (scene.chunk == chunk)
        parts.append(
            f'<g data-kind="{escape(kind)}" '
            f'stroke="{escape(_paint(kind, chunk, num_chunks, uid))}">'
        )
        for row in np.unique(scene.row[mine]).tolist():
            strip, here = scene.rows[row], mine & (scene.row == row)
            parts.append(
                f'<path stroke-width="{_n(strip.height_px)}" d="M0 '
                f"{_n(strip.top_px + strip.height_px / 2)}"
                f'{_strokes(x0_px[here].tolist(), x1_px[here].tolist())}"/>'
            )
        parts.append("</g>")
    return "".join(parts)


def _edges(scene: Scene) -> str:
    """A hairline at the left of every box wide enough to bear one."""
    x0_px, rows = scene.x_px(scene.x0_us), scene.rows
    wide = (scene.x_px(scene.x1_us) - x0_px > 3) & (scene.kind != IDLE)
    lines = "".join(
        f"M{_n(x0_px[i] + 0.4)} {_n(rows[scene.row[i]].top_px)}v{_n(rows[scene.row[i]].height_px)}"
        for i in np.flatnonzero(wide).tolist()
    )
    return f'<path d="{lines}" stroke="{INK}" stroke-opacity=".5" stroke-width=".8"/>'


def _texts(scene: Scene) -> str:
    middle = scene.x_px((scene.x0_us + scene.x1_us) / 2)
    parts = [
        _text(
            middle[i],
            scene.rows[scene.row[i]].top_px + scene.rows[scene.row[i]].height_px / 2 + 4,
            text,
        )
        for i, text in enumerate(layout.fitted(scene))
        if text
    ]
    return f'<g text-anchor="middle" font-size="11" fill="{INK}">{"".join(parts)}</g>'


def _names(scene: Scene) -> str:
    parts, bars, left = [], [], LEFT_PX + PLOT_PX + 10
    for row in scene.rows:
        middle = row.top_px + row.height_px / 2
        if row.name:
            parts.append(
                _text(LEFT_PX - 8, middle + 4, row.name, 'text-anchor="end" font-size="11.5"')
            )
        if row.side_text:
            parts.append(_text(left + 66, middle + 4, row.side_text, 'font-size="11.5"'))
        if row.side:
            size = f'stroke-width="{_n(0.6 * row.height_px)}"'
            bars.append(f'<path {size} d="M{left} {_n(middle)}h{_n(60 * row.side)}"/>')
    if bars:
        parts.append(
            _text(left, scene.rows[0].top_px - 8, scene.side_name, 'font-size="11" opacity=".8"')
        )
    return "".join(parts) + f'<g stroke="currentColor" stroke-opacity=".38">{"".join(bars)}</g>'


def _legend(scene: Scene, uid: str) -> str:
    parts = []
    for x, y, kind, words in layout.legend(scene):
        if kind:
            parts.append(
                f'<path stroke="{_paint(kind, 0, 1, uid)}" stroke-width="16" d="M{_n(x)} '
                f'{_n(y)}h22"/>'
            )
            parts.append(_text(x + 28, y + 4, words))
        else:
            parts.append(_text(x, y + 4, words, 'opacity=".75"'))
        if letter := layout.letter(kind):
            parts.append(
                _text(x + 11, y + 4, letter, f'text-anchor="middle" font-size="11" fill="{INK}"')
            )
    return "".join(parts)
