"""What ranks do, by their programs: an act begins when what it needs is there."""

from collections import defaultdict
from collections.abc import Sequence

from labkit.profiling.program import Act
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows


class _Rank:
    """How far one rank is."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self.acts = acts
        self.at = 0
        self.now_us = 0.0
        self.given_us: list[float] = []  # when each message was given to the link
        self.taken_us = 0.0  # when the loader was last asked
        self.saved_us = 0.0  # when the last checkpoint is written


class _World:
    """All ranks, their messages, and the spans so far."""

    def __init__(self, programs: Sequence[Sequence[Act]]) -> None:
        self.ranks = [_Rank(acts) for acts in programs]
        self.messages = [_given(acts) for acts in programs]
        self.ends_us: list[float] = []  # of each message
        self.sent_us: dict[str, list[float]] = defaultdict(list)  # by way
        self.received: dict[str, int] = defaultdict(int)
        self.rows: list[tuple] = []

    def draw(self, rank: int, lane: str, act: Act, start_us: float, end_us: float) -> None:
        """Adds a span."""
        self.rows.append((rank, lane, act.kind, act.label, start_us, end_us, act.num_bytes))

    def message_end_us(self, number: int) -> float | None:
        """When a message of all ranks ends; None while a rank has not given its own."""
        while len(self.ends_us) <= number:
            which = len(self.ends_us)
            if any(len(rank.given_us) <= which for rank in self.ranks):
                return None
            free_us = self.ends_us[-1] if which else 0.0
            entered = [max(rank.given_us[which], free_us) for rank in self.ranks]
            end_us = max(entered) + self.messages[0][which].us
            for rank, start_us in enumerate(entered):
                self.draw(rank, COMM, self.messages[rank][which], start_us, end_us)
            self.ends_us.append(end_us)
        return self.ends_us[number]


def simulate(programs: Sequence[Sequence[Act]]) -> Timeline:
    """The timeline of the programs, one per rank. Raises ValueError where they wait for ever."""
    world = _World(programs)
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(world.ranks):
            while rank.at < len(rank.acts) and _do(world, number, rank.acts[rank.at]):
                rank.at += 1
                moved = True
    stuck = [number for number, rank in enumerate(world.ranks) if rank.at < len(rank.acts)]
    if stuck:
        raise ValueError(f"programs send what others receive; ranks {stuck} wait for ever")
    return from_rows(sorted(world.rows), num_ranks=len(programs), origin="simulated")


def _given(acts: Sequence[Act]) -> list[Act]:
    return [act for act in acts if act.what == "reduce"]


def _do(world: _World, number: int, act: Act) -> bool:
    """Does one act; False where it has to wait for another rank."""
    rank = world.ranks[number]
    start_us = rank.now_us
    match act.what:
        case "reduce":
            rank.given_us.append(start_us)
        case "wait":
            end_us = world.message_end_us(len(rank.given_us) - 1) if rank.given_us else start_us
            if end_us is None:
                return False
            rank.now_us = max(start_us, end_us)
        case "send":
            world.sent_us[act.label].append(start_us)
            world.draw(number, COMM, act, start_us, start_us)
        case "recv":
            return _receive(world, number, act)
        case "idle":
            rank.now_us += act.us
        case "load" | "save" if act.behind:
            _beside(world, number, act)
        case _:
            rank.now_us += act.us
            world.draw(number, COMPUTE, act, start_us, rank.now_us)
    return True


def _receive(world: _World, number: int, act: Act) -> bool:
    """A message of another rank, if it was sent."""
    rank = world.ranks[number]
    nth = world.received[act.label]
    if len(world.sent_us[act.label]) <= nth:
        return False
    world.received[act.label] += 1
    start_us = rank.now_us
    rank.now_us = max(start_us, world.sent_us[act.label][nth] + act.us)
    world.draw(number, COMM, act, start_us, rank.now_us)
    return True


def _beside(world: _World, number: int, act: Act) -> None:
    """Loading or saving beside the computing: what is drawn is the rank's wait for it."""
    rank = world.ranks[number]
    start_us = rank.now_us
    if act.what == "load":
        rank.now_us = max(start_us, rank.taken_us + act.us)
        rank.taken_us = rank.now_us
    else:
        rank.now_us = max(start_us, rank.saved_us)
        rank.saved_us = rank.now_us + act.us
    if rank.now_us > start_us:
        world.draw(number, COMPUTE, act, start_us, rank.now_us)
