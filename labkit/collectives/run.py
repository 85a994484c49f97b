"""Plans of ``labkit.collectives`` on real ranks, message by message; with links of a stated speed
if wanted.

    ring = collectives.plan("all_reduce", "ring", 4)
    run = collectives.launch(ring, 1e6, network=slow)        # 4 processes, real bytes, each message as slow as its link
    run.timeline()                                     # beside network.simulate(ring, slow, 1e6)

Sums are taken in the order of the plan's steps, so that floats may differ from another algorithm's
in the last bits.
"""

import contextlib
import fcntl
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.collectives.algorithms import Move, Plan
from labkit.collectives.network import Network

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.measure.pace import Pace

START_S = 0.02
"""Ranks agree to begin this much later than the last of them is ready: time to start a
recording."""
_count = itertools.count()  # executions over stated links: the same on every rank


def launch(
    plan: Plan,
    num_bytes: float,
    *,
    network: Network | None = None,
    num_runs: int = 1,
    timeout_s: float = 60.0,
) -> "Run":
    """Executes a plan on real ranks, ``num_runs`` times after an untimed one; ``run.timeline()`` is
    the last.

    ``num_bytes`` is read as by ``Plan.chunk_bytes``, in whole float32 per chunk. ``run[r]`` is a
    dict: seconds (of each execution, from the moment when all ranks may begin to this rank's end);
    of the last one sent_bytes, received_bytes (payload), wire_sent_bytes, wire_received_bytes (what
    TCP counted, None where it does not) and max_error (largest difference from torch.distributed's
    own result); num_overruns (steps that took longer than stated, in all).
    """
    return start(plan, num_bytes, network=network, num_runs=num_runs, timeout_s=timeout_s).wait()


def start(
    plan: Plan,
    num_bytes: float,
    *,
    network: Network | None = None,
    num_runs: int = 1,
    timeout_s: float = 60.0,
) -> "Job":
    """``launch`` in the background: returns at once."""
    from labkit.launching import launcher

    if (
        not (0 <= num_bytes < float("inf"))
        or num_runs < 1
        or (network and network.num_ranks != plan.num_ranks)
    ):
        raise ValueError(
            f"a run has 0 bytes, 1 execution or more and a network of its plan's {plan.num_ranks} "
            "ranks; "
            f"got {num_bytes}, {num_runs} and {network.num_ranks if network else None}"
        )
    return launcher.start(
        _measure, plan, num_bytes, network, num_runs, ranks=plan.num_ranks, timeout_s=timeout_s
    )


def execute(
    plan: Plan, tensor: "Tensor", network: Network | None = None, kept: "Pace | None" = None
) -> "Tensor":
    """Does a plan in place on a 1-D tensor, the plan's whole buffer; every rank of the default
    group calls it.

    Chunks are cut by ``tensor_split``, so any length will do. With a network every message lasts
    what its link says, by the rule of ``network.simulate``, and the real message lies within that
    time; the rank is noted "paced links", and ``kept`` counts the steps that took longer. Raises
    ValueError for another number of ranks or another shape.
    """
    import torch.distributed as dist

    from labkit.measure import trace

    me, sizes = dist.get_rank(), (plan.num_ranks, network.num_ranks if network else plan.num_ranks)
    if set(sizes) != {dist.get_world_size()}:
        raise ValueError(
            f"this run has {dist.get_world_size()} ranks; got a plan and a network for {sizes}"
        )
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"a plan works on a contiguous 1-D tensor; got {tuple(tensor.shape)}. Take "
            "x.contiguous()."
            "view(-1)"
        )
    chunks, links = (
        tensor.tensor_split(plan.num_chunks),
        _Links(plan, network, kept) if network else None,
    )
    epoch_ns = max(
        time.time_ns() - time.perf_counter_ns() for _ in range(5)
    )  # whoever is held up in between errs down
    for number, step in enumerate(plan.steps):
        if not (moves := [move for move in step if me in (move.src, move.dst)]):
            continue
        ready_ns = links.through_ns if links else time.perf_counter_ns()
        if links:
            links.ready[number, me] = ready_ns
        sizes = _transfer(moves, chunks, me)
        spans = (
            links.finish(number, moves, sizes)
            if links
            else [(ready_ns, time.perf_counter_ns())] * len(moves)
        )
        for move, num_bytes, (start_ns, end_ns) in zip(moves, sizes, spans, strict=True):
            trace.span(
                "send" if move.src == me else "recv",
                f"{move.src}>{move.dst}",
                epoch_ns + start_ns,
                epoch_ns + end_ns,
                num_bytes,
                waited_ns=start_ns - ready_ns,
            )
    return tensor


def library(primitive: str, tensor: "Tensor", root: int = 0) -> "Tensor":
    """torch.distributed's own collective on such a buffer, in place. Returns the part where this
    rank's result stands.

    That is all of the buffer; a rank's own part of a reduce-scatter, the chunks for it of an
    all-to-all; nothing on a rank that only sends. What is gathered, scattered or exchanged must
    divide by the number of ranks.
    """
    import torch.distributed as dist

    me, num_ranks = dist.get_rank(), dist.get_world_size()
    mine, rows = tensor.tensor_split(num_ranks)[me], (num_ranks, num_ranks, -1)
    {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "broadcast": lambda: dist.broadcast(tensor, root),
        "reduce": lambda: dist.reduce(tensor, root),
        "all_gather": lambda: dist.all_gather_single(tensor, mine),
        "reduce_scatter": lambda: dist.reduce_scatter_single(mine, tensor),
        "all_to_all": lambda: dist.all_to_all(
            list(tensor.view(rows)[:, me]), list(tensor.view(rows)[me])
        ),
        "send_recv": lambda: (
            (dist.send, dist.recv)[me](tensor, 1 - me) if me < 2 <= num_ranks else None
        ),
    }[primitive]()
    return _result(primitive, tensor, root)


def _result(primitive: str, tensor: "Tensor", root: int) -> "Tensor":
    import torch.distributed as dist

    me, num_ranks = dist.get_rank(), dist.get_world_size()
    if primitive == "reduce_scatter":
        return tensor.tensor_split(num_ranks)[me]
    if primitive == "all_to_all":
        return tensor.view(num_ranks, num_ranks, -1)[:, me]
    return tensor if {"reduce": root, "send_recv": 1}.get(primitive, me) == me else tensor[:0]


def _transfer(moves: Sequence[Move], chunks: Sequence["Tensor"], me: int) -> list[int]:
    """This rank's messages of one step, for real, the receive posted first. Returns their sizes in
    bytes."""
    import torch
    import torch.distributed as dist

    pieces = [[chunks[chunk] for chunk in move.chunks] for move in moves]
    data = [
        torch.cat(each) for each in pieces
    ]  # what stood there before the step; a place for what arrives
    ways = [(dist.isend, move.dst) if move.src == me else (dist.irecv, move.src) for move in moves]
    posts = [dist.P2POp(way, tensor, peer) for (way, peer), tensor in zip(ways, data, strict=True)]
    for work in dist.batch_isend_irecv(sorted(posts, key=lambda post: post.op is dist.isend)):
        work.wait()
    if data[0].is_cuda:
        torch.cuda.synchronize()
    for move, places, arrived in zip(moves, pieces, data, strict=True):
        for place, part in zip(places, arrived.split(list(map(len, places))), strict=True):
            if move.dst == me:
                place.add_(part) if move.op == "add" else place.copy_(part)
    return [tensor.nbytes for tensor in data]


class _Links:
    """The stated links of one execution: a file in the run's folder where ranks write when they are
    ready for what.

    Nanoseconds of perf_counter, one clock for all processes of a machine. ``ready[step, rank]``:
    since when the rank is through with earlier steps, by what was stated where that was kept;
    ``end[step, sender]``: when that message is over; ``free[wire]``: from when on a shared wire is.
    Whichever end of a message looks first settles it for both.
    """

    def __init__(self, plan: Plan, network: Network, kept: "Pace | None") -> None:
        from labkit.launching import rank
        from labkit.measure import pace

        if not (here := rank.current()).folder:
            raise ValueError(
                "stated links need a folder that all ranks share; outside a launch set "
                "LABKIT_RUN_DIR"
            )
        here.note("paced links")
        self.network, self.kept = network, kept or pace.Pace()
        self.wires = sorted(
            {link.wire for row in network.links for link in row if link and link.wire}
        )
        self.file = open(here.folder / f"links-{next(_count)}", "a+b")  # noqa: SIM115
        shape, num_wires = (2, len(plan.steps), plan.num_ranks), len(self.wires)
        self.file.truncate(8 * (np.prod(shape) + num_wires + 1))
        times = np.memmap(self.file, np.int64, "r+")
        (self.ready, self.end), self.free = times[num_wires + 1 :].reshape(shape), times[:num_wires]
        self.through_ns = time.perf_counter_ns()

    def finish(
        self, number: int, moves: Sequence[Move], sizes: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Sleeps until this rank's messages of a step are over. Returns (start, end) of each."""
        from labkit.measure import pace

        spans = [self.settled(number, move, size) for move, size in zip(moves, sizes, strict=True)]
        start_ns, end_ns = last = max(spans, key=lambda span: span[1])
        pace.sleep_until(end_ns / 1e9)
        late_ns, stated_ns = time.perf_counter_ns() - end_ns, end_ns - start_ns
        self.kept.count(late_ns / 1e3, stated_ns / 1e3)
        self.through_ns = end_ns + (late_ns if late_ns > pace.LATE * stated_ns else 0)
        return [(start_ns, self.through_ns) if span is last else span for span in spans]

    def settled(self, number: int, move: Move, num_bytes: int) -> tuple[int, int]:
        """(start, end) of a message that has crossed. With gloo a send, too, ends after its receive
        was posted."""
        link, ready = (
            self.network.link(move.src, move.dst),
            self.ready[number, [move.src, move.dst]],
        )
        takes_ns = round(link.us(num_bytes) * 1e3)
        fcntl.flock(self.file, fcntl.LOCK_EX)
        if not self.end[number, move.src]:
            wire = self.free[self.wires.index(link.wire) :][:1] if link.wire else self.free[:0]
            wire[:] = self.end[number, move.src] = max(*ready, *wire) + takes_ns
        fcntl.flock(self.file, fcntl.LOCK_UN)
        end_ns = int(self.end[number, move.src])
        return end_ns - takes_ns, end_ns


def _measure(
    plan: Plan, num_bytes: float, network: Network | None, num_runs: int
) -> dict[str, Any]:
    """A rank of ``run``."""
    import torch

    from labkit.measure import pace, trace, traffic

    begun = torch.rand(plan.num_chunks * max(1, round(plan.chunk_bytes(num_bytes) / 4)))
    wanted = library(plan.primitive, begun.clone(), plan.root)
    kept, seconds = pace.Pace(), []
    for number in range(num_runs + 1):  # the first one connects the ranks and loads the profiler
        tensor, start_s = begun.clone(), _agreed_start()
        recorded = (
            contextlib.nullcontext() if 0 < number < num_runs else trace.record(operators=False)
        )
        with recorded, traffic.count() as counted:
            pace.sleep_until(start_s)
            execute(plan, tensor, network if number else None, kept)
            seconds.append(time.perf_counter() - start_s)
    got, payload = _result(plan.primitive, tensor, plan.root), counted.payload_bytes
    return {
        "seconds": seconds[1:],
        "sent_bytes": payload["send"],
        "received_bytes": payload["recv"],
        "wire_sent_bytes": counted.sent_bytes,
        "wire_received_bytes": counted.received_bytes,
        "num_overruns": kept.num_overruns,
        "max_error": (got - wanted).abs().max().item() if len(got) else 0.0,
    }


def _agreed_start() -> float:
    """A moment, as perf_counter reads, by which every rank will be ready to begin."""
    import torch
    import torch.distributed as dist

    moment = torch.tensor(time.perf_counter() + START_S, dtype=torch.float64)
    dist.all_reduce(moment, dist.ReduceOp.MAX)
    return moment.item()
