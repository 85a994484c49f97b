"""All axes by DeepSpeed: its grid of pipe, data and model ranks, a ``PipelineModule``, ZeRO 1; along
tp megatron-core's layers stand inside."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit import model
from labkit.mesh_3d.step import Step
from labkit.mesh_3d.torch_run import LEARNING_RATE
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.megatron_run import MegatronBlock
from labkit.tensor_parallel.whole_run import WholeBlock


class Trainer:
    """A rank's part of the model in DeepSpeed's pipeline engine."""

    def __init__(self, step: Step, net: model.Transformer) -> None:
        import deepspeed
        from deepspeed.pipe import PipelineModule
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

        deepspeed.init_distributed()
        layers = list(net.layers)
        if step.tp > 1:
            _megatron_grid(step)
            layers = [_cut(step, each) for each in layers]
        topology = PipeModelDataParallelTopology(num_pp=step.pp, num_mp=step.tp, num_dp=step.dp)
        part = PipelineModule(
            layers, topology=topology, loss_fn=model.loss, partition_method="type:Block"
        )
        self.step = step
        self.stage = deepspeed.initialize(
            model=part,
            config=config(step),
            optimizer=torch.optim.AdamW(part.parameters(), LEARNING_RATE),
        )[0]

    def train(
        self, tokens: Tensor, targets: Tensor, seen: Callable[[str], None] | None = None
    ) -> list[Tensor]:
        """One step; DeepSpeed tells every rank the loss of them all."""
        step = self.step
        replica = self.stage.grid.get_data_parallel_rank()
        parts = []
        for each in (tokens, targets):
            parts.append(each.chunk(step.dp)[replica].chunk(step.microbatches))
        with _device_of_cuda():
            return [self.stage.train_batch(zip(*parts, strict=True))]

    def gradients(self) ...


def config(step: Step) -> dict:
    """As ``deepspeed.initialize`` takes it."""
    return {
        "train_micro_batch_size_per_gpu": step.microbatch,
        "gradient_accumulation_steps": step.microbatches,
        "zero_optimization": {"stage": step.zero if step.dp_shard > 1 else 0},
        "steps_per_print": 10**9,
    }
