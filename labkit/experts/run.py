"""A layer of experts on real ranks: tokens go to their experts and come back, by all-to-alls whose
parts are as uneven as the choice. Two passes; the first is counted and held against one process,
the second takes its pace and is recorded."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from labkit.experts.layer import Layer

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.experts.parallel_run import Found, Timed
    from labkit.launching.job import Job

TIMEOUT_S = 60.0
AUXILIARY = 0.01
"""What the auxiliary loss weighs beside the layer's own (Fedus et al. 2021)."""


def start(layer: Layer) -> "Job":
    """Begins the passes in the background; ``layer.run()`` starts them and waits."""
    from labkit.launching import launcher

    return launcher.start(_layer, layer, ranks=layer.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def _layer(layer: Layer) -> dict:
    """One rank: the pass beside one process's, counted; then once more, paced and recorded."""
    import torch
    import torch.distributed as dist

    from labkit.experts import parallel_run
    from labkit.launching import rank
    from labkit.measure import trace, traffic
    from labkit.measure.apart import difference
    from labkit.measure.pace import Pace

    torch.set_num_threads(1)  # several ranks on few cores keep a pace only so
    mine, expected, wanted = _whole(layer)
    with traffic.count() as counted:
        found = _pass(layer, mine, parallel_run.unpaced)
    dist.all_reduce(mine[1].grad)  # every rank's router is the same
    result = {
        "output_difference": difference(found.out, expected),
        "gradient_difference": difference([each.grad for each in mine], wanted),
        "load": found.load,
        "num_dropped": found.num_dropped,
        "auxiliary_loss": found.auxiliary_loss.item(),
        "calls": dict(counted.calls),
        "payload_bytes": dict(counted.payload_bytes),
        "sent_bytes": counted.sent_bytes,
    }
    rank.current().note("paced")
    pace = Pace()
    again = _leaves(each.detach().clone() for each in mine)
    with trace.record(operators=False):
        dist.barrier()  # profilers take unequal times to start
        began_s = time.perf_counter()
        _pass(layer, again, parallel_run.paced(layer, pace))
        step_us = 1e6 * (time.perf_counter() - began_s)
        dist.barrier()  # or who is through writes its recording while others still compute
    return {**result, "step_us": step_us, "overruns": pace.num_overruns}


def _whole(layer: Layer) -> "tuple[list[Tensor], Tensor, list[Tensor]]":
    """One process's layer, forward and backward: this rank's tokens, router and experts; what its
    tokens come to; and the gradients of the first three."""
    import torch
    import torch.distributed as dist

    from labkit.experts import whole_run
    from labkit.launching import rank

    me = dist.get_rank()
    device = rank.current().device
    tokens, router = _leaves(torch.from_numpy(each).to(device) for each in layer.inputs())
    torch.manual_seed(layer.seed)
    up, down = _leaves(whole_run.weights(layer))
    outputs, losses = whole_run.every_rank(layer, tokens, router, up, down)
    for out, auxiliary_loss in zip(outputs, losses, strict=True):
        _loss(out, auxiliary_loss).backward(retain_graph=True)

    def share(whole: "Tensor") -> "Tensor":
        return whole.detach().chunk(layer.ranks)[me].clone()

    mine = [share(tokens), router.detach().clone(), share(up), share(down)]
    wanted = [share(tokens.grad), router.grad, share(up.grad), share(down.grad)]
    return _leaves(mine), outputs[me].detach(), wanted


def _pass(layer: Layer, mine: "list[Tensor]", taking: "Timed") -> "Found":
    """Forward and backward."""
    from labkit.experts import parallel_run

    found = parallel_run.experts(layer, *mine, taking)
    _loss(found.out, found.auxiliary_loss).backward()
    return found


def _loss(out: "Tensor", auxiliary_loss: "Tensor") -> "Tensor":
    return out.square().sum() + AUXILIARY * auxiliary_loss


def _leaves(tensors: "Iterable[Tensor]") -> "list[Tensor]":
    return [each.requires_grad_() for each in tensors]
