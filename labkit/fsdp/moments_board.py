"""``Moments``: the layers of a small model on all ranks, gathered and freed moment by moment; one
slider."""

from functools import cached_property

import ipywidgets as w

from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.sharding import picture
from labkit.sharding.step import Step
from labkit.units import check_whole
from labkit.widgets.flipbook import Flipbook
from labkit.widgets.picture import Board, answer_anytime, spoken
from labkit.words import spoken_in

__all__ = ["moments"]

_WORDS = (
    ("moment", "moment"),
    ("drawing", "kernel busy: the new settings are not drawn yet"),
)


class Moments(Board):
    """The widget: a page for each moment of a step of FULL_SHARD. ``controls`` by name."""

    words = _WORDS

    def __init__(self, step: Step, language: str | None = None) -> None:
        self.language = spoken_in(language)
        self._words = spoken(self.words, self.language)
        self.step = step
        slider = w.SelectionSlider(
            options=[(label, at) for at, label in enumerate(self.labels)],
            description=self._words["moment"],
            style={"description_width": "auto"},
            layout=w.Layout(width="420px", max_width="100%", margin="2px 18px 2px 0"),
        )
        slider.add_class("labkit-first")
        self.controls = {"moment": slider}
        self.book = Flipbook(slider, [], self._page, self._words["drawing"])
        super().__init__([slider, self.book])
        answer_anytime(slider)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The moments of a step, in order."""
        return self.step.footprint().labels

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._layers(self.book.at[self.controls["moment"]])

    def _page(self, at: int) -> str:
        return svg.html(self._layers(at))

    def _layers(self, at: int) -> Sketch:
        return picture.layers(
            self.step.layer_bytes(), self.step.ranks, self.labels[at], language=self.language
        )


def moments(language: str | None = None, *, ranks: int = 4, layers: int = 4) -> Moments:
    """What each rank holds of each layer at every moment of a step of FULL_SHARD, by theory; or
    "zh". Raises ValueError for fewer than 2 ranks or more than 8, or blocks outside 1 to 6."""
    check_whole(2, 8, ranks=ranks)
    check_whole(1, 6, layers=layers)
    return Moments(Step(engine="fsdp", layers=layers, ranks=ranks), language)
