"""Plans of ``labkit.collectives`` on real ranks, message by message; with links of a stated speed
if wanted.

    ring = collectives.plan("all_reduce", "ring", 4)
    run = collectives.launch(ring, 1e6, network=slow)  # 4 processes, real bytes, slow links
    run.timeline()                                     # beside network.simulate(ring, slow, 1e6)

Sums are taken in the order of the plan's steps, so that floats may differ from another algorithm's
in the last bits.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.collectives import paced_run
from labkit.collectives.network import Network
from labkit.collectives.plans import Message, Plan
from labkit.devices.place import synchronize

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.launching.job import Job
    from labkit.launching.run import Run
    from labkit.measure.pace import Pace

START_S = 0.02
"""Ranks agree to begin this much later than the last of them is ready: time to start a
recording."""


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

    is_size = 0 <= num_bytes < float("inf")
    fits = network is None or network.num_ranks == plan.num_ranks
    if not is_size or num_runs < 1 or not fits:
        raise ValueError(
            f"a run has 0 bytes, 1 execution or more and a network of its plan's {plan.num_ranks} "
            f"ranks; got {num_bytes}, {num_runs} and {network.num_ranks if network else None}"
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

    _check(plan, tensor, network, dist.get_world_size())
    me = dist.get_rank()
    chunks = tensor.tensor_split(plan.num_chunks)
    clock = paced_run.Links(plan, network, kept) if network else paced_run.Clock()
    epoch_ns = _epoch_ns()
    for number, step in enumerate(plan.steps):
        messages = [message for message in step if me in (message.src, message.dst)]
        if messages:
            ready_ns = clock.begin(number)
            sizes = _transfer(messages, chunks, me)
            spans = clock.finish(number, messages, sizes)
            labels = [plan.label(message) for message in messages]
            _record(messages, labels, sizes, spans, ready_ns, epoch_ns)
    return tensor


def _check(plan: Plan, tensor: "Tensor", network: Network | None, num_ranks: int) -> None:
    """Raises ValueError for what can't be executed on this many ranks."""
    sizes = (plan.num_ranks, network.num_ranks if network else plan.num_ranks)
    if set(sizes) != {num_ranks}:
        raise ValueError(f"this run has {num_ranks} ranks; got a plan and a network for {sizes}")
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"a plan works on a contiguous 1-D tensor; got {tuple(tensor.shape)}. Take "
            "x.contiguous().view(-1)"
        )


def _epoch_ns() -> int:
    """What is added to perf_counter_ns to make it the time of day. The largest of five readings:
    whoever is held up between the two clocks errs downwards."""
    return max(time.time_ns() - time.perf_counter_ns() for _ in range(5))


def _record(
    messages: Sequence[Message],
    labels: Sequence[str],
    sizes: Sequence[int],
    spans: Sequence[tuple[int, int]],
    ready_ns: int,
    epoch_ns: int,
) -> None:
    """Tells the trace of this rank's messages of a step."""
    import torch.distributed as dist

    from labkit.measure import trace

    every = zip(messages, labels, sizes, spans, strict=True)
    for message, label, num_bytes, (start_ns, end_ns) in every:
        trace.span(
            "send" if message.src == dist.get_rank() else "recv",
            label,
            epoch_ns + start_ns,
            epoch_ns + end_ns,
            num_bytes,
            waited_ns=start_ns - ready_ns,
        )


def _transfer(messages: Sequence[Message], chunks: Sequence["Tensor"], me: int) -> list[int]:
    """This rank's messages of one step, for real, the receive posted first. Returns their sizes in
    bytes."""
    import torch
    import torch.distributed as dist

    pieces = []
    for message in messages:
        pieces.append([chunks[chunk] for chunk in message.chunks])
    data = [torch.cat(each) for each in pieces]  # what is sent, or a place for what arrives
    sends = []
    receives = []
    for message, tensor in zip(messages, data, strict=True):
        if message.src == me:
            sends.append(dist.P2POp(dist.isend, tensor, message.dst))
        else:
            receives.append(dist.P2POp(dist.irecv, tensor, message.src))
    for work in dist.batch_isend_irecv(receives + sends):
        work.wait()
    synchronize()
    for message, places, arrived in zip(messages, pieces, data, strict=True):
        if message.dst == me:
            _put(places, arrived, message.op)
    return [tensor.nbytes for tensor in data]


def _put(places: Sequence["Tensor"], arrived: "Tensor", op: str) -> None:
    """Adds or copies what arrived into the chunks that it is for."""
    for place, part in zip(places, arrived.split([len(each) for each in places]), strict=True):
        if op == "add":
            place.add_(part)
        else:
            place.copy_(part)


def library(primitive: str, tensor: "Tensor", root: int = 0) -> "Tensor":
    """torch.distributed's own collective on such a buffer, in place. Returns the part where this
    rank's result stands.

    That is all of the buffer; a rank's own part of a reduce-scatter, the chunks for it of an
    all-to-all; nothing on a rank that only sends. What is gathered, scattered or exchanged must
    divide by the number of ranks.
    """
    import torch.distributed as dist

    me = dist.get_rank()
    num_ranks = dist.get_world_size()
    if primitive == "all_reduce":
        dist.all_reduce(tensor)
    elif primitive == "broadcast":
        dist.broadcast(tensor, root)
    elif primitive == "reduce":
        dist.reduce(tensor, root)
    elif primitive == "all_gather":
        dist.all_gather_single(tensor, tensor.tensor_split(num_ranks)[me])
    elif primitive == "reduce_scatter":
        dist.reduce_scatter_single(tensor.tensor_split(num_ranks)[me], tensor)
    elif primitive == "all_to_all":
        table = tensor.view(num_ranks, num_ranks, -1)  # what goes from row to column
        dist.all_to_all(list(table[:, me]), list(table[me]))
    elif primitive != "send_recv":
        raise KeyError(primitive)
    elif num_ranks > 1 and me == 0:
        dist.send(tensor, 1)
    elif num_ranks > 1 and me == 1:
        dist.recv(tensor, 0)
    return _result(primitive, tensor, root)


def _result(primitive: str, tensor: "Tensor", root: int) -> "Tensor":
    import torch.distributed as dist

    me = dist.get_rank()
    num_ranks = dist.get_world_size()
    if primitive == "reduce_scatter":
        return tensor.tensor_split(num_ranks)[me]
    if primitive == "all_to_all":
        return tensor.view(num_ranks, num_ranks, -1)[:, me]
    is_empty_handed = (primitive == "reduce" and me != root) or (
        primitive == "send_recv" and me != 1
    )
    return tensor[:0] if is_empty_handed else tensor


def _measure(
    plan: Plan, num_bytes: float, network: Network | None, num_runs: int
) -> dict[str, Any]:
    """A rank of ``launch``."""
    import torch

    from labkit.measure import pace, trace, traffic

    chunk_length = max(1, round(plan.chunk_bytes(num_bytes) / 4))
    begun = torch.rand(plan.num_chunks * chunk_length)
    wanted = library(plan.primitive, begun.clone(), plan.root)
    kept = pace.Pace()
    seconds = []
    for number in range(num_runs + 1):  # the first one connects the ranks and loads the profiler
        is_told = number in (0, num_runs)
        tensor = begun.clone()
        start_s = _agreed_start()
        recorded = trace.record(operators=False) if is_told else contextlib.nullcontext()
        with recorded, traffic.count() as counted:
            pace.sleep_until(start_s)
            execute(plan, tensor, network if number else None, kept)
            seconds.append(time.perf_counter() - start_s)
    got = _result(plan.primitive, tensor, plan.root)
    return {
        "seconds": seconds[1:],
        "sent_bytes": counted.payload_bytes["send"],
        "received_bytes": counted.payload_bytes["recv"],
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
