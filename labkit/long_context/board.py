"""``ring_attention()``: who multiplies which piece of queries with which piece of keys, round by
round; the pass in time; then run."""

from typing import Any, ClassVar

from labkit.long_context import picture
from labkit.long_context.attention import WAYS, Attention
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Sketch
from labkit.timeline import bubble, step_us
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs
from labkit.widgets.trial import Trial
from labkit.words import WORDS

__all__ = ["ring_attention"]

MOST_RANKS = 8


class RingBoard(Trial):
    """The widget: pages by round; ``run()`` takes the pass on real ranks and holds it against one
    process."""

    options: ClassVar = {
        "round": tuple(range(MOST_RANKS)),
        "ranks": (2, 4, 8),
        "balanced": (False, True),
        "causal": (True, False),
        "way": WAYS,
    }
    view = "round"
    dropdowns = ("balanced", "causal", "way")
    words = (
        ("round", "round"),
        ("ranks", "ranks"),
        ("balanced", "pieces of a rank"),
        ("balanced on", "one from the front, one from the back"),
        ("balanced off", "two neighbours"),
        ("causal", "what a token sees"),
        ("causal on", "itself and what is before"),
        ("causal off", "everywhere"),
        ("way", "way"),
        ("ring", "ring: keys and values go round"),
        ("ulysses", "Ulysses: heads for tokens"),
        ("level", "In this round every rank computes {:g} pairs."),
        ("uneven", "In this round the busiest rank computes {:g} pairs, and another one {:g}."),
        ("predicted", "Simulated: forward and backward take {}, {} of it idle."),
        ("measured", "Measured: {}, {} idle."),
        (
            "sent",
            "Each rank hands {} to {}, and keeps {} of the sequence for the backward; one process "
            "would keep {}.",
        ),
        ("send", "its neighbour"),
        ("all_to_all", "all-to-alls"),
        ("stated", "Stated, not measured: a pair takes {} forward; messages take no time."),
        (
            "ran",
            "The ranks' output differs from one process by at most {:.1e}, a gradient by {:.1e}; "
            "handed in: {}.",
        ),
    )

    def written(self, name: str, value: Any) -> str:
        """Rounds count from one."""
        return str(value + 1) if name == "round" else super().written(name, value)

    def num_pages(self, step: Attention) -> int:
        """As many as there are rounds."""
        return len(step.rounds())

    def scene(self) -> Sketch:
        """The upper picture as it stands."""
        return picture.table(self.step, self.at, self.language)

    def page(self, step: Attention, at: int) -> str:
        """The pairs of a round, the pass in time, and its figures."""
        line = step.drawn(self.prediction(step), self.found(step), self.language)
        return "".join(
            (
                svg.html(picture.table(step, at, self.language)),
                paragraphs(self._round(step, at)),
                svg.html(line),
                paragraphs(*self._figures(step)),
            )
        )

    def _round(self, step: Attention, at: int) -> str:
        works = step.rounds()[at]
        key = "level" if works.min() == works.max() else "uneven"
        return self._words[key].format(works.max(), works.min())

    def _figures(self, step: Attention) -> list[str]:
        say = self._words
        told = [say["predicted"].format(*_spent(self.prediction(step)))]
        if (measured := self.found(step)) is not None:
            told.append(say["measured"].format(*_spent(measured)))
        kept = step.kept_bytes()
        ways = WORDS[self.language]["comma"].join(say[name] for name in step.payload())
        sent = format_bytes(sum(step.payload().values()))
        whole = format_bytes(step.ranks * kept)
        told.append(say["sent"].format(sent, ways, format_bytes(kept), whole))
        told.append(say["stated"].format(format_us(1e3 * step.pair_ms)))
        if run := self.ran(step):
            output = max(each["output_difference"] for each in run)
            gradient = max(each["gradient_difference"] for each in run)
            counted = run[0]["payload_bytes"]
            handed = format_bytes(sum(counted.get(name, 0) for name in step.payload()))
            told.append(say["ran"].format(output, gradient, handed))
        return told


def _spent(line: Any) -> tuple[str, str]:
    """How long a pass took, and the idle share."""
    return format_us(step_us(line)), format_share(bubble(line))


def board(step: Attention, language: str | None = None) -> RingBoard:
    """The widget of an attention."""
    return RingBoard(step, language)


def ring_attention(
    language: str | None = None,
    *,
    num_ranks: int = 4,
    way: str = "ring",
    balanced: bool = False,
) -> RingBoard:
    """Attention over a sequence that is cut among ranks: who computes which pair of pieces in which
    round; in English or "zh"."""
    step = Attention(ranks=num_ranks, way=way, balanced=balanced, heads=MOST_RANKS)
    return RingBoard(step, language)
