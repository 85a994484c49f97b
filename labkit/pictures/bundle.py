"""A picture as a notebook takes it: an SVG that follows the theme, and a PNG for everyone who may
not show one."""

import base64
import os
from html import escape

from labkit.pictures.drawing import Scene
from labkit.pictures.painters import mpl, svg, text
from labkit.pictures.sketch import Sketch

OFFLINE_MIME = "application/vnd.labkit.offline+html"
"""what the offline book shows"""
_SWAP = "<style>.labkit-live:has(svg)+img{display:none}</style>"


def of(picture: Scene | Sketch) -> dict[str, str]:
    """The picture as a mime bundle: text/html, image/png, text/plain.

    An untrusted notebook prefers HTML to the PNG, but strips the SVG out of it. So the HTML holds
    the PNG as well, hidden by a style that is stripped together with the SVG; the SVG's words,
    which stay behind, have font size 0.
    """
    data = plain(picture)
    page = (
        f'<div style="font-size:0">{_SWAP}<div class="labkit-live">{svg.html(picture)}</div>'
        f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{data["image/png"]}"></div>'
    )
    bundle = {"text/html": page, **data}
    if for_book():
        bundle[OFFLINE_MIME] = svg.html(picture)
    return bundle


def plain(picture: Scene | Sketch) -> dict[str, str]:
    """The picture for viewers that show neither scripts nor SVG."""
    png = base64.b64encode(mpl.png(picture)).decode()
    return {"image/png": png, "text/plain": text.render(picture)}


def for_book() -> bool:
    """Whether this kernel is executing a chapter for the book."""
    return os.environ.get("LABKIT_BOOK") == "1"
