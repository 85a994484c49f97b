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

ROOT, SHARED = Path(__file__).resolve().parents[1], Path("/dev/shm")
READY_S, LAUNCH_S, END_S = 240.0, 60.0, 10.0
SETUP = """
import json, os, time
import labkit as lab
from labkit.launching import zygote_client as server

def work(token):
    import torch
    import torch.distributed as dist

    x = torch.tensor(float(token * (1 + dist.get_rank())), dtype=torch.float64)
    dist.all_reduce(x)
    return {"pid": os.getpid(), "zygote": os.getppid(), "sum": x.item(), "port": os.environ["MASTER_PORT"],
            "folder": os.path.dirname(os.readlink("/proc/self/fd/1"))}

server.seconds_to_ready()
told = server.running().process.pid
"""
LAUNCH = """
began = time.monotonic()
told = {"ranks": list(lab.launch(work, TOKEN, ranks=RANKS, timeout_s=LIMIT)), "seconds": time.monotonic() - began}
"""


class Notebook:
    """A real kernel in a process of its own, and what its launches have told."""

    def __init__(self, number: int, num_ranks: int, temporary: str) -> None:
        self.token, self.num_ranks, self.launches, self.zygote = (
            7 ** (2 + number),
            num_ranks,
            [],
            None,
        )
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
        ranks, size = told["ranks"], self.num_ranks
        alone = all(
            len({rank[name] for rank in ranks}) == 1 for name in ("port", "folder", "zygote")
        )
        return not (
            alone
            and len({rank["pid"] for rank in ranks}) == len(ranks) == size
            and {rank["zygote"] for rank in ranks} == {self.zygote}
            and {rank["sum"] for rank in ranks} == {self.token * size * (size + 1) / 2}
        )

    def identities(self) -> set[tuple[str, object]]:
        """What no other kernel may see: pids of its own, of its zygote and its ranks, and its
        folders."""
        mine = {("pid", self.process.pid), ("pid", self.zygote)}
        for told in filter(None, self.launches):
            mine |= {
                pair
                for rank in told["ranks"]
                for pair in (("pid", rank["pid"]), ("folder", rank["folder"]))
            }
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


def measure(num_kernels: int, num_ranks: int, num_launches: int) -> dict:
    """One row: the whole experiment."""
    began, since_s = time.monotonic(), time.time()
    with tempfile.TemporaryDirectory(prefix="crowd-") as temporary:
        notebooks = [Notebook(number, num_ranks, temporary) for number in range(num_kernels)]
        try:
            together = threading.Barrier(num_kernels)
            threads = [
                threading.Thread(target=each.work, args=(num_launches, together))
                for each in notebooks
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            family = [
                process
                for each in notebooks
                for process in (each.process, *each.process.children(recursive=True))
            ]
        finally:
            for number, each in enumerate(notebooks):
                each.end(kill=number % 2 == 0)
        _, orphans = psutil.wait_procs(family, timeout=END_S)
        told = [(each, launch) for each in notebooks for launch in each.launches]
        ports = {rank["port"] for _, launch in told if launch for rank in launch["ranks"]}
        deadline = time.monotonic() + END_S
        while (
            left := [*left_in(Path(temporary)), *shared(since_s, ports)]
        ) and time.monotonic() < deadline:
            time.sleep(0.1)
        for file in left:
            print("left:", file, [each.name for each in file.glob("*")], file=sys.stderr)
        for process in orphans:
            process.kill()
    seen = Counter(identity for each in notebooks for identity in each.identities())
    times = sorted(launch["seconds"] for _, launch in told if launch)
    return {
        "kernels": num_kernels,
        "ranks": num_ranks,
        "launches": len(told),
        "failed": sum(launch is None for _, launch in told),
        "crossed": sum(each.is_wrong(launch) for each, launch in told if launch)
        + sum(count > 1 for count in seen.values()),
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
