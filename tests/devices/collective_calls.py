"""Every collective that gloo has, as functions of (device, group): small, with a result that
depends on every rank. The same function runs on the CPU over gloo and on a device over ours."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

Tensors = list[torch.Tensor]


def mine(device: str, length: int = 6) -> torch.Tensor:
    """Numbers that tell the rank and the place."""
    return torch.arange(float(length), device=device) + 100 * dist.get_rank()


def empty(device: str, *shape: int) -> torch.Tensor:
    """A place for a result, recognisable where nothing came."""
    return torch.full(shape, -1.0, device=device)


def each_rank(device: str, *shape: int) -> Tensors:
    """A place for a result of every rank."""
    return [empty(device, *shape) for _ in range(dist.get_world_size())]


def all_reduce(device: str, group: dist.ProcessGroup) -> Tensors:
    summed = mine(device)
    largest = mine(device).bfloat16()
    dist.all_reduce(summed, group=group)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    return [summed, largest]


def all_reduce_of_a_view(device: str, group: dist.ProcessGroup) -> Tensors:
    whole = mine(device, 12).view(4, 3)
    dist.all_reduce(whole[1:3], group=group)
    return [whole]


def all_reduce_of_nothing(device: str, group: dist.ProcessGroup) -> Tensors:
    nothing = torch.empty(0, device=device)
    dist.all_reduce(nothing, group=group)
    return [nothing]


def broadcast(device: str, group: dist.ProcessGroup) -> Tensors:
    tensor = mine(device)
    dist.broadcast(tensor, src=1, group=group)
    return [tensor]


def reduce(device: str, group: dist.ProcessGroup) -> Tensors:
    tensor = mine(device)
    dist.reduce(tensor, dst=1, group=group)
    return [tensor] if dist.get_rank() == 1 else []  # elsewhere it is gloo's scratch


def all_gather(device: str, group: dist.ProcessGroup) -> Tensors:
    out = each_rank(device, 6)
    dist.all_gather(out, mine(device), group=group)
    return out


def all_gather_single(device: str, group: dist.ProcessGroup) -> Tensors:
    out = empty(device, 6 * dist.get_world_size())
    dist.all_gather_single(out, mine(device), group=group)
    return [out]


def all_gather_in_place(device: str, group: dist.ProcessGroup) -> Tensors:
    """As FSDP2 does it: what a rank gives is its part of the result."""
    out = empty(device, dist.get_world_size(), 6)
    part = out[dist.get_rank()]
    part.copy_(mine(device))
    dist.all_gather_single(out.view(-1), part, group=group)
    return [out]


def gather(device: str, group: dist.ProcessGroup) -> Tensors:
    out = each_rank(device, 6) if dist.get_rank() == 1 else None
    dist.gather(mine(device), out, dst=1, group=group)
    return out or []


def scatter(device: str, group: dist.ProcessGroup) -> Tensors:
    out = empty(device, 6)
    parts = [mine(device) * (part + 1) for part in range(dist.get_world_size())]
    dist.scatter(out, parts if dist.get_rank() == 1 else None, src=1, group=group)
    return [out]


def reduce_scatter(device: str, group: dist.ProcessGroup) -> Tensors:
    out = empty(device, 6)
    parts = [mine(device) * (part + 1) for part in range(dist.get_world_size())]
    dist.reduce_scatter(out, parts, group=group)
    return [out]


def reduce_scatter_tensor(device: str, group: dist.ProcessGroup) -> Tensors:
    out = empty(device, 2)
    dist.reduce_scatter_single(out, mine(device, 2 * dist.get_world_size()), group=group)
    return [out]


def all_to_all_single(device: str, group: dist.ProcessGroup) -> Tensors:
    """Rank r gives r + 1 numbers to each."""
    num_ranks = dist.get_world_size()
    given = [dist.get_rank() + 1] * num_ranks
    got = [rank + 1 for rank in range(num_ranks)]
    out = empty(device, sum(got))
    dist.all_to_all_single(out, mine(device, sum(given)), got, given, group=group)
    return [out]


def all_to_all(device: str, group: dist.ProcessGroup) -> Tensors:
    out = each_rank(device, 6)
    parts = [mine(device) + part for part in range(dist.get_world_size())]
    dist.all_to_all(out, parts, group=group)
    return out


def send_and_receive(device: str, group: dist.ProcessGroup) -> Tensors:
    """Round the ring: the even ranks send first."""
    rank = dist.get_rank()
    after = (rank + 1) % dist.get_world_size()
    got = empty(device, 6)
    if rank == 0:
        dist.send(mine(device), after, group=group)
        dist.recv(got, dist.get_world_size() - 1, group=group)
    else:
        dist.recv(got, rank - 1, group=group)
        dist.send(mine(device), after, group=group)
    return [got]


def receive_from_any(device: str, group: dist.ProcessGroup) -> Tensors:
    if dist.get_rank():
        dist.send(mine(device), 0, group=group)
        return []
    got = each_rank(device, 6)[1:]
    senders = [dist.recv(each, group=group) for each in got]
    return [got[place] for place in torch.tensor(senders, device="cpu").argsort().tolist()]


def batch(device: str, group: dist.ProcessGroup) -> Tensors:
    rank = dist.get_rank()
    num_ranks = dist.get_world_size()
    got = empty(device, 6)
    calls = [
        dist.P2POp(dist.isend, mine(device), (rank + 1) % num_ranks, group),
        dist.P2POp(dist.irecv, got, (rank - 1) % num_ranks, group),
    ]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    return [got]


def coalesced(device: str, group: dist.ProcessGroup) -> Tensors:
    """The three kinds of calls that torch joins into one."""
    summed = [mine(device), mine(device, 3)]
    with _coalescing_manager(group, async_ops=True) as reducing:
        for tensor in summed:
            dist.all_reduce(tensor, group=group)
    reducing.wait()
    num_ranks = dist.get_world_size()
    gathered = [empty(device, 6 * num_ranks), empty(device, 3 * num_ranks)]
    with _coalescing_manager(group, async_ops=True) as gathering:
        dist.all_gather_single(gathered[0], mine(device), group=group)
        dist.all_gather_single(gathered[1], mine(device, 3), group=group)
    gathering.wait()
    scattered = [empty(device, 2), empty(device, 1)]
    with _coalescing_manager(group, async_ops=True) as scattering:
        dist.reduce_scatter_single(scattered[0], mine(device, 2 * num_ranks), group=group)
        dist.reduce_scatter_single(scattered[1], mine(device, num_ranks), group=group)
    scattering.wait()
    return [*summed, *gathered, *scattered]


def functional_calls(device: str, group: dist.ProcessGroup) -> Tensors:
    num_ranks = dist.get_world_size()
    made = [
        functional.all_reduce(mine(device), "sum", group),
        functional.all_gather_tensor(mine(device), 0, group),
        functional.reduce_scatter_tensor(mine(device, 2 * num_ranks), "sum", 0, group),
        functional.all_to_all_single(mine(device, num_ranks), None, None, group),
        functional.broadcast(mine(device), 0, group),
    ]
    return [each.wait() for each in made]


def objects(device: str, group: dist.ProcessGroup) -> Tensors:
    gathered: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, {"rank": dist.get_rank()}, group=group)
    told = [f"of rank {dist.get_rank()}"]
    dist.broadcast_object_list(told, src=1, group=group)
    assert told == ["of rank 1"]
    return [torch.tensor([each["rank"] for each in gathered], device="cpu")]


def barrier(device: str, group: dist.ProcessGroup) -> Tensors:
    dist.barrier(group=group)
    return []


CALLS = (
    all_reduce,
    all_reduce_of_a_view,
    all_reduce_of_nothing,
    broadcast,
    reduce,
    all_gather,
    all_gather_single,
    all_gather_in_place,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all_single,
    all_to_all,
    send_and_receive,
    receive_from_any,
    batch,
    coalesced,
    functional_calls,
    objects,
    barrier,
)
