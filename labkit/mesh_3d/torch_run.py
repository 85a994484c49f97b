"""All axes by torch: one DeviceMesh, ``parallelize_module`` along tp, ``fully_shard`` along the
data axes, a ``PipelineStage`` along pp. ZeRO 1 and whole replicas are a few lines by hand."""

from collections.abc import Callable
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
        self._data = _data(step, self.part, self.mesh)
        self._replica = step.dp_shard * self._at("dp_replicate") + self._at("dp_shard")
        self._num_replicas = step.dp

    def _at(self, axis: str) -> int:
        return self.mesh[axis].get_local_rank()

    def train(
        self, tokens: Tensor, targets: Tensor, seen: Callable[[str], None] = lambda moment: None
    ) -> list[Tensor]:
        """One step of this rank's replica, calling ``seen`` after "backward" and "reduce"; the
        microbatches' losses, on the ranks of the last stage."""
        mine = [each.chunk(self._num_replicas)[self._replica].clone() for each in (tokens, targets)]
        losses: list[Tensor] = []
        inputs = mine[:1] if self.stage.is_first else []
        wanted = mine[1] if self.stage.is_last else None
        self._schedule.step(*inputs, target=wanted, losses=losses, return_outputs=False)
        seen("backward")
        self._data.reduce()
        seen("reduce")
        with torch.profiler.record_function("optimizer"):
            self._data.update()
        return losses

    def gradients(self) -> list[Tensor]:
        """What this rank has of the mean gradients."""
        return self._data.gradients()

    def expected(self, step: Step, right: model.Transformer) -> list[Tensor]:
        """The same of a model that holds the right gradients in the place of its weights."""
        return self._data.share(cut(step, right, self.mesh))

    def held(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer states."""
        weights = list(self.part.parameters())
        states: list[Tensor] = []
        for each in self._data.optimizer.state.values():
            states += each.values()
        return {
            "parameters": num_bytes(weights),
            "gradients": num_bytes([each.grad for each in weights]),
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
        self._weights = super().share(self.part)
        self._mine = [each.requires_grad_() for each in self._share_of(self._weights)]
        return torch.optim.AdamW(self._mine, LEARNING_RATE, foreach=False)

    def _share_of(self, tensors: list[Tensor]) -> list[Tensor]:
        """Of them all, one after another, this rank's nth: views of them."""
        length = -(-sum(each.numel() for each in tensors) // self._size)
        start = length * self.mesh["dp_shard"].get_local_rank()
        found = []
        for each in tensors:
            found.append(each.view(-1)[max(0, start) : max(0, start + length)])
            start -= each.numel()
        return [each for each in found if each.numel()]

    def reduce(self) -> None:
        """This rank's part of the mean; replicas of the part sum theirs."""
        flat = _padded(super().gradients(), self._size)
        mine = flat.new_empty(len(flat) // self._size)
        dist.reduce_scatter_single(mine, flat, group=self._group)
        replicas = self.mesh["dp_replicate"]
        if replicas.size() > 1:
            dist.all_reduce(mine, group=replicas.get_group())
        mine /= self._size * replicas.size()
        for weight in self.part.parameters():
            weight.grad = None
        for each in self._mine:
            each.grad = torch.empty_like(each)
        _spread(mine, self.gradients())

    def update(self) -> None:
        """Each its part, then all of all parts."""
        self.optimizer.step()
        self.optimizer.zero_grad()
        mine = torch.cat([each.detach() for each in self._mine])
        length = -(-sum(each.numel() for each in self._weights) // self._size)
        mine = nn.functional.pad(mine, (0, length - len(mine)))
        flat = mine.new_empty(self._size * length)
        dist.all_gather_single(flat, mine, group=self._group)
        _spread(flat, self._weights)

    def gradients(self) -> list[Tensor]:
        """After ``reduce``: of this rank's part."""
        return [each.grad for each in self._mine]

    def share(self, part: nn.Module) -> list[Tensor]:
        """The same part."""
        return self._share_of(super().share(part))


def _padded(tensors: list[Tensor], size: int) -> Tensor:
    """All of them, one after another, filled up to a multiple."""
    flat = torch.cat([each.flatten() for each in tensors])
    return nn.functional.pad(flat, (0, -len(flat) % size))


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
    return sum(local(each).nbytes for each in tensors)
