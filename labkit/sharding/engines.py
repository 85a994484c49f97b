"""What one rank's engine really holds: the live tensors of DDP, FSDP and DeepSpeed, slice by slice.

Every engine keeps its shards under names of its own, most of them private: this room alone knows
those names (torch 2.13, DeepSpeed 0.19.8), and a test counts that no live tensor is left out.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from labkit.sharding.partition import cut
from labkit.shards import PADDING, UNUSED


class Piece(NamedTuple):
    """A slice of a tensor, and the live tensor in which it lies."""

    kind: str
    """"parameter", "gradient", "main_grad", "master", "exp_avg", ..., "buffer\""""
    name: str
    """the parameter's name; PADDING or UNUSED for bytes of none"""
    start: int
    """first element of the flattened parameter"""
    stop: int
    """one past the last"""
    held: Tensor
    """the local tensor (no DTensor) in whose storage it lies"""
    offloaded: bool = False
    """whether the engine means it to lie in the host's memory"""
    rest: str = UNUSED
    """what the storage's other bytes are, where no piece names them"""


def pieces(model: nn.Module, optimizer: Any = None) -> Iterator[Piece]:
    """Everything that a model and its optimizer hold on this rank now.

    ``model``: a module, DDP, FSDP (1 or 2) or a DeepSpeed engine, which brings its optimizer.
    Raises ValueError for an engine of a kind that nobody here can read.
    """
    if hasattr(model, "zero_optimization_stage"):
        yield from _deepspeed(model)
        return
    module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if isinstance(module, FullyShardedDataParallel):
        yield from _fsdp1(module, optimizer)
    else:
        yield from _plain(module.named_parameters(), optimizer)
    for name, buffer in module.named_buffers():
        yield Piece("buffer", name, 0, buffer.numel(), buffer)


def unclaimed(found: Iterable[Piece]) -> Iterator[Piece]:
    """What of the pieces' storages no piece names: the engine keeps it, so it counts."""
    storages: dict[int, list] = {}
    for piece in found:
        storage = piece.held.untyped_storage()
        entry = storages.setdefault(
            storage._cdata, [piece, storage.nbytes() // piece.held.element_size(), set()]
        )
        entry[2].add((piece.kind, piece.name, piece.start, piece.stop))
    for piece, num_elements, slices in storages.values():
        rest = num_elements - sum(stop - start for *_, start, stop in slices)
        if rest > 0:
            yield piece._replace(name=piece.rest, start=0, stop=rest)


# --- torch: modules, DDP, FSDP 2 ---


def _plain(named: Iterable[tuple[str, nn.Parameter]], optimizer: Any) -> Iterator[Piece]:
    """Whole tensors, or the rows of a DTensor; gradients; what the optimizer keeps for each."""
    for name, parameter in named:
        yield _whole("parameter", name, parameter)
        if parameter.grad is not None:
            yield _whole("gradient", name, parameter.grad)
        for kind, state in _states(optimizer, parameter):
            yield _whole(kind, name, state)


def _states(optimizer: Any, parameter: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors an optimizer keeps for one parameter, by their keys; an SGD's "momentum_buffer"
    is "momentum"."""
    kept = optimizer.state.get(parameter, {}) if optimizer else {}
    return [
        (key.removesuffix("_buffer"), value)
        for key, value in kept.items()
        if isinstance(value, Tensor)
    ]


def _whole(kind: str, name: str, tensor: Tensor) -> Piece:
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return Piece(kind, name, 0, tensor.numel(), tensor)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    row = tensor.numel() // max(1, tensor.shape[0]) if tensor.dim() else 1
    local, start = tensor._local_tensor, (offset[0] if shape else 0) * row
    return Piece(kind, name, start, start + local.numel(), local, rest=PADDING)


# --- FSDP 1 ---


def _fsdp1(module: nn.Module, optimizer: Any) -> Iterator[Piece]:
    """Each FSDP unit keeps its parameters as one flat tensor, and this rank a part of it."""
    wrapped = "_fsdp_wrapped_module."
    for path, unit in module.named_modules():
        if not isinstance(unit, FullyShardedDataParallel) or unit._handle is None:
            continue
        flat, path = unit._handle.flat_param, f"{path}.".replace(wrapped, "").lstrip(".")
        spans = [
            (
                path + name.replace(wrapped, ""),
                info.intra_param_start_idx,
                info.intra_param_end_idx + 1,
            )
            for name, info in zip(flat._fqns, flat._shard_param_infos, strict=True)
            if info.in_shard
        ]
        gradient = getattr(flat, "_saved_grad_shard", None)
        kept = [
            ("parameter", flat._local_shard),
            ("gradient", flat.grad if gradient is None else gradient),
            *_states(optimizer, flat),
        ]
        for kind, tensor in kept:
            if tensor is not None and not tensor.dim():
                yield Piece(kind, f"{path}(flat)", 0, 1, tensor)
            elif tensor is not None:
                rest = tensor.numel() - sum(stop - start for _, start, stop in spans)
                yield from (Piece(kind, *span, tensor, rest=PADDING) for span in spans)
                yield from [Piece(kind, PADDING, 0, rest, tensor)] * (rest > 0)


# --- DeepSpeed ---


def _deepspeed(engine: Any) -> Iterator[Piece]:
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp16_partitioned_groups_flat"):
        yield from _stage3(engine, optimizer, names)
    elif hasattr(optimizer, "single_partition_of_fp32_groups"):
        yield from _stage12(optimizer, names)
    elif hasattr(optimizer, "fp16_groups_flat"):
        yield from _stage0(optimizer, names)
    elif isinstance(optimizer, torch.optim.Optimizer):
        yield from _plain(engine.module.named_parameters(), optimizer)
    else:
        raise ValueError(
            "the live tensors of DeepSpeed's ZeRO 0 to 3 can be read; the optimizer of this "
            "engine is "
            f"{type(optimizer).__name__}"
        )
    for name, buffer in engine.module.named_buffers():
        yield Piece("buffer", name, 0, buffer.numel(), buffer)
    for bucket in getattr(optimizer, "ipg_buckets", {}).values():
        kept = bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer]
        yield from (
            Piece("buffer", "ipg_bucket", 0, each.numel(), each)
            for each in kept
            if isinstance(each, Tensor)
        )


def _stage0(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Stage 0 in 16 bit: everything whole, the fp32 copies as one flat tensor."""
    for group, flat, master in zip(
        optimizer.fp16_groups, optimizer.fp16_groups_flat, optimizer.fp32_groups_flat, strict=True
    ):
        for parameter in group:
            name, start = names[id(parameter)], _offset(parameter, flat)
            yield Piece("parameter", name, 0, parameter.numel(), flat)
            if parameter.grad is not None:
                yield Piece("gradient", name, 0, parameter.numel(), parameter.grad)
            yield from (
                Piece(kind, name, 0, parameter.numel(), tensor[start : start + parameter.numel()])
                for kind, tensor in _kept(optimizer.optimizer, master)
                if tensor.dim()
            )


def _kept(optimizer: Any, master: Tensor) -> list[tuple[str, Tensor]]:
    """The fp32 copy and what the inner optimizer keeps for it."""
    return [("master", master), *_states(optimizer, master)]


def _offset(part: Tensor, flat: Tensor) -> int:
    """Where a view begins in the flat tensor that it looks into, in elements."""
    return (part.data_ptr() - flat.data_ptr()) // flat.element_size()


def _stage12(optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Stages 1 and 2: 16-bit parameters whole in a flat tensor, an equal part of it in fp32 with
    its moments."""
    host = bool(optimizer.cpu_offload)
    for index, flat in enumerate(optimizer.bit16_groups_flat):
        spans = sorted(
            (_offset(parameter, flat), parameter.numel(), names[id(parameter)])
            for parameter in optimizer.bit16_groups[index]
        )
        yield from (Piece("parameter", name, 0, size, flat) for _, size, name in spans)
        if (rest := flat.numel() - sum(size for _, size, _ in spans)) > 0:
            yield Piece("parameter", PADDING, 0, rest, flat)
        master = optimizer.single_partition_of_fp32_groups[index]
        begin = torch.distributed.get_rank(optimizer.real_dp_process_group[index]) * master.numel()
        sizes = {name: size for _, size, name in spans}
        assert [start for start, *_ in spans] == [0, *accumulate(sizes.values())][:-1], (
            "parameters with gaps between"
        )
        part = list(cut(sizes, begin, master.numel()))
        kept = _kept(optimizer.optimizer, master) + [("main_grad", master.grad)] * (
            master.grad is not None
        )
        for kind, tensor in kept:
            slices = part if tensor.dim() else [("(flat)", 0, 1)]
            yield from (Piece(kind, *each, tensor, host) for each in slices)
        yield from _gradients12(
            optimizer, index, names, {name: (start, stop) for name, start, stop in part}
        )
    for attribute in (
        "param_buffer_of_bit16_for_cpu_offload_groups",
        "temp_grad_buffer_for_cpu_offload",
        "temp_grad_buffer_for_gpu_offload",
    ):
        kept = getattr(optimizer, attribute, None)
        for tensor in kept if isinstance(kept, list) else [kept] * (kept is not None):
            yield Piece("buffer", attribute, 0, tensor.numel(), tensor, "gpu" not in attribute)


def _gradients12(
    optimizer: Any, index: int, names: dict[int, str], part: dict[str, tuple[int, int]]
) -> Iterator[Piece]:
    """Gradients between microbatches and before the step. A tensor of which a rank needs a slice is
    kept whole."""
    for parameter in optimizer.bit16_groups[index]:
        for tensor in (parameter.grad, getattr(parameter, "grad_accum", None)):
            if tensor is not None:
                yield Piece("gradient", names[id(parameter)], 0, tensor.numel(), tensor)
    kept = (
        optimizer.averaged_gradients.get(index)
        or getattr(optimizer, "all_grad_tensors", {}).get(index)
        or ()
    )
    real = [tensor for tensor in kept if not getattr(tensor, "_zero_padding", False)]
    yield from (
        Piece("gradient", PADDING, 0, t.numel(), t)
        for t in kept
        if getattr(t, "_zero_padding", False)
    )
    for parameter, tensor in zip(optimizer.params_in_partition[index], real, strict=False):
        name = names[id(parameter)]
        yield Piece("gradient", name, *part[name], tensor)
    for parameter in optimizer.params_in_partition[index] if optimizer.cpu_offload else ():
        tensor = optimizer.accumulated_grads_in_cpu.get(optimizer.get_param_id(parameter))
        if tensor is not None:
            name = names[id(parameter)]
            yield Piece("gradient", name, *part[name], tensor, True)


def _stage3(engine: Any, optimizer: Any, names: dict[int, str]) -> Iterator[Piece]:
    """Stage 3: an equal part of each parameter, all parts of a group in flat tensors."""
    host, rank = engine.zero_offload_optimizer() is not None, torch.distributed.get_rank()
    host_params = engine.zero_offload_param() is not None
    partitions = optimizer._DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition
    for index, group in enumerate(optimizer.fp16_groups):
        master = optimizer.fp32_partitioned_groups_flat[index]
        kept = _kept(optimizer.optimizer, master) + [("main_grad", master.grad)] * (
            master.grad is not None
        )
        yield from (
            Piece(kind, "(flat)", 0, 1, tensor, host) for kind, tensor in kept if not tensor.dim()
        )
        for parameter in group:
            name, size = names[id(parameter)], parameter.ds_tensor.ds_numel
            start = min(rank * size, parameter.ds_numel)
            stop = min(start + size, parameter.ds_numel)
            gradient = partitions[optimizer.get_param_id(parameter)]
            tensors = [
                ("parameter", parameter.ds_tensor, host_params),
                ("gradient", gradient, host),
                *((kind, tensor, host) for kind, tensor in kept if tensor.dim()),
            ]
            for kind, tensor, offloaded in tensors:
                yield Piece(kind, name, start, stop, tensor, offloaded)
                if stop - start < size:
                    yield Piece(kind, PADDING, 0, size - (stop - start), tensor, offloaded)
            if parameter.ds_status.name == "AVAILABLE" and parameter.data.numel():
                yield Piece("gathered", name, 0, parameter.ds_numel, parameter.data)
