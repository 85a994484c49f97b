"""A run that is expected to fail: its verdict as a value, and what a look from outside would tell.

error = broken_run.verdict(save_and_wait, ranks=3)
error                                  # in a notebook: the report, a row per rank
lab.table(broken_run.places(error))    # where each rank is, and nothing about who is odd
"""

from collections.abc import Callable

from labkit.launching import launcher
from labkit.launching.verdicts.outcome import FAULTS, is_echo
from labkit.launching.verdicts.verdict import LaunchError
from labkit.words import say


def verdict(
    fn: Callable, /, *args: object, ranks: int | None = None, **options: object
) -> LaunchError:
    """Launches what is expected to fail, as ``lab.launch`` does, and returns what that raises. In
    a notebook it shows itself. Raises ValueError for a run that ends well."""
    try:
        run = launcher.launch(fn, *args, ranks=ranks, **options)
    except LaunchError as error:
        return error
    raise ValueError(
        f"a verdict is that of a run that fails; this one returned {list(run.results)}. Use "
        "lab.launch for it."
    )


def places(error: LaunchError) -> list[dict]:
    """Where each rank was when the run was judged, as a stack from outside tells it: rank, how it
    ended, and the line. It does not say which rank is odd, nor what is wrong."""
    rows = []
    for outcome in error.outcomes:
        where = outcome.error.get("where", {}) if outcome.how == "failed" else outcome.where
        how = {"stuck": say("is still in a call"), "returned": say("returned")}.get(
            outcome.how, outcome.error.get("type", outcome.how)
        )
        how = say("lost its peer") if is_echo(outcome) else how
        text = where.get("text", "") if outcome.how != "returned" else ""
        rows.append({"rank": outcome.rank, "state": how, "line": text})
    return rows


def meanings() -> list[dict]:
    """The faults that labkit knows: name and meaning, a row each."""
    return [{"fault": name, "means": say(means)} for name, means in FAULTS.items()]
