"""The whole weights of a sharded model, from every rank's slices: to compare ways of sharding."""

import math
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch import Tensor, nn


def whole(net: "nn.Module") -> "Tensor":
    """All weights of ``net.layers``, flattened, on every rank; each rank has to call it.

    A layer is plain, sharded by ``fully_shard``, or one of chapter 07's own: its only parameter is
    this rank's slice of its flattened, padded weights, whose ``shapes`` it has as a dict.
    """
    parts = []
    for layer in net.layers:
        for weight in layer.parameters():
            weight = weight.detach()
            if isinstance(weight, DTensor):
                weight = weight.full_tensor()
            elif hasattr(layer, "shapes"):
                everyone = weight.new_empty(len(weight) * dist.get_world_size())
                dist.all_gather_single(everyone, weight)
                weight = everyone[: sum(map(math.prod, layer.shapes.values()))]
            parts.append(weight.flatten())
    return torch.cat(parts)
