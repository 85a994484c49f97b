"""Do many notebooks at once, each with its own ranks, get along? Real Jupyter kernels, launching at
the same moments.

    python benchmarks/crowd.py [--json] [--kernels 10] [--ranks 4] [--launches 3]

Every rank tells its pid, its zygote's, where its output goes, its port, and an all-reduced number
that only ranks of its own kernel can make. "failed" launches ended in an error; "crossed" counts
ranks, zygotes and folders that two kernels saw, and launches with a wrong sum or with ranks of two
minds. Then half of the kernels are shut down and the others killed with SIGKILL: "orphans" are
their processes, "leaked_files" what is left in their temporary folder (but for torchinductor_USER,
torch's own cache) and, of them, in /dev/shm, ten seconds later at most. "p95_s" is of a launch,
from call to result, while all kernels launch; "seconds" of everything, zygotes' imports included.
"""

import argparse
import ast
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path("/dev/shm")
READY_S = 240.0
LAUNCH_S = 60.0
END_S = 10.0
OWN = """
def _own(token):
    import os
    import torch
    import torch.distributed as dist

    x = torch.tensor(float(token * (1 + dist.get_rank())), dtype=torch.float64)
    dist.all_reduce(x)
    return {
        "pid": os.getpid(),
        "zygote": os.getppid(),
        "sum": x.item(),
        "port": os.environ["MASTER_PORT"],
        "folder": os.path.dirname(os.readlink("/proc/self/fd/1")),
    }
"""
"""what a rank does: a sum that only the ranks of its own notebook can make"""
SETUP = (
    OWN
    + """
import json, os, time
import labkit as lab
from labkit.launching.fork import zygote_client

zygote_client.seconds_to_complete()
told = zygote_client.running().process.pid
"""
)
LAUNCH = """
began = time.monotonic()
results = list(lab.launch(_own, TOKEN, ranks=RANKS, timeout_s=LIMIT))
told = {"ranks": results, "seconds": time.monotonic() - began}
"""


class Notebook:
    """A real kernel in a process of its own, and what its launches have told."""

    def __init__(self, number: int, num_ranks: int, temporary: str) -> None:
        self.token = 7 ** (2 + number)
        self.num_ranks = num_ranks
        self.launches = []
        self.zygote = None
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environ = {**os.environ, "TMPDIR": temporary, "PYTHONPATH": paths}
        self.kernel, self.client = start_new_kernel(env=environ, startup_timeout=READY_S)
        self.process = psutil.Process(self.kernel.provisioner.pid)

    def ask(self, code: str, limit_s: float) -> object:
        """Runs a cell and returns its ``told``; None where it fails, which stderr tells."""
        try:
            reply = self.client.execute_interactive(
                code,
                timeout=limit_s,
                output_hook=lambda _: None,
                user_expressions={"told": "json.dumps(told)"},
            )["content"]
        except TimeoutError:
            reply = {"status": "error", "traceback": [f"no answer within {limit_s:g} s"]}
        if reply["status"] != "ok":
            print("\n".join(reply["traceback"]), file=sys.stderr)
            return None
        return json.loads(ast.literal_eval(reply["user_expressions"]["told"]["data"]["text/plain"]))

    def work(self, num_launches: int, together: threading.Barrier) -> None:
        """Warms up, then launches each time when all notebooks do."""
        self.zygote = self.ask(SETUP, READY_S)
        code = LAUNCH.replace("TOKEN", str(self.token)).replace("RANKS", str(self.num_ranks))
        for _ in range(num_launches):
            together.wait(READY_S)
            self.launches.append(self.ask(code.replace("LIMIT", str(LAUNCH_S)), 2 * LAUNCH_S))

    def is_wrong(self, told: dict) -> bool:
        """Whether a launch had ranks of another kernel in it, or ranks that are not one group."""
        ranks = told["ranks"]
        size = self.num_ranks

        def seen(name: str) -> set:
            return {rank[name] for rank in ranks}

        is_one_group = len(seen("port")) == len(seen("folder")) == 1
        is_whole = len(seen("pid")) == len(ranks) == size
        is_own = seen("zygote") == {self.zygote}
        is_right = seen("sum") == {self.token * size * (size + 1) / 2}
        return not (is_one_group and is_whole and is_own and is_right)

    def identities(self) -> set[tuple[str, object]]:
        """What no other kernel may see: pids of its own, of its zygote and its ranks, and its
        folders."""
        mine = {("pid", self.process.pid), ("pid", self.zygote)}
        for told in filter(None, self.launches):
            mine |= {("pid", rank["pid"]) for rank in told["ranks"]}
            mine |= {("folder", rank["folder"]) for rank in told["ranks"]}
        return mine

    def end(self, kill: bool) -> None:
        """Shuts the kernel down as Jupyter does, or kills it."""
        if kill:
            self.process.kill()
        self.client.stop_channels()
        self.kernel.shutdown_kernel(now=kill)


def left_in(folder: Path) -> list[Path]:
    """What lies in the kernels' temporary folder."""
    return [file for file in folder.iterdir() if not file.name.startswith("torchinductor_")]


def shared(since_s: float, ports: set[str]) -> Iterator[Path]:
    """What lies in /dev/shm since then and names one of these ports."""
    for file in SHARED.glob("*") if SHARED.is_dir() else ():
        if (
            any(port in file.name for port in ports)
            and file.exists()
            and file.stat().st_ctime >= since_s
        ):
            yield file


def work_together(notebooks: list[Notebook], num_launches: int) -> list[psutil.Process]:
    """All launch at the same moments. Returns the processes that there are in the end."""
    together = threading.Barrier(len(notebooks))
    threads = []
    for each in notebooks:
        threads.append(threading.Thread(target=each.work, args=(num_launches, together)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    family = []
    for each in notebooks:
        family += [each.process, *each.process.children(recursive=True)]
    return family


def leftovers(folder: Path, since_s: float, ports: set[str]) -> list[Path]:
    """What is left after some patience."""
    deadline = time.monotonic() + END_S
    left = [*left_in(folder), *shared(since_s, ports)]
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = [*left_in(folder), *shared(since_s, ports)]
    for file in left:
        print("left:", file, [each.name for each in file.glob("*")], file=sys.stderr)
    return left


def num_crossed(notebooks: list[Notebook]) -> int:
    """Launches that were wrong, and what more than one kernel saw."""
    count = 0
    seen = Counter()
    for each in notebooks:
        count += sum(each.is_wrong(told) for told in each.launches if told)
        seen.update(each.identities())
    return count + sum(times > 1 for times in seen.values())


def measure(num_kernels: int, num_ranks: int, num_launches: int) -> dict:
    """One row: the whole experiment."""
    began = time.monotonic()
    since_s = time.time()
    with tempfile.TemporaryDirectory(prefix="crowd-") as temporary:
        notebooks = [Notebook(number, num_ranks, temporary) for number in range(num_kernels)]
        try:
            family = work_together(notebooks, num_launches)
        finally:
            for number, each in enumerate(notebooks):
                each.end(kill=number % 2 == 0)
        _, orphans = psutil.wait_procs(family, timeout=END_S)
        launches = []
        for each in notebooks:
            launches += each.launches
        good = [told for told in launches if told]
        ports = set()
        for told in good:
            ports |= {rank["port"] for rank in told["ranks"]}
        left = leftovers(Path(temporary), since_s, ports)
        for process in orphans:
            process.kill()
    times = sorted(told["seconds"] for told in good)
    return {
        "kernels": num_kernels,
        "ranks": num_ranks,
        "launches": len(launches),
        "failed": len(launches) - len(good),
        "crossed": num_crossed(notebooks),
        "orphans": len(orphans),
        "leaked_files": len(left),
        "p95_s": round(times[int(0.95 * (len(times) - 1))], 3) if times else None,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--launches", type=int, default=3)
    options = parser.parse_args()
    row = measure(options.kernels, options.ranks, options.launches)
    print(
        json.dumps([row])
        if options.json
        else "  ".join(f"{key} {value}" for key, value in row.items())
    )


if __name__ == "__main__":
    main()
