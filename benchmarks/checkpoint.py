"""What does a checkpoint cost, by kind; and how soon does training go on after a rank is killed?

    python benchmarks/checkpoint.py [--json] [--ranks 2] [--saves 5]

A transformer of 4 blocks, width 128, AdamW, FSDP2; a training step before each save. "stop_ms" is
how long training stands still, "done_ms" until the checkpoint is complete on the disk (median over
the saves, the slower rank); "stop_x" is that over the sharded kind's. "written_bytes" are those of
the last save, without what is linked; "frozen" trains the last layer alone. All kinds take turns,
so that whatever else the machine does falls on all of them. The recovery rows are the seconds from
the kill of a rank to its first step after it: lab.launch in a loop, and torchrun with
--max-restarts; "stop_x" of these is over lab.launch.
"""

import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from report import tell

import labkit as lab
from labkit.recovery import checkpoint

CASES = {
    "plain": ("plain", False),
    "sharded": ("sharded", False),
    "asynchronous": ("sharded", False),
    "incremental": ("incremental", False),
    "incremental, frozen": ("incremental", True),
}
SCRIPT = """
import os, signal, sys, time, torch, torch.distributed as dist
from labkit.launching import rank
dist.init_process_group("gloo")
rank.current().give(time.time())
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and dist.get_rank() == 1:
    print("killed at", time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
os._exit(0)
"""


def measure(folder: Path, num_saves: int) -> dict[str, list]:
    """In a rank: every case in turn, save by save: (stop_ms, done_ms, written_bytes)."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    from labkit import model

    trained = {}
    found: dict[str, list] = {name: [] for name in CASES}
    tokens, targets = model.story_tokens(4, 32, seed=dist.get_rank())
    for frozen in (False, True):
        torch.manual_seed(0)
        net = model.Transformer(4, 128, 4, max_len=32)
        net.layers[:-1].requires_grad_(not frozen)
        for layer in [*net.layers, net]:
            fully_shard(layer, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
        weights = [each for each in net.parameters() if each.requires_grad]
        trained[frozen] = net, torch.optim.AdamW(weights, lr=1e-3)
    for step in range(num_saves + 1):  # the first prepares
        for name, (kind, frozen) in CASES.items():
            net, optimizer = trained[frozen]
            optimizer.zero_grad()
            model.loss(net(tokens), targets).backward()
            optimizer.step()
            dist.barrier()
            began = time.perf_counter()
            if name == "asynchronous":
                saving = checkpoint.save_async(folder / name, step, net, optimizer)
                stop_ms = 1e3 * (time.perf_counter() - began)
                path = saving.result()
            else:
                path = checkpoint.save(folder / name, step, net, optimizer, kind=kind)
                stop_ms = 1e3 * (time.perf_counter() - began)
            done_ms = 1e3 * (time.perf_counter() - began)
            found[name].append((stop_ms, done_ms, checkpoint.about(path)["written_bytes"]))
    return {name: seen[1:] for name, seen in found.items()}


def killed() -> float:
    """In a rank: rank 1 dies; the others notice in a collective."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        print(time.time(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))
    return time.time()


def recoveries(folder: Path) -> dict[str, float]:
    """Seconds from the kill of a rank to the next start's first line."""
    lab.launch(time.time, ranks=2, backend="gloo")
    try:
        lab.launch(killed, ranks=2, backend="gloo", timeout_s=60)
    except lab.RankFailed as error:
        killed_s = float(error.logs[1].split()[-1])
        by_launch = max(lab.launch(time.time, ranks=2, backend="gloo")) - killed_s
    (folder / "train.py").write_text(SCRIPT)
    run = lab.launch_script(folder / "train.py", ranks=2, max_restarts=1, timeout_s=60, show=False)
    killed_s = float(run.logs[1].split("killed at")[1].split()[0])
    return {"lab.launch": by_launch, "torchrun": max(run) - killed_s}


def rows(num_ranks: int, num_saves: int) -> list[dict]:
    """A row for each kind, and for each way to recover."""
    with tempfile.TemporaryDirectory() as name:
        run = lab.launch(
            measure, Path(name), num_saves, ranks=num_ranks, backend="gloo", timeout_s=300
        )
        after_s = recoveries(Path(name))
    told = []
    stop_ms = {}
    for case in CASES:
        stop_ms[case] = slowest_ms([rank[case] for rank in run], 0)
        done_ms = slowest_ms([rank[case] for rank in run], 1)
        told.append(
            {
                "what": f"save, {case}",
                "ranks": num_ranks,
                "stop_ms": round(stop_ms[case], 1),
                "done_ms": round(done_ms, 1),
                "stop_x": None,
                "written_bytes": run[0][case][-1][2],
            }
        )
    for row, case in zip(told, CASES, strict=True):
        row["stop_x"] = round(stop_ms[case] / stop_ms["sharded"], 2)
    return told + [
        {
            "what": f"recovery, {how}",
            "ranks": 2,
            "stop_ms": round(1e3 * seconds),
            "done_ms": None,
            "stop_x": round(seconds / after_s["lab.launch"], 1),
            "written_bytes": None,
        }
        for how, seconds in after_s.items()
    ]


def slowest_ms(ranks: list[list[tuple]], column: int) -> float:
    """The median save of the slower rank: column 0 is the stop, 1 until done."""
    slowest = []
    for saves in zip(*ranks, strict=True):
        slowest.append(max(save[column] for save in saves))
    return statistics.median(slowest)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=5)
    options = parser.parse_args()
    tell(rows(options.ranks, options.saves), options.json)


if __name__ == "__main__":
    main()
