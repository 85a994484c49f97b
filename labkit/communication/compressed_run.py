"""Training under a communication hook, on real ranks and a stated link: what is sent, how long a
step takes, and what becomes of the loss.

    run = compressed_run.launch(hook, {"rank": 1})
    run[0]["loss"]      # by the megabytes that a rank has sent

A hook is what ``DistributedDataParallel.register_comm_hook`` takes: ``hook(state, bucket)`` gives a
Future of the mean of the bucket over all ranks.
"""

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from labkit.collectives.network import Link
from labkit.units import check_whole

if TYPE_CHECKING:
    from torch import Tensor, distributed
    from torch.futures import Future

    from labkit.launching.run import Run

SLOW = Link(alpha_us=200, bandwidth_gb_per_s=0.015)
"""a link on which the bytes of so small a model take their time"""
EVERY = 10
"""steps between two readings of the loss"""


def launch(
    hook: Callable | None = None,
    state: dict | None = None,
    *,
    ranks: int = 2,
    num_steps: int = 80,
    link: Link | None = SLOW,
) -> "Run":
    """Trains a small transformer on the story under DDP with a communication hook; None is DDP's
    own all-reduce. ``state`` is a dict, handed to the hook in every call.

    ``run[r]`` is a dict: loss (of held-out passages, by the MB that the rank has handed in by
    then), last_loss (the mean of its last three readings), sent_bytes (handed in by the last step),
    wire_bytes (what TCP counted then; None where it does not) and step_ms (the median). A message
    takes the time of ``link``; None states nothing.
    """
    from labkit.launching import launcher

    check_whole(3 * EVERY, 100_000, num_steps=num_steps)
    check_whole(ranks=ranks)
    return launcher.launch(_train, hook, dict(state or {}), num_steps, link, ranks=ranks)


def top_k_feedback(state: dict, bucket: "distributed.GradBucket") -> "Future[Tensor]":
    """A hook: every rank sends the largest ``state["share"]`` of its values with their places, and
    adds to the next gradient what it did not send (error feedback; Stich et al. 2018, arXiv
    1809.07599)."""
    import torch
    import torch.distributed as dist

    gradient = bucket.buffer() + state.get("kept", 0)
    size = dist.get_world_size()
    chosen = gradient.abs().topk(int(state["share"] * len(gradient))).indices
    values = gradient.new_empty(size * len(chosen))
    places = chosen.new_empty(size * len(chosen), dtype=torch.int32)
    dist.all_gather_single(values, gradient[chosen])
    dist.all_gather_single(places, chosen.int())
    state["kept"] = gradient.index_fill(0, chosen, 0)
    answer: Future[Tensor] = torch.futures.Future()
    answer.set_result(torch.zeros_like(gradient).index_add_(0, places.long(), values / size))
    return answer


# --- in the ranks ---


def _train(hook: Callable | None, state: dict, num_steps: int, link: Link | None) -> dict:
    """One rank: ``num_steps`` updates, the loss of held-out passages after every tenth."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from labkit import model
    from labkit.devices.place import synchronize
    from labkit.measure import pace, traffic

    torch.manual_seed(0)
    ddp = DistributedDataParallel(model.Transformer(1, 32, 2, max_len=32))
    sent_bytes = [0]  # of each step; a bucket of this model is a step
    stated_us = link.us if link else None
    pace.link(ddp, stated_us, hook=hook, state=state, sent_bytes=lambda bucket: sent_bytes[-1])
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1.0)
    held_out, its_targets = model.story_tokens(64, 32, seed=99)
    losses = {}
    seconds = []
    for step in range(num_steps):
        tokens, targets = model.story_tokens(8, 32, seed=1000 * step + dist.get_rank())
        began_s = perf_counter()
        with traffic.count() as counted:
            model.loss(ddp(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize()  # a GPU works on while Python goes ahead
        seconds.append(perf_counter() - began_s)
        sent_bytes.append(counted.payload_bytes.total())
        if step % EVERY == EVERY - 1:
            loss = model.loss(ddp.module(held_out), its_targets).item()
            losses[sum(sent_bytes) / 1e6] = loss
    return {
        "loss": losses,
        "last_loss": sum(list(losses.values())[-3:]) / 3,
        "sent_bytes": sent_bytes[-1],
        "wire_bytes": counted.sent_bytes,
        "step_ms": 1e3 * median(seconds),
    }
