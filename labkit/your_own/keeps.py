"""Tables of bytes: what a module keeps for its backward, by the operators whose results it is; and
what was planned of a moment, beside what was counted; and runs, side by side."""

from collections.abc import Mapping
from typing import Any

from labkit.footprint import PARTS, Footprint
from labkit.planner.real.counted import Kept
from labkit.tables import worded
from labkit.units import brief, check_whole, check_word, format_number
from labkit.words import say, to_say
from labkit.your_own.step import TEMPORARY, Step

HARDLY = 1e-3
"""the share of a moment's bytes below which a part is not told"""
HEADS = (
    to_say("result of"),
    to_say("shape"),
    to_say("tensors"),
    to_say("kept"),
    to_say("counted"),
    to_say("way out"),
    to_say("way"),
    to_say("saved share"),
    to_say("first loss"),
    to_say("third loss"),
    to_say("largest difference"),
)
"""what stands above the columns of these tables and of ``doubts``"""


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
        "kept_bytes": each.num_bytes,
    }


def beside(found: Any, moment: str) -> list[dict[str, object]]:
    """For ``lab.table``: the bytes of each part at a moment, planned and counted. ``found`` is what
    ``compare`` returned, of any step whose two sides are footprints. Raises ValueError for a moment
    that it doesn't have. A part that is less than HARDLY of all on both sides is left out."""
    sides = _sides(found)
    check_word(moment, sides[0].labels, "a moment")
    at = sides[0].labels.index(moment)
    names = {"gathered": say("gathered for a while"), "temporary": say(TEMPORARY)}
    least = HARDLY * max(each.totals[at] for each in sides)
    rows = []
    for part, *both in zip(PARTS, *(each.num_bytes[at].tolist() for each in sides), strict=True):
        if max(both) > least:
            row = {
                "part": names.get(part, worded(part)),
                "planned_bytes": both[0],
                "counted_bytes": both[1],
            }
            rows.append(row)
    return rows


def peaks(found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """For ``lab.bars``: the highest points of runs in bytes, predicted and measured. ``found``: a
    name -> what ``compare`` returned. Raises ValueError for other things."""
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"found has runs, each by its name; got {brief(found)}")
    each_way = {}
    for name, each in found.items():
        predicted, measured = _sides(each)
        each_way[name] = {"predicted": predicted.peak_bytes, "measured": measured.peak_bytes}
    return each_way


def _sides(found: Any) -> tuple[Footprint, Footprint]:
    sides = (getattr(found, "predicted", None), getattr(found, "measured", None))
    if not all(isinstance(each, Footprint) for each in sides):
        raise ValueError(f"found is what a step's compare() returns; got {brief(found)}")
    return sides


def saved(
    found: Mapping[str, Any], part: str = "activations", moment: str = "forward"
) -> list[dict[str, object]]:
    """For ``lab.table``: the bytes of one part at a moment, planned and counted, of two runs, and
    the share that the second has less. ``found``: a name -> what ``compare`` returned, of two steps
    whose sides are footprints. Raises ValueError for other than two, or an unknown part."""
    if not isinstance(found, Mapping) or len(found) != 2:
        raise ValueError(f"found has two runs, each by its name; got {brief(found)}")
    check_word(part, PARTS, "a part")
    first, second = (_sides(each) for each in found.values())
    heads = [f"{name}_bytes" for name in found]
    told = (
        say("{part}, planned", part=worded(part)),
        say("{part}, counted", part=worded(part)),
    )
    rows = []
    for name, *both in zip(told, first, second, strict=True):
        num_bytes = [_at(side, part, moment) for side in both]
        row = {"quantity": name, **dict(zip(heads, num_bytes, strict=True))}
        rows.append(row | {"saved_share": 1 - num_bytes[1] / max(1, num_bytes[0])})
    return rows


def _at(footprint: Footprint, part: str, moment: str) -> int:
    check_word(moment, footprint.labels, "a moment")
    return int(footprint.num_bytes[footprint.labels.index(moment)][PARTS.index(part)])


def losses(ran: Mapping[str, Mapping[str, Any]]) -> list[dict[str, object]]:
    """For ``lab.table``: a name -> what a rank of ``run`` returned; a row for each: two of its
    losses, and the largest difference of all three from those of the first. Raises ValueError for
    a rank that saw no loss, as all of a pipeline's but the last."""
    if not isinstance(ran, Mapping) or not ran:
        raise ValueError(f"ran has ranks of runs, each by its name; got {brief(ran)}")
    each_way = {name: _three(name, rank) for name, rank in ran.items()}
    right = next(iter(each_way.values()))
    rows = []
    for name, mine in each_way.items():
        off = [abs(one - other) for one, other in zip(mine, right, strict=True)]
        row = {"way": name, "first loss": _digits(mine[0]), "third loss": _digits(mine[2])}
        rows.append(row | {"largest difference": max(off)})
    return rows


def _digits(loss: float) -> str:
    """With three digits even where the last is 0: 6.10 beside 6.98."""
    told = f"{loss:#.3g}"
    return format_number(loss) if "e" in told else told.rstrip(".")


def _three(name: str, rank: Any) -> list[float]:
    try:
        mine = rank["losses"]
        if mine is not None:
            return [float(each) for each in (mine[0], mine[1], mine[2])]
    except (TypeError, KeyError, IndexError, ValueError):
        raise ValueError(
            f"each of ran is one rank of what run() returned; got {brief(rank)}"
        ) from None
    raise ValueError(f"{name} saw no loss: of a pipeline take the last rank, run[-1]")
