"""The field's rules of thumb, each held against what was measured, or refused with its reason.

    scaling.targets(measured)       # rows for lab.table

*Scaling above 80 %, devices busy above 85 %, communication below 20 %, recovery within 5 minutes*:
good aims for a cluster. What a run of ours can't say it is not made to say.
"""

from typing import NamedTuple

from labkit.scaling.series import Scaled
from labkit.units import format_share
from labkit.words import say

SCALING = 0.80
BUSY = 0.85
COMMUNICATION = 0.20
RECOVERY_S = 300.0


class Target(NamedTuple):
    """One aim and what came of it."""

    target: str
    """in words"""
    measured: str
    """with its unit; "-" where nothing was"""
    met: str
    """yes, no, or why it can't be said"""


def targets(found: Scaled, *, recovery_s: float | None = None) -> list[Target]:
    """The four aims, against a step on the most ranks that ``found`` has and, if it was measured,
    the seconds from a failure to the first step after it."""
    lost = found.lost()
    busy = 1 - max(0.0, lost["communication"]) - max(0.0, lost["waiting"])
    rows = [
        _share(
            say("efficiency above {share}", share=_written(SCALING)), found.efficiency(), SCALING
        ),
        _busy(found, busy),
        _share(
            say("communication below {share}", share=_written(COMMUNICATION)),
            max(0.0, lost["communication"]),
            COMMUNICATION,
            below=True,
        ),
    ]
    return [*rows, _recovery(recovery_s)]


def _written(share: float) -> str:
    return f"{100 * share:.0f} %"


def _share(target: str, measured: float, bound: float, below: bool = False) -> Target:
    met = measured < bound if below else measured > bound
    return Target(target, format_share(measured), say("yes") if met else say("no"))


def _busy(found: Scaled, busy: float) -> Target:
    """Where layers are asleep, a device is busy by statement, and only the share counts."""
    told = _share(say("devices busy above {share}", share=_written(BUSY)), busy, BUSY)
    if "paced" not in found.badge and not found.badge.startswith("simulated"):
        return told
    why = say("{met}, as a share of stated times: no device was watched", met=told.met)
    return told._replace(met=why)


def _recovery(recovery_s: float | None) -> Target:
    target = say("recovery within {minutes:g} minutes", minutes=RECOVERY_S / 60)
    if recovery_s is None:
        why = say("not measured here: chapter 13 stops a rank and takes the time")
        return Target(target, "-", why)
    met = say("yes") if recovery_s < RECOVERY_S else say("no")
    why = say("{met}, for a model of this size: a large one reads for longer", met=met)
    return Target(target, f"{recovery_s:.1f} s", why)
