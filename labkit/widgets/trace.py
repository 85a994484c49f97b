"""``trace(run)``: the trace viewer for any run or timeline, of any size; two of them on one
axis."""

import ipywidgets as w

from labkit.launching.run import Run
from labkit.pictures import scene
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Said
from labkit.timeline import Timeline
from labkit.widgets.picture import Board, has_anywidget


def viewed(shown: scene.Scene) -> w.Widget | None:
    """A Scene in the viewer; None where there can be none (no anywidget)."""
    if not has_anywidget():
        return None
    from labkit.widgets.viewer import Viewer

    return Viewer(shown)


class TraceBoard(Board):
    """A Scene in the viewer; where the viewer can't be, the same as SVG."""

    def __init__(self, shown: scene.Scene) -> None:
        self._shown = shown
        self.language = shown.language
        self.viewer = viewed(shown)
        super().__init__([self.viewer or w.HTML(svg.html(shown))])

    def scene(self) -> scene.Scene:
        """The whole picture."""
        return self._shown

    @property
    def selection_us(self) -> tuple[float, float] | None:
        """The window that was brushed, in microseconds; None where there is none."""
        if self.viewer is None or not self.viewer.selection:
            return None
        return tuple(self.viewer.selection)


def trace(
    first: Run | Timeline,
    second: Run | Timeline | None = None,
    *,
    title: Said | None = None,
    language: str | None = None,
) -> TraceBoard:
    """Everything that every rank did, to zoom into, search and measure. With ``second``, ``first``
    is the prediction: both on one axis, and what is under the pointer in one of them is marked in
    the other."""
    told = {"title": title, "every_message": True, "language": language}
    if second is None:
        return TraceBoard(scene.timeline(_timeline(first), **told))
    both = _timeline(first), _timeline(second)
    return TraceBoard(scene.compare(*both, **told))


def _timeline(found: Run | Timeline) -> Timeline:
    return found.timeline() if isinstance(found, Run) else found
