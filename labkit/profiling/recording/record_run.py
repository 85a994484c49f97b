"""A script, unchanged, under its launcher, every rank recorded; and what its timeline says."""

import json
import shutil
import tempfile
import weakref
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import words
from labkit.launching.script import launch_script
from labkit.measure import trace
from labkit.measure.traced import facts_file
from labkit.profiling.advice import Advice, advise
from labkit.profiling.recording import flops_run
from labkit.profiling.recording.window import Window, window, without_cut
from labkit.profiling.shares import NAMES
from labkit.shown import Shown
from labkit.timeline import COMM, Timeline, step_us
from labkit.units import check_whole, format_share, format_us
from labkit.words import say

if TYPE_CHECKING:
    from labkit.shown import Picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Record(Shown):
    """What was recorded of a script."""

    advice: Advice
    """about its steps"""
    timeline: Timeline
    """all of the recording"""
    steps: int
    """whole steps that the advice is about; 0: the script has none, and it is about everything"""
    step_us: float
    """what one of them takes"""
    flops_per_s: float | None
    """operations of the steps' matrix products on all ranks, by the second; None where that is not
    known"""
    remarks: tuple[str, ...]
    """what must be known of it, in the language in use"""
    folder: Path = field(repr=False)
    """where the ranks' own recordings are, as long as this is"""

    @cached_property
    def mfu(self) -> float | None:
        """These operations over what the machine could have done, which is measured when it is
        asked for; None where they are not known."""
        if self.flops_per_s is None:
            return None
        return self.flops_per_s / flops_run.peak_flops(self.timeline.num_ranks)

    def parts_us(self) -> dict[str, float]:
        """A step of the average rank, by what it does: {name in the language in use: microseconds},
        the wait for data last. They add up to ``step_us``; what no rank does is left out."""
        last = sorted(NAMES, key=lambda each: each == "input")
        took_us = {say(NAMES[each]): self.step_us * self.advice.share(each) for each in last}
        return {name: part_us for name, part_us in took_us.items() if part_us}

    def told(self, language: str | None = None) -> str:
        """All of it in words."""
        with words.meanwhile(words.spoken_in(language)):
            lines = [*self.remarks]
            if self.steps:
                time = format_us(self.step_us)
                lines.append(say("{steps} steps, {time} each.", steps=self.steps, time=time))
            known = say("not known") if self.mfu is None else format_share(self.mfu)
            lines.append(say("MFU: {share}.", share=known))
            return "\n".join([*lines, self.advice.told()])

    def _picture(self, language: str) -> "Picture":
        return self.advice.picture(language=language)

    def __repr__(self) -> str:
        return self.told()


def record(
    path: str | Path,
    *args: str,
    ranks: int = 2,
    using: str = "torchrun",
    timeout_s: float | None = None,
    show: bool = True,
    steps: int | None = None,
) -> Record:
    """Runs a script unchanged by torchrun, accelerate or python, and records every rank.

    ``steps``: so many of the optimizer's are recorded, from the first; None: ten. Two are left out
    where there are more: they warm up. Raises what ``lab.launch_script`` raises: ValueError for
    what can't be started, RankFailed with the guilty rank's traceback, Timeout; and ValueError
    where a rank left no recording.
    """
    if steps is not None:
        check_whole(1, 10_000, steps=steps)
    how = {"ranks": ranks, "using": using, "timeout_s": timeout_s, "show": show}
    run = launch_script(path, *args, **how, record=steps or True)
    folder = Path(tempfile.mkdtemp(prefix="labkit-record-"))
    for file in (*run.folder.glob("trace-*.json"), *run.folder.glob("script-*.json")):
        shutil.copy(file, folder)
    found = of_folder(folder, ranks)
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found


def of_folder(folder: Path, ranks: int) -> Record:
    """What the recordings in a folder say. Raises ValueError where a rank's is missing."""
    missing = [rank for rank in range(ranks) if not (folder / f"trace-{rank}.json").exists()]
    if missing:
        raise ValueError(
            "every rank writes what was recorded when its script ends, and these did not: "
            f"{missing}. A script that leaves by os._exit, or whose ranks are not started by "
            "the launcher, can't be recorded"
        )
    facts = [json.loads(facts_file(folder, rank).read_text()) for rank in range(ranks)]
    cut = [rank for rank, each in enumerate(facts) if each["cut"]]
    whole = without_cut(trace.read(folder), cut)
    part = window(whole)
    bare = replace(part.timeline, notes=whole.notes)
    flops_per_s, why = _flops_per_s(folder, part, ranks) if part.steps else (None, "")
    spans_us = [end - start for start, end in part.bounds_us]
    return Record(
        advice=advise(bare),
        timeline=whole,
        steps=part.steps,
        step_us=max(spans_us) / part.steps if part.steps else step_us(whole),
        flops_per_s=flops_per_s,
        remarks=tuple(filter(None, [*_remarks(facts, part, ranks), why])),
        folder=folder,
    )


def _remarks(facts: list[dict], part: Window, ranks: int) -> list[str]:
    """What is odd about a script."""
    steps = part.steps
    told = []
    grouped = any(each["group"] for each in facts)
    if grouped and ranks > 1 and steps and not (part.timeline.lane == COMM).any():
        told.append(
            say("In these steps nothing was sent: each rank trained alone, whatever group it made.")
        )
    if not grouped:
        told.append(
            say("The script made no group: its {ranks} ranks never spoke.", ranks=ranks)
            if ranks > 1
            else say("One process, no group: nothing is communicated.")
        )
    if not steps and not max(each["steps"] for each in facts):
        told.append(say("No optimizer stepped: what follows is about the whole script."))
    elif not steps:
        told.append(say("Fewer than two whole steps: what follows is about the whole script."))
    if any(each["own_profiler"] for each in facts):
        told.append(say("The script started a profiler of its own; ours ended there."))
    return told


def _flops_per_s(folder: Path, part: Window, ranks: int) -> tuple[float | None, str]:
    """What the steps' matrix products need by the second, or None and why that is not known."""
    total = 0.0
    for rank in range(ranks):
        found = flops_run.counted(folder / f"trace-{rank}.json", part.first, part.steps)
        if found.unknown:
            return None, say("MFU is not known: {name} is not counted.", name=found.unknown)
        total += found.total
    if not total:
        return None, say("MFU is not known: no matrix product was recorded.")
    seconds = max(end - start for start, end in part.bounds_us) * 1e-6
    return total / seconds, ""
