"""Live bytes, read out of real ranks: who holds which shard, every byte over a step, what autograd
holds for the backward, and the largest memory of the process.

    meter.shards(model, optimizer)                      # slices of parameters, gradients, optimizer states
    with meter.watch() as watched:                      # every storage over a step, by part of the bill
        ...
    watched.footprint().peak_bytes

What ``activations`` counts: the storages of the tensors that autograd saves during a forward, each
storage once, parameters left out, from the moment autograd saves them to the moment it lets them
go. A stage's input is among them where an operator needs it. What is not: the outputs that the
pipeline runtime keeps to send, gradients, and the loss (computed outside of ``forward_one_chunk``).
"""

import contextlib
import functools
import resource
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from labkit.footprint import Footprint, Moment, from_moments
from labkit.measure.labels import replaced
from labkit.sharding import engines
from labkit.shards import CATEGORIES, Shards, from_rows


def shards(model: nn.Module, optimizer: Any = None) -> Shards:
    """What this rank holds now: parameters, gradients, optimizer states, padding and buffers of a
    model in DDP, FSDP or a DeepSpeed engine (which brings its optimizer). ``shards.join`` puts the
    ranks' parts together.

    A device is where a slice lies; "host" for what the engine has offloaded, which on a CPU is the
    same memory. Raises ValueError for an engine that nobody here can read.
    """
    import torch.distributed as dist

    found = list(engines.pieces(model, optimizer))
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    rows = [
        (
            rank,
            piece.kind,
            piece.name,
            piece.start,
            piece.stop,
            str(piece.held.dtype).removeprefix("torch."),
            "host" if piece.offloaded else str(piece.held.device),
        )
        for piece in (*found, *engines.unclaimed(found))
    ]
    return from_rows(rows, num_ranks=size, origin="measured", notes=_backend())


def _backend() -> list[str]:
    """What must be said with a measurement."""
    import torch.distributed as dist

    return [dist.get_backend()] if dist.is_initialized() else []


class Watch(TorchDispatchMode):
    """Sees every storage that torch makes, resizes or drops on this rank while it is entered: see
    ``watch``."""

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        """bytes of all storages seen and alive"""
        self._alive: dict[int, int] = {}
        self._sizes: list[int] = []
        self._parts: list[str] = []
        self._changes: list[tuple[int, int]] = []
        self._marks: list[tuple[int, str]] = []
        self._hooks: list = []

    def layers(self, layers: Iterable[nn.Module]) -> None:
        """Makes moments of them: forward and backward of the first are "F0" and "B0". After the
        engine has wrapped them, so that what it gathers for a layer counts there."""

        def hook(label: str, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(lambda gradient: self.mark(label))

        for index, layer in enumerate(layers):
            forward = functools.partial(lambda label, *_: self.mark(label), f"F{index}")
            backward = functools.partial(
                lambda label, module, inputs, output: hook(label, output), f"B{index}"
            )
            self._hooks += [
                layer.register_forward_pre_hook(forward, prepend=True),
                layer.register_forward_hook(backward, prepend=True),
            ]

    def mark(self, label: str) -> None:
        """Another moment begins: "F0", "loss", "step"."""
        self._marks.append((len(self._changes), label))

    def claim(self, model: nn.Module, optimizer: Any = None) -> None:
        """Names the storages that the model, its engine and its optimizer hold now, for the whole
        watch."""
        for piece in engines.pieces(model, optimizer):
            self._parts[self._see(piece.held)] = CATEGORIES.get(piece.kind, piece.kind)

    def kept(self) -> None:
        """The forward has ended: what is alive and has no name is kept for the backward."""
        for number in self._alive.values():
            if self._sizes[number] and self._parts[number] == "temporary":
                self._parts[number] = "activations"

    def footprint(self) -> Footprint:
        """Bytes by part at the highest point of each moment; what came before the first mark is
        left out."""
        return from_moments(self._moments(), "measured", _backend())

    def _moments(self) -> Iterator[Moment]:
        held, total, marks = Counter(), 0, [*self._marks, (len(self._changes), "")]
        position = 0
        for (begin, label), (end, _) in zip([(0, ""), *marks], marks, strict=False):
            highest, most = dict(held), total
            for number, change in self._changes[max(begin, position) : end]:
                held[self._parts[number]] += change
                total += change
                if total > most:
                    highest, most = dict(held), total
            position = end
            if label:
                yield label, highest

    def _see(self, tensor: Tensor) -> int:
        """The number of a tensor's storage, its size brought up to date."""
        storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
        number = self._alive.get(storage._cdata)
        if number is None:
            number = self._alive[storage._cdata] = len(self._sizes)
            self._sizes.append(0)
            self._parts.append("temporary")
            weakref.finalize(storage, self._drop, storage._cdata, number).atexit = False
        self._resize(number, storage.nbytes())
        return number

    def _resize(self, number: int, num_bytes: int) -> None:
        if change := num_bytes - self._sizes[number]:
            self._changes.append((number, change))
            self._sizes[number] = num_bytes
            self.live_bytes += change

    def _drop(self, key: int, number: int) -> None:
        if self._alive.get(key) == number:
            del self._alive[key]
        self._resize(number, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        foreign = set()  # made below torch's operators
        for each in tree_iter((args, kwargs)):
            if isinstance(each, nn.Parameter) and each.device.type != "meta":
                number = self._see(each)
                if self._parts[number] == "temporary":
                    self._parts[number] = "gathered"
            elif isinstance(each, Tensor) and _key(each) not in self._alive:
                foreign.add(_key(each))
        for each in tree_iter(made):
            if (
                isinstance(each, Tensor)
                and each.device.type != "meta"
                and _key(each) not in foreign
            ):
                self._see(each)
        return made


def _key(tensor: Tensor) -> int:
    return getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata


@contextlib.contextmanager
def watch() -> Iterator[Watch]:
    """Counts the bytes of every storage on this rank while the block runs, by part of the bill.

    ``layers`` makes moments of layers; ``claim`` names what the engine holds, at least once while
    it holds it; ``kept`` is called where the forward ends. Whatever is left is "gathered" (a
    parameter for a while) or "temporary". Not seen is what was there before, until it is claimed,
    and what libraries allocate below torch's operators, such as the copy with which gloo emulates a
    reduce-scatter. Some 20 us an operator.
    """
    watched, resize = Watch(), torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, num_bytes: int) -> None:
        resize(storage, num_bytes)
        if (number := watched._alive.get(storage._cdata)) is not None:
            watched._resize(number, storage.nbytes())

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
        self._left_out = {p.untyped_storage().data_ptr() for p in parameters}
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
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        self.peak_chunks = max(self.peak_chunks, len(self._chunks))

    def _drop(self, name: Hashable, storage: torch.UntypedStorage) -> None:
        for counter, key in ((self._storages, storage.data_ptr()), (self._chunks, name)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]
        if storage.data_ptr() not in self._storages:
            self.num_bytes -= storage.nbytes()


class _Held:
    """Stands in autograd's graph for one saved tensor, and so knows when the graph lets it go."""

    def __init__(self, activations: Activations, name: Hashable, tensor: Tensor) -> None:
        self.tensor = (
            tensor.detach()
        )  # detached, or an operator that saves its own output would keep itself alive
        self.storage = tensor.untyped_storage()
        self.counts = (
            self.storage.nbytes() > 0 and self.storage.data_ptr() not in activations._left_out
        )
        self.activations, self.name = activations, name
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
    held = Activations(parameter for stage in stages for parameter in stage.submod.parameters())
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


def _counted(method: Callable, held: Activations, stage_index: int) -> Callable:
    @functools.wraps(method)
    def counted(mb: int, *args: Any, **kwargs: Any) -> Any:
        with held.chunk((stage_index, mb)):
            return method(mb, *args, **kwargs)

    return counted
