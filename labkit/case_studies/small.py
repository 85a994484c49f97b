"""What to do with one, two, four or eight cards: planned for a stated model, and the same division
of a small one on real ranks.

    lab.table(case_studies.small.rows("LLaMA 7B"))
    lab.show(case_studies.drawn(case_studies.small.cases()))  # what its fullest card holds
    lab.bars(case_studies.small.seconds(), stacked=True, unit="us")  # what its step waits for
    case_studies.small.toy(4).run()
"""

import functools

from labkit.case_studies.llama import FREE, Case, between_us, host_parts_us, roomy, row
from labkit.planner.plan.cluster import gpu
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import Search, as_plan, search
from labkit.sharding.step import Step
from labkit.units import check_real, check_whole
from labkit.words import both, say, spoken_in

COUNTS = (1, 2, 4, 8)


def rows(
    model: str = "LLaMA 7B", card: str = "RTX 4090 24 GB", seq: int = 1024, free: float = FREE
) -> list[dict[str, object]]:
    """For each number of cards, with Adam on them and on the host: how many layouts fit and
    leave a share ``free`` of the card, the fastest of them (where there is none, the lightest),
    what it holds and lacks, what the lightest of them holds, and tokens a second, with what Adam on
    the host takes (``llama.host_us``; None where none fits). A step's batch is 64 sequences; each
    layout is by the constants and bytes of the program that usually runs it.

    Raises ValueError for a model or card that the tables lack, or a share that can't be.
    """
    check_real(0.0, 0.9, free=free)
    found = []
    for (count, _), searched in _searched(str(model), str(card), seq).items():
        told = row(searched, free)
        step_us = told.pop("step_us")
        told["token_rate"] = round(1e6 * searched.plan.tokens / step_us) if step_us else None
        found.append({"cards": count} | told)
    return found


def cases(
    model: str = "LLaMA 7B", card: str = "RTX 4090 24 GB", seq: int = 1024, free: float = FREE
) -> list[Case]:
    """For each number of cards one plan of those in ``rows``, to be drawn: the fastest that leaves
    the share free with Adam on the cards; if there is none, with Adam on the host; if there is
    none either, the lightest. Last the fastest that fits on the most cards without tensor
    parallelism, where the fastest of all has some. Each is called by its cards and how it is cut.

    Raises ValueError for a model or card that the tables lack, or a share that can't be.
    """
    check_real(0.0, 0.9, free=free)
    searched = _searched(str(model), str(card), seq)
    plans = []
    for count in COUNTS:
        here = searched[count, "none"]
        if not roomy(here, free):
            here = searched[count, "optimizer"]
        fit = roomy(here, free)
        plans.append(as_plan(here.plan, (fit[0] if fit else here.lightest()).layout))
    most = plans[-1]
    if most.tp > 1:
        here = searched[most.gpus, most.offload]
        whole = [each for each in roomy(here, free) if each.layout.tp == 1]
        plans += [as_plan(here.plan, each.layout) for each in whole[:1]]
    return [Case(name=_called(plan), plan=plan) for plan in plans]


def _called(plan: Plan) -> dict[str, str]:
    """A plan's cards and how it is cut, in each language, as short as bars can have it: where Adam
    is, they show."""
    copies = plan.layout.dp if plan.zero < 3 else 1
    cuts = (("tp", plan.tp), ("pp", plan.pp), ("dp", copies))
    parts = [f"{axis} {ways}" for axis, ways in cuts if ways > 1]
    parts += [f"ZeRO {plan.zero}"] if plan.zero else []
    parts += ["recompute"] if plan.recompute == "full" else []
    layout = ", ".join(parts) or "dp 1"
    if plan.gpus == 1:
        return both("1 card: {layout}", layout=layout)
    return both("{cards} cards: {layout}", cards=plan.gpus, layout=layout)


def seconds(
    model: str = "LLaMA 7B", card: str = "RTX 4090 24 GB", seq: int = 1024, free: float = FREE
) -> dict[str, dict[str, float]]:
    """What a step of each of ``cases`` waits for, by its name, for stacked ``lab.bars``:
    {part: microseconds} of computing, messages between cards, what crosses PCIe to the host and
    back, and the host's memory. Raises ValueError as ``cases`` does."""
    found = {}
    for case in cases(model, card, seq, free):
        plan = case.plan
        waits_us = between_us(plan)
        pcie_us, memory_us = host_parts_us(plan, plan.layout)
        found[case.name[spoken_in(None)]] = {
            say("computing"): plan.time().step_us - waits_us,
            say("between cards"): waits_us,
            say("PCIe, to the host and back"): pcie_us,
            say("the host's memory"): memory_us,
        }
    return found


@functools.lru_cache(maxsize=8)
def _searched(model: str, card: str, seq: int) -> dict[tuple[int, str], Search]:
    """(number of cards, where Adam is) -> all layouts of it."""
    gpu(card)
    check_whole(1, 10**6, seq=seq)
    found = {}
    for count in COUNTS:
        for offload in ("none", "optimizer"):
            asked = Plan(model=model, gpu=card, gpus=count, batch=64, seq=seq, offload=offload)
            found[count, offload] = search(asked)
    return found


def toy(cards: int = 4) -> Step:
    """What a small cluster does first, as a step that runs here: one card keeps everything, more
    shard it by ZeRO 3. Eight ranks are past what two cores can time: their bytes count, not their
    seconds. Raises ValueError for another number than 1, 2, 4 or 8."""
    if cards not in COUNTS:
        raise ValueError(f"a small cluster has 1, 2, 4 or 8 cards here; got {cards!r}")
    return Step(engine="ddp" if cards == 1 else "fsdp", ranks=cards)
