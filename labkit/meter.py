"""Live bytes, read out of real ranks: what autograd holds for the backward, and the largest memory of the process.

What is counted: the storages of the tensors that autograd saves during a forward, each storage once, parameters left
out, from the moment autograd saves them to the moment it lets them go. A stage's input is among them where an operator
needs it. What is not: the outputs that the pipeline runtime keeps to send, gradients, and the loss (computed outside of
``forward_one_chunk``).
"""

import contextlib
import functools
import resource
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.trace import replaced


class Activations:
    """Counts saved activations of one rank. ``with held.chunk(2): y = stage(x)`` counts one forward."""

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        self.peak_bytes = 0
        """the most bytes that autograd held at one time"""
        self.peak_chunks = 0
        """the most forwards (stage and microbatch) whose activations were held, whole or in part, at one time"""
        self.num_bytes = 0
        """bytes held now"""
        self._left_out = {p.untyped_storage().data_ptr() for p in parameters}
        self._storages: Counter[int] = Counter()
        self._chunks: Counter[Hashable] = Counter()

    @contextlib.contextmanager
    def chunk(self, name: Hashable) -> Iterator[None]:
        """Counts what autograd saves inside the block, under ``name``."""
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: _Held(self, name, tensor), _Held.unpack):
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
        self.tensor = tensor.detach()  # detached, or an operator that saves its own output would keep itself alive
        self.storage = tensor.untyped_storage()
        self.counts = self.storage.nbytes() > 0 and self.storage.data_ptr() not in activations._left_out
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
    """Counts the activations of this rank's ``PipelineStage`` objects together, while the block runs."""
    held = Activations(parameter for stage in stages for parameter in stage.submod.parameters())
    with contextlib.ExitStack() as restored:
        for stage in stages:
            counted = _counted(stage.forward_one_chunk, held, stage.stage_index)
            restored.enter_context(replaced(stage, forward_one_chunk=counted))
        yield held


def peak_rss_bytes() -> int:
    """The largest resident memory this process has had. In a forked rank it includes the pages of its parent."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _counted(method: Callable, held: Activations, stage_index: int) -> Callable:
    @functools.wraps(method)
    def counted(mb: int, *args: Any, **kwargs: Any) -> Any:
        with held.chunk((stage_index, mb)):
            return method(mb, *args, **kwargs)

    return counted
