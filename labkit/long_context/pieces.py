"""The theory of attention over a sequence that is cut among ranks: pieces, rounds, bytes, and the
pass at stated times.

A sequence of s tokens on n ranks is cut into 2n pieces, and each rank holds two. Attention is a
table of pairs: a piece of queries with a piece of keys. Where a token may only look back (causal),
a pair whose keys come later is not computed at all, and half of a pair of a piece with itself.

In a ring (Liu et al. 2023, arXiv:2310.01889) queries stay, and keys and values go round: in round i
a rank has those of the rank i places before it. In Ulysses (Jacobs et al. 2023, arXiv:2309.14509)
an all-to-all turns "all heads of my tokens" into "my heads of all tokens".
"""

from collections.abc import Iterator

import numpy as np

from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_whole

BACKWARD = 2.5
"""A backward pair takes so many forwards: five products of matrices (scores again, and a gradient
each of values, probabilities, queries and keys) where the forward has two (Dao et al. 2022,
arXiv:2205.14135, algorithms 1 and 4)."""


def dealt(ranks: int, *, balanced: bool) -> list[tuple[int, int]]:
    """The two pieces of each rank.

    Balanced: one from the front and one from the back, so that all have as many pairs (Brandon et
    al. 2023, arXiv:2311.09431, and torch's head-tail load balancer deal so or alike). Otherwise
    neighbours. Raises ValueError for less than a rank.
    """
    check_whole(1, 4096, ranks=ranks)
    if balanced:
        return [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]
    return [(2 * rank, 2 * rank + 1) for rank in range(ranks)]


def pairs(
    queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool
) -> Iterator[tuple[int, int]]:
    """The pairs of these pieces that are computed: (piece of queries, piece of keys)."""
    for one in queries:
        for other in keys:
            if not causal or other <= one:
                yield one, other


def work(queries: tuple[int, ...], keys: tuple[int, ...], *, causal: bool) -> float:
    """How many whole pairs that is; a causal piece with itself is half a pair."""
    computed = pairs(queries, keys, causal=causal)
    return float(sum(0.5 if causal and one == other else 1.0 for one, other in computed))


def rounds(ranks: int, *, causal: bool = True, balanced: bool = True) -> np.ndarray:
    """What each rank computes in each round of the ring, in whole pairs; shape (rounds, ranks).

    Each column sums to the rank's part of all. A round lasts as long as its slowest rank if nobody
    may run ahead.
    """
    held = dealt(ranks, balanced=balanced)
    table = np.zeros((ranks, ranks))
    for number in range(ranks):
        for rank in range(ranks):
            keys = held[(rank - number) % ranks]
            table[number, rank] = work(held[rank], keys, causal=causal)
    return table


# --- the pass at stated times ---


def ring(table: np.ndarray, pair_us: float, kv_us: float, kv_bytes: int) -> Timeline:
    """A forward and a backward in a ring. ``table`` is that of ``rounds``; ``pair_us``: a pair's
    forward; ``kv_us``: keys and values of a rank over a link, 0 for links that take no time.

    Keys and values of the next round travel while a round computes. In the backward the gradients
    of keys and values, as large, go on after each round, and are home after the last.
    """
    num_ranks = table.shape[1]
    rows: list[tuple] = []
    now = np.zeros(num_ranks)
    for way, factor in (("F", 1.0), ("B", BACKWARD)):
        for number, works in enumerate(table):
            computed = now + works * pair_us * factor
            rows += _computed(way, number, now, computed)
            arrived = computed
            if number < len(table) - 1:
                arrived = np.maximum(computed, _sent(rows, now, kv_us, kv_bytes))
            now = arrived if way == "F" else _sent(rows, arrived, kv_us, kv_bytes)
    return from_rows(rows, num_ranks=num_ranks, origin="simulated")


def _computed(way: str, number: int, starts: np.ndarray, ends: np.ndarray) -> Iterator[tuple]:
    """A round's work on each rank, named after the rank whose keys it is with."""
    kind = {"F": "forward", "B": "backward"}[way]
    for rank, (start_us, end_us) in enumerate(zip(starts, ends, strict=True)):
        label = f"{way}{(rank - number) % len(starts)}"
        yield rank, COMPUTE, kind, label, start_us, end_us, 0


def _sent(rows: list[tuple], ready_us: np.ndarray, takes_us: float, num_bytes: int) -> np.ndarray:
    """When each rank has both sent to the next and received from the one before: a message begins
    when both its ends are ready. Adds the messages' rows."""
    num_ranks = len(ready_us)
    starts = np.maximum(ready_us, np.roll(ready_us, -1))  # of rank r's message to r + 1
    ends = starts + takes_us
    if takes_us and num_ranks > 1:
        for rank in range(num_ranks):
            label = f"to {(rank + 1) % num_ranks}"
            rows.append((rank, COMM, "send", label, starts[rank], ends[rank], num_bytes))
    return np.maximum(ends, np.roll(ends, 1))


def ulysses(
    num_ranks: int, pairs_each: float, pair_us: float, swap_us: float, swap_bytes: int
) -> Timeline:
    """A forward and a backward of Ulysses: three all-to-alls (queries, keys, values), attention
    over all tokens for some heads, one all-to-all of the output; and back the same way."""
    rows: list[tuple] = []
    now_us = 0.0

    def swap(times: int) -> None:
        nonlocal now_us
        for _ in range(times):
            end_us = now_us + swap_us
            if swap_us and num_ranks > 1:
                for rank in range(num_ranks):
                    label = "all_to_all"
                    rows.append((rank, COMM, label, label, now_us, end_us, swap_bytes))
            now_us = end_us

    for way, kind, factor, before, after in (
        ("F", "forward", 1.0, 3, 1),
        ("B", "backward", BACKWARD, 1, 3),
    ):
        swap(before)
        end_us = now_us + pairs_each * pair_us * factor
        for rank in range(num_ranks):
            rows.append((rank, COMPUTE, kind, f"{way}0", now_us, end_us, 0))
        now_us = end_us
        swap(after)
    return from_rows(rows, num_ranks=num_ranks, origin="simulated")
