"""How near do forecasts of a step come, where the clock is patient?

    python benchmarks/forecast.py [--json] [--rounds 150]
    python benchmarks/forecast.py --record     clocks anew and writes data/runs/forecast.csv

The steps of chapter 22: torch's encoder layers in shards on two ranks, on the CPU. All run in
turns, four steps each, twice, and the fastest of each half counts; in at least 16 rounds, until the
halves of all steps are within 5 % of each other, and at most in so many. *off*: the forecast over
the measured step, less 1. Three terms (fixed time, time of a layer, time of a sequence in a layer)
were fitted to all but the last, the kept step; the factor is that of the first. *clock*: how far
the two clockings of this step lie apart.
"""

import argparse
import csv
import sys
from collections.abc import Iterator
from functools import partial

import torch
from report import tell

from labkit import planner, your_own
from labkit.your_own import recorded_steps

LEAST_ROUNDS = 16
CLOSE = 0.05
"""as a share: how near the two clockings of a step should come"""


def mine(layers: int, sequences: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """The chapter's module, and a batch for it."""
    sizes = {"dim_feedforward": 512, "dropout": 0.0, "batch_first": True}
    layer = torch.nn.TransformerEncoderLayer(128, 4, **sizes)
    net = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return net, torch.randn(sequences, 64, 128)


def clocked(num_rounds: int) -> list[recorded_steps.Clocked]:
    """Each step, planned and clocked twice, in two rounds or more."""
    here = planner.speeds(2)
    step = your_own.Step(make=mine, engine="fsdp", ranks=2, split=True, devices="cpu", timed=4)
    steps = [step.but(make=partial(mine, *size)) for size in recorded_steps.SIZES]
    planned_us = [each.plan(gpu=here).time().step_us for each in steps]
    fastest_us = your_own.in_turns([*steps, *steps])
    for number in range(2, num_rounds + 1):
        fastest_us = list(map(min, fastest_us, your_own.in_turns([*steps, *steps])))
        halves_us = fastest_us[: len(steps)], fastest_us[len(steps) :]
        rows = zip(recorded_steps.SIZES, planned_us, *halves_us, strict=True)
        found = [recorded_steps.Clocked(*size, *times_us) for size, *times_us in rows]
        error = recorded_steps.clock_error(found)
        print(f"round {number}: the clock's error is {error:.3f}", file=sys.stderr, flush=True)
        if number >= LEAST_ROUNDS and error <= CLOSE:
            break
    return found


def record(num_rounds: int) -> None:
    """Writes the file, when all of it is there."""
    rows = []
    for row in clocked(num_rounds):
        times = {k: f"{x:.0f}" if k.endswith("_us") else x for k, x in row._asdict().items()}
        rows.append(times)
    with recorded_steps.FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, recorded_steps.Clocked._fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def rows(num_rounds: int) -> Iterator[dict]:
    """A row for each step: how far the forecasts are off."""
    found = clocked(num_rounds)
    forecasts_us = recorded_steps.forecasts(found)
    for index, row in enumerate(found):
        clock_us = sorted((row.measured_us, row.again_us))
        told = {
            "layers": row.layers,
            "sequences": row.sequences,
            "measured_us": round(clock_us[0]),
            "clock": round(clock_us[1] / clock_us[0] - 1, 3),
        }
        for name, times_us in forecasts_us.items():
            told[f"{name}, off"] = round(times_us[index] / clock_us[0] - 1, 3)
        yield told


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--record", action="store_true", help="clock anew, and keep it")
    parser.add_argument("--rounds", type=int, default=150)
    asked = parser.parse_args()
    if asked.record:
        record(asked.rounds)
        return
    tell(rows(asked.rounds), asked.json)


if __name__ == "__main__":
    main()
