"""Live bytes, read out of real ranks: every byte over a step, what autograd holds for the backward,
and the largest memory of the process.

    with memory.watch() as watched:                 # every storage over a step, by part of the bill
        ...
        engines.claim(watched, model, optimizer)    # ``sharding.engines`` names what they hold
    watched.footprint().peak_bytes

Torch's own MemTracker (2.13) cannot take the place of ``Watch``: it keeps one peak, not the highest
point of each moment; takes a second step only once reset; and of a DeepSpeed engine it sees no
optimizer states, at ZeRO 3 20 % more bytes. A test asks it for a second opinion on the peak.

What ``activations`` counts: the storages of the tensors that autograd saves during a forward, each
storage once, parameters left out, from the moment autograd saves them to the moment it lets them
go. A stage's input is among them where an operator needs it. What is not: the outputs that the
pipeline runtime keeps to send, gradients, and the loss (computed outside of ``forward_one_chunk``).
"""

import contextlib
import functools
import itertools
import resource
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.devices import rung
from labkit.devices.place import has_accelerator
from labkit.footprint import Footprint, Moment, from_moments
from labkit.measure.labels import replaced


def backend_notes() -> list[str]:
    """What must be said with a measurement: the backend and the kind of device, where there are
    process groups."""
    import torch.distributed as dist

    return [*rung.said_of(dist.get_backend())] if dist.is_initialized() else []


class _Storage:
    """A storage that was seen: how large it is now, and which part of the bill it is."""

    __slots__ = ("num_bytes", "part")

    def __init__(self) -> None:
        self.num_bytes = 0
        self.part = "temporary"


class Watch(TorchDispatchMode):
    """Sees every storage that torch makes, resizes or drops on this rank while it is entered: see
    ``watch``."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        """bytes of all storages seen and alive"""
        self._alive: dict[int, _Storage] = {}
        self._changes: list[tuple[_Storage, int]] = []
        self._marks: list[tuple[int, str]] = []
        self._hooks: list = []

    def layers(self, layers: Iterable[nn.Module]) -> None:
        """Makes moments of them: forward and backward of the first are "F0" and "B0". After the
        engine has wrapped them, so that what it gathers for a layer counts there."""
        for index, layer in enumerate(layers):
            before = functools.partial(self._before_forward, f"F{index}")
            after = functools.partial(self._after_forward, f"B{index}")
            self._hooks.append(layer.register_forward_pre_hook(before, prepend=True))
            self._hooks.append(layer.register_forward_hook(after, prepend=True))

    def _before_forward(self, label: str, *_: Any) -> None:
        self.mark(label)

    def _after_forward(self, label: str, module: nn.Module, inputs: Any, output: Any) -> None:
        """The layer's backward begins when the gradient of its output is there."""
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(lambda gradient: self.mark(label))

    def mark(self, label: str) -> None:
        """Another moment begins: "F0", "loss", "step"."""
        self._marks.append((len(self._changes), label))

    def claim(self, part: str, tensor: Tensor) -> None:
        """Names the storage of a tensor for the whole watch: "parameters", "optimizer", ..."""
        self._see(tensor).part = part

    def kept(self) -> None:
        """The forward has ended: what is alive and has no name is kept for the backward."""
        for storage in self._alive.values():
            if storage.num_bytes and storage.part == "temporary":
                storage.part = "activations"

    def footprint(self) -> Footprint:
        """Bytes by part at the highest point of each moment; what came before the first mark is
        left out."""
        return from_moments(self._moments(), "measured", backend_notes())

    def _moments(self) -> Iterator[Moment]:
        held: Counter[str] = Counter()
        total = 0
        begins = [0, *(begin for begin, _ in self._marks)]
        ends = [*begins[1:], len(self._changes)]
        labels = ["", *(label for _, label in self._marks)]
        for label, begin, end in zip(labels, begins, ends, strict=True):
            highest = dict(held)
            most = total
            for storage, change in self._changes[begin:end]:
                held[storage.part] += change
                total += change
                if total > most:
                    highest = dict(held)
                    most = total
            if label:
                yield label, highest

    def _see(self, tensor: Tensor) -> _Storage:
        """What is known of a tensor's storage, its size brought up to date."""
        real = _real(tensor)
        seen = self._alive.get(real._cdata)
        if seen is None:
            seen = self._alive[real._cdata] = _Storage()
            weakref.finalize(real, self._drop, real._cdata, seen).atexit = False
        self._resize(seen, real.nbytes())
        return seen

    def _resize(self, storage: _Storage, num_bytes: int) -> None:
        change = num_bytes - storage.num_bytes
        if change:
            self._changes.append((storage, change))
            storage.num_bytes = num_bytes
            self.live_bytes += change

    def _drop(self, key: int, storage: _Storage) -> None:
        if self._alive.get(key) is storage:
            del self._alive[key]
        self._resize(storage, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        foreign = self._foreign((args, kwargs))
        for tensor in _tensors(made):
            if tensor.device.type != "meta" and _real(tensor)._cdata not in foreign:
                self._see(tensor)
        return made

    def _foreign(self, inputs: Any) -> set[int]:
        """The storages of an operator's inputs that were made below torch's operators: nobody has
        seen them. Parameters are seen here at the latest, for a while if they are the engine's."""
        foreign = set()
        for tensor in _tensors(inputs):
            if isinstance(tensor, nn.Parameter) and tensor.device.type != "meta":
                storage = self._see(tensor)
                if storage.part == "temporary":
                    storage.part = "gathered"
            elif _real(tensor)._cdata not in self._alive:
                foreign.add(_real(tensor)._cdata)
        return foreign


def _tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among an operator's inputs or outputs, which are nested in lists, tuples and
    dicts alone: torch's own walk through trees of any kind takes twice as long."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for each in values:
            yield from _tensors(each)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _real(tensor: Tensor) -> torch.UntypedStorage:
    """The storage on this rank, a DTensor's too."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Counts the bytes of every storage on this rank while the block runs, by part of the bill.

    ``layers`` makes moments of layers; ``claim`` names what the engine holds, at least once while
    it holds it; ``kept`` is called where the forward ends. Whatever is left is "gathered" (a
    parameter for a while) or "temporary". Not seen is what was there before, until it is claimed,
    and what libraries allocate below torch's operators, such as the copy with which gloo emulates a
    reduce-scatter. Some 20 us an operator.
    """
    watched = Watch()
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, num_bytes: int) -> None:
        resize(storage, num_bytes)
        seen = watched._alive.get(storage._cdata)
        if seen is not None:
            watched._resize(seen, storage.nbytes())

    torch.UntypedStorage.resize_ = resized  # FSDP frees and gathers without an operator
    try:
        with watched:
            yield watched
    finally:
        torch.UntypedStorage.resize_ = resize
        for hook in watched._hooks:
            hook.remove()


class Activations:
    """Counts saved activations of one rank. ``with held.chunk(2): y = stage(x)`` counts one
    forward."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.peak_bytes = 0
        """the most bytes that autograd held at one time"""
        self.peak_chunks = 0
        """the most forwards (stage and microbatch) whose activations were held, whole or in part,
        at one time"""
        self.num_bytes = 0
        """bytes held now"""
        self.history: list[int] = [0]
        """bytes held after each tensor that was saved or let go, the beginning included"""
        self._left_out = {_storage(each).data_ptr() for each in parameters}
        self._storages: Counter[int] = Counter()
        self._chunks: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def chunk(self, name: Hashable) -> Iterator[None]:
        """Counts what autograd saves inside the block, under ``name``."""
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: _Held(self, name, tensor), _Held.unpack
        ):
            yield

    def _add(self, name: Hashable, storage: torch.UntypedStorage) -> None:
        if not self._storages[storage.data_ptr()]:
            self.num_bytes += storage.nbytes()
        self._storages[storage.data_ptr()] += 1
        self._chunks[name] += 1
        self.history.append(self.num_bytes)
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        self.peak_chunks = max(self.peak_chunks, len(self._chunks))

    def _drop(self, name: Hashable, storage: torch.UntypedStorage) -> None:
        _count_down(self._storages, storage.data_ptr())
        _count_down(self._chunks, name)
        if storage.data_ptr() not in self._storages:
            self.num_bytes -= storage.nbytes()
        self.history.append(self.num_bytes)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """A tensor's bytes on this rank; those of a DTensor are its local part's, those of what a
    functional collective gave the ones that it waits for."""
    local = getattr(tensor, "_local_tensor", tensor)
    return getattr(local, "elem", local).untyped_storage()


def _count_down(counter: Counter, key: Hashable) -> None:
    """One less; what has come to 0 is forgotten."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class _Held:
    """Stands in autograd's graph for one saved tensor, and so knows when the graph lets it go."""

    def __init__(self, activations: Activations, name: Hashable, tensor: Tensor) -> None:
        # detached, or an operator that saves its own output would keep itself alive
        self.tensor = tensor.detach()
        self.storage = _storage(tensor)
        left_out = self.storage.data_ptr() in activations._left_out
        self.counts = self.storage.nbytes() > 0 and not left_out
        self.activations = activations
        self.name = name
        if self.counts:
            activations._add(name, self.storage)

    def unpack(self) -> Tensor:
        return self.tensor

    def __del__(self) -> None:
        if self.counts:
            self.activations._drop(self.name, self.storage)


@contextlib.contextmanager
def activations(*stages: Any) -> Iterator[Activations]:
    """Counts the activations of this rank's ``PipelineStage`` objects together, while the block
    runs."""
    held = Activations(itertools.chain(*(stage.submod.parameters() for stage in stages)))
    with contextlib.ExitStack() as restored:
        for stage in stages:
            counted = _counted(stage.forward_one_chunk, held, stage.stage_index)
            restored.enter_context(replaced(stage, forward_one_chunk=counted))
        yield held


def peak_rss_bytes() -> int:
    """The largest resident memory this process has had. In a forked rank it includes the pages of
    its parent."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def reset_allocated_peak() -> None:
    """From now on ``allocated_peak_bytes`` looks for the highest point anew."""
    if has_accelerator():
        torch.accelerator.reset_peak_memory_stats()


def allocated_peak_bytes() -> int | None:
    """The most bytes of tensors that the device's own allocator has held at one time; None where
    tensors lie on the CPU, which counts none."""
    return torch.accelerator.max_memory_allocated() if has_accelerator() else None


def allocated_bytes() -> int | None:
    """The bytes of tensors that the device's own allocator holds now; None where tensors lie on the
    CPU."""
    return torch.accelerator.memory_allocated() if has_accelerator() else None


def _counted(method: Callable, held: Activations, stage_index: int) -> Callable:
    @functools.wraps(method)
    def counted(mb: int, *args: Any, **kwargs: Any) -> Any:
        with held.chunk((stage_index, mb)):
            return method(mb, *args, **kwargs)

    return counted
