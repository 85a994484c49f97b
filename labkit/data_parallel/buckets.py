"""Data parallelism as theory sees it: gradients fill buckets in backward order, and one link
reduces them in turn.

A bucket's all-reduce may begin when its last gradient is there, so it runs under the backward of
earlier layers (Li et al. 2020, "PyTorch Distributed", VLDB 13(12), section 3.2). Times are
microseconds, sizes bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from labkit.collectives import network
from labkit.collectives.network import Link
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_whole

FIRST_BUCKET_BYTES = 1 << 20
"""DDP's limit for the first bucket where ``bucket_cap_mb`` is left at its default (25 MiB for the
others)."""
MIB = 1 << 20
"""DDP counts bucket_cap_mb in units of 1,048,576 bytes."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of a model, as data parallelism sees it."""

    name: str
    """what it is called"""
    num_bytes: int
    """size of its gradient"""
    forward_us: float
    """how long its forward takes"""
    backward_us: float | None = None
    """how long its backward takes; None is twice its forward (two matrix products for each one of
    the forward)"""

    def __post_init__(self) -> None:
        if self.backward_us is None:
            object.__setattr__(self, "backward_us", 2.0 * self.forward_us)
        timed = 0 <= self.forward_us <= 1e18 and 0 <= self.backward_us <= 1e18
        if not (timed and self.num_bytes >= 1):
            raise ValueError(
                f"a layer has a gradient and times of 0 us or more; {self.name!r} has "
                f"{self.num_bytes} bytes, forward {self.forward_us} us, backward "
                f"{self.backward_us} us"
            )


def assign(
    layer_bytes: Sequence[int], bucket_bytes: int, first_bytes: int | None = None
) -> tuple[tuple[int, ...], ...]:
    """Which gradients share a bucket: indices per bucket, in the order in which the buckets become
    ready.

    DDP's own rule: from the last gradient to the first, a bucket closes as soon as it holds
    ``bucket_bytes`` or more, so it may be larger than its limit by almost one gradient.
    ``first_bytes`` is another limit for the first bucket.
    """
    limit = bucket_bytes if first_bytes is None else first_bytes
    if min(limit, bucket_bytes) < 0:
        raise ValueError(f"a bucket's limit is 0 bytes or more; got {limit} and {bucket_bytes}")
    buckets = []
    filling = []
    for index in reversed(range(len(layer_bytes))):
        filling.append(index)
        if sum(layer_bytes[i] for i in filling) >= limit:
            buckets.append(tuple(filling))
            filling = []
            limit = bucket_bytes
    if filling:
        buckets.append(tuple(filling))
    return tuple(buckets)


def simulate(
    layers: Sequence[Layer],
    buckets: Sequence[Sequence[int]],
    all_reduce_us: Callable[[int], float],
    *,
    num_ranks: int,
    overlap: bool = True,
    slow: Mapping[int, float] | None = None,
    accumulate: int = 1,
) -> Timeline:
    """One training step on every rank: forward, backward from the last layer, and the buckets'
    all-reduces.

    ``buckets`` is what ``assign`` returns; ``all_reduce_us(num_bytes)`` how long the link takes for
    a bucket. An all-reduce begins on a rank when its bucket's last gradient is there and the rank's
    link is free, and ends that time after the last rank began: a rank that is early waits in it.
    ``overlap=False``: none begins before the end of the backward. ``slow``: rank -> factor on its
    times (a straggler). ``accumulate``: microbatches whose gradients add up; only the last one's
    backward communicates (DDP's ``no_sync``). Labels are F and B with a layer's number, and "bucket
    0" and so on.
    """
    slow = dict(slow or {})
    _check_step(len(layers), buckets, num_ranks, slow, accumulate)
    rows = []
    for rank in range(num_ranks):
        rows += _compute(rank, layers, slow.get(rank, 1.0), accumulate)
    # of several microbatches the last one's end stands
    done_us = {(rank, label): end_us for rank, _, _, label, _, end_us, _ in rows}
    free_us = 0.0
    for index, bucket in enumerate(buckets):
        needed = bucket if overlap else range(len(layers))
        starts_us = []
        for rank in range(num_ranks):
            ready_us = max(done_us[rank, f"B{layer}"] for layer in needed)
            starts_us.append(max(free_us, ready_us))
        num_bytes = sum(layers[layer].num_bytes for layer in bucket)
        free_us = max(starts_us) + all_reduce_us(num_bytes)
        for rank, start_us in enumerate(starts_us):
            row = (rank, COMM, "all_reduce", f"bucket {index}", start_us, free_us, num_bytes)
            rows.append(row)
    return from_rows(rows, num_ranks=num_ranks, origin="simulated")


def _check_step(
    num_layers: int,
    buckets: Sequence[Sequence[int]],
    num_ranks: int,
    slow: Mapping[int, float],
    accumulate: int,
) -> None:
    """Raises ValueError for what is no step."""
    if sorted(chain.from_iterable(buckets)) != list(range(num_layers)) or not all(buckets):
        raise ValueError(
            f"every layer's gradient is in one bucket, and none is empty; {num_layers} layers, "
            f"buckets {tuple(buckets)}"
        )
    check_whole(1, 100_000, num_ranks=num_ranks, accumulate=accumulate)
    work = num_layers * num_ranks * accumulate
    check_whole(0, 100_000, **{"layers times ranks times microbatches": work})
    if not all(rank in range(num_ranks) and factor >= 0 for rank, factor in slow.items()):
        raise ValueError(f"slow gives some of {num_ranks} ranks factors of 0 or more; got {slow}")


def _compute(
    rank: int, layers: Sequence[Layer], factor: float, accumulate: int
) -> Iterator[tuple[int, str, str, str, float, float, int]]:
    """A rank's own work as rows of a timeline."""
    forward = [("forward", f"F{index}", layer.forward_us) for index, layer in enumerate(layers)]
    backward = [("backward", f"B{index}", layer.backward_us) for index, layer in enumerate(layers)]
    now_us = 0.0
    for kind, label, took_us in accumulate * [*forward, *reversed(backward)]:
        end_us = now_us + factor * took_us
        yield rank, COMPUTE, kind, label, now_us, end_us, 0
        now_us = end_us


def predict(
    layers: Sequence[Layer],
    num_ranks: int = 4,
    *,
    bucket_mb: float = 25.0,
    link: Link,
    overlap: bool = True,
    slow: Mapping[int, float] | None = None,
    accumulate: int = 1,
) -> Timeline:
    """The step that ``run.launch`` would take, simulated. Raises ValueError for what is no step, as
    ``simulate`` does."""
    if not 0 <= bucket_mb < 1e9:
        raise ValueError(f"a bucket holds 0 to 1e9 MiB; got {bucket_mb}")
    plan = assign([layer.num_bytes for layer in layers], int(bucket_mb * MIB))
    return simulate(
        layers,
        plan,
        ring_us(num_ranks, link),
        num_ranks=num_ranks,
        overlap=overlap,
        slow=slow,
        accumulate=accumulate,
    )


def ring_us(num_ranks: int, link: Link) -> Callable[[int], float]:
    """How long a ring all-reduce of so many bytes takes on links like this one: what ``pace.link``
    wants to know."""
    return lambda num_bytes: network.formula_us("all_reduce", "ring", num_ranks, num_bytes, link)
