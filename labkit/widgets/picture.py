"""What every widget that shows a picture has: display, words, and answers while a cell runs."""

import importlib.util
from collections.abc import Sequence
from html import escape

import ipywidgets as w

from labkit.pictures import bundle
from labkit.pictures.drawing import Scene
from labkit.pictures.sketch import Sketch
from labkit.widgets import export
from labkit.words import catalogue


def show(scene: Scene | Sketch) -> None:
    """Displays a picture in the notebook; prints it as text where there is none."""
    from IPython.display import display

    display(bundle.of(scene), raw=True)


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
            data |= bundle.plain(shown)
        if bundle.for_book():
            data[bundle.OFFLINE_MIME] = export.offline(self, self.language)
        return data


def has_anywidget() -> bool:
    """Whether a widget may have JavaScript of its own here, as ``names`` and ``viewer`` do."""
    return importlib.util.find_spec("anywidget") is not None


def spoken(rows: tuple[tuple[str, str, str], ...], language: str) -> dict[str, str]:
    """Words by their key, from rows (key, English, Chinese). Raises ValueError for any language but
    "en" and "zh"."""
    if language not in ("en", "zh"):
        raise ValueError(f"a widget's language is one of en, zh; got {language!r}")
    return catalogue(rows)[language]


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
