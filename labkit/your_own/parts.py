"""Where a step's time went, beside where its plan expected it."""

from labkit.planner.plan.plan import Plan
from labkit.profiling.advice import advise
from labkit.timeline import COMPUTE, Timeline
from labkit.units import brief

UPDATE = "optimizer"
"""the kind of a recorded update, as ``measure.trace_rows`` calls it"""
MESSAGES = ("gather", "data")
"""the parts of a planned step of shards or copies that are messages"""


def by_parts(plan: Plan, recorded: Timeline) -> dict[str, tuple[float, float]]:
    """A planned step of copies or shards and a recorded one, {part: (planned, recorded)} in
    microseconds of the average rank.

    Parts: "compute", "optimizer" (the update), "comm" (messages that no computing hides), and two
    that no plan has, "waiting" (for other ranks) and "unrecorded". Raises ValueError for anything
    but a plan and a timeline.
    """
    if not isinstance(plan, Plan) or not isinstance(recorded, Timeline):
        raise ValueError(f"by_parts takes a plan and a timeline; got {brief((plan, recorded))}")
    planned_us = dict(plan.time().parts())
    update_us = planned_us.pop("optimizer", 0.0)
    messages_us = sum(planned_us.pop(part, 0.0) for part in MESSAGES)
    computing_us = sum(planned_us.values())

    recorded = recorded.select(recorded.lane != "mark")  # FSDP's own
    advice = advise(recorded)
    whole_us = float(recorded.end_us.max() - recorded.start_us.min())
    found = recorded.select((recorded.lane == COMPUTE) & (recorded.kind == UPDATE))
    updated_us = float((found.end_us - found.start_us).sum()) / recorded.num_ranks
    return {
        "compute": (computing_us, advice.share("compute") * whole_us - updated_us),
        "optimizer": (update_us, updated_us),
        "comm": (messages_us, advice.share("comm") * whole_us),
        "waiting": (0.0, advice.share("waiting") * whole_us),
        "unrecorded": (0.0, advice.share("unrecorded") * whole_us),
    }
