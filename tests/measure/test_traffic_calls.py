"""Every form of a call is counted under the name that was called, by what was handed in."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

import labkit as lab
from labkit.measure import traffic


def collectives(num_ranks):
    """Form -> a call, and the bytes that it hands in."""
    one = torch.ones(10)
    whole = torch.ones(10 * num_ranks)  # 40 bytes for each rank
    size = 40 * num_ranks
    parts = list(torch.ones(10 * num_ranks).chunk(num_ranks))
    alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)

    def coalesced():
        with dist._coalescing_manager():
            dist.all_reduce(one)
            dist.all_reduce(whole)

    return {
        "all_reduce": (lambda: dist.all_reduce(whole), {"all_reduce": size}),
        "async": (lambda: dist.all_reduce(whole, async_op=True).wait(), {"all_reduce": size}),
        "half": (lambda: dist.all_reduce(whole.half()), {"all_reduce": size // 2}),
        "coalesced": (coalesced, {"all_reduce": 40 + size}),
        "broadcast": (lambda: dist.broadcast(whole, 0), {"broadcast": size}),
        "reduce": (lambda: dist.reduce(whole, 0), {"reduce": size}),
        "list": (lambda: dist.all_gather(parts, one), {"all_gather": 40}),
        "single": (lambda: dist.all_gather_single(whole, one), {"all_gather": 40}),
        "scatter_list": (lambda: dist.reduce_scatter(one, parts), {"reduce_scatter": size}),
        "scatter_single": (
            lambda: dist.reduce_scatter_single(one, whole),
            {"reduce_scatter": size},
        ),
        "to_all": (lambda: dist.all_to_all_single(whole.clone(), whole), {"all_to_all": size}),
        "barrier": (dist.barrier, {"barrier": 0}),
        "monitored": (dist.monitored_barrier, {"barrier": 0}),
        "none": (lambda: dist.all_reduce(torch.ones(0)), {"all_reduce": 0}),
        "group": (functools.partial(dist.all_reduce, one, group=alone), {"all_reduce": 40}),
    }


def rooted(num_ranks):
    """The same, of calls in which rank 0 hands in or takes more than the others."""
    rank = dist.get_rank()
    one = torch.ones(10)
    parts = list(torch.ones(10 * num_ranks).chunk(num_ranks))
    at_root = {"gather_list": parts} if rank == 0 else {}
    from_root = {"scatter_list": parts} if rank == 0 else {}
    scattered = 40 if rank else 40 * num_ranks
    return {
        "gather": (lambda: dist.gather(one, dst=0, **at_root), {"gather": 40}),
        "scatter": (lambda: dist.scatter(one, src=0, **from_root), {"scatter": scattered}),
    }


def messages(num_ranks):
    """The same, of sends and receives."""
    rank = dist.get_rank()
    right = (rank + 1) % num_ranks
    left = (rank - 1) % num_ranks
    one = torch.ones(10)
    other = torch.ones(10)

    def pairs():
        for work in [dist.isend(one, right), dist.irecv(other, left)]:
            work.wait()

    def batch():
        operations = [dist.P2POp(dist.isend, one, right), dist.P2POp(dist.irecv, other, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    def blocking():
        if rank == 0:
            dist.send(one, right)
        if rank == 1:
            dist.recv(other, left)

    return {
        "blocking": (blocking, [{"send": 40}, {"recv": 40}, {}, {}][rank]),
        "pairs": (pairs, {"send": 40, "recv": 40}),
        "batch": (batch, {"send": 40, "recv": 40}),
    }


def functionals(num_ranks):
    """The same, of functional collectives."""
    one = torch.ones(10)
    whole = torch.ones(10 * num_ranks)
    size = 40 * num_ranks
    world = dist.group.WORLD
    return {
        "f_all_reduce": (
            lambda: functional.all_reduce(whole, "sum", world) + 1,
            {"all_reduce": size},
        ),
        "f_all_gather": (
            lambda: functional.all_gather_single(one, 0, world) + 1,
            {"all_gather": 40},
        ),
        "f_reduce_scatter": (
            lambda: functional.reduce_scatter_single(whole, "sum", 0, world) + 1,
            {"reduce_scatter": size},
        ),
        "f_to_all": (
            lambda: functional.all_to_all_single(whole, None, None, world) + 1,
            {"all_to_all": size},
        ),
        "f_broadcast": (
            lambda: functional.broadcast(whole, 0, world) + 1,
            {"broadcast": size},
        ),
    }


def every_form():
    num_ranks = dist.get_world_size()
    found = {}
    for forms in (collectives, rooted, messages, functionals):
        for name, (form, expected) in forms(num_ranks).items():
            with traffic.count() as counted:
                form()
            found[name] = dict(counted.payload_bytes), expected, dict(counted.calls)
    return found


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_each_call_counts_what_was_handed_in_under_its_own_name(num_ranks):
    for found in lab.launch(every_form, ranks=num_ranks):
        assert len(found) == 25
        for name, (payload, expected, calls) in found.items():
            assert payload == expected, name
            assert calls == dict.fromkeys(expected, 1), name
