"""What each rank should hold of a measured module over a step: the planner's states and kept
activations, and what the module keeps outside of its layers."""

from labkit import footprint
from labkit.footprint import Footprint
from labkit.planner.plan.plan import Plan
from labkit.planner.real.counted import Counted
from labkit.words import to_say

MOMENTS = (to_say("before"), to_say("forward"), to_say("backward"), to_say("update"))
"""Between steps, at the end of the forward, at the backward's highest point, at the update."""
OUTPUTS = 3
"""Tensors as large as the output that lie there when the backward begins."""


def bill(plan: Plan, rank: int = 0, *, output_bytes: float = 0.0) -> Footprint:
    """The bytes of a rank at MOMENTS (by GPipe all forwards end before the first backward). Raises
    ValueError for a plan of no measured module.

    States, gathered parameters and activations of the layers are ``Plan.memory``'s. What is kept
    outside of the layers (``Counted.outer_kept_bytes``) is taken to lie behind them, on the last
    stage. ``output_bytes``: of the module's output for the whole batch; the backward begins with
    OUTPUTS tensors as large, as the planner has it of logits under torch's own operators (12 bytes
    a logit in fp32).
    """
    if not isinstance(plan.shape, Counted):
        raise ValueError(
            "a bill is of a measured module, planner.measured(...); "
            f"got {plan.shape.name or 'the numbers of one'!r}, {plan.shape.layers} layers"
        )
    layout = plan.layout
    stage = plan.memory().stages[rank if layout.pp > 1 else 0]
    is_last = layout.pp == 1 or rank == layout.pp - 1
    kept = {part: stage[part] for part in ("parameters", "optimizer")}
    held = {**kept, "gradients": stage["gradients"]}
    activations = stage["activations"]
    output = 0.0
    if is_last:
        flight = layout.num_microbatches if layout.pp > 1 else 1
        activations += flight * layout.tokens * plan.shape.outer_kept_bytes
        output = OUTPUTS * output_bytes / flight
    moment = stage["temporary"]
    working = {"gathered": stage["gathered"], "activations": activations, "temporary": moment}
    start = held if layout.pp == 1 and layout.zero == 0 else kept  # DDP keeps its buckets
    backward = {**held, **working, "temporary": output + moment}
    moments = (start, {**start, **working}, backward, held)
    rounded = []
    for label, parts in zip(MOMENTS, moments, strict=True):
        whole = {part: round(num_bytes) for part, num_bytes in parts.items()}
        rounded.append((label, whole))
    return footprint.from_moments(rounded, "predicted")
