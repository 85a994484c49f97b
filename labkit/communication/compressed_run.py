"""Training under a communication hook, on real ranks: what is sent, how long the hook takes, and
what becomes of the loss.

    run = compressed_run.launch(hook, {"rank": 1})
    run[0]["loss"]      # by the megabytes that a rank has handed in

A hook is what ``DistributedDataParallel.register_comm_hook`` takes: ``hook(state, bucket)`` gives a
Future of the mean of the bucket over all ranks.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from labkit.collectives.network import Link, formula_us
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.run import Run
    from labkit.measure.traffic import Message
    from labkit.tables import Table

READINGS = 8
"""of the loss, in the course of a training"""
REPORTED = ("handed_in_bytes", "on_the_wire_bytes", "last_loss")


def launch(
    hook: Callable | None = None,
    state: dict | None = None,
    *,
    ranks: int = 2,
    num_steps: int = 64,
    accumulate: int = 1,
    learning_rate: float = 0.3,
    link: Link | None = None,
) -> "Run":
    """Trains a small transformer on the story under DDP with a communication hook; None is DDP's
    own all-reduce. ``state`` is a dict, handed to the hook in every call. A step has ``accumulate``
    microbatches of 8 passages, all but the last under ``no_sync``. On a ``link`` each collective of
    the hook takes a ring's time for its bytes, and its caller waits for it; None: the machine's own
    time.

    ``run[r]`` is a dict: loss (of held-out passages, by the MB that the rank has handed in by
    then), loss_by_exchange (the same, by the steps done), last_loss (its last reading),
    handed_in_bytes (to collectives, in the last step), on_the_wire_bytes (what TCP counted then;
    None where it does not), hook_ms (the median of what the hook took until its Future was there),
    link_ms (what of it the ``link`` is stated to take; 0 without one), and every float that the
    hook has left in ``state``.
    """
    from labkit.launching import launcher

    check_whole(READINGS, 100_000, num_steps=num_steps)
    check_whole(1, 100_000, accumulate=accumulate)
    check_whole(ranks=ranks)
    check_real(0.0, 1e6, learning_rate=learning_rate)
    amounts = (num_steps, accumulate, learning_rate)
    return launcher.start(_train, hook, dict(state or {}), amounts, link, ranks=ranks).wait()


def report(runs: Mapping[str, "Run"]) -> "Table":
    """A row for each run, by name, of rank 0: what a step hands in and what goes over the wire, in
    bytes, and where the loss ends."""
    from labkit.tables import table

    rows = []
    for name, run in runs.items():
        rows.append({"name": name} | {key: run[0][key] for key in REPORTED})
    return table(rows)


def with_feedback(reduce: Callable, share: float = 0.01) -> Callable:
    """A hook that reduces by ``reduce(gradient, memory, k)``, an answer to the exercise
    ``error_feedback``; k is ``share`` of a bucket's values. Where the answer is still to be
    written, the package's own serves."""

    import torch
    from torch.distributed import GradBucket

    def hook(state: dict, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradient = bucket.buffer()
        memory = state.get("memory", torch.zeros_like(gradient))
        k = max(1, int(share * len(gradient)))
        with gradient.device:  # DDP calls from a thread of its own, which has no default device
            try:
                mean, state["memory"] = reduce(gradient, memory, k)
            except NotImplementedError:
                mean, state["memory"] = largest_with_feedback(gradient, memory, k)
        answer = torch.futures.Future()
        answer.set_result(mean)
        return answer

    return hook


def largest_with_feedback(
    gradient: "Tensor", memory: "Tensor", k: int
) -> tuple["Tensor", "Tensor"]:
    """(mean over the ranks, what to remember): every rank sends the k largest of what it has, with
    their places, and remembers what it did not send (error feedback; Stich et al. 2018, arXiv
    1809.07599)."""
    import torch
    import torch.distributed as dist

    size = dist.get_world_size()
    corrected = gradient + memory
    chosen = corrected.abs().topk(k).indices
    values = corrected.new_empty(size * k)
    places = chosen.new_empty(size * k, dtype=torch.int32)
    dist.all_gather_single(values, corrected[chosen])
    dist.all_gather_single(places, chosen.int())
    mean = torch.zeros_like(gradient).index_add_(0, places.long(), values / size)
    return mean, corrected.index_fill(0, chosen, 0)


# --- in the ranks ---


def _train(
    hook: Callable | None, state: dict, amounts: tuple[int, int, float], link: Link | None
) -> dict:
    """One rank: updates by ``amounts`` (steps, microbatches of each, the rate), and the loss of
    held-out passages now and then."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    from labkit import model
    from labkit.measure import traffic

    num_steps, accumulate, learning_rate = amounts
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model.Transformer(1, 32, 2, max_len=32))
    took_s: list[float] = []  # a bucket of this model is a step
    stated_us: list[float] = []
    ddp.register_comm_hook(state if hook else None, _clocked(hook or allreduce_hook, took_s))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=learning_rate)
    held_out, its_targets = model.story_tokens(64, 32, seed=99)
    losses = {}
    by_exchange = {}
    sent_bytes = []
    for step in range(num_steps):
        with traffic.count() as counted, _on_links(link, stated_us):
            _backward(ddp, range(step * accumulate, (step + 1) * accumulate))
        optimizer.step()
        optimizer.zero_grad()
        sent_bytes.append(counted.payload_bytes.total())
        if (step + 1) % (num_steps // READINGS) == 0:
            with torch.no_grad():
                loss = model.loss(ddp.module(held_out), its_targets).item()
            losses[sum(sent_bytes) / 1e6] = by_exchange[step + 1] = loss
    return {
        "loss": losses,
        "loss_by_exchange": by_exchange,
        "last_loss": loss,
        "handed_in_bytes": sent_bytes[-1],
        "on_the_wire_bytes": counted.sent_bytes,
        "hook_ms": 1e3 * median(took_s),
        "link_ms": median(stated_us) / 1e3,
        **{key: value for key, value in state.items() if isinstance(value, float)},
    }


def _clocked(hook: Callable, took_s: list[float]) -> Callable:
    """The hook, its seconds noted: from its call until its Future is there."""
    import torch
    from torch.distributed import GradBucket

    from labkit.devices.place import synchronize

    def clocked(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        began_s = perf_counter()
        value = hook(state, bucket).wait()
        synchronize()  # a GPU works on while Python goes ahead
        took_s.append(perf_counter() - began_s)
        answer = torch.futures.Future()
        answer.set_result(value)
        return answer

    return clocked


@contextlib.contextmanager
def _on_links(link: Link | None, stated_us: list[float]) -> Iterator[None]:
    """The collectives of a step on such links; what they are stated to take is noted."""
    from labkit.measure import links

    def time_us(message: "Message") -> float | None:
        size = len(message.ranks)
        all_bytes = message.num_bytes * (size if message.name == "all_gather" else 1)
        each_us = formula_us(message.name, "ring", size, all_bytes, link) or 0.0
        stated_us[-1] += each_us
        return each_us

    stated_us.append(0.0)
    with links.stated(time_us) if link else contextlib.nullcontext():
        yield


def _backward(ddp: "nn.Module", microbatches: range) -> None:
    """Gradients of the microbatches' mean loss, all-reduced once, with the last of them."""
    import torch.distributed as dist

    from labkit import model

    for number in microbatches:
        tokens, targets = model.story_tokens(8, 32, seed=1000 * number + dist.get_rank())
        is_last = number == microbatches[-1]
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            (model.loss(ddp(tokens), targets) / len(microbatches)).backward()
