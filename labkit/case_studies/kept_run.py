"""What a rank of the Hugging Face Trainer keeps: weights, gradients, Adam's moments; by FSDP or by
DeepSpeed."""

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import Trainer


def gradients(trainer: "Trainer") -> "list[Tensor]":
    """The gradients that this rank keeps. FSDP tells nobody of those that are not shards yet, so
    they are read where it has them; DeepSpeed has all in one buffer."""
    if trainer.is_deepspeed_enabled:
        return [trainer.model_wrapped.optimizer.grad_partitions_flat_buffer]
    groups = {}
    for module in trainer.model_wrapped.modules():
        if hasattr(module, "_get_fsdp_state"):
            group = module._get_fsdp_state()._fsdp_param_group
            groups[id(group)] = group.fsdp_params if group else []
    found = []
    for each in itertools.chain.from_iterable(groups.values()):
        shard = each.sharded_param.grad
        kept = (
            each.unsharded_accumulated_grad,
            each._unsharded_param.grad,
            None if shard is None else shard.to_local(),
        )
        found += [one for one in kept if one is not None]
    return found


def weights(trainer: "Trainer") -> "list[Tensor]":
    """The weights that this rank holds, as the model has them; DeepSpeed's optimizer holds another
    copy, in fp32."""
    found = []
    for weight in trainer.model_wrapped.parameters():
        mine = getattr(weight, "ds_tensor", weight)
        found.append(getattr(mine, "_local_tensor", mine))
    return found


def moments(trainer: "Trainer") -> "list[Tensor]":
    """Adam's first moments on this rank."""
    adam = trainer.optimizer
    while hasattr(adam, "optimizer"):  # wrapped, by Accelerate and by DeepSpeed
        adam = adam.optimizer
    return [moments["exp_avg"] for moments in adam.state.values()]


def named(dtype: "torch.dtype") -> str:
    """A tensor's type, without torch's name."""
    return str(dtype).removeprefix("torch.")
