"""What the stages of sharding cost by the planner's parts, and torch's ways between ZeRO 2 and 3:
FULL_SHARD whose layers stay whole until their backward, or until the step's last one."""

from collections.abc import Iterator
from dataclasses import astuple, dataclass

from labkit.planner.plan.memory import UNITS
from labkit.planner.plan.plan import Plan
from labkit.units import check_real, check_whole
from labkit.words import say

REACHED = 0.5
"""The share of its network that a plan by STACK's constants reaches."""
STACK = "fsdp-a100"
"""Whose constants: one stack's for all ways, so that they compute equally fast."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a way to shard costs a card."""

    memory_bytes: float
    """its highest point"""
    sent_bytes: float
    """what a ring sends for the messages of a step, all in 16 bits"""
    step_us: float
    """a step"""

    def __iter__(self) -> Iterator[float]:
        return iter(astuple(self))


def grad_op(plan: Plan, *, once: bool = False) -> tuple[float, float]:
    """A card's highest bytes, and microseconds of a step, of SHARD_GRAD_OP in each microbatch;
    ``once``: layers stay whole over the microbatches, and only the first forward gathers them.

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
    reducing = plan.but(zero=2, stack=plan.used).time().stages[0]
    gathers = 1 if once else time.num_microbatches
    forward_us = gathers * time.stages[0].forward_us
    forward_us += (time.num_microbatches - gathers) * reducing.forward_us
    backward_us = time.num_microbatches * reducing.backward_us
    return plan.memory().peak_bytes + more, forward_us + backward_us + time.optimizer_us


def ways(plan: Plan, *, machines: int = 1, gb_per_s: float = 0.0) -> dict[str, Cost]:
    """{way: what it costs}: ZeRO 1, ZeRO 2, torch's SHARD_GRAD_OP, gathered once a step or in each
    microbatch, FULL_SHARD.

    ``plan``: pure data parallelism without recomputation; ``machines`` share its cards, and the
    network of each brings ``gb_per_s``. All messages are in 16 bits. Raises ValueError for another
    plan, cards that don't divide, and several machines without a network.
    """
    if not isinstance(plan, Plan) or plan.num_inner > 1:
        raise ValueError(f"the plan is a planner.Plan of data parallelism alone; got {plan!r}")
    check_whole(1, plan.gpus, machines=machines)
    if plan.gpus % machines:
        raise ValueError(f"machines divides {plan.gpus} cards; got {machines}")
    plan = plan.but(stack=STACK, precision="fp16", recipe="mixed")  # gradients go in 16 bits
    if machines > 1:
        check_real(1e-3, 1e6, gb_per_s=gb_per_s)
        per_node = plan.gpus // machines
        plan = plan.but(per_node=per_node, nic_gb_per_s=gb_per_s / per_node / REACHED)
    full = plan.but(zero=3)
    once_bytes = (plan.gpus - 1) / plan.gpus * 2 * plan.shape.params
    num = plan.layout.num_microbatches
    found = {
        "ZeRO 1": (2, *_planned(plan.but(zero=1))),
        "ZeRO 2": (num + 1, *_planned(plan.but(zero=2))),
        say("gathered once"): (num + 1, *grad_op(full, once=True)),
        "SHARD_GRAD_OP": (2 * num, *grad_op(full)),
        "FULL_SHARD": (3 * num, *_planned(full)),
    }
    return {
        way: Cost(memory_bytes=held, sent_bytes=times * once_bytes, step_us=step_us)
        for way, (times, held, step_us) in found.items()
    }


def _planned(plan: Plan) -> tuple[float, float]:
    """A card's highest bytes, and microseconds of a step."""
    return plan.memory().peak_bytes, plan.time().step_us
