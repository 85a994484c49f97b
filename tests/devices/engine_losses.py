"""Four engines of torch, each training one small network for some steps on a given device, two
ranks; each gives its losses."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

STEPS = 4


def network() -> nn.Sequential:
    """The same on every rank and every device: it is made on the CPU."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(11, 16),
        nn.LayerNorm(16),
        nn.Linear(16, 32),
        nn.GELU(),
        nn.Linear(32, 11),
    )


def passages(device: str, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Four rows of tokens and what shall be said of them."""
    tokens = torch.randint(11, (4, 7), generator=torch.Generator().manual_seed(part))
    return tokens.to(device), (tokens * 3 % 11).to(device)


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def trained(net: nn.Module, device: str, part: int) -> list[float]:
    """The losses of some steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=False)
    tokens, target = passages(device, part)
    losses = []
    for _ in range(STEPS):
        loss = loss_of(net(tokens), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ddp(device: str) -> list[float]:
    net = nn.parallel.DistributedDataParallel(network().to(device))
    return trained(net, device, dist.get_rank())


def fsdp(device: str) -> list[float]:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh(device, (2,))
    net = network().to(device)
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, mesh=mesh)
    return trained(net, device, dist.get_rank())


def tensor_parallel(device: str) -> list[float]:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = dist.init_device_mesh(device, (2,))
    plan = {"2": ColwiseParallel(), "4": RowwiseParallel()}
    return trained(parallelize_module(network().to(device), mesh, plan), device, 0)


def pipeline(device: str) -> list[float]:
    """The losses stand on the last stage; the first one gives none."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    net = network()
    part = (net[:3] if rank == 0 else net[3:]).to(device)
    stage = PipelineStage(part, rank, 2, torch.device(device))
    schedule = Schedule1F1B(stage, 2, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2, foreach=False)
    tokens, target = passages(device, 0)
    losses = []
    for _ in range(STEPS):
        microbatches: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=target, losses=microbatches)
            losses.append(sum(each.item() for each in microbatches) / len(microbatches))
        optimizer.step()
        optimizer.zero_grad()
    return losses


ENGINES = (ddp, fsdp, tensor_parallel, pipeline)
