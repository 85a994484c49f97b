"""Boards where no kernel is: the HTML that the offline book shows in place of a widget.

A flipbook keeps its first control and one or two of the others (``turning``): their pages are in
the HTML, and a script of the book turns them. Controls that need the kernel are written down as
they stand, and a line says so. Outputs carry this form only while ``$LABKIT_BOOK`` is 1.
"""

import base64
import json
from collections.abc import Iterator
from html import escape

import ipywidgets as w

from labkit.widgets import turning
from labkit.words import catalogue, spoken_in

_WORDS = (
    (
        "no kernel",
        "Open the notebook to change {} or to run it on real ranks.",
    ),
    (
        "only run",
        "Open the notebook to run it on real ranks.",
    ),
    ("no run", "Open the notebook to change {}."),
    ("and", "list|, "),
    ("play", "play"),
)


def offline(board: w.Widget, language: str | None = None) -> str:
    """A widget and everything in it as HTML that needs no kernel; what it can't do there is said
    below it."""
    words = catalogue(_WORDS)[spoken_in(language)]
    widgets = list(_all(board))
    turned = {}
    for book in filter(_is_flipbook, widgets):
        free = turning.free_controls(book)
        turned[book] = turning.pages(book, free)
        turned |= {each: turning.control(each, place) for place, each in enumerate(free)}
    controls = [each for each in widgets if hasattr(each, "index")]
    fixed = [
        each.description
        for each in controls
        if each not in turned and not isinstance(each, w.Stack)
    ]
    runs = any(isinstance(each, w.Button) for each in widgets)
    notes = {
        (True, True): "no kernel",
        (True, False): "no run",
        (False, True): "only run",
    }
    note = ""
    if key := notes.get((bool(fixed), runs)):
        told = words[key].format(words["and"].join(fixed))
        note = f'<p class="labkit-note">{escape(told)}</p>'
    return f'<div class="labkit-board">{_html(board, turned, words["play"])}{note}</div>'


def _is_flipbook(widget: w.Widget) -> bool:
    return hasattr(widget, "drawn")


def _all(widget: w.Widget) -> Iterator[w.Widget]:
    """The widget and what it holds; a flipbook's pages are its own."""
    yield widget
    if not _is_flipbook(widget):
        for child in getattr(widget, "children", ()):
            yield from _all(child)


def _html(widget: w.Widget, turned: dict[w.Widget, str], play: str) -> str:
    if widget in turned:
        return turned[widget]
    if hasattr(widget, "columns"):
        return _trace(widget)
    if isinstance(widget, w.Play):
        return (
            f'<button type="button" class="labkit-play" data-ms="{widget.interval}" '
            f'aria-label="{play}">'
            '<span aria-hidden="true">▶</span></button>'
        )
    if isinstance(widget, w.HTML):
        return f"<div>{widget.value}</div>" if widget.value else ""
    if isinstance(widget, w.Box):
        return _box(widget, turned, play)
    return _as_it_stands(widget) if hasattr(widget, "index") else ""


def _box(box: w.Box, turned: dict[w.Widget, str], play: str) -> str:
    """What a box holds; nothing of one with a button, and why that may be off."""
    if any(isinstance(child, w.Button) for child in box.children):
        return ""
    inner = "".join(_html(child, turned, play) for child in box.children)
    flat = not isinstance(box, w.VBox)
    return f'<div class="labkit-row">{inner}</div>' if flat and inner else inner


def _as_it_stands(control: w.Widget) -> str:
    """A control that needs the kernel, written down; of a range, both of its ends."""
    ends = (control.index,) if isinstance(control.index, int) else control.index
    shown = " … ".join(control.options[index][0] for index in ends)
    return f'<span class="labkit-set">{escape(control.description)} <b>{escape(shown)}</b></span>'


def _trace(viewer: w.Widget) -> str:
    """What ``viewer.js`` needs, as JSON in the page."""
    columns = {name: base64.b64encode(part).decode() for name, part in viewer.columns.items()}
    data = json.dumps({"about": viewer.about, "columns": columns}, ensure_ascii=False)
    safe = data.replace("</", "<\\/")
    return f'<div class="labkit-trace"><script type="application/json">{safe}</script></div>'
