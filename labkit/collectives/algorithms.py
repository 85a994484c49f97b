"""Collective communication as plans: who sends which chunk to whom, step by step. Time is for
``labkit.collectives.network``.

Every rank has a buffer of ``num_chunks`` equal chunks. A step's messages go at once and carry what
stood there before the step; in a step a rank sends at most one message and receives at most one
(one port, both directions at once).
"""

import collections
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from labkit.units import check_real, check_whole, check_word


class Move(NamedTuple):
    """One message: chunks of one rank that replace ("copy") or are added to ("add") the same chunks
    of another."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    op: str


Steps = tuple[tuple[Move, ...], ...]  # per step, its messages
Cut = tuple[int, Steps]  # what a builder makes: the number of chunks, and the steps
Holdings = list[list[frozenset[int]]]  # [rank][chunk] -> the ranks whose contribution stands there


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A collective as steps of messages. ``str(plan)`` reads "0>1 [2] add", one step a line."""

    primitive: str
    """a key of ALGORITHMS: broadcast, reduce, all_reduce, all_gather, reduce_scatter, all_to_all,
    send_recv"""
    algorithm: str
    """a key of ALGORITHMS[primitive], or a name of your own"""
    num_ranks: int
    """how many ranks take part"""
    num_chunks: int
    """into how many equal chunks every rank's buffer is cut"""
    steps: Steps
    """the messages of each step"""
    root: int = 0
    """the rank that a broadcast starts from and a reduce ends on"""

    def __str__(self) -> str:
        rows = (
            ", ".join(f"{src}>{dst} {list(chunks)} {op}" for src, dst, chunks, op in step)
            for step in self.steps
        )
        return "\n".join(
            [
                f"{self.primitive}, {self.algorithm}: {self.num_ranks} ranks, {self.num_chunks} "
                "chunks",
                *(f"step {number}: {row}" for number, row in enumerate(rows)),
            ]
        )

    def chunk_bytes(self, num_bytes: float) -> float:
        """The size of one chunk, where ``num_bytes`` is the collective's size as nccl-tests counts
        it.

        That is a rank's whole buffer, but of an all-to-all what one rank starts with: N of the N*N
        chunks.
        """
        check_real(num_bytes=num_bytes)
        return num_bytes / (self.num_ranks if self.primitive == "all_to_all" else self.num_chunks)


def plan(primitive: str, algorithm: str, num_ranks: int, **options: object) -> Plan:
    """The plan of ALGORITHMS[primitive][algorithm], its options checked.

    ``root``; ``order``: a ring's ranks in turn; ``num_segments``: into how many pieces a tree or
    chain cuts the buffer, to have several under way; ``island_size``: how many neighbours reduce
    first. Raises ValueError with what exists.
    """
    builder = ALGORITHMS.get(primitive, {}).get(algorithm)
    if builder is None:
        known = "; ".join(f"{name}: {', '.join(builders)}" for name, builders in ALGORITHMS.items())
        raise ValueError(f"a plan is one of {known}; got {primitive!r}, {algorithm!r}")
    takes, order = (
        list(inspect.signature(builder).parameters)[2:],
        options.get("order") or range(num_ranks),
    )
    root, num_segments = options.get("root", 0), options.get("num_segments", 1)
    check_whole(1, 256, num_ranks=num_ranks)
    check_whole(
        1, 10_000, num_segments=num_segments, **{"ranks times segments": num_ranks * num_segments}
    )
    rules = (
        (
            set(options) <= set(takes),
            f"{primitive} {algorithm} takes options {takes}; got {list(options)}",
        ),
        (root in range(num_ranks), f"root is one of {num_ranks} ranks, counted from 0; got {root}"),
        (
            sorted(order) == [*range(num_ranks)],
            f"order names each of {num_ranks} ranks once; got {order}",
        ),
    )
    for holds, text in rules:
        if not holds:
            raise ValueError(text)
    num_chunks, steps = builder(primitive, num_ranks, **options)
    return Plan(
        primitive=primitive,
        algorithm=algorithm,
        num_ranks=num_ranks,
        num_chunks=num_chunks,
        steps=steps,
        root=root,
    )


def ring(primitive: str, num_ranks: int, order: Sequence[int] | None = None) -> Cut:
    """Partial sums once around the ring, each ending whole on its owner (reduce-scatter, N-1
    steps); then the sums once around (all-gather, N-1 steps); an all-reduce does both (Patarasuk
    and Yuan 2009, section 3)."""
    ranks = order or range(num_ranks)
    ops = {"reduce_scatter": ["add"], "all_gather": ["copy"], "all_reduce": ["add", "copy"]}[
        primitive
    ]
    return num_ranks, sum((_around(ranks, [(rank,) for rank in ranks], op) for op in ops), ())


def hierarchical(primitive: str, num_ranks: int, island_size: int | None = None) -> Cut:
    """Reduce-scatter inside each island, all-reduce across (ranks of one place in their islands),
    all-gather inside. Islands are neighbours, ``square_island`` of them unless given. Raises
    ValueError for what is no divisor."""
    size = square_island(num_ranks) if island_size is None else island_size
    if size not in (
        divisors := [each for each in range(1, num_ranks + 1) if num_ranks % each == 0]
    ):
        raise ValueError(
            f"island_size divides {num_ranks} ranks: it is one of {divisors}; got {size}"
        )
    num_islands = num_ranks // size
    blocks = [tuple(range(place * num_islands, (place + 1) * num_islands)) for place in range(size)]
    inside = [(range(first, first + size), blocks) for first in range(0, num_ranks, size)]
    across = [
        (range(place, num_ranks, size), [(chunk,) for chunk in blocks[place]])
        for place in range(size)
    ]
    phases = ((inside, "add"), (across, "add"), (across, "copy"), (inside, "copy"))
    rounds = (zip(*(_around(*group, op) for group in groups), strict=True) for groups, op in phases)
    return num_ranks, tuple(tuple(itertools.chain(*steps)) for steps in itertools.chain(*rounds))


def square_island(num_ranks: int) -> int:
    """The greatest divisor of num_ranks not above its square root: as many islands as ranks in one,
    or a few more."""
    check_whole(1, 1 << 20, num_ranks=num_ranks)
    return max(
        (size for size in range(1, int(num_ranks**0.5) + 1) if num_ranks % size == 0), default=1
    )


def pairwise(primitive: str, num_ranks: int) -> Cut:
    """In step s every rank sends to the rank s further on: N-1 steps, no message passed on."""
    ranks = range(num_ranks)
    return num_ranks**2, tuple(
        tuple(
            Move(src, dst, (src * num_ranks + dst,), "copy")
            for src in ranks
            for dst in [(src + shift) % num_ranks]
        )
        for shift in ranks[1:]
    )


def direct(primitive: str, num_ranks: int) -> Cut:
    """Rank 0 sends its buffer to rank 1."""
    return 1, ((Move(0, 1, (0,), "copy"),),) if num_ranks > 1 else ()


def star(primitive: str, num_ranks: int, root: int = 0) -> Cut:
    """The root hears from each of the others in turn, sends to each of them, or first one and then
    the other."""
    return _rooted(primitive, num_ranks, [[(0, rank) for rank in range(1, num_ranks)]], root=root)


def tree(primitive: str, num_ranks: int, num_segments: int = 1, root: int = 0) -> Cut:
    """A binomial tree: ceil(log2 N) steps from the root, or to it (Thakur, Rabenseifner and Gropp
    2005, section 4). With several segments the tree is binary: a binomial root would send each of
    them log2 N times."""
    return _rooted(
        primitive, num_ranks, [_edges(num_ranks, binary=num_segments > 1)], num_segments, root
    )


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
    ranks = ranks[ranks.index(0) :] + ranks[: ranks.index(0)]
    return _rooted(
        primitive, num_ranks, [list(itertools.pairwise(ranks))], num_segments or num_ranks, root
    )


def double_tree(primitive: str, num_ranks: int, num_segments: int = 4) -> Cut:
    """Two binary trees, half of the buffer (in num_segments pieces) each (Sanders, Speck and Traeff
    2009).

    With an even number of ranks each is a leaf of one tree and interior in the other; with an odd
    number rank 0 is interior in both. So no port carries more than 2S, where a binary tree's
    busiest carries 3S.
    """
    one = _edges(num_ranks, binary=True)
    other = [
        [(rank + 1) % num_ranks if num_ranks % 2 else num_ranks - 1 - rank for rank in edge]
        for edge in one
    ]
    return _rooted(primitive, num_ranks, [one, other], num_segments)


def _rooted(
    primitive: str,
    num_ranks: int,
    trees: Sequence[Sequence[tuple[int, int]]],
    num_segments: int = 1,
    root: int = 0,
) -> Cut:
    """Segments up, or down, or up and down trees of (parent, child) edges, top ones first; rank 0
    becomes root.

    In wave s + w segment s crosses the edges w hops from its start, each in the first step with
    both ports free.
    """
    waves, ranks = [], [(rank + root) % num_ranks for rank in range(num_ranks)]
    for number, edges in enumerate(trees):
        depth = collections.Counter()
        for parent, child in edges:
            depth[child] = depth[parent] + 1
        top = max(depth.values(), default=0)
        up = [(top - depth[child], child, parent, "add") for parent, child in reversed(edges)]
        down = [(top + depth[parent], parent, child, "copy") for parent, child in edges]
        waves += [
            (segment + hop, ranks[src], ranks[dst], number * num_segments + segment, op)
            for segment in range(num_segments)
            for hop, src, dst, op in {"reduce": up, "broadcast": down}.get(primitive, up + down)
        ]
    steps, whole, busy = collections.defaultdict(list), collections.Counter(), set()
    for _, src, dst, chunk, op in sorted(waves, key=lambda wave: wave[0]):
        at = max(whole[src, chunk], whole[dst, chunk])
        while busy & (ports := {(at, "out", src), (at, "in", dst)}):
            at += 1
        busy |= ports
        whole[dst, chunk] = at + 1
        steps[at].append(Move(src, dst, (chunk,), op))
    return num_segments * len(trees), tuple(tuple(steps[at]) for at in sorted(steps))


def _edges(num_ranks: int, binary: bool) -> list[tuple[int, int]]:
    """(parent, child) of a binomial tree, or of the binary tree of Sanders et al. 2009: 1 to N-1 in
    order from left to right, odd ranks its leaves, with rank 0 on top. Those nearest to the top
    come first."""
    low = {child: child & -child for child in range(1, num_ranks)}
    right = {
        child
        for child in low
        if not child & 2 * low[child] and child + low[child] < num_ranks and binary
    }
    return [
        (child + low[child] if child in right else child - low[child], child)
        for child in sorted(low, key=lambda child: -low[child])
    ]


def _around(ranks: Sequence[int], blocks: Sequence[tuple[int, ...]], op: str) -> Steps:
    """Once around a ring: "add" until the rank in place p holds the sum of blocks[p]; "copy" from
    there on."""
    size, late = len(ranks), op == "add"
    return tuple(
        tuple(
            Move(ranks[p], ranks[(p + 1) % size], blocks[(p - step - late) % size], op)
            for p in range(size)
        )
        for step in range(size - 1)
    )


ALGORITHMS: dict[str, dict[str, Callable[..., Cut]]] = {
    **{name: {"star": star, "tree": tree, "ring": chain} for name in ("broadcast", "reduce")},
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


def holdings(plan: Plan, num_steps: int | None = None) -> Holdings:
    """[rank][chunk] -> the ranks whose contribution stands there after num_steps steps (all of
    them, unless given)."""
    origins = [_path(plan, chunk)[0] for chunk in range(plan.num_chunks)]
    held = [
        [frozenset([rank] if origin in (None, rank) else []) for origin in origins]
        for rank in range(plan.num_ranks)
    ]
    for step in plan.steps[:num_steps]:
        held = _after(held, step)
    return held


def validate(plan: Plan) -> None:
    """Checks that a plan does what its primitive promises, and that no step uses a port twice.

    Raises ValueError for the first thing wrong: also a chunk that is not there, comes twice, or is
    missing at the end.
    """
    held = holdings(plan, 0)
    for number, step in enumerate(plan.steps):
        for fault in _faults(plan, held, step):
            raise ValueError(f"step {number}: {fault}")
        held = _after(held, step)
    for rank, chunk in itertools.product(range(plan.num_ranks), range(plan.num_chunks)):
        origin, target = _path(plan, chunk)
        wanted = set(range(plan.num_ranks)) if origin is None else {origin}
        if target in (None, rank) and held[rank][chunk] != wanted:
            raise ValueError(
                f"rank {rank} ends with chunk {chunk} of ranks {sorted(held[rank][chunk])}; in "
                f"{plan.primitive} it is of {sorted(wanted)}"
            )


def _faults(plan: Plan, held: Holdings, step: Sequence[Move]) -> Iterator[str]:
    for number, (src, dst, chunks, op) in enumerate(step):
        real = len(set(chunks) & set(range(plan.num_chunks)))
        if (
            len({src, dst} & set(range(plan.num_ranks))) < 2
            or op not in ("copy", "add")
            or not 0 < real == len(chunks)
        ):
            yield (
                f"a message goes from one of {plan.num_ranks} ranks to another, to copy or add "
                "some of "
                f"{plan.num_chunks} chunks; got {step[number]}"
            )
            return
        if any(rival.src == src or rival.dst == dst for rival in step[:number]):
            yield f"a rank sends one message and receives one in a step; {src}>{dst} is one too many"
        for chunk in chunks:
            sent, there = held[src][chunk], held[dst][chunk]
            if not sent:
                yield f"{src}>{dst} chunk {chunk} is sent before it is there"
            elif op == "add" and not there:
                yield f"{src}>{dst} chunk {chunk} is added to nothing: copy it"
            elif sent == there if op == "copy" else sent & there:
                yield f"{src}>{dst} chunk {chunk} brings what ranks {sorted(sent & there)} gave a second time"


def _after(held: Holdings, step: Sequence[Move]) -> Holdings:
    new = [list(chunks) for chunks in held]
    for src, dst, chunks, op in step:
        for chunk in chunks:
            new[dst][chunk] = held[src][chunk] | (held[dst][chunk] if op == "add" else frozenset())
    return new


def _path(plan: Plan, chunk: int) -> tuple[int | None, int | None]:
    """The rank a chunk comes from, None if all give a part; the rank where it must stand at the
    end, None for all."""
    owner = chunk * plan.num_ranks // plan.num_chunks
    origin = {"broadcast": plan.root, "send_recv": 0, "all_gather": owner, "all_to_all": owner}
    target = {
        "reduce": plan.root,
        "send_recv": 1,
        "reduce_scatter": owner,
        "all_to_all": chunk % plan.num_ranks,
    }
    return origin.get(plan.primitive), target.get(plan.primitive)


def sent_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank sends, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes``
    reads it."""
    chunks = [move.src for step in plan.steps for move in step for _ in move.chunks]
    return np.bincount(np.array(chunks, dtype=int), minlength=plan.num_ranks) * plan.chunk_bytes(
        num_bytes
    )


def received_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank receives, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes``
    reads it."""
    chunks = [move.dst for step in plan.steps for move in step for _ in move.chunks]
    return np.bincount(np.array(chunks, dtype=int), minlength=plan.num_ranks) * plan.chunk_bytes(
        num_bytes
    )


def lower_bound_bytes(primitive: str, num_ranks: int, num_bytes: float) -> float:
    """The least the busiest rank sends or receives, in bytes (Patarasuk and Yuan 2009; Chan et al.
    2007, table 1)."""
    check_word(primitive, ALGORITHMS, "a primitive")
    check_whole(num_ranks=num_ranks)
    once = (num_ranks - 1) / num_ranks
    shares = {"broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0, "all_reduce": 2 * once}
    return shares.get(primitive, once) * num_bytes if num_ranks > 1 else 0.0
