"""The experiment of this subject: one training step of data parallelism, as theory sees it and as
real DistributedDataParallel does it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from reprlib import repr as brief
from typing import TYPE_CHECKING

from labkit import words
from labkit.collectives.network import Link
from labkit.data_parallel import buckets
from labkit.data_parallel.buckets import Layer
from labkit.experiment import Experiment
from labkit.timeline import Timeline, step_us
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    from labkit.launching.job import Job

_WORDS = words.catalogue(
    [
        ("title", "{} buckets, {} ranks"),
        ("one bucket", "1 bucket, {1} ranks"),
        ("no overlap", "{}, no overlap"),
    ]
)
LINK = Link(alpha_us=1000.0, bandwidth_gb_per_s=0.3)
"""a link that several ranks on two cores can keep to"""


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """One training step of data parallelism, layers and links at a stated pace.

    ``run()[r]`` is a dict: step_us (per step), bucket_bytes (as DDP reports them), overruns,
    max_error (of the gradients against the mean over the ranks, relative to the largest). Raises
    ValueError for what is no step.
    """

    layers: int | tuple[Layer, ...] = 6
    """how many equal layers; or layers of your own, the first one first"""
    layer_mb: float = 4.0
    """the gradient of each equal layer, in MiB"""
    forward_ms: float = 10.0
    """the forward of each equal layer; its backward takes twice as long"""
    ranks: int = 4
    """how many replicas"""
    bucket_mb: float = 25.0
    """DDP's bucket_cap_mb, in MiB"""
    link: Link | None = LINK
    """a bucket takes a ring's time on such links; None: the machine's own time, which theory does
    not predict"""
    overlap: bool = True
    """whether all-reduces may begin before the backward has ended"""
    accumulate: int = 1
    """microbatches per step, all but the last under ``no_sync``"""
    slow: tuple[tuple[int, float], ...] = ()
    """stragglers: (rank, factor on the times of its layers); a dict is taken as well"""
    num_steps: int = field(default=3, repr=False)
    """steps after two of warm-up; the last one is recorded"""

    def __post_init__(self) -> None:
        slow = self.slow.items() if isinstance(self.slow, Mapping) else self.slow
        object.__setattr__(self, "slow", tuple(sorted(slow)))
        if not isinstance(self.layers, int):
            object.__setattr__(self, "layers", tuple(self.layers))
        counts = {"ranks": self.ranks, "accumulate": self.accumulate, "num_steps": self.num_steps}
        check_whole(1, 100_000, **counts)
        check_real(0.0, 1e9, bucket_mb=self.bucket_mb)
        check_real(0.0, 1e6, layer_mb=self.layer_mb, forward_ms=self.forward_ms)
        if not self.model():
            raise ValueError("a step has a layer or more; got none")

    def model(self) -> tuple[Layer, ...]:
        """The layers."""
        if not isinstance(self.layers, int):
            return self.layers
        check_whole(1, 10_000, layers=self.layers)
        return tuple(
            Layer(
                name=f"layer {index}",
                num_bytes=4 * round(self.layer_mb * buckets.MIB / 4),
                forward_us=1e3 * self.forward_ms,
            )
            for index in range(self.layers)
        )

    def buckets(self) -> tuple[tuple[int, ...], ...]:
        """Which layers share a bucket, in the order in which the buckets fill."""
        sizes = [layer.num_bytes for layer in self.model()]
        return buckets.assign(sizes, int(self.bucket_mb * buckets.MIB))

    def predict(self) -> Timeline:
        """The simulated step. Raises ValueError where no link is stated."""
        if self.link is None:
            raise ValueError(
                "a prediction needs a stated link, and link=None runs at the machine's own pace. "
                "Give link=Link(alpha_us=..., bandwidth_gb_per_s=...)"
            )
        return buckets.predict(
            self.model(),
            self.ranks,
            bucket_mb=self.bucket_mb,
            link=self.link,
            overlap=self.overlap,
            slow=dict(self.slow),
            accumulate=self.accumulate,
        )

    def start(self) -> "Job":
        """Trains real DistributedDataParallel, in the background: real gradients of the stated
        sizes, really reduced and checked."""
        from labkit.data_parallel import run

        return run.start(self)

    def title(self, language: str | None = None) -> str:
        """How many buckets, how many ranks, and whether nothing overlaps."""
        say = _WORDS[words.spoken_in(language)]
        num_buckets = len(self.buckets())
        said = say["one bucket" if num_buckets == 1 else "title"].format(num_buckets, self.ranks)
        return said if self.overlap else say["no overlap"].format(said)


def shaped(parts: Sequence[float], total_mb: float, forward_ms: float) -> tuple[Layer, ...]:
    """Layers whose gradients stand to each other as ``parts`` and are ``total_mb`` (MiB) together;
    all forwards together take ``forward_ms``, each as long."""
    if not parts or min(parts) <= 0:
        raise ValueError(f"layers have sizes above 0; got the parts {brief(tuple(parts))}")
    check_real(1e-9, 1e6, total_mb=total_mb)
    check_real(0.0, 1e9, forward_ms=forward_ms)
    check_real(0.0, 1e9, **{"largest part over smallest": max(parts) / min(parts)})
    total_bytes = total_mb * buckets.MIB
    return tuple(
        Layer(
            name=f"layer {index}",
            num_bytes=4 * round(total_bytes * part / sum(parts) / 4),
            forward_us=1e3 * forward_ms / len(parts),
        )
        for index, part in enumerate(parts)
    )


def speedup(
    whole: Step, ranks: Sequence[int], bucket_mb: Sequence[float] = ()
) -> tuple[dict[int, float], dict[int, float]]:
    """How much faster N ranks are predicted to be than one, as two dicts N -> factor: where they
    share one rank's batch, so that each computes 1/N of ``whole``; and in samples per second where
    every rank takes such a batch. Each N has the best of the bucket sizes (MiB), or ``whole``'s.
    Raises ValueError where no link is stated, or for no ranks."""
    sizes = tuple(bucket_mb) or (whole.bucket_mb,)

    def us(num_ranks: int, parts: int) -> float:
        layers = tuple(
            replace(
                layer, forward_us=layer.forward_us / parts, backward_us=layer.backward_us / parts
            )
            for layer in whole.model()
        )
        step = whole.but(ranks=num_ranks, layers=layers)
        return min(step_us(step.but(bucket_mb=size).predict()) for size in sizes)

    counts = tuple(ranks)
    if not counts:
        raise ValueError("speedup takes numbers of ranks; got none")
    check_whole(1, 10_000, **{f"ranks[{at}]": each for at, each in enumerate(counts)})
    alone_us = us(1, 1)
    if not alone_us:
        raise ValueError("a step that takes no time gets no faster")
    shared = {num: alone_us / us(num, num) for num in counts}
    grown = {num: num * alone_us / us(num, 1) for num in counts}
    return shared, grown
