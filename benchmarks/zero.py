"""What do ZeRO's stages save, and what do they cost? A step of plain data parallelism beside
DeepSpeed's, in one run.

    python benchmarks/zero.py [--json] [--ranks 4] [--steps 18]

A transformer of 4 blocks, width 64, one microbatch of 2 x 32 tokens, AdamW in fp32, DeepSpeed with
small buckets and nothing kept or prefetched. All stages are trained in the same ranks, one step of
each in turn, so that whatever else the machine does falls on all of them; "ms" is the median step
of the slowest rank, "time_x" that over DDP's. "state" bytes lie on the fullest rank between the
backward and the update (parameters, gradients, optimizer states, padding; no buffers, nothing
gathered), read from the live engine. "predicted_x" is 16 bytes per parameter, 4 + 16/N for stages 1
and 2 (stage 1 has let go of whole gradients by then) and 20/N: sharded stages keep a master copy in
fp32, too. A rank hands "payload_bytes" to collectives in a step; "wire_x" is what TCP carried for
it and "needed_x" what the method needs to send (ZeRO, section 7), in multiples of DDP. "reduce" is
stage 2 with use_multi_rank_bucket_allreduce off.
"""

import argparse
import statistics
import time

from report import tell

import labkit as lab
from labkit import sharding
from labkit.sharding import states
from labkit.sharding.run import Trainer

CASES = {
    "ddp": (0, {}),
    "zero0": (0, {}),
    "zero1": (1, {}),
    "zero2": (2, {}),
    "zero2 reduce": (2, {"use_multi_rank_bucket_allreduce": False}),
    "zero3": (3, {}),
}


def trainer(name: str, stage: int, more: dict) -> Trainer:
    """In a rank: the model in one engine, in fp32, with torch's AdamW."""
    import deepspeed
    import torch
    import torch.distributed as dist

    from labkit import model

    torch.manual_seed(0)
    net = model.Transformer(4, 64, 4, max_len=32)
    step = sharding.Step(
        engine="ddp" if name == "ddp" else f"zero{stage}",
        microbatches=1,
        ranks=dist.get_world_size(),
        batch=2,
    )
    if name == "ddp":
        return sharding.wrap(step, net)
    config = sharding.deepspeed_config(step)
    config["bf16"] = {"enabled": False}
    config["gradient_clipping"] = 0.0
    config["zero_optimization"] |= more
    config["optimizer"]["params"]["weight_decay"] = 0.01  # torch's default; DeepSpeed's is 0
    engine = deepspeed.initialize(model=net, config=config)[0]
    return Trainer(engine=engine, optimizer=None)


def measure(cases: dict, num_steps: int) -> dict[str, dict]:
    """In a rank: every case in turn, step by step."""
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import traffic

    trainers = {name: trainer(name, *case) for name, case in cases.items()}
    found: dict[str, dict] = {name: {"ms": []} for name in cases}
    batch = model.story_tokens(2, 32, seed=dist.get_rank())
    names = list(cases)
    for step in range(num_steps + 2):  # the first two prepare
        first = step % len(names)  # nobody always follows the same one
        for name in names[first:] + names[:first]:
            dist.barrier()
            began = time.perf_counter()
            with traffic.count() as counted:
                loss = trainers[name].train(1, *batch)
            if step > 1:
                found[name]["ms"].append(1e3 * (time.perf_counter() - began))
            found[name] |= {
                "payload_bytes": counted.payload_bytes.total(),
                "sent_bytes": counted.sent_bytes or 0,
                "calls": counted.calls.total(),
                "loss": loss,
            }
    for name, each in trainers.items():
        found[name]["state_bytes"] = state_bytes(each, batch)
    return found


def state_bytes(trainer: Trainer, batch: tuple) -> int:
    """In a rank: what lies there between the backward and the update of one more step."""
    from labkit.sharding import engines

    seen = []
    trainer.train(
        1, *batch, between=lambda _: seen.append(engines.shards(trainer.engine, trainer.optimizer))
    )
    kept = (seen[0].kind != "buffer") & (seen[0].kind != "gathered")
    return int(seen[0].num_bytes[kept].sum())


def rows(num_ranks: int, num_steps: int) -> list[dict]:
    """A row for each case, ratios against DDP."""
    run = lab.launch(measure, CASES, num_steps, ranks=num_ranks, backend="gloo", timeout_s=300)
    total = {}
    for name in CASES:
        total[name] = totals([rank[name] for rank in run])
    ddp = total["ddp"]
    due = (16, 4 + 16 / num_ranks, 4 + 16 / num_ranks, 20 / num_ranks)
    ddp_volume = sum(states.step_volume(1, num_ranks, 0).values())
    told = []
    for name, (stage, _) in CASES.items():
        mine = total[name]
        rank = run[0][name]
        volume = sum(states.step_volume(1, num_ranks, stage).values())
        told.append(
            {
                "engine": name,
                "ranks": num_ranks,
                "ms": round(mine["ms"], 1),
                "time_x": round(mine["ms"] / ddp["ms"], 2),
                "state_bytes": mine["state"],
                "state_x": round(mine["state"] / ddp["state"], 3),
                "predicted_x": round(due[stage] / 16, 3),
                "calls": rank["calls"],
                "payload_bytes": rank["payload_bytes"],
                "wire_x": round(mine["wire"] / ddp["wire"], 3) if ddp["wire"] else None,
                "needed_x": round(volume / ddp_volume, 3),
                "loss": round(rank["loss"], 5),
                "steps": num_steps,
            }
        )
    return told


def totals(ranks: list[dict]) -> dict[str, float]:
    """Of one case, over the ranks: the median step of the slowest, the fullest, all that was
    sent."""
    slowest_ms = map(max, zip(*(rank["ms"] for rank in ranks), strict=True))
    return {
        "ms": statistics.median(slowest_ms),
        "state": max(rank["state_bytes"] for rank in ranks),
        "wire": sum(rank["sent_bytes"] for rank in ranks),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=18)
    options = parser.parse_args()
    tell(rows(options.ranks, options.steps), options.json)


if __name__ == "__main__":
    main()
