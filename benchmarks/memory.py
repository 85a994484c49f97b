"""How well are a rank's bytes predicted? Model states to the byte, and the peak of a step, for real
engines.

    python benchmarks/memory.py [--json]

A transformer of 8 blocks, width 64, 32 tokens, two microbatches, AdamW: DDP and FSDP in fp32,
DeepSpeed in bf16 with fp32 master weights. "state" bytes lie on the fullest rank between two
microbatches: parameters, gradients, optimizer states, padding and the engine's own buffers, read
from the live engine and compared slice by slice ("slices_off" are those that differ); "unnamed" is
what torch holds at that moment beside them: the batch, the loss and norms. "peak" is the most that
torch held at any moment of the step on that rank, by a count of every storage. Offloaded states lie
in the same memory here: the host stands for the device.
"""

import argparse
from collections.abc import Iterator

from report import tell

from labkit import sharding
from labkit.shards import differences

CASES = [
    ("ddp", "none"),
    ("zero1", "none"),
    ("zero1", "optimizer"),
    ("zero2", "none"),
    ("zero2", "optimizer"),
    ("zero3", "none"),
    ("zero3", "optimizer"),
    ("zero3", "all"),
    ("fsdp", "none"),
    ("fsdp_grad_op", "none"),
    ("fsdp_hybrid", "none"),
]
STAGES = {
    "ddp": 0,
    "zero1": 1,
    "zero2": 2,
    "zero3": 3,
    "fsdp": 3,
    "fsdp_grad_op": 2,
    "fsdp_hybrid": 3,
}
"""All as ZeRO stages; hybrid is stage 3 in groups of half the ranks."""


def row(engine: str, offload: str, num_ranks: int) -> dict:
    """One engine on so many ranks."""
    step = sharding.Step(engine=engine, offload=offload, ranks=num_ranks, layers=8)
    run = step.run()
    predicted = step.predict()
    measured = step.measured(run)
    fullest = int(measured.rank_bytes.argmax())
    footprint = run[fullest]["footprint"]
    live_bytes = run[fullest]["live_bytes"]
    peak = step.footprint(fullest).peak_bytes
    return {
        "engine": "deepspeed" if engine.startswith("zero") else engine,
        "stage": STAGES[engine],
        "offload": offload,
        "ranks": num_ranks,
        "predicted_state_bytes": int(predicted.rank_bytes[fullest]),
        "measured_state_bytes": int(measured.rank_bytes[fullest]),
        "slices_off": len(differences(predicted, measured)),
        "unnamed_bytes": live_bytes - int(measured.rank_bytes[fullest]),
        "predicted_peak_bytes": peak,
        "measured_peak_bytes": footprint.peak_bytes,
        "peak_error": round(peak / footprint.peak_bytes - 1, 4) + 0.0,
        "at": footprint.peak,
    }


def rows() -> Iterator[dict]:
    """Every engine on 2 and on 4 ranks; hybrid needs 4."""
    for engine, offload in CASES:
        for num_ranks in (4,) if engine == "fsdp_hybrid" else (2, 4):
            yield row(engine, offload, num_ranks)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    tell(rows(), options.json)


if __name__ == "__main__":
    main()
