"""A Scene or a Sketch as a notebook's output: an SVG that follows the theme, and a PNG for everyone
who may not show one."""

import base64
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape

from labkit.pictures.drawing import Scene
from labkit.pictures.painters import svg, text
from labkit.pictures.sketch import Said, Sketch, said

OFFLINE = "application/vnd.labkit.offline+html"
"""What the book shows in place of an output; outputs carry it only while ``$LABKIT_BOOK`` is 1."""
_FIRST_CHINESE = "\u2e80"
_SWAP = "<style>.labkit-live:has(svg)+img{display:none}</style>"


def bundle(scene: Scene | Sketch) -> dict[str, str]:
    """The picture as a mime bundle: text/html, image/png, text/plain.

    An untrusted notebook prefers HTML to the PNG, but strips the SVG out of it. So the HTML holds
    the PNG as well, hidden by a style that is stripped together with the SVG; the SVG's words,
    which stay behind, have font size 0.
    """
    rest = plain(scene)
    page = (
        f'<div style="font-size:0">{_SWAP}<div class="labkit-live">{svg.html(scene)}</div>'
        f'<img alt="{escape(scene.title)}" src="data:image/png;base64,{rest["image/png"]}"></div>'
    )
    data = {"text/html": page, **rest}
    if book():
        data[OFFLINE] = svg.html(scene)
    return data


def plain(scene: Scene | Sketch) -> dict[str, str]:
    """The picture for viewers that show neither scripts nor SVG."""
    from labkit.pictures.painters import (
        mpl,
    )  # a rank that only imports a check need not wait for it

    png = base64.b64encode(mpl.png(scene)).decode()
    return {"image/png": png, "text/plain": text.render(scene)}


def book() -> bool:
    """Whether this kernel is executing a chapter for the book."""
    return os.environ.get("LABKIT_BOOK") == "1"


def renamed(picture: Scene | Sketch, title: Said) -> Scene | Sketch:
    """The same picture under another heading, also where it is drawn in English for want of a
    Chinese font: a title that is no English then leaves the heading that was there."""
    if not title:
        return picture
    heading = said(title, picture.language)
    summary = picture.summary
    if picture.heading and summary.startswith(picture.heading):
        summary = heading + summary.removeprefix(picture.heading)
    in_english = picture.in_english
    if in_english is not None:
        is_english = isinstance(title, dict) or max(title) < _FIRST_CHINESE
        in_english = partial(_in_english, picture.in_english, title if is_english else "")
    return replace(picture, heading=heading, summary=summary, in_english=in_english)


def _in_english(build: Callable[[], Scene | Sketch], title: Said) -> Scene | Sketch:
    return renamed(build(), title)
