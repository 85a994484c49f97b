"""What a rank of a DeepSpeed engine holds: its 16-bit parameters, gradients, fp32 copies and
buffers, as ZeRO 0 to 3 keep them (DeepSpeed 0.19.8). ``engines`` asks here."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from labkit.sharding.engines import Piece, buffers, each_parameter, states_of
from labkit.sharding.partition import Slice, cut
from labkit.shards import PADDING

OFFLOAD_BUFFERS = {
    "param_buffer_of_bit16_for_cpu_offload_groups": True,
    "temp_grad_buffer_for_cpu_offload": True,
    "temp_grad_buffer_for_gpu_offload": False,
}
"""Buffers that ZeRO 1 and 2 keep when they offload, and whether they lie on the host."""
FLAT = "(flat)"
"""The name of what is kept once for a flat tensor: a step counter."""


def pieces(engine: Any) -> Iterator[Piece]:
    """Everything that the engine holds on this rank. Raises ValueError for an optimizer of a kind
    that nobody here can read."""
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp16_partitioned_groups_flat"):
        yield from _stage3(engine, names)
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):
        yield from _stage12(optimizer, names)
    elif hasattr(optimizer, "fp16_groups_flat"):
        yield from _stage0(optimizer, names)
    elif isinstance(optimizer, torch.optim.Optimizer):
        yield from each_parameter(engine.module.named_parameters(), optimizer)
    else:
        raise ValueError(
            "the live tensors of DeepSpeed's ZeRO 0 to 3 can be read; the optimizer of this "
            f"engine is {type(optimizer).__name__}"
        )
    yield from buffers(engine.module)
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        for tensor in _tensors(bucket.buffer):
            yield Piece("buffer", "ipg_bucket", 0, tensor.numel(), tensor)


def _tensors(kept: Any) -> list[Tensor]:
    """One tensor, a list of tensors, or None: as a list."""
    each = kept if isinstance(kept, list) else [kept]
    return [tensor for tensor in each if isinstance(tensor, Tensor)]


def _optimizer_states(optimizer: Any, master: Tensor) -> list[tuple[str, Tensor]]:
    """The fp32 copy, what the inner optimizer keeps for it, and its gradient if it has one."""
    kept = [("master", master), *states_of(optimizer.optimizer, master)]
    if master.grad is not None:
        kept.append(("main_grad", master.grad))
    return kept


def _offset(part: Tensor, flat: Tensor) -> int:
    """Where a view begins in the flat tensor that it looks into, in elements."""
    return (part.data_ptr() - flat.data_ptr()) // flat.element_size()


# --- stage 0 in 16 bit ---


def _stage0(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Everything whole, the fp32 copies as one flat tensor."""
    groups = zip(
        optimizer.fp16_groups, optimizer.fp16_groups_flat, optimizer.fp32_groups_flat, strict=True
    )
    for group, flat, master in groups:
        states = [("master", master), *states_of(optimizer.optimizer, master)]
        for parameter in group:
            name = names[id(parameter)]
            size = parameter.numel()
            start = _offset(parameter, flat)
            yield Piece("parameter", name, 0, size, flat)
            if parameter.grad is not None:
                yield Piece("gradient", name, 0, size, parameter.grad)
            for kind, tensor in states:
                if tensor.dim():
                    yield Piece(kind, name, 0, size, tensor[start : start + size])


# --- stages 1 and 2 ---


def _stage12(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """16-bit parameters whole in a flat tensor, an equal part of it in fp32 with its moments."""
    for index, flat in enumerate(optimizer.bit16_groups_flat):
        sizes = _sizes_as_laid_out(optimizer.bit16_groups[index], flat, names)
        for name, size in sizes.items():
            yield Piece("parameter", name, 0, size, flat)
        padding = flat.numel() - sum(sizes.values())
        if padding > 0:
            yield Piece("parameter", PADDING, 0, padding, flat)
        master = optimizer.single_partition_of_fp32_groups[index]
        rank = torch.distributed.get_rank(optimizer.real_dp_process_group[index])
        part = list(cut(sizes, rank * master.numel(), master.numel()))
        for kind, tensor in _optimizer_states(optimizer, master):
            slices = part if tensor.dim() else [(FLAT, 0, 1)]
            for name, start, stop in slices:
                yield Piece(kind, name, start, stop, tensor, bool(optimizer.cpu_offload))
        yield from _gradients12(optimizer, index, names, part)
    for attribute, on_host in OFFLOAD_BUFFERS.items():
        for tensor in _tensors(getattr(optimizer, attribute, None)):
            yield Piece("buffer", attribute, 0, tensor.numel(), tensor, on_host)


def _sizes_as_laid_out(group: list[Tensor], flat: Tensor, names: dict[int, str]) -> dict[str, int]:
    """Elements of each parameter, in the order in which they lie in the flat tensor."""
    places = sorted(
        (_offset(parameter, flat), parameter.numel(), names[id(parameter)]) for parameter in group
    )
    sizes = {name: size for _, size, name in places}
    ends = [0, *accumulate(sizes.values())]
    assert [start for start, _, _ in places] == ends[:-1], "parameters with gaps between"
    return sizes


def _gradients12(
    optimizer: Any, index: int, names: dict[int, str], part: list[Slice]
) -> Iterator[Piece]:
    """Gradients between microbatches and before the step. A tensor of which a rank needs a slice is
    kept whole."""
    for parameter in optimizer.bit16_groups[index]:
        for tensor in (parameter.grad, getattr(parameter, "grad_accum", None)):
            if tensor is not None:
                yield Piece("gradient", names[id(parameter)], 0, tensor.numel(), tensor)
    mine = {name: (start, stop) for name, start, stop in part}
    needed = optimizer.params_in_partition[index]
    real = []
    for tensor in _averaged_gradients(optimizer, index):
        if getattr(tensor, "_zero_padding", False):
            yield Piece("gradient", PADDING, 0, tensor.numel(), tensor)
        else:
            real.append(tensor)
    for parameter, tensor in zip(needed, real, strict=False):
        name = names[id(parameter)]
        yield Piece("gradient", name, *mine[name], tensor)
    if optimizer.cpu_offload:
        for parameter in needed:
            tensor = optimizer.accumulated_grads_in_cpu.get(optimizer.get_param_id(parameter))
            if tensor is not None:
                name = names[id(parameter)]
                yield Piece("gradient", name, *mine[name], tensor, True)


def _averaged_gradients(optimizer: Any, index: int) -> list[Tensor]:
    """This rank's reduced gradients of a group: before the update, else between microbatches."""
    before_update = optimizer.averaged_gradients.get(index)
    between = getattr(optimizer, "all_grad_tensors", {}).get(index)
    return before_update or between or []


# --- stage 3 ---


def _stage3(engine: Any, names: dict[int, str]) -> Iterator[Piece]:
    """An equal part of each parameter, all parts of a group in flat tensors. All gradients lie in
    one flat buffer."""
    optimizer = engine.optimizer
    states_on_host = engine.zero_offload_optimizer() is not None
    parameters_on_host = engine.zero_offload_param() is not None
    for index, group in enumerate(optimizer.fp16_groups):
        states = _optimizer_states(optimizer, optimizer.fp32_partitioned_groups_flat[index])
        for kind, tensor in states:
            if not tensor.dim():
                yield Piece(kind, FLAT, 0, 1, tensor, states_on_host)
        for parameter in group:
            name = names[id(parameter)]
            kept = [
                ("parameter", parameter.ds_tensor, parameters_on_host),
                ("gradient", optimizer.grad_partitions_flat_buffer, states_on_host),
            ]
            for kind, tensor in states:
                if tensor.dim():
                    kept.append((kind, tensor, states_on_host))
            for kind, tensor, on_host in kept:
                yield from _equal_part(kind, name, parameter, tensor, on_host)
            if parameter.ds_status.name == "AVAILABLE" and parameter.data.numel():
                yield Piece("gathered", name, 0, parameter.ds_numel, parameter.data)


def _equal_part(
    kind: str, name: str, parameter: Any, tensor: Tensor, on_host: bool
) -> Iterator[Piece]:
    """This rank's part of a parameter; the parts of the last ranks are padded to the same size."""
    size = parameter.ds_tensor.ds_numel
    start = min(torch.distributed.get_rank() * size, parameter.ds_numel)
    stop = min(start + size, parameter.ds_numel)
    yield Piece(kind, name, start, stop, tensor, on_host)
    padding = size - (stop - start)
    if padding > 0:
        yield Piece(kind, PADDING, 0, padding, tensor, on_host)
