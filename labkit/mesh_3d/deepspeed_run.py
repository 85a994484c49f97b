"""All axes by DeepSpeed: its grid of pipe, data and model ranks, a ``PipelineModule``, ZeRO 1;
along tp megatron-core's layers stand inside."""

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit import model
from labkit.measure.labels import replaced
from labkit.mesh_3d.step import Step
from labkit.mesh_3d.torch_run import LEARNING_RATE
from labkit.sharding import engines
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.whole_run import WholeBlock


class Trainer:
    """A rank's part of the model in DeepSpeed's pipeline engine."""

    def __init__(self, step: Step, net: model.Transformer) -> None:
        import deepspeed
        from deepspeed.pipe import PipelineModule
        from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

        deepspeed.init_distributed()
        topology = PipeModelDataParallelTopology(num_pp=step.pp, num_mp=step.tp, num_dp=step.dp)
        self.step = step
        self._around = _megatron_grid(step) if step.tp > 1 else contextlib.nullcontext
        with self._around():
            part = PipelineModule(
                _cut(step, net),
                topology=topology,
                loss_fn=model.loss,
                partition_method="type:Block",
            )
            self.stage = deepspeed.initialize(
                model=part,
                config=config(step),
                optimizer=torch.optim.AdamW(part.parameters(), LEARNING_RATE, foreach=False),
            )[0]

    def train(
        self, tokens: Tensor, targets: Tensor, seen: Callable[[str], None] = lambda moment: None
    ) -> list[Tensor]:
        """One step, calling ``seen`` before the optimizer's; the mean loss, on the ranks of the
        last stage."""
        step = self.step
        replica = self.stage.grid.get_data_parallel_rank()
        mine = [each.chunk(step.dp)[replica] for each in (tokens, targets)]
        microbatches = zip(*(each.chunk(step.microbatches) for each in mine), strict=True)
        with self._around(), replaced(self.stage, _INSTRUCTION_MAP=self._instructions(seen)):
            loss = self.stage.train_batch(iter(list(microbatches)))
        return [loss] if self.stage.is_last_stage() else []

    def _instructions(self, seen: Callable[[str], None]) -> dict:
        """DeepSpeed's, the optimizer's step with what is to be seen before it."""
        known = dict(self.stage._INSTRUCTION_MAP)
        for command, method in known.items():
            if command.__name__ == "OptimizerStep":
                known[command] = functools.partial(_seen_before, method, seen)
        return known

    def gradients(self) -> list[Tensor]:
        """What this rank has of the mean gradients; with ZeRO 1 those of its replicas as well."""
        from deepspeed.utils import safe_get_full_grad

        shares = self.step.dp_shard > 1
        weights = self.stage.module.parameters()
        return [safe_get_full_grad(each) if shares else each.grad for each in weights]

    def expected(self, step: Step, right: model.Transformer) -> list[Tensor]:
        """The same of a model that holds the right gradients in the place of its weights."""
        part = self.stage.module
        mine = _cut(step, right)[part._local_start : part._local_stop]
        return [each.detach() for each in nn.ModuleList(mine).parameters()]

    def held(self) -> dict[str, int]:
        """Bytes of this rank's parameters, gradients and optimizer states, as its engine keeps
        them."""
        found = engines.shards(self.stage, None).bytes_by("category")
        return {kind: int(per_rank[dist.get_rank()]) for kind, per_rank in found.items()}


def config(step: Step) -> dict:
    """As ``deepspeed.initialize`` takes it."""
    return {
        "train_micro_batch_size_per_gpu": step.microbatch,
        "gradient_accumulation_steps": step.microbatches,
        "gradient_clipping": 0.0,  # as the process beside
        "zero_optimization": {"stage": step.zero if step.dp_shard > 1 else 0},
        "steps_per_print": 10**9,
    }


def _seen_before(method: Callable, seen: Callable[[str], None], engine: Any, **told: Any) -> None:
    """The optimizer's step, after what is to be seen."""
    seen("backward")
    seen("reduce")
    with torch.profiler.record_function("optimizer"):
        method(engine, **told)


# --- megatron-core inside ---


def _megatron_grid(step: Step) -> Callable[[], contextlib.AbstractContextManager]:
    """megatron-core's groups, in the order of DeepSpeed's grid; and what must stand around
    everything that its layers do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of accelerators that are not there
        from megatron.core import parallel_state

        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=step.tp,
            pipeline_model_parallel_size=step.pp,
            order="tp-dp-pp",
        )
    device = torch.get_default_device()  # of this thread; the backward runs in others
    return functools.partial(mock.patch.object, torch.cuda, "current_device", lambda: device)


def _cut(step: Step, net: model.Transformer) -> list[nn.Module]:
    """The layers, of each block this rank's part where tp cuts them."""
    if step.tp == 1:
        return list(net.layers)
    return [_block(step, each) if isinstance(each, model.Block) else each for each in net.layers]


def _block(step: Step, block: model.Block) -> nn.Module:
    """A block by megatron-core's layers."""
    from megatron.core import parallel_state

    from labkit.tensor_parallel.megatron_run import MegatronBlock

    layer = Layer(
        engine="megatron",
        ranks=step.tp,
        hidden=step.hidden,
        heads=step.heads,
        sequence=step.sequence,
        batch=step.microbatch,
    )
    whole = WholeBlock(step.hidden, step.heads, step.heads, block.up.out_features)
    whole.load_state_dict(block.state_dict())
    return MegatronBlock(layer, whole, parallel_state.get_tensor_model_parallel_rank())
