"""A small transformer trained a few steps in several ways, each from the same weights: its weights
at the end, its bytes moment by moment, and what its last step handed to collectives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn

from labkit import model
from labkit.fsdp.weights_run import whole
from labkit.measure import memory, traffic
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

    from labkit.footprint import Footprint
    from labkit.measure.traffic import Traffic

Wrap = Callable[[nn.Module], nn.Module]
"""A model -> what is trained in its place."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """What came of a training on one rank."""

    start: "Tensor"
    """all weights before it, flattened, shape (num_params,)"""
    weights: "Tensor"
    """all weights after it, gathered from every rank's slices"""
    footprint: "Footprint"
    """this rank's bytes at each forward and backward, the highest of all steps"""
    counted: "Traffic"
    """calls and payload of the last step"""


class Trainings(dict[str, Trained]):
    """Trainings from the same weights, by name."""

    def apart(self, base: str = "DDP") -> list[dict[str, object]]:
        """Rows for ``lab.table``: how far each way's weights lie from those of ``base``, at most;
        last those before the training, to compare with. Raises ValueError if ``base`` is none of
        the trainings."""
        if base not in self:
            raise ValueError(f"compared is with {base!r}; the trainings are {', '.join(self)}")
        ends = {name: run.weights for name, run in self.items() if name != base}
        ends[say("untrained")] = self[base].start
        found = {name: (end - self[base].weights).abs().max().item() for name, end in ends.items()}
        return [{say("way"): name, say("apart from DDP"): far} for name, far in found.items()]


def each_layer(kind: Callable[[nn.Module], nn.Module]) -> Wrap:
    """A way that replaces every layer of a model by ``kind(layer)``, in place."""
    return partial(_replaced, kind)


def _replaced(kind: Callable[[nn.Module], nn.Module], net: nn.Module) -> nn.Module:
    net.layers = nn.ModuleList(map(kind, net.layers))
    return net


def train(ways: Mapping[str, Wrap], *, steps: int = 3) -> Trainings:
    """Trains a transformer of four blocks by SGD in every way, on this rank's own batches; each
    rank has to call it. A way wraps a ``model.Transformer`` and gives back what is called."""
    return Trainings({name: _trained(wrap, steps) for name, wrap in ways.items()})


def _trained(wrap: Wrap, steps: int) -> Trained:
    start = whole(_untrained())  # not among the watched bytes
    with memory.watch() as watched:
        net = _untrained()
        engine = wrap(net)
        watched.layers(net.layers)  # a mark at each forward and backward
        optimizer = torch.optim.SGD(engine.parameters(), lr=0.1, momentum=0.9)
        for step in range(steps):
            tokens, targets = model.story_tokens(2, 32, seed=steps * step + dist.get_rank())
            with traffic.count() as counted:
                model.loss(engine(tokens), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Trained(start=start, weights=whole(net), footprint=watched.footprint(), counted=counted)


def _untrained() -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return model.Transformer(4, 64, 4, max_len=32)
