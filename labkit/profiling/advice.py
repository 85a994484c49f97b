"""``lab.advise``: where a timeline's time goes, who is waited for, and the one change that would
help most, simulated by editing the timeline."""

from collections.abc import Callable
from dataclasses import dataclass
from reprlib import repr as brief
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit import tables, words
from labkit.profiling.graph import edit
from labkit.profiling.graph.backward import work
from labkit.profiling.graph.microbatches import more_microbatches
from labkit.profiling.graph.replay import INPUT, SAVE, Graph, replayed
from labkit.profiling.graph.waits import graph
from labkit.profiling.shares import (
    NAMES,
    SHARES,
    Part,
    critical_path,
    shares,
    waited_for_us,
)
from labkit.shown import Said, Shown
from labkit.timeline import COMM, Timeline, step_us
from labkit.units import check_word, format_share, format_us
from labkit.words import both, say, to_say

if TYPE_CHECKING:
    from labkit.shown import Picture
    from labkit.tables import Table

LEAST_GAIN = 0.02
"""a change that brings less is not advised"""
LEAST_SHARE = 0.0005
"""of a rank's time; less is written as 0.0 %"""
ON_PATH = to_say("communication")
"""what a message on the critical path is called, whether or not other work hides it"""


class Rule(NamedTuple):
    """One change that may be advised."""

    edit: Callable[[Graph], Graph]
    """what it does to the graph"""
    fits: Callable[[Graph], bool]
    """whether there is anything to change"""
    text: str
    """what to do, in English"""


def _has(kind: str) -> Callable[[Graph], bool]:
    return lambda graph: bool((graph.timeline.kind == kind).any())


def _communicates(graph: Graph) -> bool:
    return bool((graph.timeline.lane == COMM).any())


def _not_pipeline(graph: Graph) -> bool:
    return not edit.is_pipeline(graph)


RULES = {
    "input": Rule(
        edit.prefetch,
        _has(INPUT),
        to_say("Load the next batch while this one is computed: workers and prefetching."),
    ),
    "link": Rule(
        edit.halve_bytes,
        _communicates,
        to_say("Send half the bytes (gradients in bf16, say), or take a link twice as fast."),
    ),
    "bubble": Rule(
        more_microbatches,
        edit.is_pipeline,
        to_say("Cut the batch into twice as many microbatches."),
    ),
    "straggler": Rule(
        edit.even_rank,
        _not_pipeline,
        to_say("Mend rank {rank}, or give it less: let it compute as long as the others."),
    ),
    "messages": Rule(
        edit.merge,
        _communicates,
        to_say("Put eight messages into one: larger buckets."),
    ),
    "overlap": Rule(
        edit.overlap,
        _communicates,
        to_say("Send gradients while the backward goes on, as soon as a bucket is full."),
    ),
    "stages": Rule(
        edit.balance,
        edit.is_pipeline,
        to_say("Move layers between stages until all compute equally long; rank {rank} has most."),
    ),
    "serial": Rule(
        edit.share_out,
        lambda graph: bool(edit.alone(graph).any()),
        to_say("Share out what rank {rank} alone computes: a part of it on every rank."),
    ),
    "gaps": Rule(
        edit.no_gaps,
        lambda graph: bool(len(graph.timeline)),
        to_say("Find what keeps the ranks idle between their work: a wait for the device, Python."),
    ),
    "save": Rule(
        edit.save_behind,
        _has(SAVE),
        to_say("Write checkpoints in the background."),
    ),
}
"""kind -> the change that cures it"""


@dataclass(frozen=True, kw_only=True, eq=False)
class Change:
    """A change and what it would bring."""

    kind: str
    """of RULES"""
    rank: int
    """whom it is about, where it is about one"""
    before_us: float
    """the whole time as it is"""
    timeline: Timeline
    """the timeline with the change, simulated"""

    @property
    def after_us(self) -> float:
        """The whole time with the change, in microseconds."""
        return step_us(self.timeline)

    @property
    def gain(self) -> float:
        """The share of the whole time that it saves."""
        return 1 - self.after_us / self.before_us if self.before_us else 0.0

    def told(self, language: str | None = None) -> str:
        """What to do, and what it would bring."""
        with words.meanwhile(words.spoken_in(language)):
            return say(
                "{what} Simulated: {before} become {after}, {gain} less.",
                what=say(RULES[self.kind].text, rank=self.rank),
                before=format_us(self.before_us),
                after=format_us(self.after_us),
                gain=format_share(self.gain),
            )

    def __repr__(self) -> str:
        return self.told()


@dataclass(frozen=True, kw_only=True, eq=False)
class Advice(Shown):
    """What a timeline says of itself. Shows itself as a picture: as it is, and with the change."""

    timeline: Timeline
    """what was looked at, from 0"""
    shares: np.ndarray
    """(num_ranks, 6): of each rank's time, in the order of ``profiling.SHARES``"""
    path: tuple[Part, ...]
    """the critical path"""
    waited_for_us: np.ndarray
    """(num_ranks,): how long the others waited for each"""
    changes: tuple[Change, ...]
    """all that would help, the best first; empty where nothing would save 2 %"""

    @property
    def best(self) -> Change | None:
        """The one change that would help most."""
        return self.changes[0] if self.changes else None

    @property
    def worst_rank(self) -> int:
        """The rank that the others waited for longest."""
        return int(self.waited_for_us.argmax()) if len(self.waited_for_us) else 0

    @property
    def as_drawn(self) -> Timeline:
        """The timeline as the picture has it: what is read in a thin row of its own, so that a rank
        that waits for data computes nothing."""
        from labkit.profiling import picture

        return picture.read_beside(self.timeline)

    def share(self, name: str) -> float:
        """The average rank's, of one of ``profiling.SHARES``. Raises ValueError for another."""
        check_word(name, SHARES, "a share")
        return float(self.shares[:, SHARES.index(name)].mean())

    def table(self, language: str | None = None) -> "Table":
        """What every rank does, and the average one, as shares of the whole time. What no rank does
        has no column."""
        done = (self.shares >= LEAST_SHARE).any(axis=0)
        kept = [name for name, some in zip(SHARES, done, strict=True) if some]
        found = self.shares[:, done]
        rows = [
            {"rank": str(rank)} | dict(zip(kept, mine, strict=True))
            for rank, mine in enumerate(found.tolist())
        ]
        if rows:
            rows.append(
                {"rank": "mean"} | dict(zip(kept, found.mean(axis=0).tolist(), strict=True))
            )
        heads = {"rank": both("rank")} | {name: both(NAMES[name]) for name in kept}
        return tables.table(
            rows, heads=heads, units=dict.fromkeys(kept, "share"), language=language
        )

    def told(self, language: str | None = None) -> str:
        """In words: the shares, the critical path, the worst rank, the change."""
        with words.meanwhile(words.spoken_in(language)):
            return "\n".join(self._sentences())

    def _sentences(self) -> list[str]:
        if not len(self.shares) or not step_us(self.timeline):
            return [say("Nothing was recorded, so nothing can be advised.")]
        mean = self.shares.mean(axis=0)
        found = [_listed(dict(zip(SHARES, mean.tolist(), strict=True)))]
        lines = [say("The average rank: {shares}.", shares=found[0])]
        path = _listed(self.path_shares(), NAMES | {"comm": ON_PATH})
        lines.append(say("The critical path: {shares}.", shares=path))
        waited_us = float(self.waited_for_us.max())
        accused = self.best is None or self.best.kind != "bubble"
        if accused and waited_us > LEAST_GAIN * step_us(self.timeline):
            told = {"rank": self.worst_rank, "time": format_us(waited_us)}
            lines.append(say("The others waited for rank {rank}, {time} in all.", **told))
        if self.best is None:
            lines.append(say("None of the changes known here would save 2 %."))
        else:
            lines.append(say("Advice: {change}", change=self.best.told()))
        return lines

    def path_shares(self) -> dict[str, float]:
        """What the critical path is made of: share by name."""
        whole = sum(part.end_us - part.start_us for part in self.path)
        found = dict.fromkeys(SHARES, 0.0)
        for part in self.path:
            found[part.share] += (part.end_us - part.start_us) / whole if whole else 0.0
        return found

    def bundle(self, *, title: Said = "", language: str | None = None) -> dict[str, str]:
        """The picture by mime type, the table below it."""
        shown = super().bundle(title=title, language=language)
        for kind, text in self.table(language).bundle().items():
            shown[kind] = "\n".join(filter(None, [shown.get(kind), text]))
        return shown

    def _picture(self, language: str) -> "Picture":
        from labkit.profiling import picture

        return picture.advice(self, language)

    def __repr__(self) -> str:
        return self.told()


def _listed(parts: dict[str, float], names: dict[str, str] = NAMES) -> str:
    """Shares that show in tenths of a percent, the largest first."""
    shown = (name for name in parts if parts[name] >= LEAST_SHARE)
    large = sorted(shown, key=lambda name: -parts[name])
    told = [f"{say(names[name])} {format_share(parts[name])}" for name in large]
    return words.WORDS[words.language()]["comma"].join(told)


def advise(source: object) -> Advice:
    """What slows a Timeline or a recorded Run, and the change that would help most.

    Every change of ``profiling.RULES`` that fits is made to a copy, the waits between spans and
    ranks are played again, and the one with the shortest time is the advice. Times are those of the
    whole timeline, so several steps are better than one. A span says what it is by its kind
    ("input", "save") or, where that is plain "compute", by a label that names a data loader or a
    checkpoint. Raises ValueError for what holds no timeline.
    """
    timeline = source if isinstance(source, Timeline) else _timeline_of(source)
    known = graph(timeline.shifted())
    whole_us = step_us(known.timeline)
    changes = [_change(kind, known, whole_us) for kind in RULES if RULES[kind].fits(known)]
    useful = [change for change in changes if change.gain >= LEAST_GAIN]
    return Advice(
        timeline=known.timeline,
        shares=shares(known),
        path=tuple(critical_path(known)),
        waited_for_us=waited_for_us(known),
        changes=tuple(sorted(useful, key=lambda change: -change.gain)),
    )


def _timeline_of(source: object) -> Timeline:
    """The timeline of a run, or of what has one."""
    ask = getattr(source, "timeline", None)
    found = ask() if callable(ask) else ask
    if not isinstance(found, Timeline):
        raise ValueError(
            f"advice is about a Timeline or a recorded run; got {brief(source)}. Launch "
            "with record=True, or load a saved one: Timeline.load(path)"
        )
    return found


def _change(kind: str, known: Graph, whole_us: float) -> Change:
    """One change, simulated."""
    edited = replayed(RULES[kind].edit(known))
    return Change(kind=kind, rank=_whom(kind, known), before_us=whole_us, timeline=edited)


def _whom(kind: str, known: Graph) -> int:
    """The rank that a change is about."""
    chosen = edit.alone(known) if kind == "serial" else work(known)
    took = np.zeros(max(1, known.timeline.num_ranks))
    np.add.at(took, known.timeline.rank[chosen], known.spent_us[chosen])
    return int(took.argmax())
