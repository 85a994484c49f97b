"""How many bytes each link carries in a collective's plan, and how many of them leave an island of
neighbours."""

from collections import Counter

from labkit.collectives.plans import Plan
from labkit.units import check_whole


def carried_bytes(plan: Plan, num_bytes: float) -> Counter:
    """What goes over each directed link, (from, to) -> bytes, for a buffer of ``num_bytes``."""
    found: Counter = Counter()
    for step in plan.steps:
        for message in step:
            size = len(message.chunks) * plan.chunk_bytes(num_bytes)
            found[message.src, message.dst] += size
    return found


def both_ways_bytes(plan: Plan, num_bytes: float) -> Counter:
    """The same with both directions of a link together: (lower rank, higher rank) -> bytes."""
    found: Counter = Counter()
    for pair, size in carried_bytes(plan, num_bytes).items():
        found[tuple(sorted(pair))] += size
    return found


def crossing_bytes(plan: Plan, island_size: int, num_bytes: float) -> float:
    """What goes from one island of neighbours to another in a plan, all messages together."""
    check_whole(island_size=island_size)
    return sum(
        size
        for (src, dst), size in carried_bytes(plan, num_bytes).items()
        if src // island_size != dst // island_size
    )
