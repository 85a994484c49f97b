"""A normalised block whose activations are cut along the sequence between its two linear layers;
it needs two GPUs."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

if torch.accelerator.device_count() < 2:
    sys.exit("this script needs 2 GPUs")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 64)
        self.down = nn.Linear(64, 16)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


device_type = torch.accelerator.current_accelerator().type
mesh = init_device_mesh(device_type, (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
plan = {
    "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Replicate()),
}
model = parallelize_module(Block().to(device_type), mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for _ in range(10):
    torch.manual_seed(1)
    given = torch.rand(2, 8, 16, device=device_type)
    loss = (model(given) - given).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
print(f"losses {losses[0]} {losses[-1]}")
dist.destroy_process_group()
