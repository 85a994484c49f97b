"""Slices of every kind are joined to the weights that were cut."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import labkit as lab
from labkit import fsdp


class Sliced(nn.Module):
    """A layer as chapter 07 keeps it."""

    def __init__(self, layer):
        super().__init__()
        size = dist.get_world_size()
        flat = torch.cat([each.detach().flatten() for each in layer.parameters()])
        padded = nn.functional.pad(flat, (0, -len(flat) % size))
        self.mine = nn.Parameter(padded.chunk(size)[dist.get_rank()].clone())
        self.shapes = {name: each.shape for name, each in layer.named_parameters()}


def differ():
    """Elements of each kind that differ from the layers' own, and how many there are."""
    torch.manual_seed(0)
    net = nn.Module()
    net.layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 1)])
    plain = torch.cat([each.detach().flatten() for each in net.layers.parameters()])
    found = {"plain": fsdp.whole(net)}
    by_hand = nn.Module()
    by_hand.layers = nn.ModuleList(map(Sliced, net.layers))
    found["by hand"] = fsdp.whole(by_hand)
    for layer in net.layers:
        fully_shard(layer)
    found["fully_shard"] = fsdp.whole(net)
    return len(plain), {name: torch.equal(each, plain) for name, each in found.items()}


@pytest.mark.real
@pytest.mark.parametrize("ranks", [2, 3])
def test_slices_of_every_kind_are_joined(ranks):
    for total, same in lab.launch(differ, ranks=ranks):
        assert total == 3 * 5 + 5 + 5 + 1  # 20 and 6: padded on three ranks
        assert same == {"plain": True, "by hand": True, "fully_shard": True}
