"""``large_batch()``: steps against the learning rate, for every batch of a recorded sweep; below,
the law that its best ones follow."""

import math

import ipywidgets as w

from labkit.large_batch import recorded
from labkit.large_batch.rules import Critical
from labkit.pictures.axes import Mark
from labkit.pictures.curves import Series, curves
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.widgets.flipbook import Flipbook
from labkit.widgets.picture import Board, answer_anytime, paragraphs, spoken
from labkit.words import both, spoken_in

__all__ = ["large_batch"]

_WORDS = (
    ("batch", "batch (samples)"),
    ("drawing", "kernel busy: the new settings are not drawn yet"),
    (
        "best",
        "Batch {}: best at rate {:g}, {:g} steps ({} to {} over five seeds), {:,.0f} samples.",
    ),
    ("law", "Fitted to each batch's best rate: fewest steps {:.0f}, critical batch {:.0f}."),
    ("noise", "The noise scale, from gradients of five trainings of batch 32, is {:.0f}."),
)


class LargeBatchBoard(Board):
    """The widget: a page per batch. ``controls`` by name."""

    words = _WORDS

    def __init__(self, batch: int, language: str | None = None) -> None:
        self.language = spoken_in(language)
        self._words = spoken(self.words, self.language)
        self._batches = recorded.batches()
        slider = w.SelectionSlider(
            options=[(f"{each:,}", each) for each in self._batches],
            value=batch,
            description=self._words["batch"],
            style={"description_width": "auto"},
            layout=w.Layout(width="420px", max_width="100%", margin="2px 18px 2px 0"),
        )
        slider.add_class("labkit-first")
        self.controls = {"batch": slider}
        self.book = Flipbook(slider, [], self._page, self._words["drawing"])
        super().__init__([slider, self.book])
        answer_anytime(slider)

    @property
    def batch(self) -> int:
        """Where the slider stands."""
        return self._batches[self.book.at[self.controls["batch"]]]

    def scene(self) -> Sketch:
        """The upper picture as it stands."""
        return self.by_rate(self.batch)

    def by_rate(self, batch: int) -> Sketch:
        """Steps against the rate: each training a dot, what was given up at the top."""
        mine = [each for each in recorded.sweep() if each.batch == batch]
        there = [each for each in mine if each.steps]
        failed = sorted({each.rate for each in mine if not each.steps})
        chosen = recorded.best(batch)
        series = [
            _dots("a training", [each.rate for each in there], [each.steps for each in there]),
            _dots("best rate", [chosen.rate], [chosen.median]),
        ]
        if failed:
            series.append(_dots("not reached", failed, [recorded.MOST_STEPS] * len(failed)))
        fewest = min(each.steps for each in recorded.sweep() if each.steps)
        return curves(
            series,
            title=both("Steps until the loss is below 0.15, batch {batch}", batch=batch),
            badge="recorded",
            x_name=both("learning rate"),
            y_name=both("steps"),
            log_x=True,
            log_y=True,
            marks=[
                Mark(both("given up"), recorded.MOST_STEPS),
                Mark(both("fewest of all batches"), fewest),
            ],
            height_px=230,
            language=self.language,
        )

    def by_batch(self, batch: int) -> Sketch:
        """Steps at the best rate against the batch: recorded, fitted, and with the noise scale in
        the fit's place."""
        tried = self._batches
        every = [recorded.best(each) for each in tried]
        fitted = recorded.law()
        foretold = Critical(fitted.fewest_steps, recorded.noise().scale)
        fine = _between(tried[0], tried[-1])
        chosen = recorded.best(batch)
        return curves(
            [
                _dots("best of a batch", tried, [each.median for each in every]),
                Series(both("law, fitted"), fine, [fitted.steps(each) for each in fine]),
                Series(both("law, noise scale"), fine, [foretold.steps(each) for each in fine]),
                _dots("this batch", [batch], [chosen.median]),
            ],
            title=both("Steps at the best rate of each batch"),
            badge="recorded",
            x_name=both("batch (samples)"),
            y_name=both("steps"),
            log_x=True,
            log_y=True,
            marks=[Mark(both("critical batch"), fitted.critical_batch, upright=True)],
            height_px=230,
            language=self.language,
        )

    def _page(self, index: int) -> str:
        batch = self._batches[index]
        chosen = recorded.best(batch)
        fitted = recorded.law()
        best = self._words["best"].format(
            batch,
            chosen.rate,
            chosen.median,
            chosen.lowest,
            chosen.highest,
            batch * chosen.median,
        )
        law = self._words["law"].format(fitted.fewest_steps, fitted.critical_batch)
        noise = self._words["noise"].format(recorded.noise().scale)
        upper = svg.html(self.by_rate(batch)) + paragraphs(best)
        return upper + svg.html(self.by_batch(batch)) + paragraphs(law, noise)


def _dots(name: str, x: list[float] | tuple[int, ...], y: list[float]) -> Series:
    """What was recorded, named in both languages."""
    return Series(_SERIES[name], x, y, points=True)


_SERIES = {
    "a training": both("a training"),
    "best rate": both("best rate (median)"),
    "not reached": both("not reached"),
    "best of a batch": both("recorded, median of five"),
    "this batch": both("this batch"),
}


def _between(low: float, high: float, num: int = 40) -> list[float]:
    """Numbers from one to the other, their ratios alike."""
    step = math.log(high / low) / (num - 1)
    return [low * math.exp(step * each) for each in range(num)]


def large_batch(language: str | None = None, *, batch: int = 32) -> LargeBatchBoard:
    """Steps that a batch needs, by its learning rate, of a recorded sweep over batches, and the law
    that they follow; in English or "zh". Raises ValueError for a batch that was not recorded."""
    if batch not in recorded.batches():
        tried = ", ".join(map(str, recorded.batches()))
        raise ValueError(f"recorded are the batches {tried}; got {batch!r}")
    return LargeBatchBoard(batch, language)
