"""How far each node's clock is from the first node's, measured over the ranks' own group.

Rank 0 asks the first rank of a node, which answers with its time. With t0 and t3 read on rank 0, t1
and t2 on the other, the offset is ((t1 - t0) + (t2 - t3)) / 2, and wrong by at most half of the
round trip (t3 - t0) - (t2 - t1) (RFC 5905, section 8). The quickest round of ROUNDS counts.
"""

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from labkit.words import say

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ROUNDS = 30
PARTS = ("offset_ns", "error_ns", "worst_offset_ns", "worst_error_ns")


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A node's clock beside the first node's."""

    offset_ns: int
    """how much later it shows, in nanoseconds"""
    error_ns: int
    """how wrong that may be, in nanoseconds"""
    worst_offset_ns: int = 0
    """the largest offset of any node, either way"""
    worst_error_ns: int = 0
    """the largest error of any node"""

    def told(self) -> str:
        """What must be said with times that were read on several nodes."""
        apart_us = self.worst_offset_ns / 1e3
        error_us = self.worst_error_ns / 1e3
        return say("clocks {apart:.0f} ± {error:.0f} us apart", apart=apart_us, error=error_us)


def estimate(rounds: list[tuple[int, int, int, int]]) -> Clock:
    """The clock of who answered, from (t0, t1, t2, t3) of each round, in nanoseconds."""
    asked, heard, answered, got = min(rounds, key=lambda t: (t[3] - t[0]) - (t[2] - t[1]))
    offset = ((heard - asked) + (answered - got)) // 2
    return Clock(offset_ns=offset, error_ns=((got - asked) - (answered - heard)) // 2)


def measure(rank: int, num_ranks: int, ranks_per_node: int) -> Clock:
    """Every rank calls it at once, and learns its own node's clock. Its messages go by a group of
    their own, which is gone afterwards: the program's group has counted none of them."""
    import torch.distributed as dist

    group = dist.new_group(backend="gloo")
    try:
        return _measure(Mail(group), rank, num_ranks, ranks_per_node)
    finally:
        dist.destroy_process_group(group)


def _measure(mail: "Mail", rank: int, num_ranks: int, ranks_per_node: int) -> Clock:
    if rank:
        if rank % ranks_per_node == 0:
            for _ in range(ROUNDS):
                mail.answer()
        told = mail.receive(len(PARTS))
        mail.send([rank], 0)
        return Clock(**dict(zip(PARTS, told, strict=True)))
    found = [Clock(offset_ns=0, error_ns=0)]
    for leader in range(ranks_per_node, num_ranks, ranks_per_node):
        found.append(estimate([mail.ask(leader) for _ in range(ROUNDS)]))
    worst = {
        "worst_offset_ns": max(abs(each.offset_ns) for each in found),
        "worst_error_ns": max(each.error_ns for each in found),
    }
    clocks = [replace(each, **worst) for each in found]
    for other in range(1, num_ranks):
        mail.send([getattr(clocks[other // ranks_per_node], part) for part in PARTS], other)
    for other in range(1, num_ranks):
        mail.receive(1, other)  # it has what it needs: the group may go
    return clocks[0]


class Mail:
    """Numbers from a rank to another, on the host."""

    def __init__(self, group: "ProcessGroup") -> None:
        self.group = group

    def send(self, numbers: list[int], to: int) -> None:
        """Sends whole numbers of 64 bits."""
        import torch
        import torch.distributed as dist

        message = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        dist.send(message, to, group=self.group)

    def receive(self, length: int, source: int = 0) -> list[int]:
        """Receives so many of them."""
        import torch
        import torch.distributed as dist

        numbers = torch.zeros(length, dtype=torch.int64, device="cpu")
        dist.recv(numbers, source, group=self.group)
        return numbers.tolist()

    def ask(self, other: int) -> tuple[int, int, int, int]:
        """A round with another rank: when it was asked, heard it, answered, and was heard."""
        asked = time.time_ns()
        self.send([asked], other)
        heard, answered = self.receive(2, other)
        return asked, heard, answered, time.time_ns()

    def answer(self) -> None:
        """The other side of a round."""
        self.receive(1)
        heard = time.time_ns()
        self.send([heard, time.time_ns()], 0)
