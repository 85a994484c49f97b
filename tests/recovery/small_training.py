"""A small training for tests of checkpoints: DDP or FSDP2, and a weight that two layers share."""

import torch

from labkit.recovery import training_state


def build(engine, seed=0, frozen=(), dropout=0.0):
    """A model of sizes that no number of ranks divides, and its optimizer; two of its layers share
    a weight."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Embedding(11, 10),
        nn.Linear(10, 7),
        nn.Dropout(dropout),
        nn.LayerNorm(7),
        nn.Linear(7, 10),
        nn.Linear(10, 11, bias=False),
    )
    net.register_buffer("seen", torch.zeros(1))
    net[5].weight = net[0].weight
    for index in frozen:
        net[index].requires_grad_(False)
    if engine == "fsdp2":
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (net[1], net[4], net):
            fully_shard(layer, mesh=mesh)
    else:
        net = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(
        [each for each in net.parameters() if each.requires_grad], lr=0.01
    )
    return net, optimizer


def train(net, optimizer, steps, rate=None):
    """The losses of some steps; the data depend on the step alone."""
    import torch.distributed as dist

    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randint(0, 11, (12, 3), generator=generator).chunk(dist.get_world_size())[
            dist.get_rank()
        ]
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x).flatten(0, 1), x.flatten())
        loss.backward()
        optimizer.step()
        if rate:
            rate.step()
        losses.append(loss.item())
    return losses


def whole(net, optimizer):
    """Every tensor of the training state, whole, by name."""
    found, _ = training_state.collect(net, optimizer)
    return {
        name: (each.full_tensor() if hasattr(each, "full_tensor") else each).clone()
        for name, each in found.items()
    }


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
