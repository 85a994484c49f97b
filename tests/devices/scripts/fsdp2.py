"""FSDP2 with mixed precision, prefetching, a model that begins on the meta device, and a checkpoint
by torch.distributed.checkpoint that is loaded again; it needs two GPUs."""

import itertools
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

if torch.accelerator.device_count() < 2:
    sys.exit("this script needs 2 GPUs")


def build(device):
    with torch.device("meta"):
        layers = [nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True) for _ in range(3)]
        model = nn.Sequential(nn.Embedding(64, 32), *layers, nn.Linear(32, 64))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    for first, second in itertools.pairwise(model):
        first.set_modules_to_forward_prefetch([second])
        second.set_modules_to_backward_prefetch([first])
    model.to_empty(device=device)
    for parameter in model.parameters():
        assert isinstance(parameter, DTensor) and parameter.device.type == device.type
        nn.init.normal_(parameter, std=0.05)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def main():
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(torch.accelerator.current_accelerator().type, rank)
    torch.accelerator.set_device_index(rank)
    dist.init_process_group(dist.get_default_backend_for_device(device), device_id=device)
    torch.manual_seed(0)
    model, optimizer = build(device)
    tokens = torch.randint(0, 64, (8, 16), device=device)
    losses = []
    for _ in range(8):
        loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder, src=0)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
    again, its_optimizer = build(device)
    weights, moments = get_state_dict(again, its_optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])
    set_state_dict(again, its_optimizer, model_state_dict=weights, optim_state_dict=moments)
    for before, after in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(before.full_tensor(), after.full_tensor())
    print(f"losses {losses[0]} {losses[-1]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
