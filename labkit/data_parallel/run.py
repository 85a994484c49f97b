"""DistributedDataParallel on real ranks, layer by layer at a stated pace: the very step that
``step`` predicts.

    step = data_parallel.Step(layers=6, layer_mb=4, forward_ms=10, bucket_mb=4)
    step.predict()
    step.run().timeline()

Gradients have the stated sizes, are really reduced and really checked. Two warm-up steps come
first, at the machine's own pace: DDP begins with all gradients in one bucket, and rebuilds its
buckets in the second step.
"""

import contextlib
import time
from typing import TYPE_CHECKING

from labkit.data_parallel.buckets import Layer, ring_us
from labkit.data_parallel.step import LINK, Step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job

TIMEOUT_S = 60.0


def start(step: Step) -> "Job":
    """Trains real DDP over paced layers, in the background. ``step.run()`` starts it and waits.

    The last step is recorded, labelled as ``buckets.simulate`` labels it. Raises ValueError for
    gradients that are no whole number of float32 values.
    """
    from labkit.launching import launcher

    layers = step.model()
    odd = [f"{layer.name!r} has {layer.num_bytes} bytes" for layer in layers if layer.num_bytes % 4]
    if odd:
        raise ValueError(f"a gradient is float32 values, 4 bytes each; {', '.join(odd)}")
    # what can't be predicted raises ValueError here
    step.but(link=step.link or LINK).predict()
    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def _train(step: Step) -> dict:
    """One rank: warms up, steps at the stated pace, records the last step and checks its
    gradients."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from labkit.measure import pace, trace

    # layers with so little to compute gain nothing from more, and lose their pace
    torch.set_num_threads(1)
    layers = step.model()
    model = _model(layers)
    me = dist.get_rank()
    inputs = [torch.tensor([0.1 * (me + 1) + 0.01 * index]) for index in range(step.accumulate)]
    ddp = DistributedDataParallel(model, bucket_cap_mb=step.bucket_mb, gradient_as_bucket_view=True)
    for _ in range(2):
        _step(ddp, inputs)
    factor = dict(step.slow).get(me, 1.0)
    for paced, layer in zip(model, layers, strict=True):
        paced.forward_us = factor * layer.forward_us
        paced.backward_us = factor * layer.backward_us
    all_reduce_us = ring_us(step.ranks, step.link) if step.link else None
    linked = pace.link(ddp, all_reduce_us, overlap=step.overlap)
    step_us = [_step(ddp, inputs) for _ in range(step.num_steps - 1)]
    with trace.record(operators=False):
        step_us.append(_step(ddp, inputs))
    sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")
    return {
        "step_us": step_us,
        "bucket_bytes": [int(num_bytes) for num_bytes in sizes],
        "overruns": linked.num_overruns + sum(paced.pace.num_overruns for paced in model),
        "max_error": _max_error(model, inputs),
    }


def _model(layers: tuple[Layer, ...]) -> "nn.Sequential":
    """Layers that have a gradient of the stated size and little to compute: h -> tanh(h + w.a), a
    this rank's data."""
    import torch
    from torch import nn

    from labkit.measure.pace import Paced

    class Neuron(nn.Module):
        def __init__(self, num_values: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(num_values) / num_values)

        def forward(self, h: "Tensor") -> "Tensor":
            return torch.tanh(h + self.weight @ data[: len(self.weight)])

    data = torch.randn(max(layer.num_bytes for layer in layers) // 4)
    neurons = (Neuron(layer.num_bytes // 4) for layer in layers)
    paced = (Paced(each, forward_us=0, name=str(index)) for index, each in enumerate(neurons))
    return nn.Sequential(*paced)


def _step(ddp: "nn.Module", inputs: "list[Tensor]") -> float:
    """One training step without an optimizer, all ranks beginning together. Returns its
    microseconds."""
    import torch.distributed as dist

    ddp.zero_grad()
    dist.barrier()
    start_s = time.perf_counter()
    for number, microbatch in enumerate(inputs, start=1):
        quiet = number < len(inputs)
        with ddp.no_sync() if quiet else contextlib.nullcontext():
            ddp(microbatch).sum().backward()
    return (time.perf_counter() - start_s) * 1e6


def _max_error(model: "nn.Sequential", inputs: "list[Tensor]") -> float:
    """How far the gradients are from the mean of what every rank computes alone, over the largest
    of the mean."""
    import torch
    import torch.distributed as dist

    for paced in model:
        paced.forward_us = paced.backward_us = 0.0
    weights = list(model.parameters())
    each = [torch.autograd.grad(model(h).sum(), weights) for h in inputs]
    errors = []
    for weight, *mine in zip(weights, *each, strict=True):
        mean = sum(mine) / dist.get_world_size()
        dist.all_reduce(mean)
        errors.append(((weight.grad - mean).abs().max() / mean.abs().max()).item())
    return max(errors)
