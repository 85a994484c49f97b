"""Auto-tuning: which microbatch, how much accumulation, with or without recomputation, is fastest
in the memory that there is. Predicted from two short runs, then checked by runs.

    tuning_run.tune(batch=16, memory_bytes=450_000)      # rows for lab.table, the fastest first

What autograd keeps is counted; times are stated: a microbatch costs something by itself, so fewer
and larger ones are faster; recomputation computes a third more and keeps less.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from labkit import model as models
from labkit.measure.pace import Pace
from labkit.units import check_real, check_whole

BLOCKS = 2
HIDDEN = 16
SEQUENCE = 32
ROUNDS = 2
"""of a step: the quicker one counts, since what else the machine does makes it slower only"""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a rank takes its samples of a step."""

    microbatch: int = 1
    """samples at once"""
    accumulate: int = 1
    """how many microbatches make a step"""
    recompute: bool = False
    """whether each block keeps its input alone, and is computed again in the backward"""
    sample_ms: float = 2.0
    """forward and backward of a sample; a third more where it is recomputed"""
    call_ms: float = 4.0
    """what a microbatch costs besides, however small"""

    def __post_init__(self) -> None:
        check_whole(1, 4096, microbatch=self.microbatch, accumulate=self.accumulate)
        check_real(0.0, 1e5, sample_ms=self.sample_ms, call_ms=self.call_ms)

    @property
    def step_us(self) -> float:
        """The stated time of a step, without messages."""
        sample_ms = self.sample_ms * (4 / 3 if self.recompute else 1)
        return 1e3 * self.accumulate * (self.call_ms + self.microbatch * sample_ms)


def settings(batch: int, **stated: float) -> list[Setting]:
    """Every way to take so many samples a rank and step: each divisor as a microbatch, with and
    without recomputation. ``stated`` are the times of ``Setting``."""
    check_whole(1, 4096, batch=batch)
    found = []
    for microbatch in range(1, batch + 1):
        for recompute in (False, True):
            if batch % microbatch == 0:
                parts = {"microbatch": microbatch, "accumulate": batch // microbatch}
                found.append(Setting(**parts, recompute=recompute, **stated))
    return found


def tune(
    batch: int = 16, memory_bytes: int = 450_000, *, ranks: int = 2, tries: int = 3, **stated: float
) -> list[dict[str, Any]]:
    """The fastest settings that should fit, tried on real ranks: rows with what was predicted and
    measured, the fastest measured first, those that did not fit last.

    What a microbatch keeps grows in a line with its samples, so one and two samples say it all.
    Raises ValueError where not even one sample fits.
    """
    check_whole(1, 64, ranks=ranks, tries=tries)
    check_whole(1, 10**12, memory_bytes=memory_bytes)
    kept = {recompute: _law(recompute, ranks) for recompute in (False, True)}
    hopeful = []
    for each in settings(batch, **stated):
        fixed_bytes, sample_bytes = kept[each.recompute]
        predicted_bytes = fixed_bytes + each.microbatch * sample_bytes
        if predicted_bytes <= memory_bytes:
            hopeful.append((each.step_us, predicted_bytes, each))
    if not hopeful:
        raise ValueError(
            f"not even one sample, recomputed, fits into {memory_bytes:,} bytes. Give more memory, "
            "or shard the model"
        )
    hopeful.sort(key=lambda row: row[:2])
    rows = []
    for predicted_us, predicted_bytes, each in hopeful[:tries]:
        found = trial(each, memory_bytes, ranks=ranks)
        rows.append(
            {
                "microbatch": each.microbatch,
                "accumulate": each.accumulate,
                "recompute": each.recompute,
                "predicted_bytes": round(predicted_bytes),
                "kept_bytes": found["kept_bytes"],
                "stated_us": predicted_us,
                "step_us": found["step_us"],
            }
        )
    return sorted(rows, key=lambda row: (row["step_us"] is None, row["step_us"] or 0.0))


def trial(setting: Setting, memory_bytes: int | None = None, *, ranks: int = 2) -> dict[str, Any]:
    """A step on real ranks, the quicker of two: kept_bytes (of the fullest rank), and step_us,
    None where it does not fit."""
    from labkit.launching import launcher

    run = launcher.launch(take, setting, memory_bytes, ranks=ranks, timeout_s=60.0)
    kept = max(each["kept_bytes"] for each in run)
    times_us = [each["step_us"] for each in run]
    return {"kept_bytes": kept, "step_us": None if None in times_us else max(times_us)}


def _law(recompute: bool, ranks: int) -> tuple[float, float]:
    """(bytes, bytes a sample) that a microbatch keeps."""
    small, large = (
        trial(
            Setting(microbatch=each, recompute=recompute, call_ms=0.0, sample_ms=0.0), ranks=ranks
        )
        for each in (1, 2)
    )
    sample_bytes = large["kept_bytes"] - small["kept_bytes"]
    return small["kept_bytes"] - sample_bytes, sample_bytes


# --- in the ranks ---


class _Full(Exception):
    """More is kept than there is room."""


def take(setting: Setting, memory_bytes: int | None = None) -> dict[str, Any]:
    """A rank's step, the quicker of two: microbatches one after the other, their gradients averaged
    with the other ranks' at the end. What autograd keeps is counted; beyond ``memory_bytes`` the
    step ends."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = models.Transformer(BLOCKS, HIDDEN)
    tokens, targets = models.story_tokens(1, SEQUENCE)
    models.loss(model(tokens), targets).backward()  # the first one is slow
    rounds = [_step(model, setting, memory_bytes) for _ in range(ROUNDS)]
    kept = max(kept_bytes for kept_bytes, _ in rounds)
    # all ranks have as much to keep, so all of them fit, or none
    fits = all(took_us is not None for _, took_us in rounds)
    return {"kept_bytes": kept, "step_us": min(us for _, us in rounds) if fits else None}


def _step(
    model: models.Transformer, setting: Setting, memory_bytes: int | None
) -> tuple[int, float | None]:
    """What is kept at most, and the microseconds; None where it does not fit."""
    model.zero_grad()
    dist.barrier()
    begin_s = time.perf_counter()
    kept = 0
    for number in range(setting.accumulate):
        seed = number * dist.get_world_size() + dist.get_rank()
        tokens, targets = models.story_tokens(setting.microbatch, SEQUENCE, seed=seed)
        with _counted(model, memory_bytes) as held:
            try:
                loss = models.loss(_forward(model, tokens, setting.recompute), targets)
            except _Full:
                loss = None
        kept = max(kept, held["bytes"])
        if loss is None:
            return kept, None
        (loss / setting.accumulate).backward()
    Pace().finish(begin_s, setting.step_us)
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters()])
    dist.all_reduce(gradient)
    return kept, 1e6 * (time.perf_counter() - begin_s)


def _forward(model: models.Transformer, tokens: torch.Tensor, recompute: bool) -> torch.Tensor:
    if not recompute:
        return model(tokens)
    embed, *blocks, head = model.layers
    x = embed(tokens)
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return head(x)


@contextmanager
def _counted(model: torch.nn.Module, most_bytes: int | None) -> Iterator[dict[str, int]]:
    """Counts what autograd keeps for the backward, each tensor's memory once, weights left out."""
    held = {"bytes": 0}
    seen = {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            held["bytes"] += storage.nbytes()
        if most_bytes is not None and held["bytes"] > most_bytes:
            raise _Full
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield held
