"""The exercises of chapter 18, the planner: mend a bill, choose a layout. Answers are graded on
several models and clusters."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from labkit.check import exercise, hint, over_budget, status, wrong
from labkit.planner.plan.layout import written
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import Search, search
from labkit.planner.plan.shape import Shape
from labkit.sharding import states
from labkit.words import say

__all__ = [
    "hint",
    "layout_in_budget",
    "mended_bill",
    "regrets",
    "status",
]
MOST_ASKED = 6
"""How often an answer may ask for a plan's numbers."""
MOST_REGRET = 0.1
"""How much slower than the search's best a chosen layout may be."""
_TEN = Shape(name="10B", layers=48, hidden=4096, heads=32)
_A100, _H100 = "megatron-a100", "megatron-h100"
_CHOICES = (  # what a layout is chosen for, each by one program
    Plan(model=_TEN, gpus=8, batch=512, stack=_A100),
    Plan(model="LLaMA 7B", gpu="A100 40 GB", gpus=8, batch=512, stack=_A100),
    Plan(model="LLaMA 13B", gpu="H100 80 GB", gpus=32, batch=1024, stack=_H100),
    Plan(model="LLaMA-2 70B", gpus=64, batch=1024, stack=_A100),
    Plan(model="LLaMA 7B", gpus=64, batch=512, nic_gb_per_s=1.5, stack=_A100),
)
_DIVISIONS = (  # tp, pp, dp, zero
    (1, 1, 1, 0),
    (8, 12, 4, 0),
    (2, 4, 8, 1),
    (8, 8, 1, 0),
    (4, 1, 16, 2),
    (2, 1, 32, 3),
    (1, 1, 64, 3),
    (4, 4, 4, 1),
)
_BILL_PARTS = ("parameters", "gradients", "optimizer")


class Asked(NamedTuple):
    """What a plan says of one layout."""

    step_s: float
    """how long a step takes"""
    memory_gb: float
    """what the fullest GPU holds"""
    fits: bool
    """whether it has as much"""


class _Oracle:
    """Answers for one model and cluster, and counts how often it was asked."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.count = 0

    def ask(self, **layout: object) -> Asked:
        """The numbers of a layout: tp, pp, vpp, zero, sp, mbs, recompute."""
        self.count += 1
        plan = self.plan.but(**layout)
        step_s = plan.time().step_us / 1e6
        return Asked(step_s, plan.memory().peak_bytes / 1e9, plan.fits)

    def answered(self, answer: Callable) -> dict[str, object]:
        """The layout that an answer chooses for this model and cluster."""
        plan = self.plan
        return answer(plan.shape.params, plan.gpus, plan.cluster.device_bytes / 1e9, self.ask)


@cache
def _searched(plan: Plan) -> Search:
    """What a search finds for a case; looked for once."""
    return search(plan)


def _case(plan: Plan) -> str:
    """Model and cluster in words."""
    return say(
        "{model} on {gpus} x {gpu}, {nic:g} GB/s out of the node, {batch} sequences",
        model=plan.shape.name,
        gpus=plan.gpus,
        gpu=plan.gpu,
        nic=plan.cluster.nic,
        batch=plan.batch,
    )


@exercise
def layout_in_budget(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(params, gpus, card_gb, ask)`` is a layout that fits, as a dict, ``{"tp": 2, "pp": 4,
    "zero": 1}``.

    ``ask(tp=2, pp=4, zero=1)`` tells ``step_s``, ``memory_gb`` and ``fits`` of a layout. Budget:
    six questions a case, and a step at most a tenth slower than the best that ``search`` finds.
    """
    for plan in _CHOICES:
        case = _case(plan)
        oracle = _Oracle(plan)
        chosen = dict(oracle.answered(answer))
        mine = plan.but(**chosen)
        if not mine.fits:
            yield wrong(
                "{case}: {layout} holds {held:.1f} GB; a GPU has {device:.0f}",
                case=case,
                layout=chosen,
                held=mine.memory().peak_bytes / 1e9,
                device=plan.cluster.device_bytes / 1e9,
            )
            continue
        found = _searched(plan)
        regret = found.regret(mine)
        if regret > MOST_REGRET:
            yield over_budget(
                "{case}: {layout} takes {mine:.2f} s a step, {regret:.0%} more than the best "
                "({best:.2f} s)",
                case=case,
                layout=chosen,
                mine=mine.time().step_us / 1e6,
                regret=regret,
                best=found.fitting[0].step_us / 1e6,
            )
        if oracle.count > MOST_ASKED:
            yield over_budget(
                "{case}: {count} questions; {most} are enough",
                case=case,
                count=oracle.count,
                most=MOST_ASKED,
            )


def regrets(answer: Callable) -> list[dict[str, object]]:
    """A row for each case of ``layout_in_budget``: what the answer chose, how often it asked, and
    how much slower than the search's best it is; the network where there are several nodes. Empty
    cells where the answer is still a stub."""
    rows = []
    for plan in _CHOICES:
        found = _searched(plan)
        row = {"model": plan.shape.name, "gpus": plan.gpus, "gpu": plan.gpu, "batch": plan.batch}
        row["network"] = f"{plan.cluster.nic:g} GB/s" if plan.cluster.num_nodes > 1 else None
        row["best_s"] = found.fitting[0].step_us / 1e6
        oracle = _Oracle(plan)
        try:
            mine = plan.but(**oracle.answered(answer))
        except NotImplementedError:
            mine = None
        row["step_s"] = mine and mine.time().step_us / 1e6
        row["regret"] = mine and found.regret(mine)
        row["questions"] = oracle.count or None
        row["layout"] = mine and written(mine.layout)
        rows.append(row)
    return rows


@exercise
def mended_bill(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(params, tp, pp, dp, zero)`` is (parameters, gradients, optimizer): GB of each on one
    GPU, nothing padded.

    The recipe keeps 2 bytes of a parameter, 4 of its gradient, 12 for Adam.
    """
    for params in (7e9, 175e9):
        for tp, pp, dp, zero in _DIVISIONS:
            kinds = states.state_bytes(params / (tp * pp), dp, zero, "megatron")
            right = states.by_category(kinds)
            mine = [1e9 * float(each) for each in answer(params, tp, pp, dp, zero)]
            for part, have in zip(_BILL_PARTS, mine, strict=True):
                want = right[part]
                if not abs(have - want) <= 1e-3 * want:
                    yield wrong(
                        "{params:.3g} parameters, tp {tp}, pp {pp}, dp {dp}, ZeRO {zero}: "
                        "{part} {mine:.4g} GB; a GPU holds {right:.4g} GB",
                        params=params,
                        tp=tp,
                        pp=pp,
                        dp=dp,
                        zero=zero,
                        part=part,
                        mine=have / 1e9,
                        right=want / 1e9,
                    )
