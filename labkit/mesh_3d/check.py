"""The exercises of chapter 10, several axes at once: groups by hand, and, on no page
(``spare_hints.json``), a hybrid plan. The mesh, the planner and real ranks are the judges."""

from collections.abc import Callable, Iterator
from functools import cache

from labkit.check import exercise, hint, limit, over_budget, status, wrong
from labkit.mesh import Mesh
from labkit.mesh_3d.step import Step
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import Candidate, search
from labkit.planner.plan.shape import Shape
from labkit.words import say

__all__ = ["groups", "hint", "hybrid_plan", "status", "toy"]

Layout = dict[str, object]
"""What an answer chooses: tp, pp, zero, mbs, recompute."""
MOST_FULL = 0.9
"""of a GPU's memory"""
MOST_SLOWER = 0.1
"""than the fastest that the planner finds"""
MOST_ASKED = 16
MOST_APART = 1e-4
"""Losses of a toy and of one process."""
_VISION = Shape(
    name="vision 10B", layers=48, hidden=4096, heads=32, vocab=1000, tied=False, positions=1024
)
_GPU = {"model": _VISION, "gpu": "A100 40 GB", "gpus": 8}
_CASES = (
    Plan(**_GPU, batch=256, seq=576),
    Plan(**_GPU, batch=64, seq=1024),
    Plan(**_GPU, batch=256, seq=576, per_node=4, nic_gb_per_s=1.5),
)
_MESHES = (
    {"pp": 2, "dp_shard": 2, "tp": 2},
    {"dp_shard": 4, "tp": 2},
    {"pp": 3, "dp_replicate": 2, "dp_shard": 2, "tp": 4},
    {"pp": 4},
)


@exercise
def groups(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(sizes, axis)`` lists the groups of ranks along an axis, each as a list of ranks.

    ``sizes``: axis -> how many ranks, {"pp": 2, "dp_shard": 2, "tp": 2}, the axis whose neighbours
    lie farthest apart first, as a mesh lays them. A group are the ranks that differ in their place
    on this axis only. Lists are compared in any order of groups.
    """
    for sizes in _MESHES:
        mesh = Mesh(**sizes)
        for axis in sizes:
            given = sorted([*map(int, each)] for each in answer(dict(sizes), axis))
            right = sorted([*each] for each in mesh.groups(axis))
            if given != right:
                yield wrong(
                    "{mesh}, along {axis}: got {given}; right is {right}",
                    mesh=" x ".join(f"{name} {size}" for name, size in sizes.items()),
                    axis=axis,
                    given=given,
                    right=right,
                )


@exercise
def hybrid_plan(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(ask)`` is a layout of two axes or more for a vision model of 10 B parameters on
    8 GPUs of 40 GB, as a dict: ``{"tp": 2, "pp": 2, "zero": 1, "mbs": 4}``; the other ranks are
    data parallel.

    ``ask(tp=2, pp=2, zero=1, mbs=4)`` tells ``step_s``, ``memory_gb``, ``gpu_gb`` and
    ``dp`` of a layout, or raises ValueError for one that can't be; ``recompute="full"`` may stand
    there as well. ZeRO is 0, 1 or 3. A tenth of a GPU stays free: the planner is not exact either.
    Budget: 16 questions a case, and a step at most a tenth slower than the planner's fastest of
    these. Batches, lengths and nodes differ by case; the first layout is then trained at toy size
    on 8 real ranks, and held against one process.
    """
    for plan in _CASES:
        case = _case(plan)
        oracle = _Oracle(plan)
        chosen = dict(answer(oracle.ask))
        yield from _judged(case, plan, chosen)
        if oracle.count > MOST_ASKED:
            yield over_budget(
                "{case}: {count} questions; {most} are enough",
                case=case,
                count=oracle.count,
                most=MOST_ASKED,
            )
        if plan is _CASES[0]:
            yield from _trained(case, toy(chosen))


def toy(layout: Layout) -> Step:
    """The same division of the small model on 8 ranks, which runs here: a microbatch for each stage
    and more, and nothing computed again. Raises ValueError for what does not divide."""
    tp = layout.get("tp", 1)
    pp = layout.get("pp", 1)
    zero = layout.get("zero", 0)
    dp = 8 // (tp * pp)
    shared = {"dp_shard": dp, "zero": zero} if zero else {"dp_replicate": dp}
    return Step(
        pp=pp, tp=tp, **shared, microbatches=max(2, pp), layers=8, heads=8, batch=dp * max(2, pp)
    )


class _Oracle:
    """Answers for one case, and counts how often it was asked."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.count = 0

    def ask(self, **layout: object) -> dict[str, float]:
        """The numbers of a layout."""
        self.count += 1
        plan = _planned(self.plan, layout)
        return {
            "step_s": plan.time().step_us / 1e6,
            "memory_gb": plan.memory().peak_bytes / 1e9,
            "gpu_gb": plan.cluster.device_bytes / 1e9,
            "dp": plan.layout.dp,
        }


def _planned(plan: Plan, layout: Layout) -> Plan:
    """The plan with a layout; tensor parallelism cuts the sequence as well, as the planner's search
    does. Raises ValueError for what an answer does not choose."""
    known = ("tp", "pp", "zero", "mbs", "recompute")
    if set(layout) - {*known} or layout.get("zero", 0) == 2:
        raise ValueError(f"a layout has {', '.join(known)}, and zero is 0, 1 or 3; got {layout}")
    return plan.but(sp=layout.get("tp", 1) > 1, **layout)


def _case(plan: Plan) -> str:
    """A case in words."""
    return say(
        "{gpus} x {gpu} in nodes of {size}, {batch} images of {tokens} tokens",
        gpus=plan.gpus,
        gpu=plan.gpu,
        size=plan.cluster.node_size,
        batch=plan.batch,
        tokens=plan.seq,
    )


@cache
def _fastest(plan: Plan) -> Candidate:
    """Of the layouts that an answer may choose."""
    return next(each for each in search(plan).fitting if _is_good(each))


def _is_good(found: Candidate) -> bool:
    """Whether it may be chosen, has two axes, and leaves room."""
    layout = found.layout
    is_one = layout.vpp == layout.cp == 1
    return is_one and _num_axes(layout) > 1 and found.peak_bytes <= MOST_FULL * found.device_bytes


def _num_axes(layout: object) -> int:
    return sum(getattr(layout, name) > 1 for name in ("tp", "pp", "dp"))


def _judged(case: str, plan: Plan, chosen: Layout) -> Iterator[tuple[str, str]]:
    """What the planner says against a layout."""
    mine = _planned(plan, chosen)
    held = mine.memory().peak_bytes
    if _num_axes(mine.layout) < 2:
        yield wrong(
            "{case}: {layout} has one axis; a hybrid has two of tp, pp and dp or more",
            case=case,
            layout=chosen,
        )
    if held > MOST_FULL * plan.cluster.device_bytes:
        yield wrong(
            "{case}: {layout} holds {held:.1f} GB; of a GPU's {device:.1f} GB {most:.0%} may be "
            "taken",
            case=case,
            layout=chosen,
            held=held / 1e9,
            device=plan.cluster.device_bytes / 1e9,
            most=MOST_FULL,
        )
    best = _fastest(plan)
    slower = mine.time().step_us / best.step_us - 1
    if slower > MOST_SLOWER:
        yield over_budget(
            "{case}: {layout} takes {mine:.2f} s a step, {slower:.0%} more than the planner's "
            "fastest with room ({best:.2f} s)",
            case=case,
            layout=chosen,
            mine=mine.time().step_us / 1e6,
            slower=slower,
            best=best.step_us / 1e6,
        )


def _trained(case: str, step: Step) -> Iterator[tuple[str, str]]:
    """What real ranks say against a layout, at toy size."""
    with limit(120.0):  # the run has its own
        found = step.run()
    apart = max(each["loss_difference"] for each in found)
    if not apart <= MOST_APART:
        yield wrong(
            "{case}: at toy size, {title}, the losses are {apart:.1e} from those of one process",
            case=case,
            title=step.title(),
            apart=apart,
        )
