"""What one rank's engine really holds: the live tensors of DDP, FSDP and DeepSpeed, slice by slice.

    engines.shards(model, optimizer)               # slices of parameters, gradients, states
    engines.claim(watched, model, optimizer)       # their storages, in ``measure.memory.watch``

Every engine keeps its shards under names of its own, most of them private: this room and
``deepspeed_engines`` alone know those names (torch 2.13, DeepSpeed 0.19.8), and a test counts that
no live tensor is left out.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from labkit.devices import place
from labkit.measure.memory import backend_notes
from labkit.shards import CATEGORIES, PADDING, UNUSED, Shards, from_rows

if TYPE_CHECKING:
    from labkit.measure.memory import Watch

FSDP1_PREFIX = "_fsdp_wrapped_module."
"""What FSDP 1 puts before the names of a module that it has wrapped."""


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

    @property
    def dtype(self) -> str:
        """The type of its elements: "float32"."""
        return str(self.held.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Where it lies; on a CPU, where that can't be seen, "host" for what the engine means to
        lie there."""
        on_host = self.held.is_cpu if place.has_accelerator() else self.offloaded
        return "host" if on_host else str(self.held.device)


def shards(model: nn.Module, optimizer: Any = None) -> Shards:
    """What this rank holds now: parameters, gradients, optimizer states, padding and buffers of a
    model in DDP, FSDP or a DeepSpeed engine (which brings its optimizer). ``shards.join`` puts the
    ranks' parts together.

    A device is where a slice lies; "host" for what the engine has offloaded, which on a CPU is the
    same memory. Raises ValueError for an engine that nobody here can read.
    """
    rank = 0
    num_ranks = 1
    if dist.is_initialized():
        rank = dist.get_rank()
        num_ranks = dist.get_world_size()
    named = list(pieces(model, optimizer))
    rows = [
        (rank, piece.kind, piece.name, piece.start, piece.stop, piece.dtype, piece.device)
        for piece in (*named, *unclaimed(named))
    ]
    return from_rows(rows, num_ranks=num_ranks, origin="measured", notes=backend_notes())


def claim(watched: "Watch", model: nn.Module, optimizer: Any = None) -> None:
    """Names the storages that the model, its engine and its optimizer hold now, for the whole
    watch."""
    for piece in pieces(model, optimizer):
        watched.claim(CATEGORIES.get(piece.kind, piece.kind), piece.held)


def pieces(model: nn.Module, optimizer: Any = None) -> Iterator[Piece]:
    """Everything that a model and its optimizer hold on this rank now.

    ``model``: a module, DDP, FSDP (1 or 2) or a DeepSpeed engine, which brings its optimizer.
    Raises ValueError for an engine of a kind that nobody here can read.
    """
    if hasattr(model, "zero_optimization_stage"):
        from labkit.sharding import deepspeed_engines

        yield from deepspeed_engines.pieces(model)
        return
    module = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    if isinstance(module, FullyShardedDataParallel):
        yield from _fsdp1(module, optimizer)
    else:
        yield from each_parameter(module.named_parameters(), optimizer)
    yield from buffers(module)


def unclaimed(found: Iterable[Piece]) -> Iterator[Piece]:
    """What of the pieces' storages no piece names: the engine keeps it, so it counts. A slice may
    be named twice; each padding is another one, also where two are of one length."""
    sharing: dict[int, list[Piece]] = {}
    for piece in found:
        sharing.setdefault(piece.held.untyped_storage()._cdata, []).append(piece)
    for in_storage in sharing.values():
        first = in_storage[0]
        num_elements = first.held.untyped_storage().nbytes() // first.held.element_size()
        padding = [piece for piece in in_storage if piece.name == PADDING]
        named = {piece[:4]: piece for piece in in_storage if piece.name != PADDING}
        rest = num_elements - sum(each.stop - each.start for each in (*named.values(), *padding))
        if rest > 0:
            yield first._replace(name=first.rest, start=0, stop=rest)


# --- torch: modules, DDP, FSDP 2 ---


def each_parameter(named: Iterable[tuple[str, nn.Parameter]], optimizer: Any) -> Iterator[Piece]:
    """Whole tensors, or the rows of a DTensor; gradients; what the optimizer keeps for each."""
    for name, parameter in named:
        yield _tensor("parameter", name, parameter)
        if parameter.grad is not None:
            yield _tensor("gradient", name, parameter.grad)
        for kind, state in states_of(optimizer, parameter):
            yield _tensor(kind, name, state)


def states_of(optimizer: Any, parameter: Tensor) -> list[tuple[str, Tensor]]:
    """The tensors an optimizer keeps for one parameter, by their keys; an SGD's "momentum_buffer"
    is "momentum"."""
    kept = optimizer.state.get(parameter, {}) if optimizer else {}
    return [
        (key.removesuffix("_buffer"), value)
        for key, value in kept.items()
        if isinstance(value, Tensor)
    ]


def buffers(module: nn.Module) -> Iterator[Piece]:
    """The module's buffers, whole."""
    for name, buffer in module.named_buffers():
        yield Piece("buffer", name, 0, buffer.numel(), buffer)


def _tensor(kind: str, name: str, tensor: Tensor) -> Piece:
    """A tensor as one piece: of a DTensor, the rows that lie here."""
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return Piece(kind, name, 0, tensor.numel(), tensor)
    elements_per_row = tensor.numel() // max(1, tensor.shape[0]) if tensor.dim() else 1
    start = _first_row(tensor.shape, tensor.device_mesh, tensor.placements) * elements_per_row
    local = tensor._local_tensor
    return Piece(kind, name, start, start + local.numel(), local, rest=PADDING)


@functools.cache
def _first_row(shape: Any, mesh: Any, placements: Any) -> int:
    """Where this rank's rows of a DTensor begin; the same for a weight, its gradient and its
    moments."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    local, offset = compute_local_shape_and_global_offset(shape, mesh, placements)
    return offset[0] if local else 0


# --- FSDP 1 ---


def _fsdp1(module: nn.Module, optimizer: Any) -> Iterator[Piece]:
    """Each FSDP unit keeps its parameters as one flat tensor, and this rank a part of it."""
    for path, unit in module.named_modules():
        if isinstance(unit, FullyShardedDataParallel) and unit._handle is not None:
            prefix = f"{path}.".replace(FSDP1_PREFIX, "").lstrip(".")
            yield from _flat_unit(prefix, unit._handle.flat_param, optimizer)


def _flat_unit(prefix: str, flat: Any, optimizer: Any) -> Iterator[Piece]:
    """This rank's part of a flat parameter, of its gradient and of its states; what is left over is
    padding."""
    spans = [
        (
            prefix + name.replace(FSDP1_PREFIX, ""),
            info.intra_param_start_idx,
            info.intra_param_end_idx + 1,
        )
        for name, info in zip(flat._fqns, flat._shard_param_infos, strict=True)
        if info.in_shard
    ]
    used = sum(stop - start for _, start, stop in spans)
    saved_gradient = getattr(flat, "_saved_grad_shard", None)
    gradient = flat.grad if saved_gradient is None else saved_gradient
    kept = [("parameter", flat._local_shard), *states_of(optimizer, flat)]
    if gradient is not None:
        kept.insert(1, ("gradient", gradient))
    for kind, tensor in kept:
        if not tensor.dim():
            yield Piece(kind, f"{prefix}(flat)", 0, 1, tensor)
            continue
        for name, start, stop in spans:
            yield Piece(kind, name, start, stop, tensor, rest=PADDING)
        if tensor.numel() > used:
            yield Piece(kind, PADDING, 0, tensor.numel() - used, tensor)
