"""What a module keeps for its backward, by the operators whose results it is."""

from labkit.planner.real.counted import Kept
from labkit.units import check_whole
from labkit.words import say
from labkit.your_own.step import Step


def kept(step: Step, most: int = 6) -> list[dict[str, object]]:
    """For ``lab.table``: the tensors that one forward of a step's whole batch keeps for the
    backward, weights left out; a row for each operator and size, the most bytes first, after
    ``most`` rows all others together.

    Seen under fake tensors, so nothing runs. Raises ValueError for a module that can't be measured.
    """
    check_whole(1, 1000, most=most)
    found = step.shape().kept_tensors
    rows = [_row(each) for each in found[:most]]
    if others := found[most:]:
        count = sum(each.count for each in others)
        num_bytes = sum(each.num_bytes for each in others)
        rows.append(_row(Kept(say("all others"), (), count, num_bytes)))
    return rows


def _row(each: Kept) -> dict[str, object]:
    return {
        "result_of": each.operator or say("what was given"),
        "shape": " x ".join(map(str, each.shape)),
        "tensors": each.count,
        "num_bytes": each.num_bytes,
    }
