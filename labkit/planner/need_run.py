"""The small model of ``need`` on real ranks, by a recipe of precision and optimizer: what lay there
in a step."""

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.devices import rung
from labkit.launching import launcher
from labkit.planner.models import PARTS
from labkit.planner.need import SMALL
from labkit.sharding.run import Trainer, wrap
from labkit.sharding.step import Step
from labkit.shards import join

if TYPE_CHECKING:
    from torch import nn

    from labkit.launching.job import Job


def start(recipe: str, batch: int) -> "Job":
    """Begins the recipe on two real ranks, each with a batch of its own; returns at once."""
    devices = rung.DEEPSPEED if recipe == "mixed" else None
    return launcher.start(train, recipe, batch, ranks=2, devices=devices, timeout_s=60.0)


def measured_bills(results: Sequence[dict]) -> list[dict[str, float]]:
    """What each rank of such a run held, by PARTS."""
    states = join(each["shards"] for each in results).bytes_by("category")
    bills = []
    for rank, each in enumerate(results):
        bill = {part: float(states[part][rank]) for part in PARTS[:3]}
        bills.append({**bill, "activations": float(each["activation_bytes"])})
    return bills


# --- in the ranks ---


def train(recipe: str, batch: int, recorded: bool = True) -> dict:
    """One rank: steps by a recipe, in torch or (16 bit with an fp32 copy) DeepSpeed; what lay there
    in them."""
    import torch.distributed as dist

    from labkit import model
    from labkit.measure import memory, trace
    from labkit.sharding import engines

    net = model.Transformer(
        SMALL["num_layers"], SMALL["dim"], SMALL["num_heads"], max_len=SMALL["seq_len"]
    )
    trainer = _trainer(recipe, batch, net)
    story = model.story_tokens(batch, SMALL["seq_len"], seed=dist.get_rank())
    tokens, targets = (each.clone() for each in story)
    found = {}

    def look(_: int) -> None:
        found["shards"] = engines.shards(trainer.engine, trainer.optimizer)

    trainer.train(1, tokens, targets)
    trainer.train(1, tokens, targets, between=look)
    with trace.record(operators=False) if recorded else contextlib.nullcontext():
        trainer.train(1, tokens, targets)
    held = memory.Activations(trainer.engine.parameters())
    with held.chunk(0):
        loss = model.loss(trainer.engine(tokens).float(), targets)
    return {
        **found,
        "activation_bytes": held.num_bytes,
        "loss": loss.item(),
        "num_params": sum(each.numel() for each in net.parameters()),
    }


def _trainer(recipe: str, batch: int, net: "nn.Module") -> Trainer:
    """The engine and the optimizer of a recipe around a model."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    if recipe == "mixed":
        return wrap(Step(engine="zero0", batch=batch, microbatches=1), net)
    if recipe == "bf16":
        net = net.bfloat16()
    engine = DistributedDataParallel(net, gradient_as_bucket_view=True)
    if recipe == "sgd":
        optimizer = torch.optim.SGD(engine.parameters(), lr=1e-3, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(engine.parameters(), lr=1e-3)
    return Trainer(engine=engine, optimizer=optimizer)
