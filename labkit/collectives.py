"""Collective communication as plans: who sends which chunk to whom, step by step. Time is for ``labkit.network``.

Every rank has a buffer of ``num_chunks`` equal chunks. A step's messages go at once and carry what stood there before
the step; in a step a rank sends at most one message and receives at most one (one port, both directions at once).
"""

import collections
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Move(NamedTuple):
    """One message: chunks of one rank that replace ("copy") or are added to ("add") the same chunks of another."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    op: str


Steps = tuple[tuple[Move, ...], ...]
"""Per step, its messages"""
Cut = tuple[int, Steps]
"""What a builder makes of a collective: the number of chunks, and the steps"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A collective as steps of messages. ``str(plan)`` reads "0>1 [2] add", one step a line."""

    primitive: str
    """a key of ALGORITHMS: broadcast, reduce, all_reduce, all_gather, reduce_scatter, all_to_all, send_recv"""
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
        head = f"{self.primitive}, {self.algorithm}: {self.num_ranks} ranks, {self.num_chunks} chunks"
        rows = (", ".join(f"{m.src}>{m.dst} {list(m.chunks)} {m.op}" for m in step) for step in self.steps)
        return "\n".join([head, *(f"step {number}: {row}" for number, row in enumerate(rows))])

    def chunk_bytes(self, num_bytes: float) -> float:
        """The size of one chunk, where ``num_bytes`` is the collective's size as nccl-tests counts it.

        That is a rank's whole buffer; the gathered result of an all-gather, the input of a reduce-scatter. An
        all-to-all's is what one rank starts with (and ends with): N of its N*N chunks.
        """
        return num_bytes / (self.num_ranks if self.primitive == "all_to_all" else self.num_chunks)


def plan(primitive: str, algorithm: str, num_ranks: int, **options: object) -> Plan:
    """The plan of ALGORITHMS[primitive][algorithm], its options checked.

    ``root``: of a broadcast or reduce. ``order``: the ring's ranks in turn. ``num_segments``: into how many pieces a
    tree or chain cuts the buffer (each half of it, for a double tree), to have several under way. ``island_size``: how
    many neighbouring ranks reduce among themselves first. Raises ValueError with what exists.
    """
    builder = ALGORITHMS.get(primitive, {}).get(algorithm)
    if builder is None:
        known = "; ".join(f"{name}: {', '.join(builders)}" for name, builders in ALGORITHMS.items())
        raise ValueError(f"a plan is one of {known}; got {primitive!r}, {algorithm!r}")
    takes, ring_order = list(inspect.signature(builder).parameters)[2:], options.get("order")
    rules = ((num_ranks >= 1, f"a collective has at least 1 rank; got {num_ranks}"),
             (set(options) <= set(takes), f"{primitive} {algorithm} takes {', '.join(takes) or 'no option'}; got "
                                          f"{', '.join(options)}"),
             (options.get("root", 0) in range(max(num_ranks, 1)),
              f"root is one of {num_ranks} ranks, counted from 0; got {options.get('root')}"),
             (options.get("num_segments", 1) >= 1, f"num_segments is at least 1; got {options.get('num_segments')}"),
             (ring_order is None or sorted(ring_order) == list(range(num_ranks)),
              f"order names each of {num_ranks} ranks once; got {ring_order}"))
    for holds, text in rules:
        if not holds:
            raise ValueError(text)
    num_chunks, steps = builder(primitive, num_ranks, **options)
    return Plan(primitive=primitive, algorithm=algorithm, num_ranks=num_ranks, num_chunks=num_chunks, steps=steps,
                root=options.get("root", 0))


def ring(primitive: str, num_ranks: int, order: Sequence[int] | None = None) -> Cut:
    """Partial sums once around the ring, each ending whole on its owner (reduce-scatter, N-1 steps); then the sums once
    around (all-gather, N-1 steps); an all-reduce does both (Patarasuk and Yuan 2009, section 3)."""
    ranks = order or range(num_ranks)
    ops = {"reduce_scatter": ["add"], "all_gather": ["copy"], "all_reduce": ["add", "copy"]}[primitive]
    return num_ranks, sum((_around(ranks, [(rank,) for rank in ranks], op) for op in ops), ())


def hierarchical(primitive: str, num_ranks: int, island_size: int | None = None) -> Cut:
    """Reduce-scatter inside each island, all-reduce across (ranks of one place in their islands), all-gather inside.

    Only 1/island_size of the data crosses. Islands are neighbouring ranks, of ``square_island`` unless given.
    Raises ValueError for a size that does not divide.
    """
    size = square_island(num_ranks) if island_size is None else island_size
    if size not in _divisors(num_ranks):
        raise ValueError(f"island_size divides {num_ranks} ranks: it is one of {_divisors(num_ranks)}; got {size}")
    num_islands = num_ranks // size
    blocks = [tuple(range(place * num_islands, (place + 1) * num_islands)) for place in range(size)]
    inside = [(range(first, first + size), blocks) for first in range(0, num_ranks, size)]
    across = [(range(place, num_ranks, size), [(chunk,) for chunk in blocks[place]]) for place in range(size)]
    phases = ((inside, "add"), (across, "add"), (across, "copy"), (inside, "copy"))
    rounds = (zip(*(_around(*group, op) for group in groups), strict=True) for groups, op in phases)
    return num_ranks, tuple(tuple(itertools.chain(*steps)) for steps in itertools.chain(*rounds))


def square_island(num_ranks: int) -> int:
    """The greatest divisor of num_ranks not above its square root: as many islands as ranks in one, or a few more."""
    return max(size for size in _divisors(num_ranks) if size ** 2 <= num_ranks)


def _divisors(num_ranks: int) -> list[int]:
    return [size for size in range(1, num_ranks + 1) if num_ranks % size == 0]


def pairwise(primitive: str, num_ranks: int) -> Cut:
    """In step s every rank sends to the rank s further on: N-1 steps, no message passed on."""
    ranks = range(num_ranks)
    ends = ([(src, (src + shift) % num_ranks) for src in ranks] for shift in ranks[1:])
    return num_ranks ** 2, tuple(tuple(Move(src, dst, (src * num_ranks + dst,), "copy") for src, dst in step)
                                 for step in ends)


def direct(primitive: str, num_ranks: int) -> Cut:
    """Rank 0 sends its buffer to rank 1."""
    return 1, ((Move(0, 1, (0,), "copy"),),) if num_ranks > 1 else ()


def star(primitive: str, num_ranks: int, root: int = 0) -> Cut:
    """The root hears from each of the others in turn, sends to each of them, or first one and then the other."""
    return _rooted(primitive, num_ranks, [[(0, rank) for rank in range(1, num_ranks)]], root=root)


def tree(primitive: str, num_ranks: int, num_segments: int = 1, root: int = 0) -> Cut:
    """A binomial tree: ceil(log2 N) steps from the root, or to it (Thakur, Rabenseifner and Gropp 2005, section 4).

    With several segments the tree is binary: a binomial root would send each of them log2 N times.
    """
    edges = _binomial(num_ranks) if num_segments == 1 else _binary(num_ranks)
    return _rooted(primitive, num_ranks, [edges], num_segments, root)


def chain(primitive: str, num_ranks: int, num_segments: int | None = None, order: Sequence[int] | None = None,
          root: int = 0) -> Cut:
    """N segments, unless given, follow one another along the ring cut open at the root: N-2+num_segments steps."""
    ranks = [(rank - root) % num_ranks for rank in order or range(num_ranks)]
    ranks = ranks[ranks.index(0):] + ranks[:ranks.index(0)]
    return _rooted(primitive, num_ranks, [list(itertools.pairwise(ranks))], num_segments or num_ranks, root)


def double_tree(primitive: str, num_ranks: int, num_segments: int = 4) -> Cut:
    """Two binary trees, half of the buffer up and down each (Sanders, Speck and Traeff 2009; NCCL since 2.4).

    With an even number of ranks each is a leaf of one tree and interior in the other; with an odd number rank 0 is
    interior in both. So no port carries more than 2S, where a binary tree's busiest carries 3S. Each half is cut into
    num_segments pieces.
    """
    edges = _binary(num_ranks)
    other = [num_ranks - 1 - place if num_ranks % 2 == 0 else (place + 1) % num_ranks for place in range(num_ranks)]
    return _rooted(primitive, num_ranks, [edges, [(other[p], other[c]) for p, c in edges]], num_segments)


def _rooted(primitive: str, num_ranks: int, trees: Sequence[Sequence[tuple[int, int]]], num_segments: int = 1,
            root: int = 0) -> Cut:
    """Segments up, or down, or up and down trees of (parent, child) edges, top ones first; rank 0 becomes root.

    They move in waves: in wave s + w segment s crosses the edges that are w hops from where it began.
    """
    waves = []
    for number, edges in enumerate(trees):
        depth = collections.Counter()
        for parent, child in edges:
            depth[child] = depth[parent] + 1
        top = max(depth.values(), default=0)
        up = [(top - depth[child], child, parent, "add") for parent, child in reversed(edges)]
        down = [(top + depth[parent], parent, child, "copy") for parent, child in edges]
        waves += [(segment + hop, Move((src + root) % num_ranks, (dst + root) % num_ranks,
                                       (number * num_segments + segment,), op))
                  for segment in range(num_segments)
                  for hop, src, dst, op in {"reduce": up, "broadcast": down}.get(primitive, up + down)]
    moves = (move for _, move in sorted(waves, key=lambda wave: wave[0]))
    return num_segments * len(trees), _pack(moves)


def _pack(moves: Iterable[Move]) -> Steps:
    """Moves, given in an order that is right one by one, each in the first step where it is whole and both ports free.

    Nothing is overwritten before it was sent: a sum comes back down only after its parts have gone up.
    """
    steps, whole, busy = collections.defaultdict(list), {}, set()
    for move in moves:
        source, target = (move.src, move.chunks), (move.dst, move.chunks)
        at = max(whole.get(source, 0), whole.get(target, 0))
        while busy & {(at, "out", move.src), (at, "in", move.dst)}:
            at += 1
        busy |= {(at, "out", move.src), (at, "in", move.dst)}
        whole[target] = at + 1
        steps[at].append(move)
    return tuple(tuple(steps[at]) for at in sorted(steps))


def _binomial(num_ranks: int) -> list[tuple[int, int]]:
    reach = [1 << level for level in reversed(range((num_ranks - 1).bit_length()))]
    return [(rank, rank + far) for far in reach for rank in range(0, num_ranks - far, 2 * far)]


def _binary(num_ranks: int) -> list[tuple[int, int]]:
    """The in-order binary tree of 1 to N-1, odd ranks its leaves, with rank 0 on top (Sanders et al. 2009)."""
    edges = []
    for child in sorted(range(1, num_ranks), key=lambda rank: -(rank & -rank)):
        low = child & -child
        up = child - low if child & 2 * low else child + low
        edges.append((up if up < num_ranks else child - low, child))
    return edges


def _around(ranks: Sequence[int], blocks: Sequence[tuple[int, ...]], op: str) -> Steps:
    """Once around a ring: "add" until the rank in place p holds the sum of blocks[p]; "copy" from there on."""
    size, late = len(ranks), op == "add"
    return tuple(tuple(Move(ranks[p], ranks[(p + 1) % size], blocks[(p - step - late) % size], op) for p in range(size))
                 for step in range(size - 1))


ROOTED: dict[str, Callable[..., Cut]] = {"star": star, "tree": tree, "ring": chain}
"""Algorithms from one rank, or to it"""
ALGORITHMS: dict[str, dict[str, Callable[..., Cut]]] = {
    "broadcast": ROOTED, "reduce": ROOTED,
    "all_reduce": {"parameter_server": star, "ring": ring, "tree": tree, "double_tree": double_tree,
                   "hierarchical": hierarchical},
    "all_gather": {"ring": ring}, "reduce_scatter": {"ring": ring}, "all_to_all": {"pairwise": pairwise},
    "send_recv": {"direct": direct}}
"""Per primitive, its algorithms: builders of (primitive, num_ranks, **options)"""
TITLES: dict[str, str] = {
    "broadcast": "Broadcast", "reduce": "Reduce", "all_reduce": "All-reduce", "all_gather": "All-gather",
    "reduce_scatter": "Reduce-scatter", "all_to_all": "All-to-all", "send_recv": "Send and receive",
    "parameter_server": "Parameter server", "ring": "Ring", "tree": "Tree", "double_tree": "Double binary tree",
    "hierarchical": "Hierarchical", "star": "Star", "pairwise": "Pairwise", "direct": "Direct"}
"""Words for every primitive and algorithm"""

Holdings = list[list[frozenset[int]]]
"""[rank][chunk] -> the ranks whose contribution it holds"""


def holdings(plan: Plan, num_steps: int | None = None) -> Holdings:
    """[rank][chunk] -> the ranks whose contribution stands there after num_steps steps (all of them, unless given)."""
    held = _begin(plan)
    for step in plan.steps[:num_steps]:
        held = _after(held, step)
    return held


def validate(plan: Plan) -> None:
    """Checks that a plan does what its primitive promises, and that no step uses a port twice.

    Raises ValueError for the first thing wrong: a port used twice, a chunk sent that is not there, a contribution added
    twice, a chunk sent to a rank that holds the same, a result missing at the end.
    """
    held = _begin(plan)
    for number, step in enumerate(plan.steps):
        for fault in _faults(plan, held, step):
            raise ValueError(f"step {number}: {fault}")
        held = _after(held, step)
    for rank, chunk in itertools.product(range(plan.num_ranks), range(plan.num_chunks)):
        origin, target = _path(plan, chunk)
        wanted = set(range(plan.num_ranks)) if origin is None else {origin}
        if target in (None, rank) and held[rank][chunk] != wanted:
            raise ValueError(f"at the end of {plan.primitive} rank {rank} holds chunk {chunk} of ranks "
                             f"{sorted(held[rank][chunk])}; it should be of {sorted(wanted)}")


def _faults(plan: Plan, held: Holdings, step: Sequence[Move]) -> Iterator[str]:
    for number, move in enumerate(step):
        src, dst, chunks, op = move
        rivals = step[:number]
        if not (src != dst and {src, dst} <= set(range(plan.num_ranks)) and op in ("copy", "add")
                and chunks and len(set(chunks)) == len(chunks) and set(chunks) <= set(range(plan.num_chunks))):
            yield (f"a message goes from one of {plan.num_ranks} ranks to another, to copy or add some of "
                   f"{plan.num_chunks} chunks; got {move}")
        elif any(rival.src == src or rival.dst == dst for rival in rivals):
            yield f"a rank sends one message and receives one in a step; {src}>{dst} is one too many"
        else:
            yield from (f"{src}>{dst} chunk {chunk} {why}" for chunk in chunks
                        if (why := _refusal(held[src][chunk], held[dst][chunk], op)))


def _refusal(sent: frozenset[int], there: frozenset[int], op: str) -> str:
    if not sent:
        return "is sent before it is there"
    if op == "copy":
        return "is sent to a rank that holds the same" if sent == there else ""
    if not there:
        return "is added to nothing: copy it"
    return f"adds what ranks {sorted(sent & there)} gave a second time" if sent & there else ""


def _after(held: Holdings, step: Sequence[Move]) -> Holdings:
    new = [list(chunks) for chunks in held]
    for src, dst, chunks, op in step:
        for chunk in chunks:
            new[dst][chunk] = held[src][chunk] | (held[dst][chunk] if op == "add" else frozenset())
    return new


def _path(plan: Plan, chunk: int) -> tuple[int | None, int | None]:
    """The rank a chunk comes from, None if all give a part; the rank where it must stand at the end, None for all."""
    owner = chunk * plan.num_ranks // plan.num_chunks
    origin = {"broadcast": plan.root, "send_recv": 0, "all_gather": owner, "all_to_all": owner}
    target = {"reduce": plan.root, "send_recv": 1, "reduce_scatter": owner, "all_to_all": chunk % plan.num_ranks}
    return origin.get(plan.primitive), target.get(plan.primitive)


def _begin(plan: Plan) -> Holdings:
    origins = [_path(plan, chunk)[0] for chunk in range(plan.num_chunks)]
    return [[frozenset([rank] if origin in (None, rank) else []) for origin in origins]
            for rank in range(plan.num_ranks)]


def sent_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank sends, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes`` reads it."""
    return _volume(plan, num_bytes, "src")


def received_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank receives, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes`` reads it."""
    return _volume(plan, num_bytes, "dst")


def _volume(plan: Plan, num_bytes: float, end: str) -> np.ndarray:
    chunks = [getattr(move, end) for step in plan.steps for move in step for _ in move.chunks]
    return np.bincount(np.array(chunks, dtype=int), minlength=plan.num_ranks) * plan.chunk_bytes(num_bytes)


def lower_bound_bytes(primitive: str, num_ranks: int, num_bytes: float) -> float:
    """The least that the busiest rank must send or receive, in bytes, whatever the algorithm.

    All-reduce: Patarasuk and Yuan 2009. The others: Chan, Heimlich, Purkayastha and van de Geijn 2007, table 1.
    """
    shares = {"broadcast": 1.0, "reduce": 1.0, "all_reduce": 2 * (num_ranks - 1) / num_ranks, "send_recv": 1.0}
    if primitive not in ALGORITHMS:
        raise ValueError(f"a primitive is one of {', '.join(ALGORITHMS)}; got {primitive!r}")
    share = shares.get(primitive, (num_ranks - 1) / num_ranks)
    return share * num_bytes if num_ranks > 1 else 0.0
