"""A Scene or a Sketch in a notebook: an SVG that follows the theme, and a PNG for everyone who may
not show one."""

import base64
import importlib.util
from collections.abc import Iterable, Sequence
from html import escape

import ipywidgets as w

from labkit.pictures.drawing import Scene
from labkit.pictures.painters import mpl, svg, text
from labkit.pictures.sketch import Sketch
from labkit.widgets import export
from labkit.words import catalogue, spoken_in

_SWAP = "<style>.labkit-live:has(svg)+img{display:none}</style>"


def bundle(scene: Scene | Sketch) -> dict[str, str]:
    """The picture as a mime bundle: text/html, image/png, text/plain.

    An untrusted notebook prefers HTML to the PNG, but strips the SVG out of it. So the HTML holds
    the PNG as well, hidden by a style that is stripped together with the SVG; the SVG's words,
    which stay behind, have font size 0.
    """
    plain = _plain(scene)
    page = (
        f'<div style="font-size:0">{_SWAP}<div class="labkit-live">{svg.html(scene)}</div>'
        f'<img alt="{escape(scene.title)}" src="data:image/png;base64,{plain["image/png"]}"></div>'
    )
    data = {"text/html": page, **plain}
    if export.wanted():
        data[export.MIME] = svg.html(scene)
    return data


def _plain(scene: Scene | Sketch) -> dict[str, str]:
    """The picture for viewers that show neither scripts nor SVG."""
    png = base64.b64encode(mpl.png(scene)).decode()
    return {"image/png": png, "text/plain": text.render(scene)}


def show(scene: Scene | Sketch) -> None:
    """Displays a picture in the notebook; prints it as text where there is none."""
    from IPython.display import display

    display(bundle(scene), raw=True)


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
            data |= _plain(shown)
        if export.wanted():
            data[export.MIME] = export.offline(self, self.language)
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
