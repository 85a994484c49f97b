"""SHARD_GRAD_OP by the planner's parts: FULL_SHARD whose layers stay whole until their backward."""

from labkit.planner.plan.memory import UNITS
from labkit.planner.plan.plan import Plan


def grad_op(plan: Plan) -> tuple[float, float]:
    """A card's highest bytes, and microseconds of a step, of SHARD_GRAD_OP in each microbatch.

    ``plan``: a ``planner.Plan`` of FULL_SHARD (``zero=3``) without pipeline or recomputation. Where
    that holds ``UNITS`` gathered layers at a time, this holds all; its forward gathers as there,
    and its backward only reduces, as ZeRO 2's does. Raises ValueError for another plan.
    """
    if not isinstance(plan, Plan):
        raise ValueError(f"the plan is a planner.Plan; got {plan!r}")
    if plan.zero != 3 or plan.pp != 1 or plan.recompute != "none":
        raise ValueError(
            "SHARD_GRAD_OP is read off a plan with zero=3, pp=1 and recompute='none'; got "
            f"zero={plan.zero}, pp={plan.pp} and recompute={plan.recompute!r}"
        )
    shape = plan.shape
    more = (shape.layers - UNITS) * plan.layout.itemsize * shape.layer_params / plan.tp
    time = plan.time()
    reducing = plan.but(zero=2, stack=plan.used).time()
    micro_us = time.stages[0].forward_us + reducing.stages[0].backward_us
    return plan.memory().peak_bytes + more, time.num_microbatches * micro_us + time.optimizer_us
