"""A Scene or a Sketch as an SVG string. Text and axes take the page's colour (``currentColor``), so
that light and dark themes both work.

Boxes of one kind on one row are one ``<path>``: strokes as thick as the row, each exactly as long
as its time.
"""

import functools
import secrets
from collections.abc import Iterable
from html import escape as escape_html

import numpy as np

from labkit.pictures.drawing import LEFT_PX, PLOT_PX, WIDTH_PX, Scene
from labkit.pictures.painters import layout
from labkit.pictures.sketch import Line, Sketch, Words
from labkit.pictures.style import HATCHES, IDLE, shade, style
from labkit.words import WORDS

INK = "#10161f"  # text on a coloured box, in both themes
_FONT = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'PingFang SC', 'Microsoft YaHei', "
    "'Noto Sans CJK SC', sans-serif"
)
# a page too narrow scrolls the picture, not itself
_FRAME = "display:grid;grid-template-columns:minmax(0,1fr)"


def render(scene: Scene | Sketch, uid: str | None = None) -> str:
    """The picture as one ``<svg>``. ``uid`` makes its ids unique in the page; by default it is
    random."""
    uid = uid or f"lk{secrets.token_hex(4)}"
    height_px = layout.height_px(scene)
    body = _sketch(scene, uid) if isinstance(scene, Sketch) else _timeline(scene, uid)
    title = f'<title id="{uid}-t">{escape(scene.title)}</title>'
    told = f'<desc id="{uid}-d">{escape(scene.summary)}</desc>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {_n(height_px)}" '
        f'width="{WIDTH_PX}" role="img" aria-labelledby="{uid}-t" aria-describedby="{uid}-d" '
        f'font-family="{_FONT}" font-size="12" fill="currentColor" '
        'style="min-width:720px;max-width:100%;height:auto;font-variant-numeric:tabular-nums">'
        f"{title}{told}{_head(scene)}{body}{_notes(scene)}</svg>"
    )


def html(scene: Scene | Sketch) -> str:
    """The picture, and under it its numbers as a table that opens on a click: for screen readers
    and for copying."""
    head, *lines = scene.table
    body = "".join(f"<tr>{_cells('td', line)}</tr>" for line in lines)
    summary = WORDS[scene.language]["table"]
    table = f"<thead><tr>{_cells('th', head)}</tr></thead><tbody>{body}</tbody>"
    return (
        f'<div style="{_FRAME}"><div style="overflow-x:auto">{render(scene)}'
        f'<details style="font-size:12px;opacity:.85"><summary>{summary}</summary>'
        f"<table>{table}</table></details></div></div>"
    )


def _notes(scene: Scene | Sketch) -> str:
    return "".join(_text(0, y, line, 'opacity=".85"') for y, line in layout.note_lines(scene))


def _cells(tag: str, line: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" if cell else "<td></td>" for cell in line)


def escape(text: str) -> str:
    """Text as XML takes it: markup escaped, control characters dropped."""
    return escape_html("".join(filter(str.isprintable, text)))


def _timeline(scene: Scene, uid: str) -> str:
    shown = layout.merged(scene)
    parts = [_patterns(scene, uid), _axis(scene), _boxes(shown, uid), _edges(shown), _texts(shown)]
    return "".join([*parts, _names(scene), _legend(scene, uid)])


def _sketch(drawn: Sketch, uid: str) -> str:
    parts = [
        _fill(f"{uid}-{number}", colour, hatch, boxes)
        for number, (colour, hatch, boxes) in enumerate(layout.fills(drawn))
    ]
    parts.append(_outlines(layout.edges(drawn, False), 'stroke-opacity=".45" stroke-width=".8"'))
    parts.append(_outlines(layout.edges(drawn, True), 'stroke-width="2"'))
    parts.append(_outlines(layout.inner_edges(drawn), 'stroke-width="1.5"', INK))
    parts += [_line(line) for line in drawn.only(Line)]
    middles = layout.middles(drawn)
    parts.append(_inside([each for each in middles if each[3]], f' fill="{INK}"'))
    parts.append(_inside([each for each in middles if not each[3]], ""))
    parts += [_words(words) for words in drawn.only(Words)]
    return "".join(parts)


def _fill(name: str, colour: str, hatch: str, boxes: Iterable[layout.Rectangle]) -> str:
    """Boxes of one look; ``name`` is what its hatch is called in the page."""
    tile = _pattern(name, colour, hatch) if hatch else ""
    paint = f"url(#{name})" if hatch else escape(colour)
    return f'{tile}<path data-colour="{escape(colour)}" fill="{paint}" d="{_rectangles(boxes)}"/>'


def _outlines(boxes: Iterable[layout.Rectangle], look: str, ink: str = "currentColor") -> str:
    path = _rectangles(boxes)
    return f'<path d="{path}" fill="none" stroke="{ink}" {look}/>' if path else ""


def _inside(texts: list[tuple[float, float, str, bool]], ink: str) -> str:
    """What stands in boxes."""
    parts = [_text(x, y, text) for x, y, text, _ in texts]
    if not parts:
        return ""
    return f'<g text-anchor="middle" font-size="11"{ink}>{"".join(parts)}</g>'


def _words(words: Words) -> str:
    """One line of text; what is usual is not said."""
    looks = []
    if words.anchor != "start":
        looks.append(f'text-anchor="{words.anchor}"')
    if words.size_px != 12:
        looks.append(f'font-size="{_n(words.size_px)}"')
    if words.opacity != 1:
        looks.append(f'opacity="{_n(words.opacity)}"')
    if words.bold:
        looks.append('font-weight="600"')
    return _text(words.x_px, words.y_px, words.text, " ".join(looks))


def _rectangles(boxes: Iterable[layout.Rectangle]) -> str:
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
    head = f'<path d="{solid}" fill="{colour}"{fade}/>' if solid else ""
    if line.mark and line.hollow:
        return f'<path d="{solid}" fill="none" stroke="{colour}" stroke-width="1.6"{fade}/>'
    if line.mark:
        return head
    return (
        f'<path d="{_points(layout.stroke(line))}" fill="none" stroke="{colour}" '
        f'stroke-width="{_n(line.width_px)}" stroke-linejoin="round"{dash}{fade}/>{head}'
    )


@functools.lru_cache(maxsize=8192)
def _n(number: float) -> str:
    """A coordinate with at most two decimals, as short as it can be; most come up again."""
    text = f"{number + 0.0:.2f}".rstrip("0").rstrip(".")  # -0.0 is 0.0, also as a key
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{_n(x)}" y="{_n(y)}"{more and " " + more}>{escape(words)}</text>'


def _looks(scene: Scene) -> list[tuple[str, int]]:
    """The kinds in the picture, each with the chunks it occurs in; chunk 0 always, for the
    legend."""
    looks = []
    for kind in scene.kinds:
        chunks = {0, *scene.chunk[scene.kind == kind].tolist()}
        looks += [(kind, chunk) for chunk in sorted(chunks)]
    return looks


def _patterns(scene: Scene, uid: str) -> str:
    """Hatched kinds are painted with a tile that holds their colour and their strokes."""
    num_chunks = int(scene.chunk.max(initial=0)) + 1
    parts = []
    for kind, chunk in _looks(scene):
        look = style(kind)
        if look.hatch:
            colour = look.colour and shade(look.colour, chunk, num_chunks)
            parts.append(_pattern(f"{uid}-{kind}{chunk}", colour, look.hatch))
    return f"<defs>{''.join(parts)}</defs>" if parts else ""


def _pattern(name: str, colour: str, hatch: str) -> str:
    size, path = HATCHES[hatch]
    if colour:
        fill = f'fill="{colour}"'
        ink = f'stroke="{INK}" stroke-opacity=".22"'
    else:
        fill = 'fill-opacity=".05"'
        ink = 'stroke="currentColor" stroke-opacity=".3"'
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
    ]
    if not scene.headings:
        parts.append(_text(WIDTH_PX, 18, scene.badge, 'text-anchor="end" opacity=".8"'))
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
    right = LEFT_PX + PLOT_PX
    grid = _uprights(scene, [at for at, _ in ticks], top, bottom)
    marks = "".join(
        _uprights(scene, scene.marks_us, *piece) for piece in layout.mark_pieces(scene, top)
    )
    parts = [
        f'<path d="{grid}" stroke="currentColor" stroke-opacity=".13"/>',
        f'<path d="M{LEFT_PX} {_n(bottom)}H{right}" stroke="currentColor" stroke-opacity=".5"/>',
    ]
    if marks:
        look = 'stroke="currentColor" stroke-opacity=".7" stroke-dasharray="3 3"'
        parts.append(f'<path d="{marks}" {look}/>')
    texts = [_text(scene.x_px(at), bottom + 16, text) for at, text in ticks]
    parts.append(f'<g text-anchor="middle" font-size="11" opacity=".8">{"".join(texts)}</g>')
    parts.append(_text(right + 20, bottom + 16, unit, 'font-size="11" opacity=".8"'))
    return "".join(parts)


def _uprights(scene: Scene, times_us: Iterable[float], top: float, bottom: float) -> str:
    """Upright lines at these times."""
    return "".join(f"M{_n(scene.x_px(at))} {_n(top)}V{_n(bottom)}" for at in times_us)


def _strokes(x0_px: Iterable[float], x1_px: Iterable[float]) -> str:
    """Horizontal strokes as relative moves in hundredths of a pixel, rounded so that errors do not
    add up."""
    at = 0
    parts = []
    for x0, x1 in zip(x0_px, x1_px, strict=True):
        start = round(100 * x0)
        end = round(100 * x1)
        parts.append(f"m{_n((start - at) / 100)} 0h{_n((end - start) / 100)}")
        at = end
    return "".join(parts)


def _boxes(scene: Scene, uid: str) -> str:
    x0_px = scene.x_px(scene.x0_us)
    x1_px = scene.x_px(scene.x1_us)
    num_chunks = int(scene.chunk.max(initial=0)) + 1
    parts = []
    for kind, chunk in _looks(scene):
        mine = (scene.kind == kind) & (scene.chunk == chunk)
        paint = escape(_paint(kind, chunk, num_chunks, uid))
        parts.append(f'<g data-kind="{escape(kind)}" stroke="{paint}">')
        for row in np.unique(scene.row[mine]).tolist():
            strip = scene.rows[row]
            here = mine & (scene.row == row)
            middle = _n(strip.top_px + strip.height_px / 2)
            strokes = _strokes(x0_px[here].tolist(), x1_px[here].tolist())
            parts.append(f'<path stroke-width="{_n(strip.height_px)}" d="M0 {middle}{strokes}"/>')
        parts.append("</g>")
    return "".join(parts)


def _edges(scene: Scene) -> str:
    """A hairline at the left of every box wide enough to bear one."""
    x0_px = scene.x_px(scene.x0_us)
    wide = (scene.x_px(scene.x1_us) - x0_px > 3) & (scene.kind != IDLE)
    lines = []
    for box in np.flatnonzero(wide).tolist():
        strip = scene.rows[scene.row[box]]
        lines.append(f"M{_n(x0_px[box] + 0.4)} {_n(strip.top_px)}v{_n(strip.height_px)}")
    look = f'stroke="{INK}" stroke-opacity=".5" stroke-width=".8"'
    return f'<path d="{"".join(lines)}" {look}/>'


def _texts(scene: Scene) -> str:
    middle = scene.x_px((scene.x0_us + scene.x1_us) / 2)
    parts = []
    for box, text in enumerate(layout.fitted(scene)):
        if text:
            strip = scene.rows[scene.row[box]]
            parts.append(_text(middle[box], strip.top_px + strip.height_px / 2 + 4, text))
    return f'<g text-anchor="middle" font-size="11" fill="{INK}">{"".join(parts)}</g>'


def _names(scene: Scene) -> str:
    left = LEFT_PX + PLOT_PX + 10
    parts = []
    bars = []
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
    letters = layout.letters(scene)
    for x, y, kind, words in layout.legend(scene):
        if kind:
            parts.append(
                f'<path stroke="{_paint(kind, 0, 1, uid)}" stroke-width="16" d="M{_n(x)} '
                f'{_n(y)}h22"/>'
            )
            parts.append(_text(x + 28, y + 4, words))
        else:
            parts.append(_text(x, y + 4, words, 'opacity=".75"'))
        if letter := letters.get(kind):
            parts.append(
                _text(x + 11, y + 4, letter, f'text-anchor="middle" font-size="11" fill="{INK}"')
            )
    return "".join(parts)
