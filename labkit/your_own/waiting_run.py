"""What a step of a recorded script waits for, before a cure and after it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from labkit.profiling.recording.record_run import Record
from labkit.profiling.shares import NAMES, SHARES
from labkit.tables import table
from labkit.units import brief, check_whole, format_us
from labkit.words import WORDS, language, say

if TYPE_CHECKING:
    from labkit.tables import Table

NEAR = 0.1
"""as a share: times that lie nearer are about as long"""
MOST = 1_000_000
"""readers of a script"""


def split(records: Mapping[str, Record], *, readers: int | None = None) -> "Table":
    """A step of each recorded script, by its name: what it waits for data, and the rest. With
    ``readers``, how many read ahead in the last script and not in the first, a sentence above says
    which part sets the pace. Raises ValueError for other than records by name, and for no reader,
    or readers of a single script."""
    _check_records(records)
    rows = []
    for name, each in records.items():
        wait_us, rest_us = _wait_and_rest_us(each)
        row = {
            say("script"): f"{name}",
            say("one step"): each.step_us,
            say(NAMES["input"]): wait_us,
            say("the rest"): rest_us,
        }
        rows.append(row)
    pace = _pace([*records.values()], readers) if readers is not None else ""
    return table(rows, units=dict.fromkeys([*rows[0]][1:], "us"), title=pace)


def rests_us(records: Mapping[str, Record]) -> dict[str, dict[str, float]]:
    """A step of each recorded script without its wait for data, by its parts: {name of the script:
    {name of the part: microseconds}}, for ``lab.bars``. Raises ValueError for other than records by
    name."""
    _check_records(records)
    return {name: _rest_us(each) for name, each in records.items()}


def grown(was: Record, now: Record) -> str:
    """Which parts of a step grew by more than a tenth of the rest that ``was`` had, the wait for
    data apart, in a sentence. Raises ValueError for no records."""
    _check_records({"was": was, "now": now})
    before_us = _rest_us(was)
    least_us = NEAR * sum(before_us.values())
    told = []
    for part, us in _rest_us(now).items():
        was_us = before_us.get(part, 0.0)
        if us > was_us + least_us:
            span = {"part": part, "was": format_us(was_us), "now": format_us(us)}
            told.append(say("{part} from {was} to {now}", **span))
    if not told:
        return say("No part grew by more than a tenth of the old rest.")
    parts = WORDS[language()]["comma"].join(told)
    return say("Grown by more than a tenth of the old rest: {parts}.", parts=parts)


def waited_us(record: Record, *, rank: int) -> float:
    """Microseconds of a step in which a rank waits in messages that another hasn't begun. Raises
    ValueError for no record, and for a rank that it doesn't have."""
    _check_records({"record": record})
    check_whole(0, record.timeline.num_ranks - 1, rank=rank)
    return record.step_us * float(record.advice.shares[rank, SHARES.index("waiting")])


def _rest_us(record: Record) -> dict[str, float]:
    """The parts of a step but for its wait for data."""
    parts_us = record.parts_us()
    parts_us.pop(say(NAMES["input"]), None)
    return parts_us


def _pace(records: list[Record], readers: int) -> str:
    """Which part sets the pace of a step with so many readers, in a sentence; the first was
    recorded with none, the last with them."""
    check_whole(1, MOST, readers=readers)
    if len(records) == 1:
        raise ValueError(
            f"With readers={readers} give two records, before and with them: got {len(records)}."
        )
    wait_us, rest_us = _wait_and_rest_us(records[0])
    left_us, now_rest_us = _wait_and_rest_us(records[-1])
    batch_us = wait_us / readers
    told = {
        "left": format_us(left_us),
        "was": format_us(rest_us),
        "now": format_us(now_rest_us),
        "batch": format_us(batch_us),
        "readers": readers,
    }
    if now_rest_us > batch_us * (1 + NEAR):
        return say(
            "The old wait over {readers} readers is {batch}. The rest went from {was} to {now}, "
            "which is longer. So the rest sets the pace now: the bottleneck moved. Of the wait "
            "{left} are left.",
            **told,
        )
    if batch_us > now_rest_us * (1 + NEAR):
        return say(
            "The old wait over {readers} readers is {batch}. The rest went from {was} to {now}, "
            "which is shorter. So the readers set the pace, as the wait did before. Of the wait "
            "{left} are left.",
            **told,
        )
    return say(
        "The old wait over {readers} readers is {batch}. The rest went from {was} to {now}, about "
        "as long: too close to say which sets the pace. Of the wait {left} are left.",
        **told,
    )


def _wait_and_rest_us(record: Record) -> tuple[float, float]:
    """What the average rank waits for data in a step, and the rest of it."""
    wait_us = record.step_us * record.advice.share("input")
    return wait_us, record.step_us - wait_us


def _check_records(records: Mapping[str, Record]) -> None:
    """Raises ValueError for other than records by name, one or more."""
    fine = isinstance(records, Mapping) and records
    if not fine or not all(isinstance(each, Record) for each in records.values()):
        raise ValueError(f"records are {{name: what record(...) gives}}; got {brief(records)}")
