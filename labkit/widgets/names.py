"""What ipywidgets' sliders and players do not tell a screen reader: their names, and the option they stand at."""

from pathlib import Path

import anywidget
import ipywidgets as w
import traitlets

from labkit.widgets.picture import spoken

SOURCE = Path(__file__).with_name("names.js")
_WORDS = (("from", "from", "从"), ("to", "to", "到"), ("play", "play", "播放"), ("pause", "pause", "暂停"),
          ("stop", "back to the start", "回到开头"), ("repeat", "repeat", "重复"))


class Names(anywidget.AnyWidget):
    """Invisible; names every control of the board that it lies in, in the browser, with or without a kernel."""

    _esm = SOURCE
    words = traitlets.Dict().tag(sync=True)

    def __init__(self, language: str) -> None:
        super().__init__(words=spoken(_WORDS, language), layout=w.Layout(height="0", margin="0"))
