"""Does the engine leave nothing behind? Launches under a random mix of all faults, healthy runs and
stops among them.

    python benchmarks/soak.py [--launches 1000] [--seed 0] [--json]

Each launch is drawn from ``labkit.debugging.faults`` with its number of ranks (3 to 5) and its odd
rank; one in ten is healthy, one in twenty is stopped by ``job.stop``, one in fifty is a kernel that
dies. After each one the system is asked what is left of it: processes that carry this soak's mark
in their environment (orphans), run folders and shared memory (leaked_files); at the end, open files
of this process and of the zygote (leaked_fds). wrong_verdicts counts a wrong name, a wrong rank, a
fault not found and a healthy run found ill. Notice is from the call to the verdict, the launch
included, without the second of silence (``hang_s``) that a silent fault is given. The last line is
the result.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

import labkit as lab
from labkit.debugging import faults
from labkit.launching.fork import zygote_client
from labkit.launching.verdicts.outcome import Finding

MARK = "LABKIT_SOAK"
HANG_S = 1.0
PATIENCE_S = 3.0
NO_ODD_RANK = ("set_epoch",)


def healthy(_: int) -> None:
    """A run in which nothing is wrong, though its ranks are not equally fast."""
    import torch
    import torch.distributed as dist

    for _ in range(3):
        time.sleep(0.02 * dist.get_rank())
        dist.all_reduce(torch.ones(16))


def stop(ranks: int) -> str:
    """A run that someone stops while its ranks wait."""
    job = lab.start(time.sleep, 600, ranks=ranks, backend="gloo")
    time.sleep(0.1)
    job.stop()
    try:
        job.wait()
    except lab.Stopped:
        return ""
    return "a stopped run did not say so"


def judged(name: str, found: Finding | None, odd: int) -> str:
    """What is wrong with a verdict; nothing if it is right."""
    if found is None or found.fault != name:
        return f"{name} was called {found.fault if found else 'healthy'}"
    right = (
        odd not in found.ranks
        if name == "wrong_group"
        else odd in found.ranks or name in NO_ODD_RANK
    )
    return "" if right else f"{name} of rank {odd} was blamed on {found.ranks}"


def one(name: str, ranks: int, odd: int) -> tuple[str, float]:
    """One launch: what was wrong with its verdict, and the seconds from the call to it."""
    began = time.monotonic()
    silence_s = 0.0
    if name == "stop":
        wrong = stop(ranks)
    elif name == "dead_kernel":
        found = faults.dead_kernel(ranks)
        return judged(name, found, odd), float(found.text.split()[-3]) if found else PATIENCE_S
    elif name == "healthy":
        try:
            lab.launch(healthy, odd, ranks=ranks, backend="gloo", hang_s=HANG_S)
            wrong = ""
        except lab.LaunchError as error:
            wrong = f"healthy was called {error.finding.fault if error.finding else error}"
    else:
        silence_s = HANG_S if faults.PROGRAMS[name].silent else 0.0
        wrong = judged(name, faults.run(name, ranks=ranks, odd=odd, hang_s=HANG_S), odd)
    return wrong, time.monotonic() - began - silence_s


def marked(mark: str) -> Iterator[psutil.Process]:
    """Processes of this soak, but for this one, the zygote and its spares (which have not
    begun)."""
    zygote = zygote_client.running().process.pid
    for process in psutil.process_iter():
        try:
            ours = process.pid not in (os.getpid(), zygote) and process.environ().get(MARK) == mark
            if (
                ours
                and process.status() != psutil.STATUS_ZOMBIE
                and os.getsid(process.pid) != zygote
            ):
                yield process
        except (psutil.Error, ProcessLookupError):
            continue


def leftovers(mark: str, shared: set[str]) -> tuple[list[psutil.Process], list[Path]]:
    """Processes and files that should be gone, after some patience."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        gc.collect()
        home = zygote_client.running().folder
        files = [path for path in home.iterdir() if path.name.startswith("run-")]
        files += [Path("/dev/shm", name) for name in set(_shared()) - shared]
        orphans = list(marked(mark))
        if (not orphans and not files) or time.monotonic() > deadline:
            return orphans, files
        time.sleep(0.02)


def _shared() -> list[str]:
    return os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []


def _num_fds() -> int:
    """Open files of this process and of the zygote, but for the one socket to each spare."""
    zygote = psutil.Process(zygote_client.running().process.pid)
    return psutil.Process().num_fds() + zygote.num_fds() - len(zygote.children())


def draw(chance: random.Random) -> tuple[str, int, int]:
    """What is launched next: a name, its ranks, the odd one."""
    roll = chance.random()
    ranks = chance.randint(3, 5)
    if roll < 0.1:
        name = "healthy"
    elif roll < 0.15:
        name = "stop"
    elif roll < 0.17:
        name = "dead_kernel"
    else:
        name = chance.choice(list(faults.PROGRAMS))
    return name, ranks, chance.randrange(ranks)


class Count:
    """What was found wrong so far."""

    def __init__(self) -> None:
        self.found = {"orphans": 0, "leaked_files": 0, "wrong_verdicts": 0}

    def add(self, launch: str, wrong: str, orphans: list, files: list[Path]) -> None:
        """Counts what one launch left, ends it, and tells stderr."""
        self.found["orphans"] += len(orphans)
        self.found["leaked_files"] += len(files)
        if wrong:
            self.found["wrong_verdicts"] += 1
        for process in orphans:
            process.kill()
        if wrong or orphans or files:
            print(f"{launch}: {wrong} {orphans} {files}", file=sys.stderr, flush=True)


def soak(launches: int, seed: int) -> dict:
    """The whole of it, as one row."""
    mark = os.environ[MARK] = uuid.uuid4().hex
    chance = random.Random(seed)
    shared = set(_shared())
    began = time.monotonic()
    zygote_client.seconds_to_complete()
    one("healthy", 3, 0)
    leftovers(mark, shared)
    time.sleep(1.0)  # the spares are forked
    fds = _num_fds()
    count = Count()
    notices = []
    for number in range(launches):
        name, ranks, odd = draw(chance)
        wrong, seconds = one(name, ranks, odd)
        if name != "healthy":
            notices.append(seconds)
        orphans, files = leftovers(mark, shared)
        count.add(f"{number}: {name}, {ranks} ranks, odd {odd}", wrong, orphans, files)
        shared |= {path.name for path in files}
        if number % 50 == 49:
            took_s = time.monotonic() - began
            print(f"{number + 1} launches, {took_s:.0f} s", file=sys.stderr, flush=True)
    time.sleep(1.0)
    p95 = statistics.quantiles(notices, n=20)[-1] if len(notices) > 1 else sum(notices)
    return {
        "launches": launches,
        **count.found,
        "leaked_fds": _num_fds() - fds,
        "p95_notice_s": round(p95, 3),
        "max_notice_s": round(max(notices, default=0), 3),
        "seed": seed,
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="only the row, as JSON")
    given = parser.parse_args()
    row = soak(given.launches, given.seed)
    print(
        json.dumps(row)
        if given.json
        else "\n".join(f"{name} {value}" for name, value in row.items())
    )


if __name__ == "__main__":
    main()
