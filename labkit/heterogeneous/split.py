"""How a batch is dealt to ranks of unlike speed, how long its step takes, and how its gradients are
averaged.

A rank of speed v needs b / v for b samples, and everybody waits for the last one: the step takes
max b / v. Only ratios of speeds matter, until ``timeline`` is told how long a sample takes.
"""

import heapq
from collections.abc import Callable, Sequence
from reprlib import repr as brief

from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import MOST_RANKS, check_real, check_whole, check_word

MOST_SAMPLES = 10**6
"""of a batch"""


def equal(speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """As if all ranks were alike; what is left over goes to the first ones."""
    check(speeds, batch)
    whole, rest = divmod(batch, len(speeds))
    return tuple(whole + (rank < rest) for rank in range(len(speeds)))


def by_speed(speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """Samples in the ratio of the speeds, whole, and ``batch`` together: the method of the largest
    remainder (Hamilton 1792). Each share is rounded down, and what is left goes, one each, to those
    whose share lost most."""
    check(speeds, batch)
    shares = [batch * (speed / sum(speeds)) for speed in speeds]
    dealt = [int(share) for share in shares]
    left = batch - sum(dealt)
    lost_most = sorted(range(len(shares)), key=lambda rank: (dealt[rank] - shares[rank], rank))
    for rank in lost_most[:left]:
        dealt[rank] += 1
    return tuple(dealt)


def fastest(speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """The whole numbers whose step is shortest: no max b / v is less.

    Sample by sample, each to the rank that would be done with it first (the method of D'Hondt
    1878). Had a better deal fewer samples on the rank that is last here, another rank would have
    more than here, and would end later than that one. A rank may be left without any.
    """
    check(speeds, batch)
    dealt = [0] * len(speeds)
    done = [(1 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(done)
    for _ in range(batch):
        _, rank = done[0]
        dealt[rank] += 1
        heapq.heapreplace(done, ((dealt[rank] + 1) / speeds[rank], rank))
    return tuple(dealt)


SPLITS: dict[str, Callable[[Sequence[float], int], tuple[int, ...]]] = {
    "equal": equal,
    "by speed": by_speed,
    "fastest": fastest,
}
"""word -> how it deals"""


def dealt(split: str, speeds: Sequence[float], batch: int) -> tuple[int, ...]:
    """Samples of each rank, by a word of ``SPLITS``. Raises ValueError for another word."""
    check_word(split, SPLITS, "a split")
    return SPLITS[split](speeds, batch)


def step_time(samples: Sequence[int], speeds: Sequence[float]) -> float:
    """How long the step takes, in the unit of the speeds: max b / v. Raises ValueError for lists of
    unlike length."""
    _check_samples(samples, speeds)
    return max(each / speed for each, speed in zip(samples, speeds, strict=True))


def idle_share(samples: Sequence[int], speeds: Sequence[float]) -> float:
    """The share of all ranks' time in which they wait for the last one, messages left out; 0 where
    there is nothing to do."""
    took = step_time(samples, speeds)
    if not took:
        return 0.0
    busy = sum(each / speed for each, speed in zip(samples, speeds, strict=True))
    return 1 - busy / (took * len(speeds))


def weights(samples: Sequence[int], batch: int | None = None) -> tuple[float, ...]:
    """What a rank's mean gradient counts in the mean over the batch: b / B.

    The gradient of a mean over B samples is the sum over the ranks of b / B times the mean over a
    rank's own b. DDP weighs all ranks alike, 1 / N: right only where all b are equal. Raises
    ValueError for samples that are not the batch.
    """
    check_whole(0, MOST_SAMPLES, **{f"samples of rank {r}": b for r, b in enumerate(samples)})
    total = sum(samples)
    if not total or (batch is not None and total != batch):
        raise ValueError(
            f"the samples of all ranks are the batch, one or more; got {brief(tuple(samples))} for "
            f"a batch of {total if batch is None else batch}"
        )
    return tuple(each / total for each in samples)


def timeline(
    samples: Sequence[int],
    speeds: Sequence[float],
    *,
    sample_us: float,
    link_us: float,
    num_bytes: int = 0,
) -> Timeline:
    """A step: forward and backward (twice as long), then one all-reduce, which begins on each rank
    when that rank is done, and ends ``link_us`` after the last one is.

    ``sample_us``: forward and backward of one sample at speed 1; ``num_bytes``: the gradient.
    """
    _check_samples(samples, speeds)
    check_real(0, 1e12, sample_us=sample_us, link_us=link_us)
    check_whole(0, num_bytes=num_bytes)
    rows: list[tuple] = []
    ends_us = []
    for rank, (each, speed) in enumerate(zip(samples, speeds, strict=True)):
        end_us = each * sample_us / speed
        rows.append((rank, COMPUTE, "forward", "F0", 0.0, end_us / 3, 0))
        rows.append((rank, COMPUTE, "backward", "B0", end_us / 3, end_us, 0))
        ends_us.append(end_us)
    over_us = max(ends_us) + link_us
    for rank, end_us in enumerate(ends_us):
        rows.append((rank, COMM, "all_reduce", "gradient", end_us, over_us, num_bytes))
    return from_rows(rows, num_ranks=len(speeds), origin="simulated")


def check(speeds: Sequence[float], batch: int = 1) -> None:
    """Raises ValueError for what are no speeds, or no batch."""
    check_whole(1, MOST_RANKS, ranks=len(speeds))
    check_real(1e-6, 1e6, **{f"speed of rank {rank}": each for rank, each in enumerate(speeds)})
    check_whole(0, MOST_SAMPLES, batch=batch)


def _check_samples(samples: Sequence[int], speeds: Sequence[float]) -> None:
    """Raises ValueError for what was not dealt to these ranks."""
    check(speeds)
    if len(samples) != len(speeds):
        raise ValueError(
            f"every rank has a speed and a number of samples; got {len(speeds)} speeds and "
            f"{len(samples)} numbers"
        )
    check_whole(0, MOST_SAMPLES, **{f"samples of rank {r}": b for r, b in enumerate(samples)})
