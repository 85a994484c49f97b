"""A character-level GPT under DistributedDataParallel, with autocast, a gradient scaler and pinned
memory; it needs two GPUs, of any maker."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

if torch.accelerator.device_count() < 2:
    sys.exit("this script needs 2 GPUs")
TEXT = "the quick brown fox jumps over the lazy dog. " * 40
LENGTH = 16


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width=32):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.places(places)))


def main():
    rank = int(os.environ["LOCAL_RANK"])
    accelerator = torch.accelerator.current_accelerator()
    torch.accelerator.set_device_index(rank)
    device = torch.device(accelerator.type, rank)
    dist.init_process_group(dist.get_default_backend_for_device(accelerator))
    torch.manual_seed(0)
    letters = sorted(set(TEXT))
    tokens = torch.tensor([letters.index(each) for each in TEXT])
    passages = tokens.unfold(0, LENGTH + 1, 8)
    data = TensorDataset(passages[:, :-1], passages[:, 1:])
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), pin_memory=True)
    model = DistributedDataParallel(GPT(len(letters)).to(device), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device.type)
    losses = []
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for source, target in loader:
            source = source.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(source).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    peak = torch.accelerator.max_memory_allocated()
    assert peak > 0
    print(f"losses {losses[0]} {losses[-1]}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
