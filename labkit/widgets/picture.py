"""``show`` displays whatever can be drawn; a ``Board`` is controls around a picture."""

import importlib.util
from collections.abc import Iterable, Sequence
from html import escape
from reprlib import repr as brief

import ipywidgets as w

from labkit.pictures import mime
from labkit.pictures.drawing import Picture, Scene
from labkit.pictures.sketch import Said, Sketch, said
from labkit.widgets import export
from labkit.words import catalogue, language, spoken_in


def show(thing: object, title: Said = "") -> None:
    """Displays what can be drawn: a picture, a noun, a run, a table, a board, or a list of them,
    each under the other. Outside a notebook it prints their text. ``title`` takes the place of the
    thing's own, and stands above a board or a list. Raises ValueError for anything else."""
    if isinstance(thing, (list, tuple)):
        _heading(title)
        for each in thing:
            show(each)
    elif isinstance(thing, Picture):
        _put(mime.bundle(mime.renamed(thing, title)))
    elif hasattr(thing, "bundle"):
        _put(thing.bundle(title=title))
    elif isinstance(thing, w.Widget) or hasattr(thing, "_repr_mimebundle_"):
        _heading(title)
        _put_itself(thing)
    else:
        raise ValueError(
            "show takes what can be drawn: a picture, a Timeline, Shards, a Footprint, a Run, a "
            f"table, a board, or a list of them; got {brief(thing)}"
        )


def in_notebook() -> bool:
    """Whether there is a notebook that shows what is displayed."""
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _heading(title: Said) -> None:
    if title:
        words = said(title, language())
        _put({"text/html": f"<b>{escape(words)}</b>", "text/plain": words})


def _put(data: dict[str, str]) -> None:
    """Displays what stands there by mime type, or prints its text."""
    if not in_notebook():
        print(data["text/plain"])
        return
    from IPython.display import display

    display(data, raw=True)


def _put_itself(thing: object) -> None:
    """Displays what knows how it is displayed, or prints the text that it then offers."""
    if in_notebook():
        from IPython.display import display

        display(thing)
        return
    data = thing._repr_mimebundle_()
    found = data[0] if isinstance(data, tuple) else data
    print(found.get("text/plain", repr(thing)))


class Board(w.VBox):
    """Controls and a picture. Its output also holds the picture as PNG and text, for viewers
    without widgets."""

    language = "en"

    def __init__(self, parts: Sequence[w.Widget]) -> None:
        if has_anywidget():
            from labkit.widgets.names import Names

            parts = [*parts, Names(self.language)]
        super().__init__(parts)
        self.add_class("labkit-board")

    def scene(self) -> Scene | Sketch | None:
        """What it shows now; None where that is words only."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: object) -> dict:
        data = super()._repr_mimebundle_(**kwargs)
        shown = self.scene()
        if shown is not None:
            data |= mime.plain(shown)
        if mime.book():
            data[mime.OFFLINE] = export.offline(self, self.language)
        return data


def has_anywidget() -> bool:
    """Whether a widget may have JavaScript of its own here, as ``names`` and ``viewer`` do."""
    return importlib.util.find_spec("anywidget") is not None


def spoken(rows: Iterable[tuple[str, ...]], language: str | None) -> dict[str, str]:
    """Words by their key, from rows (key, English). Raises ValueError for any language but "en" and
    "zh"."""
    return catalogue(rows)[spoken_in(language)]


def paragraphs(*notes: str) -> str:
    """Lines of words under a picture, as HTML."""
    return "".join(f"<div>{escape(note)}</div>" for note in notes)


def answer_anytime(*controls: w.Widget) -> None:
    """Lets controls be answered while a cell is running, in JupyterLab 4.4 and ipykernel 7 or
    newer.

    There the messages of widgets go to a thread of their own, but the first one to a widget that a
    cell has made goes to the cell's thread: a Stop button would wait for the launch it is to stop.
    Older versions answer after the cell.
    """
    for control in controls:
        vars(control.comm).pop("_reply_subshell_id", None)
