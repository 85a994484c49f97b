"""``python -m labkit measure``: takes a survey, or reads one again, and writes its page.

python -m labkit measure [--minutes 10] [--out FOLDER] [--only PARTS] [--ranks N] [--read FOLDER]
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from labkit.collectives import published
from labkit.devices import library, rung
from labkit.launching.job import Job, listeners
from labkit.launching.run import Run
from labkit.machine import resources
from labkit.survey import report_picture, run
from labkit.survey.picture import Found, Others
from labkit.survey.readings import published_numbers
from labkit.survey.summary import Summary, elsewhere, load
from labkit.survey.trials import PARTS, trials
from labkit.units import check_real
from labkit.words import say

USUAL = Path("out", "measure")
PUBLISHED = 1
"""how many of the published machines stand beside one's own"""
TOLD_S = 2.0
EVERY_S = 10.0


def main(chosen: argparse.Namespace) -> int:
    """The exit code: 0 done, 1 something failed, 130 stopped. Raises ValueError for what makes no
    sense."""
    if chosen.read is not None:
        return _reported(load(chosen.read))
    check_real(0.05, 1e4, minutes=chosen.minutes)
    wanted = trials(
        chosen.only or PARTS,
        run.usual_ranks() if chosen.ranks is None else chosen.ranks,
        minutes=chosen.minutes,
        has_gpu=resources.num_gpus() > 0,
    )
    _build_libraries(max(each.ranks for each in wanted))
    summary = run.begin(chosen.out or _unused(USUAL), chosen.minutes)
    _tell(
        say(
            "at most {minutes:g} minutes, into {folder}",
            minutes=chosen.minutes,
            folder=summary.folder,
        )
    )
    try:
        with _patience():
            for latest in run.survey(wanted, summary, _tell):
                summary = latest
    except KeyboardInterrupt:
        summary = replace(summary, stopped=True)
        summary.save()
        _tell(say("stopped; what was measured is kept"))
    return _reported(summary)


def _build_libraries(ranks: int) -> None:
    """Builds what the ranks' rung needs of our C++, once, where it can be built."""
    for name in rung.LIBRARIES.get(run.rungs(ranks)[0], ()):
        if not library.path(name).is_file() and library.obstacle() is None:
            _tell(say("building {name}, once, about 20 s ...", name=name))
            if said := library.build(name):
                _tell(said)


def _reported(summary: Summary) -> int:
    """Writes the page and the text of a survey and tells where they are; the exit code."""
    found = _found(summary)
    others = _others(summary)
    page = summary.folder / "report.html"
    page.write_text(report_picture.page(summary, found, others), encoding="utf-8")
    text = report_picture.lines(summary, found, others)
    (summary.folder / "report.txt").write_text(text, encoding="utf-8")
    _tell(say("the report: {page}, and report.txt beside it", page=page))
    for name in summary.errors:
        _tell(say("{name} failed; why stands in the report", name=name))
    if summary.stopped:
        return 130
    return 1 if summary.errors else 0


def _found(summary: Summary) -> dict[str, list[Found]]:
    """Part -> the experiments that were taken, with their runs read back."""
    found: dict[str, list[Found]] = {}
    origin = (
        "recorded" if any(each.origin == "recorded" for each in summary.numbers) else "measured"
    )
    for each in summary.taken:
        experiment = each.experiment()
        folder = summary.folder / run.RUNS / each.name
        if each.error or experiment is None or not folder.is_dir():
            continue
        saved = Run.load(folder)
        measured = replace(experiment.measured(saved), origin=origin)
        found.setdefault(each.part, []).append(
            Found(experiment=experiment, predicted=experiment.predict(), measured=measured)
        )
    return found


def _others(summary: Summary) -> Others:
    """What was recorded elsewhere: this repository's surveys, and published times."""
    others = {name: each.numbers for name, each in elsewhere(summary.folder).items()}
    for machine in published.machines()[:PUBLISHED]:
        others[machine] = published_numbers(machine)
    return others


def _unused(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, ... that is not there yet."""
    number = 2
    unused = folder
    while unused.exists():
        unused = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return unused


@contextmanager
def _patience() -> Iterator[None]:
    """While the block runs, whoever waits longer than two seconds for a run is told."""
    listener = _listener()
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


def _listener() -> Callable[[Job], None]:
    """On a terminal the seconds of a run count up; elsewhere a line comes now and then."""
    told_s = {"last": 0.0}

    def listen(job: Job) -> None:
        if sys.stderr.isatty():
            shown = "" if job.done or job.seconds < TOLD_S else f"  {job.seconds:.0f} s"
            print(f"\r{shown}\x1b[K", end="", file=sys.stderr, flush=True)
            return
        told_s["last"] = min(told_s["last"], job.seconds)
        if not job.done and job.seconds > max(TOLD_S, told_s["last"] + EVERY_S):
            told_s["last"] = job.seconds
            _tell("  " + say("{seconds:.0f} s so far", seconds=job.seconds))

    return listen


def _tell(line: str) -> None:
    print(line, flush=True)
