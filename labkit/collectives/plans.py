"""A collective as a plan: who sends which chunk to whom, step by step; and what that does to the
buffers.

Every rank has a buffer of ``num_chunks`` equal chunks. A step's messages go at once and carry what
stood there before the step; in a step a rank sends at most one message and receives at most one
(one port, both directions at once). ``algorithms`` writes such plans, ``network`` times them.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.shown import Shown
from labkit.units import check_real

if TYPE_CHECKING:
    from labkit.shown import Picture


class Message(NamedTuple):
    """Chunks of one rank that replace ("copy") or are added to ("add") the same chunks of
    another."""

    src: int
    dst: int
    chunks: tuple[int, ...]
    op: str


Steps = tuple[tuple[Message, ...], ...]  # per step, its messages
Holdings = list[list[frozenset[int]]]  # [rank][chunk] -> the ranks whose contribution stands there


@dataclass(frozen=True, kw_only=True)
class Plan(Shown):
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
        lines = [
            f"{self.primitive}, {self.algorithm}: {self.num_ranks} ranks, {self.num_chunks} chunks"
        ]
        for number, step in enumerate(self.steps):
            messages = [f"{src}>{dst} {list(chunks)} {op}" for src, dst, chunks, op in step]
            lines.append(f"step {number}: {', '.join(messages)}")
        return "\n".join(lines)

    def _picture(self, language: str) -> "Picture":
        from labkit.collectives import picture

        return picture.collective(self, len(self.steps), language=language)

    def messages(self) -> Iterator[Message]:
        """The messages of all steps, in order."""
        return itertools.chain.from_iterable(self.steps)

    def label(self, message: Message) -> str:
        """What a message is called in a timeline: "0>1 [2]" carries chunk 2 from rank 0 to rank 1;
        "0>1" alone, where the buffer is one chunk."""
        way = f"{message.src}>{message.dst}"
        return way if self.num_chunks == 1 else f"{way} [{_run(message.chunks)}]"

    def chunk_bytes(self, num_bytes: float) -> float:
        """The size of one chunk, where ``num_bytes`` is the collective's size as nccl-tests counts
        it.

        That is a rank's whole buffer, but of an all-to-all what one rank starts with: N of the N*N
        chunks.
        """
        check_real(num_bytes=num_bytes)
        return num_bytes / (self.num_ranks if self.primitive == "all_to_all" else self.num_chunks)


def _run(chunks: Sequence[int]) -> str:
    """Chunks in few letters: "2", "0, 1", "0-3"."""
    is_run = len(chunks) > 2 and chunks[-1] - chunks[0] == len(chunks) - 1
    return f"{chunks[0]}-{chunks[-1]}" if is_run else ", ".join(map(str, chunks))


class Order(NamedTuple):
    """Which messages of a plan wait for which others; each is known by its number."""

    messages: tuple[Message, ...]
    """all of them"""
    labels: tuple[str, ...]
    """what each is called"""
    before: tuple[int, ...]
    """how many each waits for: those that its two ends have in their last steps before it"""
    after: tuple[tuple[int, ...], ...]
    """the ones that wait for it"""


@lru_cache(maxsize=16)
def dependencies(plan: Plan) -> Order:
    """The order of a plan's messages. Remembered, because a sweep over sizes asks for one plan's
    again and again."""
    messages: list[Message] = []
    before: list[int] = []
    after: list[list[int]] = []
    last = [set() for _ in range(plan.num_ranks)]  # per rank, the messages of its last step
    for step in plan.steps:
        now = collections.defaultdict(set)
        for number, message in enumerate(step, start=len(messages)):
            needs = last[message.src] | last[message.dst]
            before.append(len(needs))
            after.append([])
            for each in needs:
                after[each].append(number)
            now[message.src].add(number)
            now[message.dst].add(number)
        for rank, numbers in now.items():
            last[rank] = numbers
        messages += step
    labels = map(plan.label, messages)
    return Order(tuple(messages), tuple(labels), tuple(before), tuple(map(tuple, after)))


def holdings(plan: Plan, num_steps: int | None = None) -> Holdings:
    """[rank][chunk] -> the ranks whose contribution stands there after num_steps steps (all of
    them, unless given)."""
    origins = [_origin(plan, chunk) for chunk in range(plan.num_chunks)]
    held = []
    for rank in range(plan.num_ranks):
        held.append([frozenset([rank] if origin in (None, rank) else []) for origin in origins])
    for step in plan.steps[:num_steps]:
        held = _after(held, step)
    return held


def _after(held: Holdings, step: Sequence[Message]) -> Holdings:
    """What stands where when a step is over."""
    new = [list(chunks) for chunks in held]
    for src, dst, chunks, op in step:
        for chunk in chunks:
            there = held[dst][chunk] if op == "add" else frozenset()
            new[dst][chunk] = held[src][chunk] | there
    return new


def _origin(plan: Plan, chunk: int) -> int | None:
    """The rank a chunk comes from; None if all give a part of it."""
    if plan.primitive == "broadcast":
        return plan.root
    if plan.primitive == "send_recv":
        return 0
    return _owner(plan, chunk) if plan.primitive in ("all_gather", "all_to_all") else None


def _target(plan: Plan, chunk: int) -> int | None:
    """The rank where a chunk must stand at the end; None for all of them."""
    if plan.primitive == "reduce":
        return plan.root
    if plan.primitive == "send_recv":
        return 1
    if plan.primitive == "all_to_all":
        return chunk % plan.num_ranks
    return _owner(plan, chunk) if plan.primitive == "reduce_scatter" else None


def _owner(plan: Plan, chunk: int) -> int:
    """The rank whose share of the buffer a chunk lies in."""
    return chunk * plan.num_ranks // plan.num_chunks


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
        origin = _origin(plan, chunk)
        wanted = set(range(plan.num_ranks)) if origin is None else {origin}
        if _target(plan, chunk) in (None, rank) and held[rank][chunk] != wanted:
            raise ValueError(
                f"rank {rank} ends with chunk {chunk} of ranks {sorted(held[rank][chunk])}; in "
                f"{plan.primitive} it is of {sorted(wanted)}"
            )


def _faults(plan: Plan, held: Holdings, step: Sequence[Message]) -> Iterator[str]:
    """What is wrong with the messages of a step, where the buffers hold ``held`` before it."""
    for number, message in enumerate(step):
        src, dst, _, _ = message
        if not _is_possible(plan, message):
            yield (
                f"a message goes from one of {plan.num_ranks} ranks to another, to copy or add "
                f"some of {plan.num_chunks} chunks; got {message}"
            )
            return
        if any(rival.src == src or rival.dst == dst for rival in step[:number]):
            yield (
                f"a rank sends one message and receives one in a step; {src}>{dst} is one too many"
            )
        yield from _chunk_faults(held, message)


def _is_possible(plan: Plan, message: Message) -> bool:
    """Whether the plan has such ranks and chunks, each chunk at most once, and such an op."""
    src, dst, chunks, op = message
    ranks = {src, dst} & set(range(plan.num_ranks))
    there = set(chunks) & set(range(plan.num_chunks))
    return len(ranks) == 2 and op in ("copy", "add") and 0 < len(there) == len(chunks)


def _chunk_faults(held: Holdings, message: Message) -> Iterator[str]:
    """Chunks of a message that are not there yet, or bring what the receiver has."""
    src, dst, chunks, op = message
    for chunk in chunks:
        sent = held[src][chunk]
        there = held[dst][chunk]
        is_repeated = sent == there if op == "copy" else bool(sent & there)
        name = f"{src}>{dst} chunk {chunk}"
        if not sent:
            yield f"{name} is sent before it is there"
        elif op == "add" and not there:
            yield f"{name} is added to nothing: copy it"
        elif is_repeated:
            yield f"{name} brings what ranks {sorted(sent & there)} gave a second time"


def sent_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank sends, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes``
    reads it."""
    num_chunks = np.zeros(plan.num_ranks, dtype=int)
    for message in plan.messages():
        num_chunks[message.src] += len(message.chunks)
    return num_chunks * plan.chunk_bytes(num_bytes)


def received_bytes(plan: Plan, num_bytes: float) -> np.ndarray:
    """What each rank receives, in bytes, shape (num_ranks,). ``num_bytes`` as ``Plan.chunk_bytes``
    reads it."""
    num_chunks = np.zeros(plan.num_ranks, dtype=int)
    for message in plan.messages():
        num_chunks[message.dst] += len(message.chunks)
    return num_chunks * plan.chunk_bytes(num_bytes)
