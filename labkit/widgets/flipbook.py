"""Pictures that move without the kernel: all pages of one slider are sent at once and flipped in
the browser by a link.

Any other control needs the kernel. Until it has drawn, the browser says "kernel busy" by itself:
each such control is linked to a stack whose children all say so, but for the one drawn last.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import ipywidgets as w
from ipywidgets.widgets.widget_string import HTMLStyle

MAX_PAGES = 64
MAX_BYTES = 1_500_000
"""A stack keeps its pages in memory; what is beyond is drawn when asked for."""
REST_S = 0.5
"""The pages not seen wait this long: the visible one is on its way, and the next key may be too."""
_LATE = "<style>@keyframes labkit-late{from{opacity:0}}</style>"
"""no flicker where the kernel is quick"""


class Flipbook(w.VBox):
    """One page per option of ``slider``, each for the present options of ``others``; all controls
    have an ``index``.

    ``page(slider_index, *other_indices)`` is the HTML of one; ``moved`` is called after a control
    has moved. ``num_pages(*other_indices)``, where it gives a number, is how many positions the
    slider has then: 0, 1, ...
    """

    def __init__(
        self,
        slider: w.Widget,
        others: Sequence[w.Widget],
        page: Callable[..., str],
        busy: str,
        moved: Callable[[], None] = lambda: None,
        num_pages: Callable[..., int | None] = lambda *_: None,
    ) -> None:
        self.slider = slider
        self._labels = [label for label, _ in slider.options]
        self.others = tuple(others)
        self._page = page
        self._after = moved
        self._num_pages = num_pages
        self.at = {control: control.index for control in (slider, *self.others)}
        self._sign = f'{_LATE}<b style="animation:labkit-late 0s .15s backwards">{escape(busy)}</b>'
        self._marks = _busy_marks([len(other.options) for other in self.others])
        self.pages: list[w.HTML] = []
        self._drawn: set[int] = set()
        self.stack = w.Stack()
        self._lock = threading.RLock()
        self._edition = 0
        super().__init__([w.GridBox(self._marks), self.stack])
        self.redraw(wait=True)
        pairs = [(slider, self.stack), *zip(self.others, self._marks, strict=True)]
        self.links = [
            w.jslink((control, "index"), (stack, "selected_index")) for control, stack in pairs
        ]
        # of the two messages of a key, the link's comes first: drawing begins with it
        for control, stack in pairs:
            control.observe(partial(self._move, control), "index")
            stack.observe(partial(self._move, control), "selected_index")

    def _move(self, control: w.Widget, change: dict) -> None:
        with self._lock:
            if change["new"] is None or change["new"] == self.at[control]:
                return
            self.at[control] = change["new"]
            if control is self.slider:
                self._ask()
            else:
                self.redraw()
        self._after()

    def redraw(self, *, wait: bool = False) -> None:
        """Draws every page anew: the visible one now, the others after it, until a newer redraw
        overtakes this one."""
        with self._lock:
            self._edition += 1
            self._drawn.clear()
            self._resize()
            self._ask()
        if wait:
            self._draw_rest(self._edition)
        else:
            threading.Thread(
                target=self._rest, args=(self._edition,), name="labkit-draw", daemon=True
            ).start()

    def _resize(self) -> None:
        """As many pages as the slider has positions."""
        wanted = self._num_pages(*map(self.at.get, self.others))
        if wanted is not None and wanted != len(self.slider.options):
            self.at[self.slider] = 0
            labels = (*self._labels, *map(str, range(len(self._labels), wanted)))
            self.slider.options = [(label, at) for at, label in enumerate(labels[:wanted])]
        num_pages = min(MAX_PAGES, len(self.slider.options))
        missing = num_pages - len(self.stack.children)
        # it never shrinks: a new list of children costs the browser time
        if missing > 0:
            self.stack.children += tuple(w.HTML() for _ in range(missing))
        self.pages = list(self.stack.children[:num_pages])

    def _ask(self) -> None:
        """Draws the visible page if the browser does not have it."""
        with self._lock:
            if self.at[self.slider] not in self._drawn:
                self._draw(self.at[self.slider])
                self._clear_up()

    def _draw(self, index: int) -> None:
        self.pages[index].value = self._page(index, *map(self.at.get, self.others))
        self._drawn.add(index)

    def _rest(self, edition: int) -> None:
        time.sleep(REST_S)
        self._draw_rest(edition)

    def _draw_rest(self, edition: int) -> None:
        visible = self.at[self.slider]
        nearest_first = sorted(range(len(self.pages)), key=lambda index: abs(index - visible))
        for index in nearest_first:
            with self._lock:
                if edition != self._edition:
                    return
                if index not in self._drawn and self.num_bytes < MAX_BYTES:
                    self._draw(index)

    def drawn(self) -> list[str]:
        """Every page as HTML, those included that were not sent."""
        with self._lock:
            at = [self.at[other] for other in self.others]
            return [
                page.value if index in self._drawn else self._page(index, *at)
                for index, page in enumerate(self.pages)
            ]

    def drawn_at(self, *at: int) -> list[str]:
        """Every page as HTML where the other controls stand at these indices."""
        num_pages = self._num_pages(*at) or len(self.slider.options)
        return [self._page(index, *at) for index in range(num_pages)]

    @property
    def num_bytes(self) -> int:
        """What the pages that were sent weigh."""
        return sum(len(self.pages[index].value.encode()) for index in self._drawn)

    def _clear_up(self) -> None:
        """Puts the busy sign onto every page that is not drawn, and the all-clear where the other
        controls stand."""
        for index, page in enumerate(self.stack.children):
            if index not in self._drawn:
                page.value = self._sign
        for other, mark in zip(self.others, self._marks, strict=True):
            for index, sign in enumerate(mark.children):
                sign.value = "&nbsp;" if index == self.at[other] else self._sign


def _busy_marks(nums: Sequence[int]) -> list[w.Stack]:
    """Per control a stack with a sign for each of its positions, all at one place; signs share one
    layout and one style."""
    layout = w.Layout()
    style = HTMLStyle()
    marks = []
    for num in nums:
        signs = [w.HTML(layout=layout, style=style) for _ in range(num)]
        marks.append(w.Stack(signs, layout=w.Layout(grid_area="1 / 1")))
    return marks
