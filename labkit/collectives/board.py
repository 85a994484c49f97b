"""``collectives()``: every collective and algorithm step by step, its volume and time; then the
same on real ranks."""

import itertools
from dataclasses import dataclass

import ipywidgets as w

from labkit.collectives import picture
from labkit.collectives import run as collectives_run
from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, plan
from labkit.collectives.network import (
    Link,
    Network,
    formula_us,
    islands,
    simulate,
    uniform,
)
from labkit.collectives.plans import Plan, sent_bytes
from labkit.launching.job import Job
from labkit.pictures.painters import svg
from labkit.pictures.scene import compare
from labkit.pictures.sketch import Sketch
from labkit.timeline import Timeline
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets.picture import paragraphs, spoken
from labkit.widgets.trial import Trial, selectors
from labkit.words import called, called_in_both, spoken_in

__all__ = ["collectives"]

NVLINK = Link(alpha_us=2.0, bandwidth_gb_per_s=300.0)
INFINIBAND = Link(alpha_us=5.0, bandwidth_gb_per_s=25.0)
SLOW = Link(alpha_us=1e3, bandwidth_gb_per_s=0.1)
LATE = Link(alpha_us=2e4, bandwidth_gb_per_s=1.0)
QUICK = Link(alpha_us=1e3, bandwidth_gb_per_s=1.0)
LINKS = {"slow": SLOW, "late": LATE, "nvlink": NVLINK}
NETWORKS = ("slow", "late", "paced_islands", "nvlink", "islands")
PACED = NETWORKS[:3]
MAX_REAL_RANKS = 8
MOST_REAL_BYTES = 4e6
CHOICES = tuple(
    itertools.chain.from_iterable(
        itertools.product([primitive], builders) for primitive, builders in ALGORITHMS.items()
    )
)
"""(primitive, algorithm), all there are"""
OPTIONS = {
    "step": range(64),
    "what": CHOICES,
    "ranks": range(2, 17),
    "size": (1e3, 1e5, 1e6, 4e6, 25e6, 1e9),
    "network": NETWORKS,
}
_WORDS = (
    ("step", "step"),
    ("what", "collective"),
    ("ranks", "ranks (N)"),
    ("size", "size (S)"),
    ("network", "network"),
    ("slow", "paced: 1 ms, 0.1 GB/s"),
    ("late", "paced: 20 ms, 1 GB/s"),
    ("paced_islands", "paced islands: 1 GB/s in, 0.1 between"),
    ("nvlink", "NVLink: 2 us, 300 GB/s"),
    ("islands", "islands: NVLink in, 25 GB/s between"),
    (
        "steps",
        "{} steps; the busiest rank sends {}, and no algorithm gets by with less than {}.",
    ),
    ("time", "Simulated time {}."),
    ("formula", "Closed form: {}."),
    (
        "measured",
        "Measured: {} ({} of the simulated time); each rank sent {}.",
    ),
    (
        "fast",
        "no message on this machine is as fast as {}: choose a paced network",
    ),
    ("many", "real runs take up to {} ranks"),
    ("big", "real runs take up to {}"),
)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One position of all controls."""

    step: int
    """how many steps have been done"""
    what: tuple[str, str]
    """primitive and algorithm"""
    num_ranks: int
    """N"""
    num_bytes: float
    """S, as ``Plan.chunk_bytes`` reads it"""
    network: str
    """one of NETWORKS"""

    def plan(self) -> Plan:
        """Its steps."""
        return plan(*self.what, self.num_ranks)

    def links(self) -> Network:
        """The ranks and what links them; islands have half of the ranks each."""
        half = -(-self.num_ranks // 2)
        if self.network == "paced_islands":
            return islands(self.num_ranks, half, inside=QUICK, between=SLOW)
        if self.network == "islands":
            return islands(self.num_ranks, half, inside=NVLINK, between=INFINIBAND)
        return uniform(self.num_ranks, LINKS[self.network])

    def only_link(self) -> Link | None:
        """What all ranks are linked by; None between islands."""
        return LINKS.get(self.network)


class CollectivesBoard(Trial):
    """The widget: a page per step of the plan, a player, and the whole plan on real ranks over
    paced links."""

    options = OPTIONS
    setting_type = Setting

    def __init__(
        self,
        language: str | None = None,
        *,
        primitive: str = "all_reduce",
        algorithm: str = "ring",
        num_ranks: int = 4,
    ) -> None:
        language = spoken_in(language)
        words = spoken(_WORDS, language)
        shown = {
            "what": lambda what: called(what, language),
            "size": format_bytes,
            "network": words.get,
        }
        start = {
            "step": 0,
            "what": (primitive, algorithm),
            "ranks": num_ranks,
            "size": 1e6,
            "network": "slow",
        }
        if start["what"] not in CHOICES:
            plan(primitive, algorithm, num_ranks)  # says what there is
        controls = selectors(OPTIONS, start, words, shown, dropdowns=("what", "network"))
        self.player = w.Play(interval=900, layout=w.Layout(width="auto"))
        super().__init__(language, _WORDS, controls, around=(self.player,))
        self.links = [w.jslink((self.player, "value"), (controls["step"], "index"))]
        controls["step"].observe(lambda _: self._fit_player(), "options")
        self._fit_player()

    def _fit_player(self) -> None:
        self.player.max = len(self.controls["step"].options) - 1

    def num_pages(self, what: int, ranks: int, *_: int) -> int:
        """One per step, and one before the first."""
        return len(plan(*CHOICES[what], OPTIONS["ranks"][ranks]).steps) + 1

    def key(self, setting: Setting) -> tuple:
        """A run does all the steps."""
        return setting.what, setting.num_ranks, setting.num_bytes, setting.network

    def predicts_by(self, setting: Setting) -> tuple:
        """All steps have one prediction."""
        return self.key(setting)

    def predict(self, setting: Setting) -> Timeline:
        """The whole plan, simulated."""
        return simulate(setting.plan(), setting.links(), setting.num_bytes)

    def scene(self) -> Sketch:
        """The picture as it stands."""
        return self._scene(self.setting)

    def _scene(self, setting: Setting) -> Sketch:
        return picture.collective(
            setting.plan(),
            setting.step,
            num_bytes=setting.num_bytes,
            network=setting.links(),
            total_us=_total_us(self.prediction(setting)),
            language=self.language,
        )

    def page(self, setting: Setting) -> str:
        """The picture of a step, the plan's figures, and what was measured of it."""
        notes = self._predicted(setting)
        below = ""
        measured = self.timeline_of(setting)
        if measured is not None:
            predicted = self.prediction(setting)
            notes.append(self._measured(setting, predicted, measured))
            title = called_in_both(setting.what, f"N = {setting.num_ranks}")
            below = svg.html(compare(predicted, measured, title=title, language=self.language))
        return svg.html(self._scene(setting)) + paragraphs(*notes) + below

    def _predicted(self, setting: Setting) -> list[str]:
        """The plan's volume and time in words."""
        steps = setting.plan()
        most = sent_bytes(steps, setting.num_bytes).max()
        least = lower_bound_bytes(steps.primitive, steps.num_ranks, setting.num_bytes)
        took_us = _total_us(self.prediction(setting))
        notes = [
            self._words["steps"].format(len(steps.steps), format_bytes(most), format_bytes(least)),
            self._words["time"].format(format_us(took_us)),
        ]
        link = setting.only_link()
        if link is not None:
            formula = formula_us(*setting.what, setting.num_ranks, setting.num_bytes, link)
            if formula is not None:
                notes.append(self._words["formula"].format(format_us(formula)))
        return notes

    def _measured(self, setting: Setting, predicted: Timeline, measured: Timeline) -> str:
        """The run's time and bytes in words."""
        run = self.runs[self.key(setting)]
        sent = sorted({result["sent_bytes"] for result in run})
        ends = dict.fromkeys((sent[0], sent[-1]))  # once where all sent as much
        return self._words["measured"].format(
            format_us(measured.span_us),
            format_share(measured.span_us / predicted.span_us),
            " – ".join(format_bytes(num_bytes) for num_bytes in ends),
        )

    def reason(self, setting: Setting) -> str | None:
        """What can't be run here: links faster than this machine's, or more than it can bear."""
        if setting.network not in PACED:
            return self._words["fast"].format(self._words[setting.network])
        if setting.num_ranks > MAX_REAL_RANKS:
            return self._words["many"].format(MAX_REAL_RANKS)
        if setting.num_bytes > MOST_REAL_BYTES:
            return self._words["big"].format(format_bytes(MOST_REAL_BYTES))
        return None

    def begin(self, setting: Setting) -> Job:
        """The plan on real ranks, message by message."""
        return collectives_run.start(setting.plan(), setting.num_bytes, network=setting.links())


def _total_us(timeline: Timeline) -> float:
    """When its last message is over."""
    return float(timeline.end_us.max(initial=0.0))


def collectives(
    language: str | None = None,
    *,
    primitive: str = "all_reduce",
    algorithm: str = "ring",
    num_ranks: int = 4,
) -> CollectivesBoard:
    """Every collective and algorithm, step by step on 2 to 16 ranks, with volume and time; in
    English or "zh"."""
    return CollectivesBoard(language, primitive=primitive, algorithm=algorithm, num_ranks=num_ranks)
