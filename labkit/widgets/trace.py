"""``trace(run)``: the trace viewer for any run or timeline, of any size; two of them on one
axis."""

import importlib.util

import ipywidgets as w

from labkit.launching.run import Run
from labkit.pictures import scene, svg
from labkit.timeline import Timeline
from labkit.widgets.picture import Board


def viewed(shown: scene.Scene) -> w.Widget | None:
    """A Scene in the viewer; None where there can be none (no anywidget)."""
    if not importlib.util.find_spec("anywidget"):
        return None
    from labkit.widgets.viewer import Viewer

    return Viewer(shown)


class TraceBoard(Board):
    """A Scene in the viewer; where the viewer can't be, the same as SVG."""

    def __init__(self, shown: scene.Scene) -> None:
        self._shown, self.viewer = shown, viewed(shown)
        super().__init__([self.viewer or w.HTML(svg.html(shown))])

    def scene(self) -> scene.Scene:
        """The whole picture."""
        return self._shown

    @property
    def selection_us(self) -> tuple[float, float] | None:
        """The window that was brushed, in microseconds; None where there is none."""
        return tuple(self.viewer.selection) if self.viewer and self.viewer.selection else None


def trace(
    first: Run | Timeline,
    second: Run | Timeline | None = None,
    *,
    title: str | None = None,
    language: str = "en",
) -> TraceBoard:
    """Everything that every rank did, to zoom into, search and measure. With ``second``, ``first``
    is the prediction: both on one axis, and what is under the pointer in one of them is marked in
    the other."""
    one, two = (found.timeline() if isinstance(found, Run) else found for found in (first, second))
    if two is None:
        return TraceBoard(scene.timeline(one, title=title, language=language))
    return TraceBoard(scene.compare(one, two, title=title, language=language))
