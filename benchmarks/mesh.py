"""Do ranks on several axes train as one process does, and as fast as their simulation says?

    python benchmarks/mesh.py [--json]

A transformer of 4 blocks, width 32, four steps of AdamW. ``loss``: the largest difference of a loss
from one process, on any rank; ``gradient``: the same of an element of the first step's gradient.
``calls_off`` and ``bytes_off``: collectives and sends, and their bytes, that an axis of a rank has
more or less than predicted; ``held_off``: bytes of parameters, gradients and optimizer states that
ranks hold more or less. DeepSpeed's messages are its own and are not predicted. Eight ranks share
the cores here and are not timed. Four are, a forward stated to take 500 ms, with ``inside`` the
axis whose neighbours share a node of two ranks (10 ms and 20 MB/s a message; across nodes 0.5
MB/s): ``step_ms`` is simulated and measured.
"""

import argparse
from collections.abc import Iterator

from report import tell

from labkit.mesh_3d import Step

SMALL = {"sequence": 16, "microbatches": 2}
WHOLE = (
    Step(pp=2, dp_replicate=2, tp=2, **SMALL),
    Step(pp=2, dp_shard=2, tp=2, **SMALL),
    Step(pp=2, dp_shard=2, tp=2, zero=1, **SMALL),
    Step(pp=2, dp_shard=2, tp=2, schedule="gpipe", **SMALL),
    Step(pp=1, dp_replicate=2, dp_shard=2, tp=2, **SMALL),
    Step(pp=4, tp=2, sequence=16),
    Step(pp=2, dp_replicate=2, tp=2, engine="deepspeed", **SMALL),
    Step(pp=2, dp_shard=2, tp=2, zero=1, engine="deepspeed", **SMALL),
)
PACED = Step(
    pp=2,
    tp=2,
    forward_ms=500.0,
    latency_ms=10.0,
    node_mb_per_s=20.0,
    nic_mb_per_s=0.5,
    node_size=2,
    **SMALL,
)
TIMED = (
    PACED,
    PACED.but(inside="pp"),
    PACED.but(pp=2, dp_shard=2, tp=1),
    PACED.but(pp=1, dp_shard=2, tp=2),
    PACED.but(pp=1, dp_replicate=2, tp=2),
)


def row(step: Step) -> dict:
    """One mesh, run; at stated times also timed."""
    run = step.run()
    found = {
        "engine": step.engine,
        "pp": step.pp,
        "dp_replicate": step.dp_replicate,
        "dp_shard": step.dp_shard,
        "tp": step.tp,
        "zero": step.zero if step.dp_shard > 1 else "",
        "schedule": step.schedule if step.pp > 1 else "",
        "inside": step.inside if step.forward_ms else "",
        "loss": f"{max(each['loss_difference'] for each in run):.1e}",
        "gradient": f"{max(each['gradient_difference'] for each in run):.1e}",
    }
    if step.engine == "torch":
        found |= _off(step, list(run))
    if step.forward_ms:
        read = step.compare().readings
        found |= {
            "step_ms_simulated": round(read["predicted"] / 1e3, 1),
            "step_ms_measured": round(read["measured"] / 1e3, 1),
        }
    return found


def _off(step: Step, results: list[dict]) -> dict[str, int]:
    """How much the ranks have more or less than predicted, all together."""
    calls = 0
    num_bytes = 0
    held = 0
    states = step.states().bytes_by("category")
    for rank, result in enumerate(results):
        predicted = step.messages(rank)
        for axis in {*predicted, *result["calls"]}:
            due = predicted.get(axis, {})
            for name in {*due, *result["calls"].get(axis, {})} - {"recv"}:
                one = due.get(name, (0, 0))
                calls += abs(one[0] - result["calls"].get(axis, {}).get(name, 0))
                num_bytes += abs(one[1] - result["payload_bytes"].get(axis, {}).get(name, 0))
        held += sum(abs(states[kind][rank] - each) for kind, each in result["held_bytes"].items())
    return {"calls_off": calls, "bytes_off": num_bytes, "held_off": int(held)}


def rows() -> Iterator[dict]:
    """One per mesh; all with the same columns."""
    steps = [each for each in (*WHOLE, *TIMED) if each.refusal("en") is None]
    found = [*map(row, steps)]
    columns = dict.fromkeys(key for each in found for key in each)
    for each in found:
        yield {key: each.get(key, "") for key in columns}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    tell(rows(), parser.parse_args().json)


if __name__ == "__main__":
    main()
