"""What ipywidgets leave unsaid: to a screen reader what a slider or player is, to everyone that no
kernel is there."""

from pathlib import Path

import anywidget
import ipywidgets as w
import traitlets

from labkit.widgets.picture import spoken

SOURCE = Path(__file__).with_name("names.js")
_WORDS = (
    ("from", "from"),
    ("to", "to"),
    ("play", "play"),
    ("pause", "pause"),
    ("stop", "back to the start"),
    ("repeat", "repeat"),
    (
        "cut",
        "No kernel behind this picture: run the cell again to use every control.",
    ),
)
_CSS = """.labkit-board .jupyter-widgets-disconnected::before { content: none; }
.labkit-board.jupyter-widgets-disconnected::before {
  content: attr(data-cut); font: inherit; font-size: 12px;
  color: inherit; opacity: .8; padding: 2px 0 6px; }"""


class Names(anywidget.AnyWidget):
    """Invisible; names every control of the board that it lies in, in the browser, with or without
    a kernel."""

    _esm = SOURCE
    _css = _CSS
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, language: str) -> None:
        super().__init__(words=spoken(_WORDS, language), layout=w.Layout(height="0", margin="0"))
