"""Ulysses by DeepSpeed: its ``DistributedAttention`` swaps heads for tokens, around attention as
one process has it. DeepSpeed's tensors have tokens before heads: (batch, tokens, heads,
head_dim)."""

from typing import Any

import torch.distributed as dist
from torch import Tensor

from labkit.long_context.attention import Attention
from labkit.long_context.ring_run import Timed
from labkit.long_context.ulysses_run import Paced


def ulysses(q: Tensor, k: Tensor, v: Tensor, attention: Attention, taking: Timed) -> Tensor:
    """Shapes (batch, heads, tokens of this rank, head_dim)."""
    import deepspeed
    from deepspeed.sequence.layer import DistributedAttention

    def of_my_heads(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
        heads_first = [each.transpose(1, 2) for each in (q, k, v)]
        return Paced.apply(*heads_first, attention, taking).transpose(1, 2)

    deepspeed.init_distributed()
    swapped = DistributedAttention(of_my_heads, dist.group.WORLD, scatter_idx=2, gather_idx=1)
    tokens_first = [each.transpose(1, 2) for each in (q, k, v)]
    return swapped(*tokens_first, 0).transpose(1, 2)
