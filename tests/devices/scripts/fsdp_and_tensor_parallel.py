"""FSDP2 by tensor parallelism on a mesh of two by two; it needs four GPUs."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

if torch.accelerator.device_count() < 4:
    sys.exit("this script needs 4 GPUs")
device_type = torch.accelerator.current_accelerator().type
mesh = init_device_mesh(device_type, (2, 2), mesh_dim_names=("data", "tensor"))
torch.manual_seed(0)
layers = [
    nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)).to(device_type) for _ in range(2)
]
for layer in layers:
    parallelize_module(layer, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(layer, mesh=mesh["data"])
model = fully_shard(nn.Sequential(*layers), mesh=mesh["data"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(10):
    torch.manual_seed(mesh["data"].get_local_rank())  # the same on the ranks that share a layer
    given = torch.rand(20, 16, device=device_type)
    loss = (model(given) - given).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"losses {losses[0]} {losses[-1]}")
dist.destroy_process_group()
