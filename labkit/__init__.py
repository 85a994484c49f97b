"""labkit: real ranks from a notebook, drawn beside what theory predicts.

Begin with the nouns (``timeline``, ``shards``, ``footprint``) and ``experiment``, the one verb set.
Then a subject, ``pipeline`` say: its theory, ``step``, ``run``, ``picture``, ``board``, ``check``;
all subjects have that plan. Importing labkit imports none of them: the names below load their room
when they are first used, so that ``import labkit`` stays quick and free of torch.
"""

import importlib

__version__ = "0.1.0"

_EXPORTS = {
    "launch": "launching.launcher",
    "launch_script": "launching.script",
    "pretend": "devices.rung",
    "Slurm": "launching.nodes.places",
    "Hosts": "launching.nodes.places",
    "sweep": "sweeps",
    "start": "launching.launcher",
    "warm": "launching.launcher",
    "advise": "profiling.advice",
    "show": "widgets.picture",
    "table": "tables",
    "curves": "widgets.plots",
    "bars": "widgets.plots",
    "difference": "measure.apart",
    "begin": "check.opening",
    "guess": "check.guesses",
    "progress": "check.standing",
    "course": "check.course",
    "ladder": "check.ladder",
    "Job": "launching.job",
    "Run": "launching.run",
    "LaunchError": "launching.verdicts.verdict",
    "RankFailed": "launching.verdicts.verdict",
    "Deadlock": "launching.verdicts.verdict",
    "Timeout": "launching.verdicts.verdict",
    "Stopped": "launching.verdicts.verdict",
    "Refused": "launching.verdicts.verdict",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"labkit.{_EXPORTS[name]}"), name)
    raise AttributeError(
        f"labkit exports {', '.join(_EXPORTS)}; {name!r} is not among them. Rooms are imported by "
        "name: "
        f"from labkit.pipeline import schedules"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
