"""A cut layer on real ranks, held against one process.

    run = tensor_parallel.Layer(ranks=4).run()
    run[0]["output_difference"], run[0]["gradient_difference"]
    run[0]["payload_bytes"]     # counted; step.payload() by theory
    run.timeline()              # what this machine did

Every rank also computes the whole layer, on the same numbers: that is the one process.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel

from labkit import model
from labkit.measure import memory, trace, traffic
from labkit.measure.apart import difference
from labkit.shards import Shards, from_rows
from labkit.tensor_parallel import by_hand_run, torch_run, whole_run
from labkit.tensor_parallel.layer import Layer
from labkit.tensor_parallel.whole_run import WholeBlock

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0
NUM_STEPS = 2
"""the first one connects the ranks; the last one is counted and recorded"""


def start(step: Layer) -> "Job":
    """Cuts the layer, steps twice, compares; in the background."""
    from labkit.launching import launcher

    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def _train(step: Layer) -> dict:
    """One rank."""
    given, wanted = whole_run.batch(step)
    whole = whole_run.whole(step)
    right, loss = _whole_step(whole, step, given, wanted)
    with _engine(step):
        block = _cut(step, whole_run.whole(step))
        for index in range(NUM_STEPS):
            block.zero_grad()
            held = memory.Activations(block.parameters())
            recording: Any = contextlib.nullcontext()
            if index == NUM_STEPS - 1:
                recording = trace.record(operators=False)
            dist.barrier()
            began = time.perf_counter()
            with recording, traffic.count() as counted:
                mine = _step(block, step, given, wanted, held)
            step_us = 1e6 * (time.perf_counter() - began)
        found = {
            "shards": _shards(step, block),
            "output_difference": difference(mine, _tokens(step, right) if not step.vocab else loss),
            "gradient_difference": _gradients_apart(step, block, whole),
            "largest_gradient": max(_largest(each) for each in whole.parameters()),
            "loss": loss.item(),
        }
    return found | {
        "step_us": step_us,
        "activation_bytes": held.peak_bytes,
        "calls": {name: num for name, num in counted.calls.items() if name != "barrier"},
        "payload_bytes": dict(+counted.payload_bytes),
        "order": counted.order,
        "sent_bytes": counted.sent_bytes,
    }


def _engine(step: Layer) -> contextlib.AbstractContextManager:
    """What must stand around everything an engine does."""
    if step.engine != "megatron":
        return contextlib.nullcontext()
    from labkit.tensor_parallel import megatron_run

    return megatron_run.grid(step.ranks)


def _cut(step: Layer, whole: WholeBlock) -> nn.Module:
    """This rank's part, by the engine."""
    if step.engine == "torch":
        return torch_run.cut_block(step, whole)
    if step.engine == "megatron":
        from labkit.tensor_parallel import megatron_run

        return megatron_run.MegatronBlock(step, whole, dist.get_rank())
    return by_hand_run.CutBlock(step, whole, dist.get_rank())


def _whole_step(
    whole: WholeBlock, step: Layer, given: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """One process: the output and the loss; gradients stay in the weights."""
    out = whole(given)
    loss = model.loss(out, wanted) if step.vocab else (out * wanted).sum()
    loss.backward()
    return out.detach(), loss.detach()


def _step(
    block: Any, step: Layer, given: Tensor, wanted: Tensor, held: memory.Activations
) -> Tensor:
    """Forward and backward of this rank's part: the loss where there is one, else the output."""
    around: Any = contextlib.nullcontext()
    if step.vocab and step.engine == "torch":
        around = loss_parallel()  # its backward as well
    with around:
        with held.chunk("forward"):
            made = _forward(block, step, given, wanted)
        made.backward(None if step.vocab else _tokens(step, wanted))
    if step.engine == "by hand" and step.sequence_parallel:
        by_hand_run.sum_whole_weights(block)
    return torch_run.local(made)


def _forward(block: Any, step: Layer, given: Tensor, wanted: Tensor) -> Tensor:
    """This rank's part of the loss or of the output."""
    if step.vocab and step.engine == "torch":
        return model.loss(block(given), wanted)
    if step.vocab:
        return block.loss(given, wanted)
    # whoever reads the stream before this layer wants its gradient as well
    return block(_tokens(step, given).clone().requires_grad_())


def _tokens(step: Layer, x_BTD: Tensor) -> Tensor:
    """All tokens, or this rank's where the sequence is cut."""
    if not step.sequence_parallel:
        return x_BTD
    return x_BTD.chunk(step.ranks, 1)[dist.get_rank()]


def _gradients_apart(step: Layer, block: nn.Module, whole: WholeBlock) -> float:
    """The largest difference of a gradient's element from one process."""
    parts = {each.name: each for each in step.pieces(dist.get_rank())}
    right = {name: weight.grad for name, weight in whole.named_parameters()}
    mine = {}
    for name, weight in block.named_parameters():
        mine[name] = _gradient(step, name, weight)
    return difference(
        mine, {name: by_hand_run.piece_of(right[name], parts[name]) for name in right}
    )


def _largest(weight: nn.Parameter) -> float:
    """The largest element of a gradient, in size."""
    return 0.0 if weight.grad is None else weight.grad.abs().max().item()


def _gradient(step: Layer, name: str, weight: nn.Parameter) -> Tensor:
    """A weight's gradient here. megatron-core, too, leaves the sum over tokens of weights that all
    ranks hold whole to the optimizer."""
    found = torch_run.gradient(weight)
    is_whole = name.startswith("norm") or name in ("out.bias", "down.bias")
    if step.engine == "megatron" and step.sequence_parallel and is_whole:
        found = by_hand_run.summed(found)
    return found


def _shards(step: Layer, block: nn.Module) -> Shards:
    """Which elements the rank's live tensors hold: told by the numbers that they have in a layer
    cut the same way whose elements are numbered."""
    numbers = _cut(step, whole_run.numbered(step))
    gradients = {name: torch_run.local(each.grad) for name, each in block.named_parameters()}
    me = dist.get_rank()
    rows = []
    for name, weight in numbers.named_parameters():
        mine = torch_run.local(weight)
        held = [*_runs(mine.flatten().tolist())]
        size = gradients[name].numel()
        for start, stop in held:
            rows.append((me, "parameter", name, start, stop, "float32", "device"))
        for start, stop in held if size == mine.numel() else [(0, size)]:
            rows.append((me, "gradient", name, start, stop, "float32", "device"))
    notes = memory.backend_notes()
    return from_rows(rows, num_ranks=step.ranks, origin="measured", notes=notes)


def _runs(numbers: list[float]) -> Iterator[tuple[int, int]]:
    """[start, stop) of each run of numbers that follow one another."""
    start = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            yield int(numbers[start]), int(numbers[index - 1]) + 1
            start = index
