"""DistributedDataParallel on real ranks, layer by layer at a stated pace: the very step that
``buckets`` simulates.

    layers = [Layer(name=f"layer {i}", num_bytes=4_000_000, forward_us=10_000) for i in range(6)]
    link = Link(alpha_us=100, bandwidth_gb_per_s=0.3)
    run = data_parallel.launch(layers, 4, bucket_mb=4, link=link)
    predicted = data_parallel.predict(layers, 4, bucket_mb=4, link=link)

Gradients have the stated sizes, are really reduced and really checked. Two warm-up steps come
first, at the machine's own pace: DDP begins with all gradients in one bucket, and rebuilds its
buckets in the second step.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from labkit.collectives.network import Link
from labkit.data_parallel.buckets import Layer, predict, ring_us

if TYPE_CHECKING:
    from torch import Tensor, nn

    from labkit.launching.job import Job
    from labkit.launching.run import Run


def launch(
    layers: Sequence[Layer],
    num_ranks: int = 4,
    *,
    bucket_mb: float = 25.0,
    link: Link | None = None,
    overlap: bool = True,
    num_steps: int = 3,
    slow: Mapping[int, float] | None = None,
    accumulate: int = 1,
    timeout_s: float = 60.0,
) -> "Run":
    """Trains real DDP over paced layers; a bucket takes the ring's time on ``link``, or the
    machine's own without one.

    ``bucket_mb`` is DDP's ``bucket_cap_mb`` (MiB). ``slow``: rank -> factor on the times of its
    layers. ``accumulate``: microbatches per step, all but the last under ``no_sync``. ``run[r]`` is
    a dict: step_us (per step), bucket_bytes (as DDP reports them), overruns, max_error (of the
    gradients against the mean over the ranks, relative to the largest). ``run.timeline()`` is the
    last step, labelled as ``buckets.simulate`` labels it. Raises ValueError for gradients that are
    no whole number of float32 values.
    """
    return start(
        layers,
        num_ranks,
        bucket_mb=bucket_mb,
        link=link,
        overlap=overlap,
        num_steps=num_steps,
        slow=slow,
        accumulate=accumulate,
        timeout_s=timeout_s,
    ).wait()


def start(
    layers: Sequence[Layer],
    num_ranks: int = 4,
    *,
    bucket_mb: float = 25.0,
    link: Link | None = None,
    overlap: bool = True,
    num_steps: int = 3,
    slow: Mapping[int, float] | None = None,
    accumulate: int = 1,
    timeout_s: float = 60.0,
) -> "Job":
    """``launch`` in the background: returns at once."""
    from labkit.launching import launcher

    odd = [f"{layer.name!r} has {layer.num_bytes} bytes" for layer in layers if layer.num_bytes % 4]
    if odd:
        raise ValueError(f"a gradient is float32 values, 4 bytes each; {', '.join(odd)}")
    if not layers or num_steps < 1:
        raise ValueError(f"a run has a layer and a step or more; got {len(layers)} and {num_steps}")
    # what can't be predicted raises ValueError here
    any_link = link or Link(alpha_us=0.0, bandwidth_gb_per_s=1.0)
    predict(layers, num_ranks, bucket_mb=bucket_mb, link=any_link, slow=slow, accumulate=accumulate)
    return launcher.start(
        _train,
        tuple(layers),
        bucket_mb,
        link,
        overlap,
        num_steps,
        dict(slow or {}),
        accumulate,
        ranks=num_ranks,
        timeout_s=timeout_s,
        backend="gloo",
    )


# --- in the ranks ---


def _train(
    layers: tuple[Layer, ...],
    bucket_mb: float,
    link: Link | None,
    overlap: bool,
    num_steps: int,
    slow: dict[int, float],
    accumulate: int,
) -> dict:
    """One rank: warms up, steps at the stated pace, records the last step and checks its
    gradients."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from labkit.measure import pace, trace

    # layers with so little to compute gain nothing from more, and lose their pace
    torch.set_num_threads(1)
    model = _model(layers)
    me = dist.get_rank()
    inputs = [torch.tensor([0.1 * (me + 1) + 0.01 * index]) for index in range(accumulate)]
    ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)
    for _ in range(2):
        _step(ddp, inputs)
    factor = slow.get(me, 1.0)
    for paced, layer in zip(model, layers, strict=True):
        paced.forward_us = factor * layer.forward_us
        paced.backward_us = factor * layer.backward_us
    all_reduce_us = ring_us(dist.get_world_size(), link) if link else None
    linked = pace.link(ddp, all_reduce_us, overlap=overlap)
    step_us = [_step(ddp, inputs) for _ in range(num_steps - 1)]
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
