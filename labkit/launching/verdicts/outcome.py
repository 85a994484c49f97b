"""How the ranks of a run ended, and what was wrong with it: the nouns of a diagnosis."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from labkit.words import say, say_number, to_say

FAULTS = {
    "exception": to_say("a rank raised an exception"),
    "sigkill": to_say("a rank was killed"),
    "crash": to_say("native code of a rank crashed"),
    "unclean_exit": to_say("a rank left before it returned"),
    "out_of_memory": to_say("a rank ran out of memory"),
    "sigstop": to_say("a rank is stopped"),
    "hang": to_say("a rank is busy and never comes"),
    "mismatched_op": to_say("ranks call different collectives"),
    "mismatched_shape": to_say("ranks bring different shapes or types"),
    "swapped_order": to_say("ranks call the same collectives in another order"),
    "missing_rank": to_say("a rank never calls a collective"),
    "uneven_inputs": to_say("a rank has fewer batches"),
    "wrong_group": to_say("a group's members call a collective of another group"),
    "send_cycle": to_say("ranks send to each other and nobody receives"),
    "straggler": to_say("the others wait for a slow rank"),
    "nan": to_say("a rank's numbers are not finite"),
    "diverged_replica": to_say("a replica differs from the others"),
    "set_epoch": to_say("every epoch has the same order of samples"),
    "dead_kernel": to_say("the process that launched is gone"),
}
"""What can be wrong with a run: its name, and what it means; ``words.say`` says it."""

PEER_GONE = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "Socket closed",
)
"""What gloo says in a rank whose peer went: an echo of another rank's failure."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What is wrong with a run."""

    fault: str
    """its name, a key of FAULTS"""
    ranks: tuple[int, ...]
    """the odd ones out; all that disagree where no majority tells who is odd"""
    text: str
    """what is known, and what to look for"""
    where: dict = field(default_factory=dict)
    """file, line and text of the odd one's place, if it is known"""

    def __post_init__(self) -> None:
        if self.fault not in FAULTS:
            raise ValueError(f"a fault is one of {', '.join(FAULTS)}; got {self.fault!r}")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one rank: how it ended, or where it was when the run was judged."""

    rank: int
    """which rank"""
    how: str
    """"returned", "failed" (an exception), "died" (a signal or an exit), "stuck" (still running
    when the run was judged)"""
    at: float = 0.0
    """when, in seconds of the machine's monotonic clock"""
    error: dict = field(default_factory=dict)
    """of a failed rank: type, message, traceback, where"""
    status: int | None = None
    """of a dead rank: its exit code, negative for a signal"""
    where: dict = field(default_factory=dict)
    """of a stuck rank: call, peer (of a send or recv), file, line, function, text; empty when it
    does not answer"""
    stack: str = ""
    """of a rank that does not answer: faulthandler's stack"""
    state: str = ""
    """of a rank that does not answer: "stopped" where the system says so"""
    pending: tuple[dict, ...] = ()
    """collectives under way: group, seq, op, shapes, dtypes; ranks of the group, last number of
    each rank in it"""
    calls: tuple[dict, ...] = ()
    """collectives it has called, in order, as far as it told: group, seq, op, shapes, dtypes, file,
    line, text"""
    groups: dict = field(default_factory=dict)
    """its process groups: name -> ranks"""
    last_output: str = ""
    """the end of what it printed"""


def is_echo(outcome: Outcome) -> bool:
    """Whether a rank failed only because a peer was gone."""
    return outcome.how == "failed" and is_of_a_peer(outcome.error.get("message", ""))


def is_of_a_peer(message: str) -> bool:
    """Whether an exception says only that a peer was gone."""
    return any(words in message for words in PEER_GONE)


_PLACE = ("line", "file", "text")


def line_of(where: dict) -> str:
    """A place in words."""
    if not where.get("line"):
        return say("an unknown line")
    return say("line {line} of {file} ({text})", **{key: where[key] for key in _PLACE})


def rank_list(ranks: Sequence[int]) -> str:
    """ "rank 1" or "ranks 0, 2"."""
    listed = say("list|, ").join(map(str, ranks))
    return say_number("rank {listed}", "ranks {listed}", len(ranks), listed=listed)
