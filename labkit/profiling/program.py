"""What each rank does in a step, a list of acts: simulated by ``simulation``, done by ``run``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.profiling.step import Step

BACKWARD = 2.0
"""a backward takes two matrix products for each one of the forward"""


@dataclass(frozen=True, kw_only=True)
class Act:
    """One thing that a rank does."""

    what: str
    """"work", "idle", "load", "save", "reduce" (given to the link), "wait" (for all given to it),
    "send", "recv" """
    kind: str = ""
    """of its span"""
    label: str = ""
    """of its span"""
    us: float = 0.0
    """what it takes"""
    num_bytes: int = 0
    """of a message"""
    peer: int = 0
    """of a send or a recv"""
    behind: bool = False
    """of load and save: beside the computing"""


def programs(step: "Step", num_steps: int | None = None) -> list[list[Act]]:
    """The acts of every rank, ``num_steps`` steps of them (None: all that are recorded)."""
    acts_of = _pipeline if step.layout == "pipeline" else _data
    times = step.num_steps if num_steps is None else num_steps
    return [acts_of(step, rank) * times for rank in range(step.ranks)]


def _factor(step: "Step", rank: int) -> float:
    """How much slower a rank computes than the others."""
    return dict(step.slow).get(rank, 1.0)


def _data(step: "Step", rank: int) -> list[Act]:
    """One step of data parallelism."""
    factor = _factor(step, rank)
    forward_us = 1e3 * step.forward_ms * factor
    acts = [Act(what="load", kind="input", label="batch", us=1e3 * step.input_ms)]
    if step.prefetch:
        acts = [Act(what="load", kind="input", label="batch", us=1e3 * step.input_ms, behind=True)]
    for layer in range(step.layers):
        acts += _gap(step)
        acts.append(Act(what="work", kind="forward", label=f"F{layer}", us=forward_us))
    acts += _backward(step, BACKWARD * forward_us)
    acts.append(Act(what="wait"))
    acts += _update(step, rank, factor)
    return acts + _save(step, rank)


def _gap(step: "Step") -> list[Act]:
    return [Act(what="idle", us=1e3 * step.gap_ms)] if step.gap_ms else []


def _backward(step: "Step", each_us: float) -> list[Act]:
    """The layers backward, and the messages: each as soon as its share of the backward is done, or
    all at the end."""
    acts: list[Act] = []
    late: list[Act] = []
    sent = 0
    for done, layer in enumerate(reversed(range(step.layers)), start=1):
        acts += _gap(step)
        acts.append(Act(what="work", kind="backward", label=f"B{layer}", us=each_us))
        due = step.messages * done // step.layers
        ready = [_message(step, number) for number in range(sent, due)]
        sent = due
        if step.overlap:
            acts += ready
        else:
            late += ready
    return acts + late


def _message(step: "Step", number: int) -> Act:
    """One all-reduce of the gradients."""
    return Act(
        what="reduce",
        kind="all_reduce",
        label=f"bucket {number}",
        us=1e3 * (step.latency_ms + step.link_ms / step.messages),
        num_bytes=4 * max(1, round(256 * step.gradient_kb / step.messages)),
    )


def _update(step: "Step", rank: int, factor: float) -> list[Act]:
    """The optimizer's step, and what the ranks tell one another after it."""
    whole_us = 1e3 * step.optimizer_ms * factor
    mine_us = whole_us / step.ranks if step.optimizer == "shared" else whole_us
    work = Act(what="work", kind="optimizer", label="optimizer", us=mine_us)
    if step.optimizer == "everyone":
        return [work]
    kind = "all_gather" if step.optimizer == "shared" else "broadcast"
    num_bytes = 4 * max(1, round(256 * step.gradient_kb))
    told = Act(
        what="reduce", kind=kind, label="weights", us=1e3 * step.latency_ms, num_bytes=num_bytes
    )
    mine = [work] if step.optimizer == "shared" or rank == 0 else []
    return [*mine, told, Act(what="wait")]


def _save(step: "Step", rank: int) -> list[Act]:
    """A checkpoint, by rank 0."""
    if rank or not step.save_ms:
        return []
    save_us = 1e3 * step.save_ms
    return [Act(what="save", kind="save", label="save", us=save_us, behind=step.save_behind)]


def _pipeline(step: "Step", rank: int) -> list[Act]:
    """One step of GPipe: all microbatches forward, then backward."""
    weight = step.weights[rank] if step.weights else 1.0
    forward_us = 1e3 * step.forward_ms * weight * _factor(step, rank) / step.microbatches
    num_bytes = 4 * max(1, round(256 * step.gradient_kb / step.microbatches))
    acts = []
    for kind, each_us, source, target in (
        ("F", forward_us, rank - 1, rank + 1),
        ("B", BACKWARD * forward_us, rank + 1, rank - 1),
    ):
        for number in range(step.microbatches):
            if 0 <= source < step.ranks:
                acts.append(_pass("recv", f"{source}>{rank}", source, step, num_bytes))
            acts += _gap(step)
            acts.append(Act(what="work", kind=kind, label=f"{rank}{kind}{number}", us=each_us))
            if 0 <= target < step.ranks:
                acts.append(_pass("send", f"{rank}>{target}", target, step, num_bytes))
    acts.append(Act(what="work", kind="optimizer", label="optimizer", us=1e3 * step.optimizer_ms))
    return acts + _save(step, rank)


def _pass(what: str, way: str, peer: int, step: "Step", num_bytes: int) -> Act:
    """A message between neighbours."""
    us = 1e3 * step.latency_ms
    return Act(what=what, kind=what, label=way, peer=peer, us=us, num_bytes=num_bytes)
