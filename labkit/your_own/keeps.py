"""Tables of bytes: what a module keeps for its backward, by the operators whose results it is; what
was planned of a moment, beside what was counted; runs, side by side; and all that of several
modules."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit.experiment import kept as latest
from labkit.footprint import PARTS, Footprint
from labkit.planner.plan.plan import Plan
from labkit.planner.real.counted import Kept
from labkit.tables import worded
from labkit.units import brief, check_whole, check_word, format_bytes, format_number
from labkit.words import say, to_say
from labkit.your_own.step import TEMPORARY, Step

HARDLY = 1e-3
"""the share of a moment's bytes below which a part is not told"""
SPARE = 0.1
"""of a card's memory, that a plan should leave free"""
ALONE = {"engine": "ddp", "ranks": 1, "optimizer": "sgd"}
"""a step in one process"""
HEADS = (
    to_say("result of"),
    to_say("shape"),
    to_say("tensors"),
    to_say("kept"),
    to_say("counted"),
    to_say("way out"),
    to_say("way"),
    to_say("run"),
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


def losses(ran: Mapping[str, Mapping[str, Any]]) -> list[dict[str, object]]:
    """For ``lab.table``: the three losses of runs less those of the first run, a row each. ``ran``:
    a name -> what a rank of ``run`` returned. Raises ValueError for a rank that saw no loss, as all
    of a pipeline's but the last, or for one run alone."""
    if not isinstance(ran, Mapping) or len(ran) < 2:
        raise ValueError(f"ran has ranks of two runs or more, each by its name; got {brief(ran)}")
    (_, right), *others = ((name, _three(name, rank)) for name, rank in ran.items())
    heads = (say("first loss"), say("second loss"), say("third loss"))
    apart: list[dict[str, object]] = []
    for name, mine in others:
        off = [its - one for its, one in zip(mine, right, strict=True)]
        apart.append({"run": name, **dict(zip(heads, off, strict=True))})
    return apart


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


def columns(modules: Mapping[str, tuple[Step, Plan]]) -> list[dict[str, str]]:
    """For ``lab.table``: what chapter 21 asks of a module, a row each, with a column for each
    module. What does not work for a module says why in its cell, and the others go on.

    ``modules``: a name -> (step, whole). ``step`` is of a small size, in shards, on two ranks or
    more: its bytes are planned and counted, and it is trained by SGD in one process, in shards and
    in stages; the latest run of an equal step serves. ``whole`` is a plan of the size that is
    wanted, in copies. Raises ValueError for other things.
    """
    if not isinstance(modules, Mapping) or not modules:
        raise ValueError(f"modules have names, a name -> (step, plan); got {brief(modules)}")
    rows: dict[str, dict[str, str]] = {}
    for name, pair in modules.items():
        for quantity, value in _column(pair).items():
            rows.setdefault(quantity, {"quantity": quantity})[name] = value
    return [*rows.values()]


def _column(pair: tuple[Step, Plan]) -> dict[str, str]:
    """Of one module: a quantity -> what is found."""
    step, whole = pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None)
    if not isinstance(step, Step) or step.engine != "fsdp" or step.ranks < 2:
        raise ValueError(f"step is a Step in shards on two ranks or more; got {brief(step)}")
    if not isinstance(whole, Plan) or whole.zero or not hasattr(whole.shape, "kept_tensors"):
        raise ValueError(f"whole is a measured module's plan in copies; got {brief(whole)}")
    alone = functools.cache(lambda: _three("", _ran(step.but(**ALONE))[0]))
    asked: list[tuple[str, Callable[[], str]]] = [
        (say("largest part of a copy"), lambda: _largest(whole)),
        (say("first row of kept"), lambda: _first_kept(whole)),
        (say("fastest of six plans, a tenth free"), lambda: _fastest(whole)),
        (say("shards' peak, planned and counted"), lambda: _both_peaks(step)),
        (say("losses apart: shards"), lambda: _apart(alone(), step)),
        (say("losses apart: stages"), lambda: _apart(alone(), step.but(engine="pipeline"))),
    ]
    return {quantity: _told(find) for quantity, find in asked}


def _ran(step: Step) -> Any:
    """The latest run of an equal step, or one."""
    return latest(step) or step.run()


def _told(find: Callable[[], str]) -> str:
    """What it finds, or the first line of why it doesn't."""
    try:
        return find()
    except (ValueError, RuntimeError) as error:  # a rank that failed is the latter
        return say("skipped: {reason}", reason=str(error).splitlines()[0][:90])


def _largest(whole: Plan) -> str:
    parts = whole.memory().parts
    part = max(parts, key=parts.__getitem__)
    return f"{worded(part)}, {format_bytes(parts[part])}"


def _first_kept(whole: Plan) -> str:
    row = _row(whole.shape.kept_tensors[0])
    return f"{row['result_of']}, {format_bytes(row['kept_bytes'])}"


def _fastest(whole: Plan) -> str:
    """Of copies, shards and stages, with what makes activations smaller."""
    shards = {"zero": 3}
    stages = {"pp": whole.gpus}
    half = {"mbs": max(1, whole.mbs // 2)}
    quarter = {"mbs": max(1, whole.mbs // 4)}
    tries: dict[str, dict[str, Any]] = {
        say("copies"): {},
        say("shards"): shards,
        say("shards, half as many at a time"): shards | half,
        say("shards, recompute"): shards | {"recompute": "full"},
        say("stages"): stages,
        say("stages, a quarter as many at a time"): stages | quarter,
    }
    found = []
    for name, fields in tries.items():
        try:
            plan = whole.but(**fields)
            room = (1 - SPARE) * plan.cluster.device_bytes
            if plan.memory().peak_bytes <= room:
                found.append((plan.time().step_us, name, plan.memory().peak_bytes))
        except ValueError:  # such as more stages than layers
            continue
    if not found:
        return say("none of {count} ways", count=len(tries))
    _, name, peak_bytes = min(found)
    return f"{name}, {format_bytes(peak_bytes)}"


def _both_peaks(step: Step) -> str:
    planned, counted = (format_bytes(each.peak_bytes) for each in _sides(step.compare()))
    return f"{planned}, {counted}"


def _apart(alone: Sequence[float], step: Step) -> str:
    """The largest difference of three losses from those of one process."""
    mine = _three("", _ran(step.but(optimizer="sgd"))[-1])
    return format_number(max(abs(one - its) for one, its in zip(alone, mine, strict=True)))
