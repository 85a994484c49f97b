"""A training step that can be slow in ten ways: as theory sees it, and as real ranks do it, asleep
for as long as they are told to compute (``run``)."""

from dataclasses import dataclass, field, replace
from typing import Any

from labkit.profiling import program, simulation
from labkit.timeline import Timeline
from labkit.units import check_real, check_whole, check_word

LAYOUTS = ("data", "pipeline")
OPTIMIZERS = ("everyone", "shared", "one")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Some training steps one after another, each part at a stated pace.

    In the layout "data" every rank loads a batch, goes forward and backward through its layers,
    averages the gradients and updates; in "pipeline" every rank is a stage, and all microbatches go
    forward, then backward (GPipe). Raises ValueError for what is no step.
    """

    layout: str = "data"
    """"data" or "pipeline" """
    ranks: int = 4
    """how many"""
    num_steps: int = 3
    """steps that are recorded, after one of warm-up"""
    layers: int = 4
    """of each rank in "data"; a stage is one"""
    forward_ms: float = 3.0
    """forward of a layer; of a stage: of the whole batch. The backward takes twice as long"""
    slow: tuple[tuple[int, float], ...] = ()
    """(rank, factor on all that it computes)"""
    input_ms: float = 4.0
    """to load a batch; in a pipeline nothing is loaded"""
    prefetch: bool = True
    """whether the next batch is loaded while the step computes"""
    gradient_kb: float = 256.0
    """gradients of a rank, in KiB"""
    link_ms: float = 8.0
    """what all of them need on the link, latency left out"""
    messages: int = 4
    """all-reduces that carry them, equally large"""
    latency_ms: float = 0.3
    """of every message"""
    overlap: bool = True
    """whether messages may begin before the backward has ended"""
    optimizer_ms: float = 2.0
    """the whole update, done by one rank"""
    optimizer: str = "everyone"
    """who does it: "everyone" all of it, "one" (rank 0, then it tells the others), or "shared":
    each its part, then all tell one another"""
    gap_ms: float = 0.0
    """in which a rank does nothing before every layer's forward and backward"""
    save_ms: float = 0.0
    """to write a checkpoint after each step, on rank 0"""
    save_behind: bool = False
    """whether it is written while the next step computes"""
    microbatches: int = 8
    """of a pipeline, equally large"""
    weights: tuple[float, ...] = ()
    """of a pipeline's stages, how much of the model each has, against the mean; () is evenly"""
    seed: int = field(default=0, repr=False)
    """of the gradients"""

    def __post_init__(self) -> None:
        check_word(self.layout, LAYOUTS, "a layout")
        check_word(self.optimizer, OPTIMIZERS, "who updates")
        check_whole(2, 64, ranks=self.ranks)
        check_whole(1, 1000, num_steps=self.num_steps, layers=self.layers)
        check_whole(1, 1000, messages=self.messages, microbatches=self.microbatches)
        check_whole(0, 2**31 - 1, seed=self.seed)
        check_real(0.0, 1e5, forward_ms=self.forward_ms, input_ms=self.input_ms)
        check_real(0.0, 1e5, link_ms=self.link_ms, latency_ms=self.latency_ms)
        check_real(0.0, 1e5, optimizer_ms=self.optimizer_ms, gap_ms=self.gap_ms)
        check_real(0.0, 1e5, save_ms=self.save_ms)
        check_real(0.0, 1e6, gradient_kb=self.gradient_kb)
        for rank, factor in self.slow:
            check_whole(0, self.ranks - 1, slow_rank=rank)
            check_real(0.0, 1e3, slow_factor=factor)
        for weight in self.weights:
            check_real(0.0, 1e3, weight=weight)
        if self.weights and len(self.weights) != self.ranks:
            raise ValueError(
                f"every stage has a weight, or none has; got {len(self.weights)} weights for "
                f"{self.ranks} ranks"
            )

    def predict(self) -> Timeline:
        """The steps as the rules say, simulated."""
        return simulation.simulate(program.programs(self))

    def but(self, **changes: Any) -> "Step":
        """The same with some fields changed."""
        return replace(self, **changes)
