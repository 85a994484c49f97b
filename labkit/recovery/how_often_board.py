"""``how_often()``: what saving and failing cost a cluster, for every interval between two
checkpoints."""

import ipywidgets as w

from labkit.pictures.curves import Series, curves
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.recovery import how_often as theory
from labkit.units import format_share
from labkit.widgets.flipbook import Flipbook
from labkit.widgets.picture import Board, answer_anytime, paragraphs, spoken
from labkit.words import both, spoken_in

__all__ = ["how_often"]

GPUS = (8, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072)
SAVES_S = (0.5, 5.0, 20.0, 42.0, 60.0, 120.0, 300.0, 600.0)
RESTARTS_S = (0.0, 60.0, 300.0, 900.0, 3600.0)
MINUTES = tuple(1.25**step for step in range(-1, 34))
"""between two checkpoints, as the axis has them at most"""
MOST_LOST = 0.4
"""where a curve ends: what is lost beyond would hide the valley"""
_UNITS = ((172_800, 86_400, "{} days"), (3600, 3600, "{} h"), (60, 60, "{} min"), (0, 1, "{} s"))
"""from how many seconds on, the seconds of one, its words"""
_WORDS = (
    ("num_gpus", "number of GPUs"),
    ("save_s", "a save stops training for"),
    ("restart_s", "time to come back"),
    ("drawing", "kernel busy: the new settings are not drawn yet"),
    ("{} days", "{} days"),
    ("{} h", "{} h"),
    ("{} min", "{} min"),
    ("{} s", "{} s"),
    (
        "note",
        "{} GPUs fail once in {}. Least is lost with a checkpoint every {}: {} of all time.",
    ),
)


class HowOftenBoard(Board):
    """The widget: a page per size of the cluster. ``controls`` by name."""

    words = _WORDS

    def __init__(
        self, num_gpus: int, save_s: float, restart_s: float, language: str | None = None
    ) -> None:
        self.language = spoken_in(language)
        self._words = spoken(self.words, self.language)
        given = {"num_gpus": num_gpus, "save_s": save_s, "restart_s": restart_s}
        self._choices = dict(zip(given, (GPUS, SAVES_S, RESTARTS_S), strict=True))
        self.controls = {
            name: self._slider(name, values, given[name]) for name, values in self._choices.items()
        }
        slider, *others = self.controls.values()
        slider.add_class("labkit-first")
        self.book = Flipbook(slider, others, self._page, self._words["drawing"])
        row = w.Box([slider, *others], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.book])
        answer_anytime(slider, *others)

    def _slider(self, name: str, values: tuple, value: float) -> w.SelectionSlider:
        labelled = [
            (f"{each:,}" if name == "num_gpus" else self._long(each), each) for each in values
        ]
        return w.SelectionSlider(
            options=labelled,
            value=value,
            description=self._words[name],
            style={"description_width": "auto"},
            layout=w.Layout(width="300px", max_width="100%", margin="2px 18px 2px 0"),
        )

    def _long(self, seconds: float) -> str:
        """A duration in days from two days on, else in the largest unit that it fills."""
        _, one_s, unit = next(each for each in _UNITS if seconds >= each[0])
        number = seconds / one_s
        written = f"{number:.0f}" if number >= 10 else f"{number:.2g}"
        return self._words[unit].format(written)

    def _at(self, *indices: int) -> tuple[int, float, float]:
        """What the controls say at these indices."""
        values = self._choices.values()
        return tuple(each[index] for each, index in zip(values, indices, strict=True))

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._drawn(*self._at(*self.book.at.values()))

    def _drawn(self, num_gpus: int, save_s: float, restart_s: float) -> Sketch:
        mtbf_s = theory.mtbf_s(num_gpus)
        lost = {t: theory.lost_share(60 * t, save_s, mtbf_s, restart_s) for t in MINUTES}
        best_s = theory.cheapest_s(save_s, mtbf_s)
        least = theory.lost_share(best_s, save_s, mtbf_s, restart_s)
        shown = {t: share for t, share in lost.items() if share <= max(MOST_LOST, 1.5 * least)}
        return curves(
            [
                Series(both("lost"), list(shown), list(shown.values())),
                Series(both("least"), [best_s / 60], [least], points=True),
            ],
            title=both("What saving and failing cost"),
            badge="predicted",
            x_name=both("minutes between two checkpoints"),
            y_name=both("share of all time that is lost"),
            y_format=format_share,
            log_x=True,
            language=self.language,
        )

    def _page(self, *indices: int) -> str:
        num_gpus, save_s, restart_s = self._at(*indices)
        mtbf_s = theory.mtbf_s(num_gpus)
        best_s = theory.cheapest_s(save_s, mtbf_s)
        note = self._words["note"].format(
            f"{num_gpus:,}",
            self._long(mtbf_s),
            self._long(best_s),
            format_share(theory.lost_share(best_s, save_s, mtbf_s, restart_s)),
        )
        return svg.html(self._drawn(num_gpus, save_s, restart_s)) + paragraphs(note)


def how_often(
    language: str | None = None,
    *,
    num_gpus: int = 16_384,
    save_s: float = 60.0,
    restart_s: float = 300.0,
) -> HowOftenBoard:
    """The time that a cluster as reliable as Llama 3's loses to saves and failures, by the interval
    between two checkpoints; in English or "zh". Raises ValueError for what no control offers."""
    given = {"num_gpus": num_gpus, "save_s": save_s, "restart_s": restart_s}
    for (name, value), offered in zip(given.items(), (GPUS, SAVES_S, RESTARTS_S), strict=True):
        if value not in offered:
            raise ValueError(f"{name} is one of {', '.join(map(str, offered))}; got {value!r}")
    return HowOftenBoard(num_gpus, save_s, restart_s, language)
