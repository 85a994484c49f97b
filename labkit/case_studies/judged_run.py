"""Ways to make the perception training faster, each beside the plain way: where its parts lie, how
its gradients travel, layer by layer, and how many scenes each rank gets.

    lab.table(case_studies.placed())
    lab.bars({name: step.step_us() for name, step in case_studies.placements().items()}, unit="us")
    lab.table(case_studies.foreseen())
    lab.table(case_studies.policies())
    lab.table(case_studies.adapted())

The second and third are predicted, the others are run. Computing and links are paced: seconds are
those of the stated pace, steps and losses are real.
"""

from collections.abc import Sequence
from statistics import mean, median

from labkit.case_studies.perception import EVERY, POLICIES, Perception
from labkit.heterogeneous.split import by_speed
from labkit.units import check_real, check_whole
from labkit.words import say

QUICK = Perception(
    batch=16,
    encoders_ms=16.0,
    fusion_ms=8.0,
    heads_ms=4.0,
    latency_us=3000.0,
    mb_per_s=10.0,
)
"""a pace at which forty-eight steps take some three seconds"""
SMOOTH = 8
"""steps whose mean loss counts"""


def placements() -> dict[str, Perception]:
    """What each way to place the net is called, in the language in use -> the step on four
    ranks."""
    names = {
        "apart": say("placement|apart"),
        "together": say("placement|together"),
        "copied": say("placement|copied"),
    }
    return {name: Perception(placement=placement) for placement, name in names.items()}


def placed(slowed: float = 1.0) -> list[dict[str, object]]:
    """A row for each placement on four real ranks, computing and links so many times as
    slow: the step predicted, and the fastest of those measured, which was disturbed least. Raises
    ValueError for a factor that can't be."""
    rows: list[dict[str, object]] = []
    for name, placement in placements().items():
        step = placement.slowed(slowed)
        fastest_us = min(step.run()[0]["step_us"])
        row = {"placement": name, "predicted_us": step.step_us()}
        rows.append(row | {"measured_us": fastest_us})
    return rows


def policy_parts(mb_per_s: float = QUICK.mb_per_s) -> dict[str, dict[str, float]]:
    """What the gradients of a step take by ``foreseen``, split for stacked ``lab.bars``: policy ->
    {part: microseconds} of starting their messages, and of carrying their bytes. The rest of a step
    is the same in all. Last the plain way, but in one message for all kinds. Raises ValueError for
    a link that can't be."""
    rows = foreseen(mb_per_s)
    rows.append(rows[0] | {"policy": say("plain, one message"), "messages": 1})
    found = {}
    for row in rows:
        starting_us = row["messages"] * QUICK.latency_us
        carrying_us = row["gradients_bytes"] / mb_per_s
        found[row["policy"]] = {say("messages"): starting_us, say("bytes"): carrying_us}
    return found


def foreseen(mb_per_s: float = QUICK.mb_per_s) -> list[dict[str, object]]:
    """A row for each policy of ``POLICIES``, predicted: the messages and bytes of gradients that a
    rank hands in, and the step, on a link of so many 1e6 bytes a second. Means of four steps, since
    what travels late does so in every fourth.

    Raises ValueError for a link that can't be.
    """
    rows: list[dict[str, object]] = []
    for name, ways in POLICIES.items():
        steps = [QUICK.but(ways=ways, mb_per_s=mb_per_s, steps=1 + each) for each in range(EVERY)]
        sent = [step.gradient_messages(step.steps - 1) for step in steps]
        rows.append({"policy": name, "messages": mean(map(len, sent))})
        rows[-1]["gradients_bytes"] = steps[-1].gradient_bytes() / EVERY
        rows[-1]["predicted_us"] = mean(step.step_us() for step in steps)
    return rows


def policies(steps: int = 48, target: float = 0.8) -> list[dict[str, object]]:
    """A row for each policy of ``POLICIES``: what a rank hands in for gradients in a step, the loss
    at the end and how far it is from the plain way's, the step, and the steps and seconds until the
    mean loss of eight steps is below ``target`` (None: it never is).

    Raises ValueError for fewer than eight steps.
    """
    check_whole(SMOOTH, 10_000, steps=steps)
    check_real(0.0, 1e6, target=target)
    rows: list[dict[str, object]] = []
    for name, ways in POLICIES.items():
        told = QUICK.but(ways=ways, steps=steps).run()[0]
        usual_us = median(told["step_us"])
        reached = _reached(told["losses"], target)
        ended = mean(told["losses"][-SMOOTH:])
        rows.append({"policy": name, "gradients_bytes": told["handed_in_bytes"] / steps})
        rows[-1] |= {"last loss": ended, "gap": ended - float(rows[0].get("last loss", ended))}
        rows[-1] |= {"step_us": usual_us, "steps": reached}
        rows[-1] |= {"target_s": reached and 1e-6 * usual_us * reached}
    return rows


def _reached(losses: Sequence[float], target: float) -> int | None:
    """Steps until the mean of the last eight losses was below the target."""
    for end in range(SMOOTH, len(losses) + 1):
        if mean(losses[end - SMOOTH : end]) < target:
            return end
    return None


def adapted(factor: float = 3.0, steps: int = 6) -> list[dict[str, object]]:
    """Rank 3 computes ``factor`` times as slowly: a row for a batch dealt evenly, and one for a
    batch dealt by the speed that each rank measured of itself. How many scenes each has, the step
    predicted and measured, and the loss at the end, which is the same.

    Raises ValueError for a factor below 1.
    """
    check_real(1.0, 100.0, factor=factor)
    check_whole(1, 10_000, steps=steps)
    even = Perception(slow=((Perception.ranks - 1, factor),), steps=steps)
    run = even.run()
    speeds = [told["samples_per_s"] for told in run]
    dealt = even.but(shares=tuple(max(1, each) for each in by_speed(speeds, even.batch)))
    return [_dealt("evenly", even, run), _dealt("by speed", dealt, dealt.run())]


def _dealt(name: str, step: Perception, run: Sequence[dict]) -> dict[str, object]:
    """A row of one run."""
    scenes = [len(each) for each in step.scenes("encoders").values()]
    return {
        "dealt": name,
        "scenes": " ".join(map(str, scenes)),
        "predicted_us": step.step_us(),
        "measured_us": median(run[0]["step_us"]),
        "last loss": run[0]["losses"][-1],
    }
