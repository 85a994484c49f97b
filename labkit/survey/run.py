"""A survey on real ranks: each trial in turn, on the best rung there is, within the time that is
given. Every run is saved, and the summary after each of them, so that whoever stops it keeps what
was measured.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.devices import rung
from labkit.launching.verdicts.verdict import LaunchError, Refused, Timeout
from labkit.machine import hardware, resources
from labkit.survey import device_run, exchange_run
from labkit.survey.readings import numbers
from labkit.survey.summary import Summary, Taken
from labkit.survey.trials import Trial
from labkit.words import say

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

RUNS = "runs"
"""The folder of the runs, in that of the survey."""
CPU_RANKS = 4
MOST_RANKS = 8
PACKAGES = ("labkit", "torch", "numpy", "deepspeed")


def usual_ranks() -> int:
    """One for each GPU where there are several, eight at most; four where there are none or one."""
    num_gpus = resources.num_gpus()
    return min(num_gpus, MOST_RANKS) if num_gpus > 1 else CPU_RANKS


def rungs(ranks: int) -> tuple[str, ...]:
    """What ranks stand on, the best first: what the environment forces; else a GPU each, a GPU for
    several, the CPU."""
    if forced := os.environ.get(rung.VARIABLE):
        return (forced,)
    num_gpus = resources.num_gpus()
    if num_gpus >= ranks:
        return ("cuda",)
    return ("shared", "cpu") if num_gpus else ("cpu",)


def begin(folder: Path, minutes: float) -> Summary:
    """An empty survey in a new folder. Raises ValueError for a folder with something in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"a survey is written into a new or empty folder; {folder} is there already. Name "
            "another: --out FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    versions = {name: resources.version(name) for name in PACKAGES}
    models = hardware.topology().devices.models if resources.num_gpus() else ()
    return Summary(
        started=time.strftime("%Y-%m-%dT%H:%M:%S"),
        minutes=minutes,
        machine={**resources.summary(), "gpu_models": sorted({*models})},
        versions={name: each for name, each in versions.items() if each},
        folder=folder,
    )


def survey(
    trials: Sequence[Trial], summary: Summary, tell: Callable[[str], None] = lambda line: None
) -> Iterator[Summary]:
    """Takes the trials one by one and gives the summary, saved, after each.

    What fails is told in the summary and loses nobody else. Each part has its share of what time is
    left; what no time is left for is left out. ``tell`` is given a line for whoever waits.
    """
    began = time.monotonic()
    deadline = began + 60 * summary.minutes
    parts = list(dict.fromkeys(trial.part for trial in trials))
    until: dict[str, float] = {}
    for number, trial in enumerate(trials, start=1):
        now = time.monotonic()
        if trial.part not in until:
            until[trial.part] = now + (deadline - now) / (len(parts) - len(until))
        latest = deadline if _is_first(trial, trials) else until[trial.part]
        if now >= latest:
            summary = replace(summary, left_out=(*summary.left_out, trial.name))
            continue
        tell(f"[{number}/{len(trials)}] {trial.name} ...")
        try:
            summary = _after(trial, summary, latest)
        except TimeoutError:
            tell("  " + say("no time is left for it"))
            summary = replace(summary, left_out=(*summary.left_out, trial.name))
            continue
        summary = replace(summary, seconds=time.monotonic() - began)
        tell("  " + _outcome(summary.taken[-1]))
        summary.save()
        yield summary
    summary.save()
    yield summary


def _is_first(trial: Trial, trials: Sequence[Trial]) -> bool:
    """Whether it is the first of its part."""
    return next(each for each in trials if each.part == trial.part) is trial


def _outcome(taken: Taken) -> str:
    """One line on how a trial ended."""
    if taken.error:
        return say("failed: {why}", why=taken.error.splitlines()[0])
    return say("{seconds:.1f} s, on {notes}", seconds=taken.seconds, notes=", ".join(taken.notes))


def _after(trial: Trial, summary: Summary, latest: float) -> Summary:
    """The summary with one more trial: its numbers, or why there are none. Raises TimeoutError
    where the survey's own time ended it."""
    began = time.monotonic()
    taken = Taken(**vars(trial), rung=rungs(trial.ranks)[0])
    found = []
    try:
        run = _taken(trial, latest)
        taken = replace(taken, rung=run.devices, notes=run.notes, seconds=run.seconds)
        run.save(summary.folder / RUNS / trial.name)
        found = numbers(trial, run)
    except Timeout as error:
        if time.monotonic() >= latest:
            raise TimeoutError from None
        taken = replace(taken, error=str(error), seconds=time.monotonic() - began)
    except Exception as error:  # whatever it is, the others go on; it stands in the report
        why = str(error) if isinstance(error, (LaunchError, ValueError)) else repr(error)
        seconds = time.monotonic() - began
        taken = replace(taken, error=why or type(error).__name__, seconds=seconds)
    return replace(
        summary,
        taken=(*summary.taken, taken),
        numbers=(*summary.numbers, *found),
    )


def _taken(trial: Trial, latest: float) -> "Run":
    """The run of a trial, on the best rung that does not refuse it."""
    *better, last = rungs(trial.ranks)
    for name in better:
        with _forced(name), contextlib.suppress(Refused):
            return _waited(trial, latest)
    with _forced(last):
        return _waited(trial, latest)


def _waited(trial: Trial, latest: float) -> "Run":
    job = start(trial)
    job.timeout_s = max(1.0, min(job.timeout_s, latest - time.monotonic()))
    return job.wait()


def start(trial: Trial) -> "Job":
    """A trial in the background. Raises ValueError for one that is refused."""
    experiment = trial.experiment()
    if experiment is None and trial.part == "device":
        return device_run.start(**trial.fields)
    if experiment is None:
        return exchange_run.start(ranks=trial.ranks, **trial.fields)
    if reason := experiment.refusal():
        raise ValueError(reason)
    return experiment.start()


@contextlib.contextmanager
def _forced(name: str) -> Iterator[None]:
    """Launches stand on this rung while the block runs."""
    before = os.environ.get(rung.VARIABLE)
    os.environ[rung.VARIABLE] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ[rung.VARIABLE]
        else:
            os.environ[rung.VARIABLE] = before
