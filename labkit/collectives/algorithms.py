"""The algorithms of collectives: who sends which chunk to whom in a ring, a tree, a hierarchy.

    ring = plan("all_reduce", "ring", 4)  # a Plan; plans.validate holds it to its promise

Every builder cuts the buffer and writes the steps. Time is for ``labkit.collectives.network``.
"""

import collections
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from labkit.collectives.plans import Message, Plan, Steps
from labkit.units import check_whole, check_word

Cut = tuple[int, Steps]  # what a builder makes: the number of chunks, and the steps
Edge = tuple[int, int]  # of a tree: parent, child


def plan(primitive: str, algorithm: str, num_ranks: int, **options: object) -> Plan:
    """The plan of ALGORITHMS[primitive][algorithm], its options checked.

    ``root``; ``order``: the ranks in turn, of a ring or from island to island; ``num_segments``:
    into how many pieces a tree or chain cuts the buffer, to have several under way;
    ``island_size``: how many neighbours reduce first. Raises ValueError with what exists.
    """
    builder = ALGORITHMS.get(primitive, {}).get(algorithm)
    if builder is None:
        known = "; ".join(f"{name}: {', '.join(builders)}" for name, builders in ALGORITHMS.items())
        raise ValueError(f"a plan is one of {known}; got {primitive!r}, {algorithm!r}")
    takes = list(inspect.signature(builder).parameters)[2:]
    _check_numbers(num_ranks, options.get("num_segments", 1))
    if not set(options) <= set(takes):
        raise ValueError(f"{primitive} {algorithm} takes options {takes}; got {list(options)}")
    _check_ranks(num_ranks, options)
    num_chunks, steps = builder(primitive, num_ranks, **options)
    return Plan(
        primitive=primitive,
        algorithm=algorithm,
        num_ranks=num_ranks,
        num_chunks=num_chunks,
        steps=steps,
        root=options.get("root", 0),
    )


def _check_numbers(num_ranks: int, num_segments: int) -> None:
    check_whole(1, 256, num_ranks=num_ranks)
    sizes = {"ranks times segments": num_ranks * num_segments}
    check_whole(1, 10_000, num_segments=num_segments, **sizes)


def _check_ranks(num_ranks: int, options: dict) -> None:
    """Raises ValueError for a root or an order of ranks that are not there."""
    root = options.get("root", 0)
    if root not in range(num_ranks):
        raise ValueError(f"root is one of {num_ranks} ranks, counted from 0; got {root}")
    order = options.get("order") or range(num_ranks)
    if sorted(order) != [*range(num_ranks)]:
        raise ValueError(f"order names each of {num_ranks} ranks once; got {order}")


# --- rings ---


def ring(primitive: str, num_ranks: int, order: Sequence[int] | None = None) -> Cut:
    """Partial sums once around the ring, each ending whole on its owner (reduce-scatter, N-1
    steps); then the sums once around (all-gather, N-1 steps); an all-reduce does both (Patarasuk
    and Yuan 2009, section 3)."""
    ranks = order or range(num_ranks)
    blocks = [(rank,) for rank in ranks]
    steps = ()
    if primitive in ("reduce_scatter", "all_reduce"):
        steps += _around(ranks, blocks, "add")
    if primitive in ("all_gather", "all_reduce"):
        steps += _around(ranks, blocks, "copy")
    return num_ranks, steps


def _around(ranks: Sequence[int], blocks: Sequence[tuple[int, ...]], op: str) -> Steps:
    """Once around a ring: "add" until the rank in place p holds the sum of blocks[p]; "copy" from
    there on."""
    size = len(ranks)
    begun = 1 if op == "add" else 0  # a block's sum begins one place behind the rank it ends on
    steps = []
    for step in range(size - 1):
        messages = []
        for place, rank in enumerate(ranks):
            block = blocks[(place - step - begun) % size]
            messages.append(Message(rank, ranks[(place + 1) % size], block, op))
        steps.append(tuple(messages))
    return tuple(steps)


def hierarchical(
    primitive: str,
    num_ranks: int,
    island_size: int | None = None,
    order: Sequence[int] | None = None,
) -> Cut:
    """Reduce-scatter inside each island, all-reduce across (ranks of one place in their islands),
    all-gather inside. Islands are neighbours in ``order``, ``square_island`` of them unless given.
    Raises ValueError for what is no divisor."""
    ranks = order or range(num_ranks)
    size = square_island(num_ranks) if island_size is None else island_size
    divisors = [each for each in range(1, num_ranks + 1) if num_ranks % each == 0]
    if size not in divisors:
        raise ValueError(
            f"island_size divides {num_ranks} ranks: it is one of {divisors}; got {size}"
        )
    num_islands = num_ranks // size
    blocks = [tuple(range(place * num_islands, (place + 1) * num_islands)) for place in range(size)]

    def inside(op: str) -> Iterable[Steps]:
        for first in range(0, num_ranks, size):
            yield _around(ranks[first : first + size], blocks, op)

    def across(op: str) -> Iterable[Steps]:
        for place, block in enumerate(blocks):
            yield _around(ranks[place::size], [(chunk,) for chunk in block], op)

    phases = (inside("add"), across("add"), across("copy"), inside("copy"))
    steps = itertools.chain.from_iterable(_together(rings) for rings in phases)
    return num_ranks, tuple(steps)


def _together(rings: Iterable[Steps]) -> Steps:
    """The steps of several rings of one size that turn at the same time."""
    return tuple(tuple(itertools.chain(*step)) for step in zip(*rings, strict=True))


def square_island(num_ranks: int) -> int:
    """The greatest divisor of num_ranks not above its square root: as many islands as ranks in one,
    or a few more."""
    check_whole(1, 1 << 20, num_ranks=num_ranks)
    sizes = range(1, int(num_ranks**0.5) + 1)
    return max((size for size in sizes if num_ranks % size == 0), default=1)


# --- without passing on ---


def pairwise(primitive: str, num_ranks: int) -> Cut:
    """In step s every rank sends to the rank s further on: N-1 steps, no message passed on."""
    steps = []
    for shift in range(1, num_ranks):
        messages = []
        for src in range(num_ranks):
            dst = (src + shift) % num_ranks
            messages.append(Message(src, dst, (src * num_ranks + dst,), "copy"))
        steps.append(tuple(messages))
    return num_ranks**2, tuple(steps)


def direct(primitive: str, num_ranks: int) -> Cut:
    """Rank 0 sends its buffer to rank 1."""
    if num_ranks == 1:
        return 1, ()
    return 1, ((Message(0, 1, (0,), "copy"),),)


# --- trees ---


def star(primitive: str, num_ranks: int, root: int = 0) -> Cut:
    """The root hears from each of the others in turn, sends to each of them, or first one and then
    the other."""
    edges = [(0, rank) for rank in range(1, num_ranks)]
    return _rooted(primitive, num_ranks, [edges], root=root)


def tree(primitive: str, num_ranks: int, num_segments: int = 1, root: int = 0) -> Cut:
    """A binomial tree: ceil(log2 N) steps from the root, or to it (Thakur, Rabenseifner and Gropp
    2005, section 4). With several segments the tree is binary: a binomial root would send each of
    them log2 N times."""
    edges = _binomial(num_ranks) if num_segments == 1 else _binary(num_ranks)
    return _rooted(primitive, num_ranks, [edges], num_segments, root)


def chain(
    primitive: str,
    num_ranks: int,
    num_segments: int | None = None,
    order: Sequence[int] | None = None,
    root: int = 0,
) -> Cut:
    """N segments, unless given, follow one another along the ring cut open at the root:
    N-2+num_segments steps."""
    ranks = [(rank - root) % num_ranks for rank in order or range(num_ranks)]
    start = ranks.index(0)
    edges = list(itertools.pairwise(ranks[start:] + ranks[:start]))
    return _rooted(primitive, num_ranks, [edges], num_segments or num_ranks, root)


def double_tree(primitive: str, num_ranks: int, num_segments: int = 4) -> Cut:
    """Two binary trees, half of the buffer (in num_segments pieces) each (Sanders, Speck and Traeff
    2009).

    With an even number of ranks each is a leaf of one tree and interior in the other; with an odd
    number rank 0 is interior in both. So no port carries more than 2S, where a binary tree's
    busiest carries 3S.
    """

    def mirrored(rank: int) -> int:
        return (rank + 1) % num_ranks if num_ranks % 2 else num_ranks - 1 - rank

    one = _binary(num_ranks)
    other = [(mirrored(parent), mirrored(child)) for parent, child in one]
    return _rooted(primitive, num_ranks, [one, other], num_segments)


def _binomial(num_ranks: int) -> list[Edge]:
    """A binomial tree on rank 0; the edges nearest to the top come first."""
    return [(child - _low(child), child) for child in _from_the_top(num_ranks)]


def _binary(num_ranks: int) -> list[Edge]:
    """The binary tree of Sanders et al. 2009: 1 to N-1 in order from left to right, odd ranks its
    leaves, with rank 0 on top. The edges nearest to the top come first."""
    edges = []
    for child in _from_the_top(num_ranks):
        low = _low(child)
        is_left = not child & 2 * low and child + low < num_ranks
        edges.append((child + low if is_left else child - low, child))
    return edges


def _low(rank: int) -> int:
    """The lowest binary digit of a rank, as a number: how far it stands above the leaves."""
    return rank & -rank


def _from_the_top(num_ranks: int) -> list[int]:
    """The ranks below 0, those that stand highest first."""
    return sorted(range(1, num_ranks), key=lambda child: -_low(child))


class _Hop(NamedTuple):
    """A segment's way over one edge of a tree."""

    wave: int
    """segment s crosses the edges w hops from its start in wave s + w"""
    src: int
    """who sends"""
    dst: int
    """who receives"""
    chunk: int
    """the segment, counted over all trees"""
    op: str
    """"add" on the way up, "copy" on the way down"""


def _rooted(
    primitive: str,
    num_ranks: int,
    trees: Sequence[Sequence[Edge]],
    num_segments: int = 1,
    root: int = 0,
) -> Cut:
    """Segments up, or down, or up and down trees of (parent, child) edges, top ones first; rank 0
    becomes root."""
    hops = []
    for number, edges in enumerate(trees):
        way = _way(primitive, edges)
        for segment in range(num_segments):
            for wave, src, dst, op in way:
                src_rank = (src + root) % num_ranks
                dst_rank = (dst + root) % num_ranks
                chunk = number * num_segments + segment
                hops.append(_Hop(segment + wave, src_rank, dst_rank, chunk, op))
    return num_segments * len(trees), _scheduled(hops)


def _way(primitive: str, edges: Sequence[Edge]) -> list[tuple[int, int, int, str]]:
    """(wave, source, destination, op) of a segment that begins in wave 0: up the tree to reduce it,
    down to broadcast it."""
    depth = collections.Counter()
    for parent, child in edges:
        depth[child] = depth[parent] + 1
    top = max(depth.values(), default=0)
    up = [(top - depth[child], child, parent, "add") for parent, child in reversed(edges)]
    down = [(top + depth[parent], parent, child, "copy") for parent, child in edges]
    if primitive == "reduce":
        return up
    return down if primitive == "broadcast" else up + down


def _scheduled(hops: Sequence[_Hop]) -> Steps:
    """Each hop in the first step in which its chunk is there and both ports are free, wave after
    wave."""
    messages = collections.defaultdict(list)  # per step
    whole_at = collections.Counter()  # (rank, chunk) -> the step before which it stands there
    busy = set()
    for hop in sorted(hops, key=lambda hop: hop.wave):
        step = max(whole_at[hop.src, hop.chunk], whole_at[hop.dst, hop.chunk])
        while (step, "out", hop.src) in busy or (step, "in", hop.dst) in busy:
            step += 1
        busy.add((step, "out", hop.src))
        busy.add((step, "in", hop.dst))
        whole_at[hop.dst, hop.chunk] = step + 1
        messages[step].append(Message(hop.src, hop.dst, (hop.chunk,), hop.op))
    return tuple(tuple(messages[step]) for step in sorted(messages))


# --- all of them ---

ALGORITHMS: dict[str, dict[str, Callable[..., Cut]]] = {
    "broadcast": {"star": star, "tree": tree, "ring": chain},
    "reduce": {"star": star, "tree": tree, "ring": chain},
    "all_reduce": {
        "parameter_server": star,
        "ring": ring,
        "tree": tree,
        "double_tree": double_tree,
        "hierarchical": hierarchical,
    },
    "all_gather": {"ring": ring},
    "reduce_scatter": {"ring": ring},
    "all_to_all": {"pairwise": pairwise},
    "send_recv": {"direct": direct},
}
"""Per primitive, its algorithms: builders of (primitive, num_ranks, **options)"""


def lower_bound_bytes(primitive: str, num_ranks: int, num_bytes: float) -> float:
    """The least the busiest rank sends or receives where only ranks add, in bytes (Patarasuk and
    Yuan 2009; Chan et al. 2007, table 1)."""
    check_word(primitive, ALGORITHMS, "a primitive")
    check_whole(num_ranks=num_ranks)
    if num_ranks == 1:
        return 0.0
    share = (num_ranks - 1) / num_ranks
    if primitive in ("broadcast", "reduce", "send_recv"):
        share = 1.0
    elif primitive == "all_reduce":
        share *= 2
    return share * num_bytes
