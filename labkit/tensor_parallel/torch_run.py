"""The same layer by DTensor: torch's ``parallelize_module`` and a plan of one line a weight."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.whole_run import WholeBlock, qkv_by_rank


def cut_block(step: Layer, whole: WholeBlock) -> WholeBlock:
    """A rank's part of the whole layer, its weights DTensors."""
    block = qkv_by_rank(whole, rows_by_rank(step))
    block.num_heads //= step.ranks
    block.num_kv_heads //= step.ranks
    kind = torch.get_default_device().type
    mesh = dist.init_device_mesh(kind, (step.ranks,), mesh_dim_names=("tp",))
    parallelize_module(block, mesh, plan(step))
    return block


def rows_by_rank(step: Layer) -> list[int]:
    """The rows of queries, keys and values, each rank's beside one another."""
    order: list[int] = []
    for rank in range(step.ranks):
        (qkv,) = (each for each in step.pieces(rank) if each.name == "qkv.weight")
        for each in qkv.ranges:
            order += each
    return order


def plan(step: Layer) -> dict[str, Any]:
    """What ``parallelize_module`` is told. Between the cut parts the stream is whole on every rank,
    or under sequence parallelism cut along its dimension 1, the tokens."""
    between = Shard(1) if step.sequence_parallel else Replicate()
    told: dict[str, Any] = {
        "qkv": ColwiseParallel(input_layouts=between),
        "out": RowwiseParallel(output_layouts=between),
        "up": ColwiseParallel(input_layouts=between),
        "down": RowwiseParallel(output_layouts=between),
    }
    if step.sequence_parallel:
        norm = SequenceParallel(use_local_output=True)
        told |= {"norm1": norm, "norm2": norm}
    if step.vocab:
        told["embed"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        told["head"] = ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        )
    return told


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a DTensor; any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    return tensor.detach().to_local()


def gradient(weight: Tensor) -> Tensor:
    """This rank's part of a weight's gradient, sums done: under sequence parallelism a norm's is
    each rank's summand until then."""
    found = weight.grad
    if isinstance(weight, DTensor) and isinstance(found, DTensor):
        found = found.redistribute(placements=weight.placements)
    return local(found)
