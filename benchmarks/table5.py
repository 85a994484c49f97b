"""Table 5 of Qi et al. 2023 (Zero Bubble), simulated from the times that the paper profiled; a part
of ``planner``."""

import csv
from collections.abc import Sequence
from pathlib import Path

from labkit.pipeline.schedule import Schedule
from labkit.pipeline.schedules import SCHEDULES
from labkit.pipeline.simulation import Cost, own_bubble, simulate
from labkit.pipeline.zero_bubble import automatic

PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "published"
NAMES = {"1F1B": "1f1b", "1F1B-I": "interleaved_1f1b", "ZB-H1": "zb_h1", "ZB-H2": "zb_h2"}
"""columns of table 5 -> keys of SCHEDULES"""
ROOM = {"ZB-1p": 1, "ZB-2p": 2}
"""columns whose order is found from the times -> its room, in activations of p microbatches"""
WEIGHT_SHARE = 32 / (34 + 5 * 1024 / 128)
"""M_W / M_B (Qi et al. 2023, section 2.3) of heads of 128 and 1,024 tokens"""


def rows() -> list[tuple[dict[str, str], dict[str, str]]]:
    """(profiled times, published bubbles) of each row of table 5."""
    times, rates = (
        list(csv.DictReader((PUBLISHED / f"zero_bubble_{name}.csv").read_text().splitlines()))
        for name in ("times", "rates")
    )
    return list(zip(times, rates, strict=True))


def simulated(times: dict[str, str], column: str, chunks: int = 1) -> float:
    """The bubble of a column's schedule at a row's profiled times."""
    kinds = ("forward", "input", "weight")
    each_us = {kind: 1e3 * float(times[f"{kind}_ms"]) / chunks for kind in kinds}
    cost = Cost(
        forward_us=each_us["forward"],
        backward_us=each_us["input"] + each_us["weight"],
        input_us=each_us["input"],
        weight_us=each_us["weight"],
        message_us=1e3 * float(times["message_ms"]),
    )
    return own_bubble(simulate(_order(times, column, cost, chunks), cost))


def _order(times: dict[str, str], column: str, cost: Cost, chunks: int) -> Schedule:
    counts = [int(times["p"]), int(times["m"])]
    if column in ROOM:
        room = ROOM[column] * counts[0]
        return automatic(*counts, cost, most_kept=room, weight_share=WEIGHT_SHARE)
    make = SCHEDULES[NAMES[column]]
    return make(*counts, chunks) if chunks > 1 else make(*counts)


def interleaved_gaps(pairs: Sequence[tuple], chunks: int) -> dict[str, float]:
    """How far each row is off with so many chunks."""
    gaps = {}
    for times, rates in pairs:
        found = simulated(times, "1F1B-I", chunks)
        gaps[f"{times['model']} m {times['m']}"] = found - float(rates["1F1B-I"])
    return gaps
