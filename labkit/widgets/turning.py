"""A flipbook where no kernel is: its controls, and the pages for every position of some of them.

All pages stand in the HTML, packed; a script of the book unpacks them and puts them in their place.
"""

import base64
import gzip
import itertools
import json
from html import escape

import ipywidgets as w

from labkit.widgets.flipbook import MAX_BYTES, Flipbook

MOST_PAGES = 300
MOST_FREE = 2
"""controls that can be turned beside the first"""


def free_controls(book: Flipbook) -> list[w.Widget]:
    """The controls that can be turned where no kernel is: the first, and as many of the others, in
    their order, as MOST_FREE and MOST_PAGES allow."""
    free = [book.slider]
    num_pages = len(book.slider.options)
    for other in book.others:
        num_pages *= len(other.options)
        if len(free) > MOST_FREE or num_pages > MOST_PAGES:
            break
        free.append(other)
    return free


def pages(book: Flipbook, free: list[w.Widget]) -> str:
    """The page as it stands, and packed in a script the pages of every position of the free
    controls. Those that would weigh more than MAX_BYTES are left out, the last control's first;
    ``free`` then loses it."""
    packed = _packed(book, free)
    while len(packed) > MAX_BYTES and len(free) > 1:
        free.pop()
        packed = _packed(book, free)
    shown = book.drawn()[book.at[book.slider]]
    return (
        f'<div class="labkit-page">{shown}</div>'
        f'<script type="application/gzip+json" class="labkit-pages">{packed}</script>'
    )


def _packed(book: Flipbook, free: list[w.Widget]) -> str:
    """Positions of the free controls but the first, "2,0" -> their pages; as gzip in base64."""
    ranges = []
    for other in book.others:
        stays = range(book.at[other], book.at[other] + 1)
        ranges.append(range(len(other.options)) if other in free else stays)
    found = {}
    for at in itertools.product(*ranges):
        position = dict(zip(book.others, at, strict=True))
        key = ",".join(str(position[other]) for other in free[1:])
        found[key] = book.drawn_at(*at)
    text = json.dumps(found, ensure_ascii=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def control(widget: w.Widget, place: int) -> str:
    """A control that is turned without a kernel: a choice among kinds is a list, anything along a
    scale a slider. ``place``: 0 for the first."""
    labels = [label for label, _ in widget.options]
    name = escape(widget.description)
    if isinstance(widget, w.Dropdown):
        options = "".join(
            f"<option{' selected' if index == widget.index else ''}>{escape(label)}</option>"
            for index, label in enumerate(labels)
        )
        return (
            f'<label class="labkit-slider">{name} <select data-place="{place}">{options}</select>'
            "</label>"
        )
    now = escape(labels[widget.index])
    all_labels = escape(json.dumps(labels, ensure_ascii=False))
    return (
        f'<label class="labkit-slider">{name} <input type="range" min="0" '
        f'max="{len(labels) - 1}" value="{widget.index}" aria-valuetext="{now}" '
        f'data-place="{place}" data-labels="{all_labels}"><output>{now}</output></label>'
    )
