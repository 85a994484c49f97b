"""Faults to ask for: each is a short, ordinary torch program in which one rank, the odd one, does
wrong.

    finding = faults.run("mismatched_op", ranks=3, odd=1)     # real ranks, really broken
    finding.fault, finding.ranks                              # what labkit makes of it

Chapters show them, tests and the soak count them. Nothing harms the machine: memory is bounded by a
limit of the process, and whatever hangs is ended after ``hang_s``. Launches, and is imported by
ranks.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from labkit.debugging import health
from labkit.launching import launcher, rank
from labkit.launching.run import Run
from labkit.launching.verdicts import disagreement
from labkit.launching.verdicts.outcome import Finding
from labkit.launching.verdicts.verdict import LaunchError
from labkit.measure import trace
from labkit.words import say

PROGRAMS: "dict[str, Program]" = {}
"""Every fault that can be asked for, by its name in ``outcome.FAULTS``"""
OOM_BYTES = 256e6
"""What a rank may take before it is refused more"""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A fault to ask for."""

    rank: Callable[[int], object]
    """what every rank runs; its argument is the odd rank"""
    notice_s: float
    """within which it is noticed, from the fault to the verdict, without ``hang_s``"""
    silent: bool
    """noticed only because nothing moves for ``hang_s``"""
    find: Callable[[Run], Finding | None] | None
    """what finds it in a run that seems to end well; None where the launch itself raises"""


def run(
    name: str, *, ranks: int = 3, odd: int = 1, hang_s: float = 1.0, timeout_s: float = 60
) -> Finding | None:
    """Launches a fault on real ranks and returns what labkit finds; None if it finds nothing.

    Raises ValueError for an unknown name, for fewer than 3 ranks (no majority) or an odd rank that
    is none of them.
    """
    if name not in PROGRAMS:
        raise ValueError(f"a fault is one of {', '.join(PROGRAMS)}; got {name!r}")
    if ranks < 3 or not 0 <= odd < ranks:
        raise ValueError(
            f"a fault takes 3 ranks or more, and one of them as the odd one; got ranks={ranks}, "
            f"odd={odd}"
        )
    program = PROGRAMS[name]
    try:
        done = launcher.launch(program.rank, odd, ranks=ranks, hang_s=hang_s, timeout_s=timeout_s)
    except LaunchError as error:
        return error.finding
    return program.find(done) if program.find else None


def _fault(notice_s: float, silent: bool = False, find: Callable | None = None) -> Callable:
    def register(program: Callable[[int], object]) -> Callable[[int], object]:
        PROGRAMS[program.__name__] = Program(
            rank=program, notice_s=notice_s, silent=silent, find=find
        )
        return program

    return register


@contextlib.contextmanager
def memory_limit(num_bytes: float) -> Iterator[None]:
    """This process may take ``num_bytes`` more than it has now while the block runs, and is then
    refused: of its GPU's memory where it has one, else of the machine's, where a pretend device's
    lies as well (on Linux, by RLIMIT_DATA; elsewhere there is no limit)."""
    import torch

    before = resource.getrlimit(resource.RLIMIT_DATA)
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        limit_bytes = torch.cuda.memory_reserved() + num_bytes
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info()[1])
    elif sys.platform == "linux":
        with open("/proc/self/status") as status:
            used_kb = next(int(line.split()[1]) for line in status if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (1024 * used_kb + int(num_bytes), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        if has_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)


def _is(odd: int) -> bool:
    return rank.current().rank == odd


def _reduce(num: int = 4) -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(num))


@_fault(notice_s=0.2)
def exception(odd: int) -> None:
    """The odd rank meets a sample that it can't read."""
    if _is(odd):
        raise ValueError("sample 17 has no label")
    _reduce()


@_fault(notice_s=0.1)
def sigkill(odd: int) -> None:
    """The odd rank is killed, as the system does when memory runs out."""
    if _is(odd):
        os.kill(os.getpid(), signal.SIGKILL)
    _reduce()


@_fault(notice_s=0.1)
def crash(odd: int) -> None:
    """Native code of the odd rank touches memory that is not its own."""
    if _is(odd):
        os.kill(os.getpid(), signal.SIGSEGV)
    _reduce()


@_fault(notice_s=0.1)
def unclean_exit(odd: int) -> None:
    """The odd rank leaves in the middle."""
    if _is(odd):
        os._exit(3)
    _reduce()


@_fault(notice_s=0.2)
def out_of_memory(odd: int) -> None:
    """The odd rank keeps more and more, and may take only OOM_BYTES."""
    import torch

    held = []
    with memory_limit(OOM_BYTES):
        while _is(odd) and len(held) < 100:
            held.append(torch.ones(4_000_000))
    _reduce()


@_fault(notice_s=0.5, silent=True)
def sigstop(odd: int) -> None:
    """The odd rank is stopped, as by Ctrl-Z or a debugger."""
    if _is(odd):
        os.kill(os.getpid(), signal.SIGSTOP)
    _reduce()


@_fault(notice_s=0.5, silent=True)
def hang(odd: int) -> None:
    """The odd rank waits for something that never comes."""
    while _is(odd):
        time.sleep(0.01)
    _reduce()


@_fault(notice_s=0.7)
def mismatched_op(odd: int) -> None:
    """The odd rank broadcasts where the others reduce."""
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    if _is(odd):
        dist.broadcast(x, src=odd)
    else:
        dist.all_reduce(x)
    _reduce()


@_fault(notice_s=0.7)
def mismatched_shape(odd: int) -> None:
    """The odd rank brings more numbers."""
    _reduce(64 if _is(odd) else 4)


@_fault(notice_s=0.2, find=lambda run: disagreement.swapped(run.calls()))
def swapped_order(odd: int) -> tuple:
    """The odd rank reduces y before x. Both have one shape: nothing fails, and every sum is
    wrong."""
    import torch
    import torch.distributed as dist

    x = torch.ones(4)
    y = torch.full((4,), 10.0)
    if not _is(odd):
        dist.all_reduce(x)
    dist.all_reduce(y)
    if _is(odd):
        dist.all_reduce(x)
    return x[0].item(), y[0].item()


@_fault(notice_s=0.7)
def missing_rank(odd: int) -> None:
    """The odd rank never comes to the collective."""
    if not _is(odd):
        _reduce()


@_fault(notice_s=0.7)
def uneven_inputs(odd: int) -> None:
    """The odd rank has one batch less."""
    for _ in range(3 if _is(odd) else 4):
        _reduce()


@_fault(notice_s=0.7)
def wrong_group(odd: int) -> None:
    """All but the odd rank make a group, and forget to pass it."""
    import torch.distributed as dist

    dist.new_group([r for r in range(dist.get_world_size()) if r != odd])
    if not _is(odd):
        _reduce()


@_fault(notice_s=0.5, silent=True)
def send_cycle(odd: int) -> None:
    """The odd rank and the next one send to each other, and nobody receives."""
    import torch
    import torch.distributed as dist

    after = (odd + 1) % dist.get_world_size()
    if rank.current().rank in (odd, after):
        dist.send(torch.ones(4), dst=after if _is(odd) else odd)


@_fault(notice_s=0.5, find=lambda run: health.slow(run.timeline()))
def straggler(odd: int) -> None:
    """The odd rank takes 30 ms more for each step."""
    with trace.record():
        for _ in range(5):
            if _is(odd):
                time.sleep(0.03)
            _reduce()


@_fault(notice_s=0.5)
def nan(odd: int) -> None:
    """The odd rank's batch holds a NaN; ``health.guard`` watches the gradients."""
    import torch

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    health.guard(model)
    model(torch.full((2, 4), float("nan") if _is(odd) else 1.0)).sum().backward()


@_fault(notice_s=0.5, find=lambda run: run[0])
def diverged_replica(odd: int) -> Finding | None:
    """The odd rank changes a weight alone; digests are compared."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4)
    if _is(odd):
        layer.bias.data[0] += 1e-6
    return health.compare(layer.named_parameters())


@_fault(notice_s=0.5, find=lambda run: health.same_order(run[0]))
def set_epoch(odd: int) -> dict[int, list[int]]:
    """Nobody calls ``set_epoch``: each epoch has the order of the first."""
    import torch
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(32), shuffle=True)
    with torch.device("cpu"):  # where its generator is
        return {epoch: list(sampler) for epoch in range(2)}


_KERNEL = """
import sys
import time

import labkit as lab
from labkit.launching.fork import zygote_client

num_ranks = int(sys.argv[1])
job = lab.start(time.sleep, 600, ranks=num_ranks)
while len(job.progress) < num_ranks and not job.done:
    time.sleep(0.01)
zygote = zygote_client.running()
print(zygote.process.pid, zygote.folder, flush=True)
job.wait()
"""


def dead_kernel(ranks: int = 3, limit_s: float = 10.0) -> Finding | None:
    """Starts a process that launches ranks, kills it, and waits until its zygote, ranks and files
    are gone.

    Returns the finding, with the seconds it took; None if something is still there after
    ``limit_s``.
    """
    import psutil

    kernel = subprocess.Popen(
        [sys.executable, "-c", _KERNEL, str(ranks)], stdout=subprocess.PIPE, text=True
    )
    pid, folder = kernel.stdout.readline().split()
    zygote = psutil.Process(int(pid))
    family = [zygote, *zygote.children(recursive=True)]
    began = time.monotonic()
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    _, alive = psutil.wait_procs(family, timeout=limit_s)
    if alive or os.path.exists(folder):
        return None
    took_s = time.monotonic() - began
    return Finding(
        fault="dead_kernel",
        ranks=tuple(range(ranks)),
        text=say(
            "the process that launched was killed; its {num} processes and its files were gone "
            "{took_s:.2f} s later.",
            num=len(family),
            took_s=took_s,
        ),
    )
