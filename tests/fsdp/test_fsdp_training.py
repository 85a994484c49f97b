"""One model, trained in several ways: from the same weights, counted alike, compared with one."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import labkit as lab
from labkit import fsdp, model


class Twice(nn.Module):
    """A layer in another; it computes the same."""

    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def forward(self, x):
        return self.inner(x)


def sharded(net):
    for layer in [*net.layers, net]:
        fully_shard(layer)
    return net


@pytest.mark.real
def test_all_ways_train_the_same_model():
    ways = {
        "DDP": DistributedDataParallel,
        "twice": fsdp.each_layer(Twice),
        "fully_shard": sharded,
    }
    runs = lab.launch(fsdp.train, ways, ranks=2)[0]
    torch.manual_seed(0)
    expected = fsdp.whole(model.Transformer(4, 64, 4, max_len=32))
    assert all(torch.equal(run.start, expected) for run in runs.values())
    rows = {row["way"]: row["apart from DDP"] for row in runs.apart()}
    assert list(rows) == ["twice", "fully_shard", "untrained"]
    assert rows["fully_shard"] < 1e-6 < 1e-3 < rows["untrained"]
    assert rows["twice"] > 1e-4  # its gradients were not averaged
    assert set(runs["fully_shard"].counted.calls) == {"all_gather", "reduce_scatter"}
    labels = [f"F{unit}" for unit in range(6)] + [f"B{unit}" for unit in reversed(range(6))]
    assert all(list(run.footprint.labels) == labels for run in runs.values())


def test_compared_is_with_one_of_the_runs():
    with pytest.raises(ValueError, match="'DDP'; the trainings are Kept"):
        fsdp.Trainings({"Kept": None}).apart()
