"""What to do with one, two, four or eight cards: planned for a stated model, and the same division
of a small one on real ranks.

    lab.table(case_studies.small.rows("LLaMA 7B"))
    case_studies.small.toy(4).run()
"""

from labkit.case_studies.llama import FREE, row
from labkit.planner.plan.cluster import gpu
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.search import search
from labkit.sharding.step import Step
from labkit.units import check_real, check_whole

COUNTS = (1, 2, 4, 8)


def rows(
    model: str = "LLaMA 7B", card: str = "RTX 4090 24 GB", seq: int = 1024, free: float = FREE
) -> list[dict[str, object]]:
    """For each number of cards, with Adam on them and on the host: how many layouts fit and
    leave a share ``free`` of the card, the fastest of them (where there is none, the lightest),
    what it holds and lacks, and tokens a second, with what Adam on the host takes
    (``llama.host_us``; None where none fits). A step's batch is 64 sequences; each layout is by the
    constants and bytes of the program that usually runs it.

    Raises ValueError for a model or card that the tables lack, or a share that can't be.
    """
    gpu(card)
    check_whole(1, 10**6, seq=seq)
    check_real(0.0, 0.9, free=free)
    found = []
    for count in COUNTS:
        for offload in ("none", "optimizer"):
            asked = Plan(
                model=model,
                gpu=card,
                gpus=count,
                batch=64,
                seq=seq,
                offload=offload,
            )
            told = row(search(asked), free)
            step_us = told.pop("step_us")
            told["token_rate"] = round(1e6 * asked.tokens / step_us) if step_us else None
            found.append({"cards": count} | told)
    return found


def toy(cards: int = 4) -> Step:
    """What a small cluster does first, as a step that runs here: one card keeps everything, more
    shard it by ZeRO 3. Eight ranks are past what two cores can time: their bytes count, not their
    seconds. Raises ValueError for another number than 1, 2, 4 or 8."""
    if cards not in COUNTS:
        raise ValueError(f"a small cluster has 1, 2, 4 or 8 cards here; got {cards!r}")
    return Step(engine="ddp" if cards == 1 else "fsdp", ranks=cards)
