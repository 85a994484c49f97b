"""The planner on this machine's own ranks: what its cores and messages reach, read by the ranks
together, and real steps of the small transformer to hold predictions against.

    gpu = here_run.speeds(2)                        # this machine, as a planner sees a GPU
    steps = here_run.steps([case, ...])             # microseconds of real steps
    here_run.plan(case, gpu).time().step_us         # the same by theory

Ranks share the machine's cores: all of them multiply, copy and send at once when speeds are read,
so a rank's speed is what is left for it, and no message hides beside work that the same cores do. A
pipeline's ranks idle in turns, and then leave more. Each collective is read by itself, since gloo
scatters by an all-reduce, and with the copies that ``fully_shard`` makes before or behind it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from labkit.collectives import network
from labkit.launching import launcher
from labkit.machine import resources
from labkit.pipeline.step import Step as Pipeline
from labkit.pipeline.step import Training
from labkit.planner.plan.cluster import Gpu
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.stacks import HBM_SHARE
from labkit.planner.real.counted import Counted
from labkit.planner.trust.rows import Row, timed
from labkit.sharding.step import Step as Sharded

ENGINES = ("ddp", "fsdp", "pipeline")
SIDE = 512
COPY_BYTES = 2**25
SENT_BYTES = (2**14, 2**18, 2**20, 2**22)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
ADAM_PARAMS = 2**20
"""as many in ADAM_TENSORS equal parts"""
ADAM_TENSORS = 16
ROUNDS = 7
STEPS = 3
TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A real step of ``labkit.model``'s transformer, fp32."""

    engine: str
    """one of ENGINES"""
    ranks: int = 2
    """how many"""
    layers: int = 4
    """blocks"""
    dim: int = 256
    """width"""
    mbs: int = 2
    """sequences of a microbatch"""
    microbatches: int = 1
    """of a step on each rank"""
    seq: int = 128
    """tokens of a sequence"""

    @property
    def heads(self) -> int:
        """Heads of 64."""
        return self.dim // 64


def speeds(ranks: int) -> Gpu:
    """This machine as one of so many ranks finds it, all busy at once: products, copies,
    collectives and Adam's step, the fastest of some rounds of each."""
    run = launcher.launch(_speeds, ranks=ranks, timeout_s=TIMEOUT_S)
    tflops = 2 * SIDE**3 / max(each["product_us"] for each in run) / 1e6
    bandwidth = 2 * COPY_BYTES / max(each["copy_us"] for each in run) / 1e3
    links = {}
    for name in COLLECTIVES if ranks > 1 else ():
        by_rank = [rank[name] for rank in run]
        times_us = [max(each) for each in zip(*by_rank, strict=True)]
        fit = network.fit(name, ranks, SENT_BYTES, times_us)
        bus = fit.bandwidth_gb_per_s * network.busbw_factor(name, ranks)
        links[name] = (max(1.0, fit.alpha_us), bus)
    adam_us = max(each["adam_us"] for each in run)
    node_gb_per_s = links["all_reduce"][1] if links else 1.0
    return Gpu(
        name=f"1/{ranks} of this machine" if ranks > 1 else "this machine",
        memory_gb=resources.total_bytes() / 1e9 / ranks,
        tflops=tflops,
        tflops_8bit=tflops,
        sms=0,  # no tiles that wait for one another
        hbm_gb_per_s=bandwidth / HBM_SHARE,
        node_gb_per_s=node_gb_per_s,
        nic_gb_per_s=node_gb_per_s,
        per_node=ranks,
        measured="",
        source="read by speeds()",
        links=links,
        hides=False,
        fp32_share=1.0,  # it was read in fp32
        adam_bytes=1e3 * bandwidth * adam_us / ADAM_PARAMS,
    )


def shape(case: Case) -> Counted:
    """The transformer of a case, measured."""
    import torch

    from labkit import model
    from labkit.planner.real.module_run import measured

    with torch.device("meta"):
        net = model.Transformer(case.layers, case.dim, case.heads, max_len=case.seq)
    return measured(net, torch.zeros(case.mbs, case.seq, dtype=torch.long))


def plan(case: Case, gpu: Gpu, **fields: Any) -> Plan:
    """A case as a plan on ranks of these speeds; chapter 08's experiment times its step without
    the optimizer."""
    if case.engine == "pipeline":
        gpu = replace(gpu, adam_bytes=0.0)
    pp = case.ranks if case.engine == "pipeline" else 1
    return Plan(
        model=shape(case),
        gpu=gpu,
        gpus=case.ranks,
        per_node=case.ranks,
        pp=pp,
        zero=3 if case.engine == "fsdp" else 0,
        mbs=case.mbs,
        batch=case.mbs * case.microbatches * case.ranks // pp,
        seq=case.seq,
        precision="fp32",
        recipe="fp32",
        **fields,
    )


def row(case: Case, gpu: Gpu, step_us: float) -> Row:
    """A measured step as a row to fit on."""
    return timed(plan(case, gpu), step_us, f"{case.engine} {case.ranks}")


def steps(cases: Sequence[Case], rounds: int = ROUNDS) -> list[float]:
    """Microseconds of a real step of each case: the fastest of some rounds, in each of which all
    cases take their turn, so that a busy machine slows all alike."""
    best = [float("inf")] * len(cases)
    for _ in range(rounds):
        for number, case in enumerate(cases):
            found_us = _piped_us(case) if case.engine == "pipeline" else _trained_us(case)
            best[number] = min(best[number], found_us)
    return best


def _trained_us(case: Case) -> float:
    """The fastest step of one run of the sharding experiment's trainer."""
    run = launcher.launch(_steps, case, ranks=case.ranks, timeout_s=TIMEOUT_S)
    return max(run)


def _piped_us(case: Case) -> float:
    """One run of chapter 08's experiment at the machine's own pace."""
    training = Training(
        num_layers=case.layers,
        dim=case.dim,
        num_heads=case.heads,
        seq_len=case.seq,
        microbatch_size=case.mbs,
        num_steps=2,
    )
    step = Pipeline(
        ranks=case.ranks, microbatches=case.microbatches, forward_ms=None, training=training
    )
    return 1e6 * max(rank["step_s"] for rank in step.run())


# --- in the ranks ---


def _speeds() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    side = torch.randn(SIDE, SIDE)
    source = torch.randn(COPY_BYTES // 4)
    target = torch.empty_like(source)
    found: dict[str, Any] = {
        "product_us": _best_us(partial(torch.mm, side, side)),
        "copy_us": _best_us(partial(target.copy_, source)),
        "adam_us": _best_us(_adam()),
    }
    for name in COLLECTIVES if dist.get_world_size() > 1 else ():
        calls = [_collective(name, num_bytes // 4) for num_bytes in SENT_BYTES]
        found[name] = [_best_us(call) for call in calls]
    return found


def _collective(name: str, num_elements: int) -> Callable[[], object]:
    """A collective over so many elements, with the copies of ``fully_shard``: what was gathered is
    copied out, what is scattered is copied in."""
    import torch
    import torch.distributed as dist

    whole = torch.zeros(num_elements)
    buffer = torch.zeros(num_elements)
    part = torch.zeros(num_elements // dist.get_world_size())

    def gather() -> None:
        dist.all_gather_single(buffer, part)
        whole.copy_(buffer)

    def scatter() -> None:
        buffer.copy_(whole)
        dist.reduce_scatter_single(part, buffer)

    reduce = partial(dist.all_reduce, whole)
    return {"all_reduce": reduce, "all_gather": gather, "reduce_scatter": scatter}[name]


def _adam() -> Callable[[], object]:
    """A step of torch's AdamW."""
    import torch

    weights = [torch.zeros(ADAM_PARAMS // ADAM_TENSORS) for _ in range(ADAM_TENSORS)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    return torch.optim.AdamW(weights, lr=1e-3).step


def _best_us(call: Callable[[], object], num_calls: int = 5) -> float:
    """The fastest round of some calls, all ranks at once."""
    import torch.distributed as dist

    rounds = []
    for _ in range(ROUNDS):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(num_calls):
            call()
        rounds.append((time.perf_counter() - began) / num_calls)
    return 1e6 * min(rounds[1:])


def _steps(case: Case) -> float:
    """Microseconds of the fastest step after the first."""
    import torch.distributed as dist

    train = _ready(case)
    found = []
    for _ in range(1 + STEPS):
        dist.barrier()
        began = time.perf_counter()
        train()
        dist.barrier()
        found.append(1e6 * (time.perf_counter() - began))
    return min(found[1:])


def _ready(case: Case) -> Callable[[], object]:
    """A step of the sharding experiment's own trainer."""
    import torch.distributed as dist

    from labkit import model
    from labkit.sharding.run import wrap

    step = Sharded(
        engine=case.engine,
        ranks=case.ranks,
        layers=case.layers,
        dim=case.dim,
        heads=case.heads,
        batch=case.mbs,
        seq_len=case.seq,
        microbatches=case.microbatches,
    )
    net = model.Transformer(case.layers, case.dim, case.heads, max_len=case.seq)
    trainer = wrap(step, net)
    tokens, targets = model.story_tokens(case.mbs, case.seq, seed=dist.get_rank())
    return partial(trainer.train, case.microbatches, tokens, targets)
