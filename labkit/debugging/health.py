"""Is every rank well? Digests that must agree, numbers that must be finite, orders that must
change.

Called inside ranks; ``compare`` and ``finite`` are collectives: every rank of the group must call
them.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.launching.verdicts.disagreement import minority
from labkit.launching.verdicts.outcome import Finding, rank_list
from labkit.timeline import Timeline, straggler
from labkit.units import format_us
from labkit.words import say

if TYPE_CHECKING:
    import torch


def statistics(tensor: "torch.Tensor") -> dict:
    """A tensor in numbers: shape, dtype, device, num_nan, num_inf, and min, max, mean, std of what
    is finite.

    The last four are None where nothing is finite (an empty tensor, say); std is that of the
    population.
    """
    import torch

    here = tensor.detach()
    wide = here.double() if here.is_floating_point() else here.to(torch.float64)
    finite = wide[torch.isfinite(wide)]
    has_any = len(finite) > 0
    return {
        "shape": tuple(here.shape),
        "dtype": str(here.dtype).removeprefix("torch."),
        "device": str(here.device),
        "num_nan": int(wide.isnan().sum()),
        "num_inf": int(wide.isinf().sum()),
        "min": float(finite.min()) if has_any else None,
        "max": float(finite.max()) if has_any else None,
        "mean": float(finite.mean()) if has_any else None,
        "std": float(finite.std(correction=0)) if has_any else None,
    }


def digest(tensor: "torch.Tensor") -> str:
    """BLAKE2b of a tensor's bytes, 16 hexadecimal digits: equal in every process, unlike Python's
    ``hash``, whose salt differs from interpreter to interpreter."""
    import torch

    flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=8).hexdigest()


def compare(named: Iterable[tuple[str, "torch.Tensor"]]) -> Finding | None:
    """Tensors that must be equal on all ranks, such as ``model.named_parameters()`` under DDP:
    which one differs, and on which ranks. 16 bytes of each travel, not the tensor. Raises
    ValueError where the names differ."""
    mine = {name: digest(tensor) for name, tensor in named}
    everyone = _gathered(mine)
    if any(list(theirs) != list(mine) for theirs in everyone):
        raise ValueError(
            "the ranks must name the same tensors in the same order; got "
            f"{[list(theirs) for theirs in everyone]}"
        )
    odd = {}  # name -> the ranks that differ from the others
    for name in mine:
        ranks = minority({rank: theirs[name] for rank, theirs in enumerate(everyone)})
        if ranks:
            odd[name] = ranks
    if not odd:
        return None
    first, ranks = next(iter(odd.items()))
    return Finding(
        fault="diverged_replica",
        ranks=ranks,
        text=say(
            "{odd} of {tensors} tensors differ between ranks; the first is {first}, odd on "
            "{ranks}. Replicas start equal (DDP broadcasts rank 0's) and stay so while every rank "
            "applies the same gradients: look for an update that one rank makes alone, other "
            "seeds, or buffers that are not broadcast.",
            odd=len(odd),
            tensors=len(mine),
            first=first,
            ranks=rank_list(ranks),
        ),
    )


def finite(named: Iterable[tuple[str, "torch.Tensor"]]) -> Finding | None:
    """Which rank has NaN or Inf, and in which tensor first. Ask before the all-reduce: after it
    every rank has it."""
    import torch

    mine = next((name for name, tensor in named if not torch.isfinite(tensor).all()), None)
    bad = {rank: name for rank, name in enumerate(_gathered(mine)) if name is not None}
    if not bad:
        return None
    places = [
        say("rank {rank} first in {name}", rank=rank, name=name) for rank, name in bad.items()
    ]
    text = say("numbers that are not finite: {places}.", places=say("list|, ").join(places))
    return Finding(fault="nan", ranks=tuple(bad), text=text)


def guard(model: "torch.nn.parallel.DistributedDataParallel") -> None:
    """Makes a DDP model refuse gradients that are not finite on the rank they come from, before the
    all-reduce gives them to all. The rank then raises FloatingPointError. Costs a pass over each
    bucket; takes DDP's one comm hook."""
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    names = {id(parameter): name for name, parameter in model.module.named_parameters()}

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not torch.isfinite(bucket.buffer()).all():
            bad = []
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                if not torch.isfinite(gradient).all():
                    bad.append(names[id(parameter)])
            raise FloatingPointError(
                f"rank {dist.get_rank()}'s own gradient of {', '.join(bad)} is not finite.\n"
                "Look at its batch, its loss, or a learning rate that is too large."
            )
        return allreduce_hook(dist.group.WORLD, bucket)

    model.register_comm_hook(None, hook)


def same_order(epochs: Mapping[int, Sequence[int]]) -> Finding | None:
    """Whether two epochs drew their samples in the same order: {epoch: indices}. A
    DistributedSampler shuffles by seed + epoch, and knows the epoch only from ``set_epoch``."""
    seen: dict[tuple, int] = {}
    for epoch, indices in epochs.items():
        before = seen.setdefault(tuple(indices), epoch)
        if before != epoch:
            return Finding(
                fault="set_epoch",
                ranks=(),
                text=say(
                    "epoch {epoch} has the order of epoch {before}: call "
                    "`sampler.set_epoch(epoch)` at the start of each epoch.",
                    epoch=epoch,
                    before=before,
                ),
            )
    return None


def slow(timeline: Timeline, share: float = 0.2) -> Finding | None:
    """The rank for which the others wait longer than ``share`` of the whole time of all of them, in
    collectives."""
    rank, waited_us = straggler(timeline)
    if len(timeline) == 0:
        return None
    span_us = float(timeline.end_us.max() - timeline.start_us.min())
    whole_us = span_us * (timeline.num_ranks - 1)
    if waited_us <= share * whole_us:
        return None
    return Finding(
        fault="straggler",
        ranks=(rank,),
        text=say(
            "the others waited {waited} for rank {rank}, {share:.0%} of their time: look at its "
            "data, its core, its machine.",
            waited=format_us(waited_us),
            rank=rank,
            share=waited_us / whole_us,
        ),
    )


def _gathered(mine: object) -> list:
    import torch.distributed as dist

    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone
