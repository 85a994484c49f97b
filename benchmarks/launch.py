"""How long from the call to the result of one all-reduce? labkit, other launchers, and the limit.

    python benchmarks/launch.py [--json] [--runs 7] [--ranks 2,4,8]

The others are torchrun, mp.spawn and accelerate's notebook_launcher; every launcher is asked in
turn, so that a busy minute hits all of them. Times are medians over the runs. labkit, mp.spawn and
notebook_launcher are called in a process that has imported all it needs; torchrun is a command and
starts from nothing each time. A run that does not end within two minutes is stopped and counted in
"hung"; speedup is torchrun's time over labkit's.

The limit is what cannot be left out: a process with one thread that has imported torch forks the
ranks, each joins a gloo group over a file, reduces once and tells its parent, whose clock then
stops; nothing is seeded, kept, watched or judged. (labkit has a few processes forked ahead, so it
can be quicker.) over_limit is labkit's time over the limit's; the aim is 1.4 at 4 ranks.

"first launch": in a process that has imported nothing, labkit and torch included, a new one each
time. "stop at start": from job.stop() to its return in such a process, 0.3 s after its first
launch; the aim is 1 s.
"""

import argparse
import importlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

LIMIT_S = 120.0
PEERS = ("labkit", "limit", "torchrun", "spawn", "notebook_launcher")


def reduce_once(rank: int, num_ranks: int, folder: str) -> float:
    """What every launcher's ranks do: one all-reduce in a gloo group over a file."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(f"{folder}/store", num_ranks),
            rank=rank,
            world_size=num_ranks,
        )
    x = torch.full((1,), float(rank))
    dist.all_reduce(x)
    Path(folder, f"result-{rank}").write_text(str(x.item()))
    return x.item()


def reduce_and_leave(rank: int, num_ranks: int, folder: str) -> None:
    """For ranks that end with the function: they leave by os._exit, as torch's teardown aborts now
    and then."""
    import torch.distributed as dist

    reduce_once(rank, num_ranks, folder)
    dist.barrier()
    os._exit(0)


def script() -> None:
    """The torchrun script."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    reduce_and_leave(dist.get_rank(), dist.get_world_size(), os.environ["BENCH_FOLDER"])


def in_notebook(num_ranks: int, folder: str) -> None:
    """A rank of notebook_launcher: the environment tells who it is."""
    reduce_once(int(os.environ["RANK"]), num_ranks, folder)


def fork_and_reduce(num_ranks: int, folder: str) -> None:
    """The limit: forks ranks and returns once all have told that they are done."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they end
    told, tell = os.pipe()
    for rank in range(num_ranks):
        if os.fork() == 0:
            try:
                reduce_once(rank, num_ranks, folder)
                os.write(tell, b".")
            finally:
                os._exit(0)
    os.close(tell)
    while num_ranks and (done := os.read(told, num_ranks)):
        num_ranks -= len(done)
    os.close(told)


def call(peer: str, num_ranks: int, folder: str) -> None:
    """One launch, from the call to the result of every rank."""
    if peer == "labkit":
        import labkit as lab

        def rank() -> float:
            import torch
            import torch.distributed as dist

            x = torch.full((1,), float(dist.get_rank()))
            dist.all_reduce(x)
            return x.item()

        for index, value in enumerate(lab.launch(rank, ranks=num_ranks)):
            Path(folder, f"result-{index}").write_text(str(value))
    elif peer == "torchrun":
        line = [
            str(Path(sys.executable).with_name("torchrun")),
            "--standalone",
            "--nproc-per-node",
            str(num_ranks),
            __file__,
        ]
        subprocess.run(
            [*line, "--script"],
            env={**os.environ, "BENCH_FOLDER": folder, "OMP_NUM_THREADS": "1"},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
    elif peer == "spawn":
        import torch.multiprocessing as mp

        mp.spawn(reduce_and_leave, args=(num_ranks, folder), nprocs=num_ranks)
    elif peer == "limit":
        importlib.import_module("torch.distributed")
        assert len(os.listdir("/proc/self/task")) == 1, "the limit forks a process with one thread"
        fork_and_reduce(num_ranks, folder)
    else:
        from accelerate import notebook_launcher

        notebook_launcher(in_notebook, (num_ranks, folder), num_processes=num_ranks, use_port="0")


def timed_call(peer: str, num_ranks: int) -> float:
    """Seconds of one launch, whose results must be right."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        call(peer, num_ranks, folder)
        seconds = time.perf_counter() - began
        found = [float(Path(folder, f"result-{rank}").read_text()) for rank in range(num_ranks)]
    assert found == [num_ranks * (num_ranks - 1) / 2] * num_ranks, f"{peer}: {found}"
    return seconds


def timed_stop(num_ranks: int) -> float:
    """Seconds that a stop takes, shortly after the first launch of a process."""
    import labkit as lab

    job = lab.start(time.sleep, 600, ranks=num_ranks)
    time.sleep(0.3)
    began = time.perf_counter()
    job.stop()
    seconds = time.perf_counter() - began
    assert job.done
    return seconds


def warm(peer: str) -> None:
    """Imports what a peer needs."""
    if peer == "labkit":
        from labkit.launching.fork import zygote_client

        zygote_client.seconds_to_complete()
    elif peer in ("limit", "spawn", "notebook_launcher"):
        importlib.import_module("torch.distributed")
    if peer in ("spawn", "notebook_launcher"):
        importlib.import_module("accelerate")


def serve(peer: str, cold: bool) -> None:
    """A process that times one launch for every number of ranks it reads; unless it is cold, it has
    imported what the peer needs."""
    if not cold:
        warm(peer)
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        seconds = timed_stop(int(line)) if peer == "stop" else timed_call(peer, int(line))
        print(f"SECONDS {seconds}", file=sys.stderr, flush=True)


class Peer:
    """A serving process, started again when it hangs."""

    def __init__(self, name: str, cold: bool = False) -> None:
        self.name, self.process = name, None
        self.mode = ["--cold"] if cold else []

    def ask(self, num_ranks: int) -> float | None:
        """Seconds of one launch, or None when it hung."""
        if self.process is None:
            environ = {
                **os.environ,
                "ACCELERATE_USE_CPU": "true",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            self.process = subprocess.Popen(
                [sys.executable, __file__, "--serve", self.name, *self.mode],
                stdin=subprocess.PIPE,
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=environ,
                start_new_session=True,
            )
            self.expect("ready")
        self.process.stdin.write(f"{num_ranks}\n")
        self.process.stdin.flush()
        said = self.expect("SECONDS")
        return float(said.split()[1]) if said else None

    def expect(self, word: str) -> str | None:
        """The next line that begins with a word; None, and the process ended, when it does not come
        in time."""
        import threading

        timer = threading.Timer(LIMIT_S, self.close)
        timer.start()
        try:
            last = []
            for line in self.process.stderr:
                last = [*last[-20:], line]
                if line.startswith(word):
                    return line
            if timer.is_alive():
                raise RuntimeError(f"{self.name} ended:\n{''.join(last)}")
            return None
        finally:
            timer.cancel()

    def close(self) -> None:
        """Ends the process and all it started."""
        if self.process is not None:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, 9)
            self.process = None


def median(seconds: list[float | None]) -> float | None:
    """Of the runs that ended."""
    ended = [each for each in seconds if each is not None]
    return round(statistics.median(ended), 4) if ended else None


def launches(num_runs: int, ranks: list[int]) -> Iterator[dict]:
    """One row per number of ranks: every launcher's median in seconds, in warm processes."""
    peers = [Peer(name) for name in PEERS]
    try:
        for num_ranks in ranks:
            times: dict[str, list] = {name: [] for name in PEERS}
            for _ in range(num_runs):
                for peer in peers:
                    times[peer.name].append(peer.ask(num_ranks))
                    time.sleep(0.5)
            row = {"asked": "launch", "ranks": num_ranks, "runs": num_runs}
            row |= {f"{name}_s": median(seconds) for name, seconds in times.items()}
            row["over_limit"] = round(row["labkit_s"] / row["limit_s"], 2)
            row["hung"] = sum(each is None for each in times["notebook_launcher"])
            row["speedup"] = round(row["torchrun_s"] / row["labkit_s"], 1)
            yield row
    finally:
        for peer in peers:
            peer.close()


def fresh(name: str, num_ranks: int) -> float | None:
    """Seconds in a new process that has imported nothing."""
    peer = Peer(name, cold=True)
    try:
        return peer.ask(num_ranks)
    finally:
        peer.close()


def first_launches(num_runs: int, num_ranks: int) -> Iterator[dict]:
    """A row for the first launch of a process, and one for a stop before it is there."""
    times: dict[str, list] = {"labkit": [], "limit": [], "stop": []}
    for _ in range(num_runs):
        for name, seconds in times.items():
            seconds.append(fresh(name, num_ranks))
    labkit_s, limit_s, stop_s = map(median, times.values())
    about = {"ranks": num_ranks, "runs": num_runs}
    over_limit = round(labkit_s / limit_s, 2)
    found = {"labkit_s": labkit_s, "limit_s": limit_s, "over_limit": over_limit}
    yield {"asked": "first launch", **about, **found}
    yield {"asked": "stop at start", **about, "labkit_s": stop_s}


def measure(num_runs: int, ranks: list[int]) -> list[dict]:
    """All rows; a process's first launch is one of 4 ranks."""
    return [*launches(num_runs, ranks), *first_launches(num_runs, 4)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--serve", choices=(*PEERS, "stop"), help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--script", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve or options.script:
        serve(options.serve, options.cold) if options.serve else script()
        return
    rows = measure(options.runs, [int(n) for n in options.ranks.split(",")])
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
