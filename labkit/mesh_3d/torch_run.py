"""All axes by torch: one DeviceMesh, ``parallelize_module`` along tp, ``fully_shard`` along the data
axes, a ``PipelineStage`` along pp. ZeRO 1 and whole replicas are a few lines by hand."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from labkit import model
from labkit.mesh_3d.step import AXES, Step

LEARNING_RATE = 1e-2
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
PLAN = {
    "qkv": ColwiseParallel(),
    "out": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}
"""Of a block: who opens attention and MLP has rows of the matrix, who closes them columns."""


class Trainer:
    """A rank's part of the model, and how it trains."""

    def __init__(self, step: Step, net: model.Transformer) -> None:
        device = torch.get_default_device()
        sizes = [getattr(step, axis) for axis in AXES]
        self.mesh = dist.init_device_mesh(device.type, tuple(sizes), mesh_dim_names=AXES)
        self.part = cut(step, net, self.mesh)
        self.stage = PipelineStage(
            self.part, self._at("pp"), step.pp, device, group=self.mesh["pp"].get_group()
        )
        schedule = SCHEDULES[step.schedule]
        self._schedule = schedule(self.stage, step.microbatches, loss_fn=model.loss)
        self.data = _data(step, self.part, self.mesh)
        self._replica = step.dp_shard * self._at("dp_replicate") + self._at("dp_shard")
        self._num_replicas = step.dp

    def _at(self, axis: str) -> int:
        return self.mesh[axis].get_local_rank()

    def backward(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """All microbatches of this rank's replica, forward and backward; their losses, on the
        ranks of the last stage."""
        mine = [each.chunk(self._num_replicas)[self._replica].clone() for each in (tokens, targets)]
        losses: list[Tensor] = []
        inputs = mine[:1] if self.stage.is_first else []
        wanted = mine[1] if self.stage.is_last else None
        self._schedule.step(*inputs, target=wanted, losses=losses, return_outputs=False)
        return losses

    def reduce(self) -> None:
        """The mean of the gradients over the replicas; FSDP has done so in the last backward."""
        self.data.reduce()

    def update(self) -> None:
        """The optimizer's step."""
        self.data.update()

    def gradients(self) -> list[Tensor]:
        """What this rank holds of the gradients, after ``reduce``."""
        return self.data.gradients()

    def expected(self, step: Step, right: model.Transformer) -> list[Tensor]:
        """The same of a model that holds the right gradients in the place of its weights."""
        return self.data.share(cut(step, right, self.mesh))

    def held(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer states."""
        weights = [local(each) for each in self.part.parameters()]
        states = []
        for each in self.data.optimizer.state.values():
            states += [local(value) for name, value in each.items() if name != "step"]
        return {
            "parameter": num_bytes(weights),
            "gradient": num_bytes(self.gradients()),
            "optimizer": num_bytes(states),
        }


def cut(step: Step, net: model.Transformer, mesh: DeviceMesh) -> nn.Module:
    """This rank's part of the model: its stage, of each block its slice, of that its shard.

    Parameters stay gathered from the first microbatch's forward to the last one's backward, as
    torchtitan does beside a pipeline.
    """
    part = model.split(net, step.pp)[mesh["pp"].get_local_rank()]
    for block in part:
        if step.tp > 1 and isinstance(block, model.Block):
            heads_together(block, step.tp)
            parallelize_module(block, mesh["tp"], PLAN)
    if step.dp_shard > 1 and step.zero == 3:
        axes = ("dp_replicate", "dp_shard") if step.dp_replicate > 1 else "dp_shard"
        for layer in (*part, part):
            fully_shard(layer, mesh=mesh[axes], reshard_after_forward=False)
    return part


def heads_together(block: model.Block, tp: int) -> None:
    """The rows of queries, keys and values of each rank's heads beside one another."""
    for weight in (block.qkv.weight, block.qkv.bias):
        kinds = weight.data.unflatten(0, (3, tp, -1))
        weight.data.copy_(kinds.transpose(0, 1).reshape(weight.shape).clone())
    block.num_heads //= tp


# --- the data axes ---


def _data(step: Step, part: nn.Module, mesh: DeviceMesh) -> "Replicas":
    if step.dp_shard > 1 and step.zero == 3:
        return Sharded(part, mesh)
    if step.dp_shard > 1:
        return ZeroOne(part, mesh)
    return Replicas(part, mesh)


class Replicas:
    """Whole states on every rank of dp_replicate: gradients are summed in one message."""

    def __init__(self, part: nn.Module, mesh: DeviceMesh) -> None:
        self.part = part
        self.mesh = mesh
        self.optimizer = self._optimizer()

    def _optimizer(self) -> torch.optim.Optimizer:
        # not foreach: that takes no tensors of two meshes
        return torch.optim.AdamW(self.part.parameters(), LEARNING_RATE, foreach=False)

    def reduce(self) -> None:
        """One all-reduce of all gradients."""
        size = self.mesh["dp_replicate"].size()
        if size > 1:
            gradients = self.gradients()
            flat = torch.cat([each.flatten() for each in gradients])
            dist.all_reduce(flat, group=self.mesh["dp_replicate"].get_group())
            flat /= size
            _spread(flat, gradients)

    def update(self) -> None:
        """AdamW, and no gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradients(self) -> list[Tensor]:
        """Of this rank's weights."""
        return [local(each.grad) for each in self.part.parameters()]

    def share(self, part: nn.Module) -> list[Tensor]:
        """What this rank holds of another model that is cut the same way."""
        return [local(each) for each in part.parameters()]


class Sharded(Replicas):
    """FSDP2, or HSDP: it reduces by itself."""

    def reduce(self) -> None:
        """Done."""


class ZeroOne(Replicas):
    """ZeRO 1: of the optimizer's states each rank of dp_shard has an nth. Gradients are scattered,
    updated weights gathered."""

    def _optimizer(self) -> torch.optim.Optimizer:
        self._group = self.mesh["dp_shard"].get_group()
        self._size = self.mesh["dp_shard"].size()
        self._weights = [local(each) for each in self.part.parameters()]
        self._mine = self._share_of(self._weights).requires_grad_()
        return torch.optim.AdamW([self._mine], LEARNING_RATE, foreach=False)

    def _share_of(self, tensors: list[Tensor]) -> Tensor:
        """This rank's nth of them all, one after another."""
        return self._flat(tensors).chunk(self._size)[self.mesh["dp_shard"].get_local_rank()].clone()

    def _flat(self, tensors: list[Tensor]) -> Tensor:
        """One after another, filled up to a multiple of the ranks."""
        flat = torch.cat([each.flatten() for each in tensors])
        return nn.functional.pad(flat, (0, -len(flat) % self._size))

    def reduce(self) -> None:
        """This rank's part of the mean; replicas of the part sum theirs."""
        flat = self._flat(super().gradients())
        self._mine.grad = torch.empty_like(self._mine)
        dist.reduce_scatter_tensor(self._mine.grad, flat, group=self._group)
        replicas = self.mesh["dp_replicate"]
        if replicas.size() > 1:
            dist.all_reduce(self._mine.grad, group=replicas.get_group())
        self._mine.grad /= self._size * replicas.size()

    def update(self) -> None:
        """Each its part, then all of all parts."""
        self.optimizer.step()
        flat = torch.empty(self._size * len(self._mine), device=self._mine.device)
        dist.all_gather_into_tensor(flat, self._mine.detach(), group=self._group)
        _spread(flat, self._weights)
        for weight in self.part.parameters():
            weight.grad = None

    def gradients(self) -> list[Tensor]:
        """This rank's part."""
        return [self._mine.grad]

    def share(self, part: nn.Module) -> list[Tensor]:
        """The same part."""
        return [self._share_of(super().share(part))]


def _spread(flat: Tensor, tensors: list[Tensor]) -> None:
    """Copies a flat tensor into those that it was made of."""
    start = 0
    for each in tensors:
        each.copy_(flat[start : start + each.numel()].view_as(each))
        start += each.numel()


def local(tensor: Any) -> Tensor:
    """What this rank holds of a DTensor; any other tensor as it is."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor.detach()


def num_bytes(tensors: list[Tensor]) -> int:
    """Of all together."""
    return sum(each.nbytes for each in tensors)
