"""One rank of a thousand, on a laptop: torch's fake process group and fake tensors run rank 0 of a
plan, with ``fully_shard`` and tensor parallelism, and no byte is held or sent.

    plan = planner.Plan(model="LLaMA 7B", gpus=1024, zero=3, recipe="fp32")
    planner.rehearse(plan).rows()

What the rank holds and hands to collectives is torch's own doing, to the byte; how long it takes
nobody learns here.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.measure import memory, traffic
from labkit.planner.plan.layout import Layout
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.stacks import EAGER
from labkit.planner.real import tensors
from labkit.planner.real.decoder_run import Decoder
from labkit.tables import worded
from labkit.units import format_bytes
from labkit.words import say

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
RECIPES = ("fp32", "bf16")
"""What ``fully_shard`` keeps of a module in fp32, or in bf16, with torch's AdamW."""
_DIRECT = torch.ops._c10d_functional
_FUNCTIONAL = {
    _DIRECT.all_reduce: "all_reduce",
    _DIRECT.all_gather_into_tensor: "all_gather",
    _DIRECT.reduce_scatter_tensor: "reduce_scatter",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Rehearsal:
    """What rank 0 held and called in a microbatch and a step of the optimizer."""

    plan: Plan
    """what was rehearsed"""
    held: dict[str, int]
    """parameters, gradients, optimizer: bytes"""
    peak_bytes: int
    """the highest point of all storages of the step"""
    calls: dict[str, int]
    """collective -> how often it was called"""
    moved: dict[str, int]
    """gathered, scattered over dp and reduced over tp: bytes of the whole tensors"""
    seconds: float
    """how long the rehearsal took"""

    def rows(self) -> list[dict[str, object]]:
        """For ``lab.table``: each number as the planner has it, as tensors are cut, and as torch
        did; the peak by torch's own operators (``stacks.EAGER``)."""
        shape = self.plan.shape
        layout = self.plan.layout
        planned = self.plan.memory()
        cut = tensors.held_bytes(shape, layout)
        moved = {**tensors.moved_bytes(shape, layout)}
        moved["all_reduce"] = tensors.reduced_bytes(shape, layout)
        found = []
        for part, num_bytes in self.held.items():
            found.append(_row(part, planned.parts[part], cut[part], num_bytes))
        for name, num_bytes in self.moved.items():
            found.append(_row(name, _planned_bytes(shape, layout)[name], moved[name], num_bytes))
        eager = self.plan.but(stack=EAGER).memory().peak_bytes
        return [*found, _row(say("peak"), eager, None, self.peak_bytes)]

    def peaks(self) -> dict[str, dict[str, float]]:
        """For ``lab.bars``, stacked: the peak that was planned, by what it is made of, and the one
        that was rehearsed."""
        parts = self.plan.but(stack=EAGER).memory().parts
        planned = {
            say("states"): sum(parts[name] for name in self.held),
            say("gathered for a while"): parts["gathered"],
            say("activations"): parts["activations"],
            say("temporary"): parts["temporary"] + parts["logits"],
        }
        return {say("planned"): planned, say("rehearsed"): {say("all"): self.peak_bytes}}


def _row(name: str, planned: float, cut: float | None, rehearsed: float) -> dict[str, object]:
    return {
        "what": worded(name),
        "planned": format_bytes(planned),
        "as tensors are cut": "" if cut is None else format_bytes(cut),
        "rehearsed": format_bytes(rehearsed),
        "planned / rehearsed": round(planned / rehearsed, 4) if rehearsed else None,
    }


def _planned_bytes(shape: Any, layout: Layout) -> dict[str, float]:
    """Bytes of a microbatch as the planner's step time has them: layers twice, the rest once; what
    tensor parallelism reduces outside of the layers is not counted."""
    layers = layout.itemsize * shape.layers * shape.layer_params / layout.tp
    root = layout.itemsize * layout.root_params(shape, 0)
    stream = layout.tokens * shape.hidden * layout.itemsize
    reduced = 4 * shape.layers * stream if layout.tp > 1 else 0.0
    return {
        "all_gather": 2 * layers + root,
        "reduce_scatter": layers + root,
        "all_reduce": reduced,
    }


def refusals(plan: Plan) -> list[str]:
    """Why a plan can't be rehearsed, a sentence each."""
    layout = plan.layout
    found = []
    if layout.zero != 3 or layout.pp > 1 or layout.cp > 1 or layout.dp < 2:
        found.append(
            say(
                "fully_shard is rehearsed, beside tensor parallelism: zero 3, pp 1, cp 1 and dp 2 "
                "or more; got zero {zero}, pp {pp}, cp {cp}, dp {dp}",
                zero=layout.zero,
                pp=layout.pp,
                cp=layout.cp,
                dp=layout.dp,
            )
        )
    if layout.recipe not in RECIPES or layout.precision not in TYPES:
        found.append(
            say(
                "fully_shard keeps states by the recipe fp32 (and gathers in the plan's precision) "
                "or bf16, of fp32, bf16 or fp16; got {recipe}, {precision}",
                recipe=layout.recipe,
                precision=layout.precision,
            )
        )
    shape = plan.shape
    if shape.experts > 1 or type(shape).__name__ != "Shape" or (shape.tied and layout.tp > 1):
        found.append(
            say(
                "a dense decoder is rehearsed, by its sizes, with tp 1 where embeddings are tied; "
                "got {model}",
                model=shape.name,
            )
        )
    if layout.tp > 1 and (layout.sp or shape.num_kv_heads % layout.tp or shape.vocab % layout.tp):
        found.append(
            say(
                "tensor parallelism is rehearsed without sp, where tp divides heads of keys and "
                "vocabulary; got tp {tp}",
                tp=layout.tp,
            )
        )
    return found


def rehearse(plan: Plan) -> Rehearsal:
    """Rank 0 of a plan, with fake tensors and a fake process group of all its ranks. Raises
    ValueError for what can't be rehearsed, and where this process has a process group already."""
    plan.check()
    if found := refusals(plan):
        raise ValueError(found[0])
    if dist.is_initialized():
        raise ValueError("a rehearsal makes a process group of its own; this process has one")
    began = time.perf_counter()
    with _fake_group(plan.gpus) as fake:
        step = _Step(plan, fake)
        step.build()
        step.shard()  # on the meta device: fake tensors would be cut a thousand times in Python
        with fake:
            step.make_states()
            found = step.measured()
    return Rehearsal(plan=plan, seconds=time.perf_counter() - began, **found)


@contextlib.contextmanager
def _fake_group(num_ranks: int) -> Iterator[FakeTensorMode]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=num_ranks)
    try:
        yield FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    """Modules are made in this type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Functional(TorchDispatchMode):
    """Counts collectives that DTensor calls: under fake tensors they never reach a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter = Counter()
        self.num_bytes: Counter = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        name = _FUNCTIONAL.get(func._overloadpacket)
        if name:
            self.calls[name] += 1
            self.num_bytes[name] += args[0].nbytes
        return func(*args, **(kwargs or {}))


class _Step:
    """A module in its engine, with its optimizer."""

    def __init__(self, plan: Plan, fake: FakeTensorMode) -> None:
        self.plan = plan
        layout = plan.layout
        names = ("dp", "tp") if layout.tp > 1 else ("dp",)
        sizes = tuple(getattr(layout, name) for name in names)
        self.mesh = dist.init_device_mesh(
            torch.get_default_device().type, sizes, mesh_dim_names=names
        )
        self.dtype = TYPES[layout.precision]

    def build(self) -> None:
        """The module, in the type that its states are kept in."""
        layout = self.plan.layout
        kept = torch.bfloat16 if layout.recipe == "bf16" else torch.float32
        with _default(kept), torch.device("meta"):
            self.net = Decoder(self.plan.shape, recompute=layout.recompute == "full")

    def shard(self) -> None:
        """Tensor parallelism, then ``fully_shard`` on each layer and the rest."""
        if self.plan.layout.tp > 1:
            _tensor_parallel(self.net, self.mesh["tp"])
        policy = MixedPrecisionPolicy(param_dtype=self.dtype)
        for unit in (*self.net.layers, self.net):
            fully_shard(unit, mesh=self.mesh["dp"], mp_policy=policy)

    def make_states(self) -> None:
        """Fake bytes for what was on the meta device; the optimizer and its states, by a step with
        gradients of 0, which stay as those of a microbatch before do."""
        self.net.to_empty(device=torch.get_default_device())
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        for weight in self.net.parameters():
            weight.grad = torch.zeros_like(weight)
        self.optimizer.step()

    def measured(self) -> dict[str, Any]:
        """A microbatch and the optimizer's step, counted."""
        layout = self.plan.layout
        tokens = torch.zeros(layout.mbs, layout.seq, dtype=torch.long)
        with traffic.count() as plain, memory.watch() as watched, _Functional() as functional:
            for part, held in self._states().items():
                for tensor in held:
                    watched.claim(part, _local(tensor))
            watched.mark("step")
            logits = self.net(tokens)
            targets = torch.zeros(logits.shape[:2], dtype=torch.long)
            nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()
            del logits
            self.optimizer.step()
        calls = plain.calls + functional.calls
        moved = {
            name: layout.dp * plain.payload_bytes["all_gather"] if name == "all_gather" else size
            for name, size in {
                "all_gather": 0,
                "reduce_scatter": plain.payload_bytes["reduce_scatter"],
                "all_reduce": functional.num_bytes["all_reduce"],
            }.items()
        }
        return {
            "held": {part: _num_bytes(held) for part, held in self._states().items()},
            "peak_bytes": round(watched.footprint().peak_bytes),
            "calls": dict(calls),
            "moved": moved,
        }

    def _moments(self) -> Iterator[Tensor]:
        for state in self.optimizer.state.values():
            yield state["exp_avg"]
            yield state["exp_avg_sq"]

    def _states(self) -> dict[str, list[Tensor]]:
        """Part of the bill -> its tensors."""
        weights = list(self.net.parameters())
        return {
            "parameters": weights,
            "gradients": [each.grad for each in weights],
            "optimizer": list(self._moments()),
        }


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _num_bytes(each: Any) -> int:
    return sum(_local(tensor).nbytes for tensor in each)


def _tensor_parallel(net: Decoder, mesh: DeviceMesh) -> None:
    """Columns, then rows (Shoeybi et al. 2019); tables by vocabulary."""
    # what several products read stays one tensor of DTensor's, so that its gradient is reduced once
    once = PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
    )
    ways: dict[str, Any] = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
    ways |= {name: once for name in ("norm1", "norm2")}
    ways |= {name: RowwiseParallel() for name in ("out", "down")}
    if net.shape.glu:
        ways["gate"] = ColwiseParallel()
    for layer in net.layers:
        parallelize_module(layer, mesh, ways)
    tables = {
        "embed": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(),
    }
    parallelize_module(net, mesh, tables)
