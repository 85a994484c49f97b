"""A run that is expected to fail: its verdict as a value, and what a look from outside would tell.

error = broken_run.verdict(save_and_wait, ranks=3)
error                                  # in a notebook: the report, a row per rank
lab.table(broken_run.places(error))    # where each rank is, and nothing about who is odd
lab.table(broken_run.places(job))      # the same of a run that hangs now
lab.table(broken_run.numbered(run))    # the collectives of a run by number, a column for each rank
"""

import time
from collections import defaultdict
from collections.abc import Callable

from labkit.launching import launcher
from labkit.launching.job import Job
from labkit.launching.run import Run
from labkit.launching.verdicts.outcome import Outcome, is_echo
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


def places(seen: LaunchError | Job) -> list[dict]:
    """Where each rank was when the run was judged, or is in a run that is still under way, as a
    stack from outside tells it: rank, how it is, and the line. It does not say which rank is odd,
    nor what is wrong. Of a run under way it waits until every rank is in a call, 10 s at most."""
    return _now(seen) if isinstance(seen, Job) else [_judged(each) for each in seen.outcomes]


def numbered(run: Run) -> list[dict]:
    """The collectives of a run that ended well, as torch's flight recorder numbered them: a row for
    each number of a group, and for each rank the line that made the call ("" where it made none).
    Ranks that agree have the same line all along a row."""
    lines: dict[tuple, dict[int, str]] = defaultdict(dict)
    for rank, calls in enumerate(run.calls()):
        for call in calls:
            lines[call["group"], call["seq"]][rank] = call["text"]
    several = len({group for group, _ in lines}) > 1
    rows = []
    for (group, number), of_rank in sorted(lines.items()):
        row = {"group": group, "number": number} if several else {"number": number}
        rows.append(row | {f"rank {rank}": of_rank.get(rank, "") for rank in range(len(run))})
    return rows


def _judged(outcome: Outcome) -> dict:
    """A rank of a run that has ended."""
    where = outcome.error.get("where", {}) if outcome.how == "failed" else outcome.where
    how = {"stuck": say("is still in a call"), "returned": say("returned")}.get(
        outcome.how, outcome.error.get("type", outcome.how)
    )
    how = say("lost its peer") if is_echo(outcome) else how
    text = where.get("text", "") if outcome.how != "returned" else ""
    return {"rank": outcome.rank, "state": how, "line": text}


def _now(job: Job) -> list[dict]:
    """The ranks of a run under way."""
    limit = time.monotonic() + 10
    rows = job.progress
    while not _all_in_a_call(rows, job.num_ranks) and not job.done and time.monotonic() < limit:
        time.sleep(0.05)
        rows = job.progress
    is_in = {True: say("is still in a call"), False: say("runs")}
    return [
        {
            "rank": row["rank"],
            "state": is_in[bool(row["where"].get("call"))],
            "line": row["where"].get("text", ""),
        }
        for row in rows
    ]


def _all_in_a_call(rows: list[dict], num_ranks: int) -> bool:
    """Whether each rank stands in a call that a line of its own made."""
    seen = [row["where"] for row in rows if row["where"].get("call") and row["where"].get("text")]
    return len(seen) == num_ranks
