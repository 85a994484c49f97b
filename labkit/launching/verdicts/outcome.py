"""How the ranks of a run ended, and what was wrong with it: the nouns of a diagnosis."""

from dataclasses import dataclass, field

FAULTS = {
    "exception": ("a rank raised an exception", "某个 rank 抛出异常"),
    "sigkill": ("a rank was killed", "某个 rank 被杀死"),
    "crash": ("native code of a rank crashed", "某个 rank 的本机代码崩溃"),
    "unclean_exit": ("a rank left before it returned", "某个 rank 没有返回就退出"),
    "out_of_memory": ("a rank ran out of memory", "某个 rank 内存耗尽"),
    "sigstop": ("a rank is stopped", "某个 rank 被暂停"),
    "hang": ("a rank is busy and never comes", "某个 rank 卡在自己的代码里"),
    "mismatched_op": ("ranks call different collectives", "各 rank 调用了不同的集合操作"),
    "mismatched_shape": ("ranks bring different shapes or types", "各 rank 的形状或类型不同"),
    "swapped_order": ("ranks call the same collectives in another order", "各 rank 的调用顺序不同"),
    "missing_rank": ("a rank never calls a collective", "某个 rank 没有参加集合操作"),
    "uneven_inputs": ("a rank has fewer batches", "某个 rank 的 batch 较少"),
    "wrong_group": ("a group's members call a collective of another group", "用错了进程组"),
    "send_cycle": ("ranks send to each other and nobody receives", "互相 send，无人 recv"),
    "straggler": ("the others wait for a slow rank", "其他 rank 都在等一个慢的"),
    "nan": ("a rank's numbers are not finite", "某个 rank 出现 NaN 或 Inf"),
    "diverged_replica": ("a replica differs from the others", "某个副本与其他副本不一致"),
    "set_epoch": ("every epoch has the same order of samples", "每个 epoch 的样本顺序都相同"),
    "dead_kernel": ("the process that launched is gone", "启动它的进程已经消失"),
}
"""What can be wrong with a run: its name, and what it means in English and in Chinese."""

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
    return outcome.how == "failed" and any(
        words in outcome.error.get("message", "") for words in PEER_GONE
    )


def line_of(where: dict) -> str:
    """A place in words."""
    if not where.get("line"):
        return "an unknown line"
    return f"line {where['line']} of {where['file']} ({where['text']})"


def rank_list(ranks: list[int] | tuple[int, ...]) -> str:
    """ "rank 1" or "ranks 0, 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
