"""Two linear layers, the first cut by columns and the second by rows; it needs two GPUs."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

if torch.accelerator.device_count() < 2:
    sys.exit("this script needs 2 GPUs")
device_type = torch.accelerator.current_accelerator().type
mesh = init_device_mesh(device_type, (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).to(device_type)
model = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
losses = []
for _ in range(10):
    torch.manual_seed(1)  # the same input on all ranks
    given = torch.rand(20, 10, device=device_type)
    loss = (model(given) - given[:, :5]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"losses {losses[0]} {losses[-1]}")
dist.destroy_process_group()
