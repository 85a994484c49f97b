"""DeepSpeed's ZeRO on tensors that no number of ranks divides: predicted to the byte, and each byte
read once, also where the last rank pads several tensors by the same length."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import labkit as lab
from labkit.sharding import engines, partition
from labkit.sharding.run import deepspeed_config
from labkit.sharding.step import Step
from labkit.shards import differences, join

WIDTHS = ((7, 13, 1), (5, 3, 2), (1, 1, 1), (11, 4, 17))
"""Of each model: inputs, hidden, outputs."""


def network(widths):
    first, second, third = widths
    return nn.Sequential(nn.Linear(first, second), nn.Linear(second, third))


def hold(engine_name, num_ranks):
    """A rank: every model after a step and a microbatch. Shards, and the bytes of the storages."""
    import deepspeed

    step = Step(engine=engine_name, ranks=num_ranks, batch=2)
    found = []
    for widths in WIDTHS:
        torch.manual_seed(0)
        config = deepspeed_config(step)
        engine = deepspeed.initialize(model=network(widths), config=config)[0]
        x = torch.ones(2, widths[0], dtype=torch.bfloat16)
        for _ in range(step.microbatches):
            engine.backward(engine(x).float().sum())
            engine.step()
        engine.backward(engine(x).float().sum())
        dist.barrier()
        pieces = list(engines.pieces(engine))
        storages = {piece.held.untyped_storage()._cdata: piece.held for piece in pieces}
        num_bytes = sum(held.untyped_storage().nbytes() for held in storages.values())
        found.append((engines.shards(engine), num_bytes, step.bucket_size))
    return found


@pytest.mark.a_few(2)
@pytest.mark.real
@pytest.mark.parametrize("engine", ["zero1", "zero2", "zero3"])
@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_odd_shapes_are_held_as_predicted_and_counted_as_held(engine, num_ranks):
    run = lab.launch(hold, engine, num_ranks, ranks=num_ranks, backend="gloo", timeout_s=90)
    for index, widths in enumerate(WIDTHS):
        shards, held_bytes, (bucket_size, *_) = zip(*(each[index] for each in run), strict=True)
        measured = join(shards)
        sizes = {name: tuple(each.shape) for name, each in network(widths).named_parameters()}
        predicted = partition.predict(engine, sizes, num_ranks, bucket_size=bucket_size)
        assert not differences(predicted, measured), widths
        assert measured.rank_bytes.tolist() == list(held_bytes), widths
        assert predicted.rank_bytes.tolist() == list(held_bytes), widths
