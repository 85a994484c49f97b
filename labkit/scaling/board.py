"""``scaling()``: efficiency over ranks by what a sample takes, what is sent, and the link:
predicted a line, recorded and measured dots; below, what a step's time goes to."""

from typing import Any, ClassVar

from labkit.collectives.network import Link
from labkit.pictures.drawing import Picture
from labkit.pictures.painters import svg
from labkit.scaling import picture, recorded
from labkit.scaling.laws import KINDS
from labkit.scaling.series import LINK, Scaled, Scaling
from labkit.units import check_word, format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial

__all__ = ["scaling"]

LINKS = tuple(
    Link(alpha_us=LINK.alpha_us, bandwidth_gb_per_s=each) for each in (0.1, 0.3, 1.0, 10.0)
)
MOST = {"strong": 16, "weak": 64}
"""ranks of the predicted line"""


class ScalingBoard(Trial):
    """The widget: pages by the time of a sample; ``run()`` takes 1, 2 and 4 real ranks."""

    options: ClassVar = {
        "sample_ms": (0.75, 1.5, 3.0, 6.0, 12.0),
        "kind": KINDS,
        "link": LINKS,
        "hidden": (32, 64, 128),
    }
    dropdowns = ("kind",)
    words = (
        ("sample_ms", "a sample takes (ms)"),
        ("kind", "scaling"),
        ("strong", "strong: one batch, shared"),
        ("weak", "weak: a batch for each"),
        ("link", "link (GB/s)"),
        ("hidden", "width (gradients grow)"),
        (
            "predicted",
            "Simulated: on {} ranks efficiency {}; lost to what does not divide {}, to "
            "communication {}.",
        ),
        ("dots", "{}: on {} ranks efficiency {}."),
        ("recorded", "Recorded"),
        ("measured", "Measured"),
        (
            "stated",
            "Stated, not measured: a sample takes {}, every step {} besides, gradients of {} go in "
            "buckets on the link.",
        ),
    )

    def written(self, name: str, value: Any) -> str:
        """Links by their bandwidth."""
        if name == "link":
            return f"{value.bandwidth_gb_per_s:g}"
        return super().written(name, value)

    def scene(self) -> Picture:
        """The upper picture as it stands."""
        return self._curves(self.step)

    def dots(self, step: Scaling) -> Scaled | None:
        """What was measured of it, or recorded."""
        if (measured := self.found(step)) is not None:
            return measured
        for kind in KINDS:
            taken = recorded.STEPS[kind, True].but(num_steps=step.num_steps)
            if step == taken:
                return recorded.scaled(kind)
        return None

    def line(self, step: Scaling) -> Scaled:
        """The prediction on more ranks than can be run here."""
        ranks = [1]
        while 2 * ranks[-1] <= MOST[step.kind] and self._can(step, 2 * ranks[-1]):
            ranks.append(2 * ranks[-1])
        return step.but(ranks=tuple(ranks)).predict()

    @staticmethod
    def _can(step: Scaling, ranks: int) -> bool:
        return step.kind == "weak" or step.batch % ranks == 0

    def _curves(self, step: Scaling) -> Picture:
        found = [self.line(step), self.dots(step)]
        return picture.efficiency(
            [each for each in found if each is not None],
            title=_title(step),
            language=self.language,
        )

    def page(self, step: Scaling, at: None) -> str:
        """Both pictures and their figures."""
        line = self.line(step)
        lower = picture.lost(line, self.dots(step), language=self.language)
        return "".join(
            (svg.html(self._curves(step)), svg.html(lower), paragraphs(*self._figures(step, line)))
        )

    def _figures(self, step: Scaling, line: Scaled) -> list[str]:
        say = self._words
        lost = line.lost()
        shares = (line.efficiency(), lost["fixed"], lost["communication"])
        told = [say["predicted"].format(line.ranks[-1], *map(format_share, shares))]
        if (dots := self.dots(step)) is not None:
            origin = "recorded" if dots.badge.startswith("recorded") else "measured"
            share = format_share(dots.efficiency())
            told.append(say["dots"].format(say[origin], dots.ranks[-1], share))
        sent = sum(each.num_bytes for each in step.parameters(1))
        times = (format_us(1e3 * step.sample_ms), format_us(1e3 * step.fixed_ms))
        told.append(say["stated"].format(*times, format_bytes(sent)))
        return told


def _title(step: Scaling) -> dict[str, str]:
    return {code: step.title(code) for code in ("en", "zh")}


def board(step: Scaling, language: str | None = None) -> ScalingBoard:
    """The widget of a series of ranks. Raises ValueError for one at the machine's own pace: nothing
    is predicted of it."""
    step.predict()
    return ScalingBoard(step, language)


def scaling(language: str | None = None, *, kind: str = "strong") -> ScalingBoard:
    """How efficiency falls with the number of ranks: what a sample takes, how much is sent, how
    fast the link is; in English or "zh". Raises ValueError for another kind."""
    check_word(kind, KINDS, "a kind of scaling")
    return board(recorded.STEPS[kind, True], language)
