"""The order that a pipeline finds by itself, from times and a limit of memory: the heuristic of
Qi et al. 2023, arXiv 2401.10241, section 3.1. ZB-1p and ZB-2p are it with room for the activations
of p and of 2p microbatches.

    cost = Cost(forward_us=18.5, input_us=18.1, weight_us=9.3, message_us=0.6)
    automatic(8, 24, cost, most_kept=16)

Ranks are filled by hand, one microbatch after the other, the last rank first: its backward for the
input tells the rank before when its own can begin, and what lies before that is a gap to fill.
"""

from labkit.pipeline.schedule import Action, Schedule
from labkit.pipeline.simulation import Cost
from labkit.units import check_real, check_whole

MOST_ACTIONS = 100_000
NEARLY = 1e-9
"""Times and memory this near to one another are equal: sums of decimals differ in their last."""


def automatic(
    num_ranks: int,
    num_microbatches: int,
    cost: Cost | None = None,
    *,
    most_kept: float,
    weight_share: float = 1.0,
) -> Schedule:
    """A split backward in the order that a greedy search finds, one stage a rank.

    ``cost``: of each stage; unless given F, I and W take as long. ``most_kept``: room on a rank, in
    activations of one microbatch; the paper's 1p is num_ranks. ``weight_share``: what of them the
    backward for weights needs, and so keeps beyond the one for the input (M_W / M_B; 32 / (34 + 5 a
    s/h) for GPT's layer). Of two warm-ups the one is taken that ends earlier: with and without a
    last forward that begins before the first backward can, and delays it. The paper's other
    switch, to leave a forward out now and then, is not there. Raises ValueError for a rank without
    room for p.
    """
    check_whole(1, MOST_ACTIONS, num_ranks=num_ranks, num_microbatches=num_microbatches)
    check_whole(1, MOST_ACTIONS, **{"ranks times microbatches": num_ranks * num_microbatches})
    check_real(0.0, 1.0, weight_share=weight_share)
    check_real(most_kept=most_kept)
    if most_kept < num_ranks:
        raise ValueError(
            f"the first of {num_ranks} ranks keeps as many microbatches until the first comes "
            f"back; most_kept is {num_ranks} or more, got {most_kept}"
        )
    times_us = (cost or Cost(forward_us=1.0, backward_us=2.0)).table(num_ranks)
    tried = []
    for overfills in (False, True):
        ranks = _Ranks(num_microbatches, times_us, most_kept, weight_share)
        ranks.fill(ranks.warmups(overfills))
        tried.append(ranks)
    best = min(tried, key=_Ranks.longest_us)
    return Schedule(
        name="zb_auto",
        num_ranks=num_ranks,
        num_stages=num_ranks,
        num_microbatches=num_microbatches,
        stage_rank=tuple(range(num_ranks)),
        orders=tuple(map(tuple, best.orders)),
    )


class _Ranks:
    """What the ranks have done so far, and when."""

    def __init__(
        self,
        num_microbatches: int,
        times_us: dict[str, list[float]],
        most_kept: float,
        weight_share: float,
    ) -> None:
        self.num_microbatches = num_microbatches
        self.times_us = times_us
        self.most_kept = most_kept
        self.adds = {"F": 1.0, "I": weight_share - 1.0, "W": -weight_share}
        self.num_ranks = len(times_us["F"])
        self.orders: list[list[Action]] = [[] for _ in range(self.num_ranks)]
        self.done = [dict.fromkeys("FIW", 0) for _ in range(self.num_ranks)]
        self.end_us: dict[Action, float] = {}
        self.begun_us = [0.0] * self.num_ranks
        self.free_us = [0.0] * self.num_ranks
        self.idle_us = [0.0] * self.num_ranks
        self.kept = [0.0] * self.num_ranks

    def longest_us(self) -> float:
        """Of the rank that works longest, from its own first action to its own last: no rank waits
        for the others before its optimizer (section 4)."""
        return max(free - begun for free, begun in zip(self.free_us, self.begun_us, strict=True))

    def warmups(self, overfills: bool) -> list[int]:
        """How many forwards each rank does before its first backward: as many as end before that
        can begin, and one more if it ``overfills``; at least one more than the next rank does."""
        begins = self._forward_begins()
        counts = [0] * self.num_ranks
        arrival = 0.0
        for rank in reversed(range(self.num_ranks)):
            forward_us = self.times_us["F"][rank]
            count = 1 + (counts[rank + 1] if rank + 1 < self.num_ranks else 0)
            most = min(self.num_microbatches, int(self.most_kept + NEARLY) - rank)
            while count < most and rank + 1 < self.num_ranks:
                late = begins[rank][count] + (0.0 if overfills else forward_us)
                if late > arrival - (NEARLY if overfills else -NEARLY):
                    break
                count += 1
            counts[rank] = min(count, most)
            ready = begins[rank][counts[rank] - 1] + forward_us
            arrival = max(ready, arrival) + self.times_us["I"][rank]
            arrival += self.times_us["message"][rank]
        return counts

    def _forward_begins(self) -> list[list[float]]:
        """When each rank could begin each forward, were there nothing else: shape (ranks, m)."""
        arrivals = [0.0] * self.num_microbatches
        found = []
        for rank in range(self.num_ranks):
            begins = []
            free = 0.0
            for arrival in arrivals:
                begins.append(max(free, arrival))
                free = begins[-1] + self.times_us["F"][rank]
            found.append(begins)
            later = self.times_us["F"][rank] + self.times_us["message"][rank]
            arrivals = [begin + later for begin in begins]
        return found

    def fill(self, warmups: list[int]) -> None:
        """The warm-up; then one backward for the input and one forward in turn, backwards for
        weights in the gaps; in the end those that are left."""
        for rank, count in enumerate(warmups):
            for _ in range(count):
                self.put(rank, "F")
        for _ in range(self.num_microbatches):
            for rank in reversed(range(self.num_ranks)):
                self.fill_gap(rank, "I")
                self.put(rank, "I")
                if self.done[rank]["F"] < self.num_microbatches:
                    self.forward(rank)
        for rank in range(self.num_ranks):
            while self.num_waiting(rank):
                self.put(rank, "W")

    def forward(self, rank: int) -> None:
        """One more, where there is room: backwards for weights make it. The next rank always finds
        one that it has not done yet."""
        self.make_room(rank)
        behind = rank + 1 < self.num_ranks and (self.done[rank]["F"] <= self.done[rank + 1]["F"])
        if not self.has_room(rank) and not behind:
            return
        self.fill_gap(rank, "F")
        self.put(rank, "F")

    def has_room(self, rank: int) -> bool:
        """Whether a rank can keep one microbatch more."""
        return self.kept[rank] + 1 <= self.most_kept + NEARLY

    def make_room(self, rank: int) -> None:
        """Backwards for weights until there is room, or none is waiting."""
        while not self.has_room(rank) and self.num_waiting(rank):
            self.put(rank, "W")

    def fill_gap(self, rank: int, kind: str) -> None:
        """Backwards for weights until the next of a kind can begin. One that is longer than what is
        left of the gap goes in where the rank would else have idled longer than any other."""
        arrival = self.arrival_us(rank, kind)
        while self.num_waiting(rank) and arrival - self.free_us[rank] > NEARLY:
            gap_us = arrival - self.free_us[rank]
            others = [each for number, each in enumerate(self.idle_us) if number != rank]
            fits = gap_us >= self.times_us["W"][rank]
            if not fits and self.idle_us[rank] + gap_us <= max(others, default=0.0):
                return
            self.put(rank, "W")

    def num_waiting(self, rank: int) -> int:
        """Backwards for weights that could be done at once."""
        return self.done[rank]["I"] - self.done[rank]["W"]

    def arrival_us(self, rank: int, kind: str) -> float:
        """When what the next of a kind needs is there."""
        number = self.done[rank][kind]
        if kind == "W" or (kind == "F" and rank == 0):
            return 0.0
        if kind == "I" and rank == self.num_ranks - 1:
            return self.end_us[Action(rank, "F", number)]
        other = rank - 1 if kind == "F" else rank + 1
        return self.end_us[Action(other, kind, number)] + self.times_us["message"][other]

    def put(self, rank: int, kind: str) -> None:
        """The next of a kind, as soon as it can begin."""
        start = max(self.free_us[rank], self.arrival_us(rank, kind))
        if self.orders[rank]:
            self.idle_us[rank] += start - self.free_us[rank]
        else:
            self.begun_us[rank] = start
        action = Action(rank, kind, self.done[rank][kind])
        self.orders[rank].append(action)
        self.done[rank][kind] += 1
        self.kept[rank] += self.adds[kind]
        self.free_us[rank] = start + self.times_us[kind][rank]
        self.end_us[action] = self.free_us[rank]
