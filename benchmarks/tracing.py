"""What does recording cost? Step time of a real pipeline with ``trace.record`` over the same step
without it.

    python benchmarks/tracing.py [--json] [--rounds 20]

One run on real ranks takes both kinds of step in turn, so that a busy minute hits both. Unpaced:
the model computes all the time. A ratio is the median of the rounds' ratios, on the slowest rank.
"""

import argparse
import json
import statistics

import labkit as lab

SIZES = ((2, 128, 128), (2, 256, 128))  # ranks, width of the model, sequence length


def steps(num_rounds: int, num_ranks: int, dim: int, seq_len: int) -> list[tuple[float, float]]:
    """A rank: 1F1B steps without and with recording, in turn. Seconds of each pair."""
    import time

    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from labkit import model
    from labkit.measure import trace

    torch.manual_seed(0)
    rank = dist.get_rank()
    whole = model.Transformer(2 * num_ranks, dim, 4, max_len=seq_len)
    part = model.split(whole, num_ranks)[rank]
    stage = PipelineStage(part, rank, num_ranks, torch.device("cpu"))
    runtime = Schedule1F1B(stage, 8, loss_fn=model.loss)
    tokens, targets = model.story_tokens(16, seq_len)

    def step() -> float:
        dist.barrier()
        began = time.perf_counter()
        inputs = (tokens,) if rank == 0 else ()
        runtime.step(*inputs, target=targets if rank == num_ranks - 1 else None)
        dist.barrier()
        return time.perf_counter() - began

    def recorded() -> float:
        with trace.record(stage):
            return step()

    for _ in range(2):
        step()
        recorded()
    return [(step(), recorded()) for _ in range(num_rounds)]


def row(num_rounds: int, num_ranks: int, dim: int, seq_len: int) -> dict:
    """One size of model."""
    run = lab.launch(steps, num_rounds, num_ranks, dim, seq_len, ranks=num_ranks)
    without = []
    recorded = []
    for pairs in zip(*run, strict=True):  # of a round: a (without, with) of every rank
        without.append(max(pair[0] for pair in pairs))
        recorded.append(max(pair[1] for pair in pairs))
    ratios = [slow / fast for fast, slow in zip(without, recorded, strict=True)]
    return {
        "ranks": num_ranks,
        "dim": dim,
        "seq_len": seq_len,
        "rounds": num_rounds,
        "step_s": round(statistics.median(without), 4),
        "recorded_s": round(statistics.median(recorded), 4),
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    rows = [row(options.rounds, *size) for size in SIZES]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for each in rows:
        print("  ".join(f"{key} {value}" for key, value in each.items()))


if __name__ == "__main__":
    main()
