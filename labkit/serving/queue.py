"""Theory of a queue before slots: requests come at times of their own, a policy says who enters and
who leaves, and a step of decoding serves all who are inside.

    coming = requests(32, rate=16.0, prompt=8, output=12, spread=0.8)
    simulate(coming, continuous, slots=4, cost=Cost(200.0, 10_000.0, 500.0))

``serve`` is the loop of the server itself: the simulation gives it a clock that jumps, real ranks
(``batching_run``) the clock of the machine and real forwards.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from labkit.units import check_real, check_whole

MOST_REQUESTS = 10_000
LONGEST = 8
"""an answer has at most so many times the mean number of tokens"""


class Request(NamedTuple):
    """What somebody asks."""

    number: int
    """in the order in which they come"""
    arrives_us: float
    """when"""
    prompt: int
    """tokens given"""
    output: int
    """tokens wanted, 1 or more; the prefill gives the first of them"""


class Visit(NamedTuple):
    """What became of a request. Times are microseconds from the server's start."""

    number: int
    """the request"""
    slot: int
    """where it was served"""
    output: int
    """tokens that it got"""
    arrives_us: float
    """when it came"""
    admitted_us: float
    """when its prefill began"""
    first_us: float
    """when its first token was there"""
    last_us: float
    """when its last one was"""
    left_us: float
    """when it left its slot, and the answer was given"""


class Cost(NamedTuple):
    """How long the server's two kinds of work take."""

    prefill_us: float
    """a token of a prompt"""
    step_us: float
    """a step of decoding, whoever is inside"""
    sequence_us: float
    """and for each who is"""

    def prompt_us(self, prompt: int) -> float:
        """The prefill of a prompt."""
        return self.prefill_us * prompt

    def decode_us(self, num_sequences: int) -> float:
        """One step for so many."""
        return self.step_us + self.sequence_us * num_sequences


Policy = Callable[[Sequence[int], Mapping[int, int], int], tuple[Sequence[int], Sequence[int]]]
"""(waiting, owed, slots) -> (admit, retire), asked before every step. ``waiting``: the numbers of
the requests outside, the first come first; ``owed``: of each inside how many tokens it still gets;
``slots``: how many may be inside. Who retires owes 0 and makes room before others are admitted."""


def static(
    waiting: Sequence[int], owed: Mapping[int, int], slots: int
) -> tuple[Sequence[int], Sequence[int]]:
    """A batch enters together and leaves together, when its longest answer is done."""
    if any(owed.values()):
        return [], []
    return waiting[:slots], list(owed)


def continuous(
    waiting: Sequence[int], owed: Mapping[int, int], slots: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Who is done leaves at once, and the next one enters (Yu et al. 2022, section 3: scheduling
    by iteration)."""
    done = [number for number, tokens in owed.items() if not tokens]
    return waiting[: slots - len(owed) + len(done)], done


POLICIES: dict[str, Policy] = {"static": static, "continuous": continuous}


def requests(
    num: int, *, rate: float, prompt: int, output: int, spread: float, seed: int = 0
) -> tuple[Request, ...]:
    """Requests that come independently, ``rate`` of them a second (Poisson: exponential gaps), the
    first at 0.

    Answers have ``output`` tokens on average; their logarithm is normal with deviation ``spread``
    (0: all alike), cut at 1 and at LONGEST times the mean. The same seed draws the same lengths
    whatever the rate.
    """
    check_whole(1, MOST_REQUESTS, num=num)
    check_whole(1, 1 << 20, prompt=prompt, output=output)
    check_real(1e-6, 1e6, rate=rate)
    check_real(0.0, 3.0, spread=spread)
    check_whole(0, 1 << 32, seed=seed)
    random = np.random.default_rng(seed)
    gaps = random.exponential(size=num)
    gaps[0] = 0.0
    arrives_us = 1e6 / rate * np.cumsum(gaps)
    drawn = output * np.exp(spread * random.standard_normal(num) - spread**2 / 2)
    lengths = np.clip(np.rint(drawn), 1, LONGEST * output).astype(int)
    rows = zip(arrives_us.tolist(), lengths.tolist(), strict=True)
    return tuple(Request(number, at_us, prompt, long) for number, (at_us, long) in enumerate(rows))


class Floor(Protocol):
    """Where the work is done: a clock, and the two kinds of work."""

    def now_us(self) -> float:
        """Microseconds since the start."""

    def wait(self, until_us: float) -> None:
        """Nothing to do before then."""

    def prefill(self, request: Request, slot: int) -> None:
        """The prompt, and the first token."""

    def decode(self, slots: Sequence[int]) -> None:
        """One more token in each of these slots."""


def serve(
    coming: Iterable[Request], policy: Policy, slots: int, floor: Floor, patience_us: float = 0.0
) -> list[Visit]:
    """Answers all requests; their visits in the order of leaving.

    ``patience_us``: while nobody inside gets tokens and fewer wait than there are slots, the server
    waits as long for more (the time-out of a dynamic batcher). Raises ValueError for a policy that
    admits or retires who it may not, and for one that leaves everybody standing.
    """
    check_whole(1, 1 << 16, slots=slots)
    room = _Room(coming, slots)
    while not room.is_over:
        now_us = floor.now_us()
        room.open(now_us)
        until_us = room.holds_until_us(patience_us)
        outside = [] if until_us > now_us else list(room.waiting)
        owed = {number: stay.owed for number, stay in room.inside.items()}
        admit, retire = policy(outside, owed, slots)
        room.retire(list(retire), now_us)
        room.admit(list(admit), floor)
        if any(stay.owed for stay in room.inside.values()):
            floor.decode([stay.slot for stay in room.inside.values()])
            room.step(floor.now_us())
        elif not admit and not retire:
            floor.wait(until_us if until_us > now_us else room.next_us())
    return room.visits


class _Stay:
    """A request in its slot."""

    def __init__(self, request: Request, slot: int, admitted_us: float, first_us: float) -> None:
        self.request = request
        self.slot = slot
        self.admitted_us = admitted_us
        self.first_us = first_us
        self.last_us = first_us
        self.owed = request.output - 1


class _Room:
    """Who is still to come, who waits, who is inside, who has left."""

    def __init__(self, coming: Iterable[Request], slots: int) -> None:
        self.coming = deque(sorted(coming, key=lambda each: (each.arrives_us, each.number)))
        self.waiting: dict[int, Request] = {}
        self.inside: dict[int, _Stay] = {}
        self.free = list(range(slots))
        self.visits: list[Visit] = []

    @property
    def is_over(self) -> bool:
        """Whether all have left."""
        return not (self.coming or self.waiting or self.inside)

    def open(self, now_us: float) -> None:
        """Who has come by now waits."""
        while self.coming and self.coming[0].arrives_us <= now_us:
            request = self.coming.popleft()
            self.waiting[request.number] = request

    def next_us(self) -> float:
        """When the next one comes. Raises ValueError where nobody does."""
        if not self.coming:
            raise ValueError(
                "a policy admits somebody or retires somebody while there are any; with "
                f"{len(self.waiting)} waiting and {len(self.inside)} done inside it did neither"
            )
        return self.coming[0].arrives_us

    def holds_until_us(self, patience_us: float) -> float:
        """Until when the server waits for more to come; 0: it does not."""
        is_full = len(self.waiting) >= len(self.free) + len(self.inside)
        works = any(stay.owed for stay in self.inside.values())
        if is_full or works or not (self.coming and self.waiting):
            return 0.0
        oldest_us = next(iter(self.waiting.values())).arrives_us
        return min(self.next_us(), oldest_us + patience_us)

    def retire(self, numbers: list[int], now_us: float) -> None:
        """They leave."""
        done = [number for number, stay in self.inside.items() if not stay.owed]
        if len(set(numbers)) < len(numbers) or not set(numbers) <= set(done):
            raise ValueError(
                f"who retires is inside, owes no token, and is named once; got {numbers}, and "
                f"{done} are done"
            )
        for number in numbers:
            stay = self.inside.pop(number)
            self.free.append(stay.slot)
            asked = stay.request
            times_us = (asked.arrives_us, stay.admitted_us, stay.first_us, stay.last_us, now_us)
            self.visits.append(Visit(number, stay.slot, asked.output, *times_us))
        self.free.sort()

    def admit(self, numbers: list[int], floor: Floor) -> None:
        """They enter, one prefill after another."""
        known = set(numbers) <= set(self.waiting)
        if len(set(numbers)) < len(numbers) or not known or len(numbers) > len(self.free):
            raise ValueError(
                f"who is admitted waits, is named once, and finds a slot; got {numbers}; "
                f"{list(self.waiting)} wait, and {len(self.free)} slots are free"
            )
        for number in numbers:
            request = self.waiting.pop(number)
            slot = self.free.pop(0)
            began_us = floor.now_us()
            floor.prefill(request, slot)
            self.inside[number] = _Stay(request, slot, began_us, floor.now_us())

    def step(self, now_us: float) -> None:
        """Everybody inside who still gets tokens has one more."""
        for stay in self.inside.values():
            if stay.owed:
                stay.owed -= 1
                stay.last_us = now_us


class _Simulated:
    """A clock that jumps."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._now_us = 0.0

    def now_us(self) -> float:
        return self._now_us

    def wait(self, until_us: float) -> None:
        self._now_us = max(self._now_us, until_us)

    def prefill(self, request: Request, slot: int) -> None:
        self._now_us += self._cost.prompt_us(request.prompt)

    def decode(self, slots: Sequence[int]) -> None:
        self._now_us += self._cost.decode_us(len(slots))


def simulate(
    coming: Iterable[Request], policy: Policy, slots: int, cost: Cost, patience_us: float = 0.0
) -> list[Visit]:
    """The visits when all work takes its stated time. Raises ValueError as ``serve`` does, and for
    a cost below 0."""
    check_real(0.0, 1e12, **cost._asdict())
    check_real(0.0, 1e12, patience_us=patience_us)
    return serve(coming, policy, slots, _Simulated(cost), patience_us)
