"""A pipeline schedule as text: which rank runs what, in which order. Time is the business of
``labkit.pipeline.simulation``.

``2F0`` is stage 2, forward, microbatch 0. Kinds are F forward, B full backward and, where the
backward is split (zero bubble), I backward for the input and W backward for the weights.
``labkit.pipeline.schedules`` writes the known orders.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, product
from reprlib import repr as brief
from typing import NamedTuple

KINDS = ("F", "B", "I", "W")


class Action(NamedTuple):
    """One piece of work of a rank: a stage, what to do, and for which microbatch."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """Reads ``2F0``. Raises ValueError for anything else."""
        match = re.fullmatch(r"\s*(\d{1,6})([FBIW])(\d{1,6})\s*", text)
        if not match:
            raise ValueError(
                f"an action is stage, one of {' '.join(KINDS)}, microbatch, as in 2F0; got "
                f"{brief(text)}"
            )
        return cls(int(match[1]), match[2], int(match[3]))


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The order in which every rank runs its actions in one training step."""

    name: str
    """a key of SCHEDULES, or a name of your own"""
    num_ranks: int
    """how many ranks the pipeline has"""
    num_stages: int
    """how many pieces the model is cut into; more than num_ranks when a rank holds several"""
    num_microbatches: int
    """how many pieces the batch is cut into"""
    stage_rank: tuple[int, ...]
    """the rank that holds each stage"""
    orders: tuple[tuple[Action, ...], ...]
    """per rank, its actions in execution order, without gaps"""

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.num_ranks} ranks, {self.num_stages} stages, "
            f"{self.num_microbatches} microbatches"
        ]
        for rank, order in enumerate(self.orders):
            lines.append(" ".join([f"rank {rank}:", *map(str, order)]))
        return "\n".join(lines)


_HEAD = re.compile(r"(.+): (\d{1,6}) ranks, (\d{1,6}) stages, (\d{1,6}) microbatches")


def parse(text: str) -> Schedule:
    """Reads what ``str(schedule)`` prints; without its first line, the counts are taken from the
    actions.

    Raises ValueError for a line of another form. Whether the schedule can run is for ``validate``
    to say.
    """
    lines = [line.strip() for line in str.splitlines(text) if line.strip()]
    head = _HEAD.fullmatch(lines[0]) if lines else None
    orders = _parse_orders(lines[1:] if head else lines)
    holder = {}
    microbatches = set()
    for rank, order in enumerate(orders):
        holder |= {action.stage: rank for action in order}
        microbatches |= {action.microbatch for action in order}
    if head:
        num_ranks, num_stages, num_microbatches = map(int, head.groups()[1:])
    else:
        num_ranks = len(orders)
        num_stages = 1 + max(holder, default=-1)
        num_microbatches = 1 + max(microbatches, default=-1)
    if num_ranks != len(orders) or not orders:
        raise ValueError(
            f"a schedule has a line for each of its {num_ranks} ranks, 1 or more; got "
            f"{len(orders)} lines"
        )
    return Schedule(
        name=head[1] if head else "custom",
        num_ranks=num_ranks,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        orders=tuple(orders),
        stage_rank=tuple(holder.get(stage, stage % num_ranks) for stage in range(num_stages)),
    )


def _parse_orders(lines: list[str]) -> list[tuple[Action, ...]]:
    orders = []
    for line in lines:
        start, _, actions = line.partition(":")
        if start != f"rank {len(orders)}":
            raise ValueError(
                f"a line reads 'rank {len(orders)}: 0F0 0F1 ...', ranks in order from 0; got "
                f"{line!r}"
            )
        orders.append(tuple(map(Action.parse, actions.split())))
    return orders


def phases(schedule: Schedule) -> list[tuple[int, int, int]]:
    """Per rank, how many actions are warm-up, steady state and cooldown.

    Warm-up ends at the rank's first backward, cooldown begins after its last forward: GPipe has no
    steady state, and the last stage of 1F1B has a warm-up of one.
    """
    counts = []
    for order in schedule.orders:
        kinds = [action.kind for action in order]
        warmup = next((step for step, kind in enumerate(kinds) if kind != "F"), len(kinds))
        last_forward = max((step for step, kind in enumerate(kinds) if kind == "F"), default=-1)
        steady_end = max(warmup, last_forward + 1)
        counts.append((warmup, steady_end - warmup, len(kinds) - steady_end))
    return counts


Key = tuple[int, str, int]
"""stage, "F" or "B" or "W", microbatch: an action once done. I counts as B here: both pass the
gradient on."""


def walk(schedule: Schedule) -> Iterator[tuple[int, Action, Key, Key | None]]:
    """Every (rank, action, its key, the key it needs), each after what it needs; ends early where
    all ranks wait.

    A rank runs until an action needs one that is not done, and goes on when it is: linear in
    actions.
    """
    last = schedule.num_stages - 1
    done: set[Key] = set()
    position = [0] * schedule.num_ranks
    waiting: dict[Key, list[int]] = {}
    ready = deque(range(schedule.num_ranks))
    while ready:
        rank = ready.popleft()
        order = schedule.orders[rank]
        for step in range(position[rank], len(order)):
            action = order[step]
            key, need = key_and_need(action, last)
            if need is not None and need not in done:
                waiting.setdefault(need, []).append(rank)
                position[rank] = step
                break
            done.add(key)
            yield rank, action, key, need
            if key in waiting:
                ready.extend(waiting.pop(key))


def receiver(action: Action, holder: tuple[int, ...]) -> int | None:
    """The other rank that needs what an action makes; None where no other does."""
    if action.kind == "W":
        return None
    target = action.stage + (1 if action.kind == "F" else -1)
    inside = 0 <= target < len(holder) and holder[target] != holder[action.stage]
    return holder[target] if inside else None


def posts(schedule: Schedule) -> dict[Action, int]:
    """How many sends and receives a rank posts right before each action, as torch's runtime lays
    them out (``_add_send_recv``).

    In rounds over the ranks: each puts down its next action if what it needs is on its way, and a
    send behind it; at that moment the receive goes behind what the other rank has put down so far.
    (torch also spends rounds on reducing gradients, which moves a few receives by one action.)
    """
    last = schedule.num_stages - 1
    done: set[Key] = set()
    position = [0] * schedule.num_ranks
    posted = [0] * schedule.num_ranks
    found: dict[Action, int] = {}
    before = -1
    while len(found) > before:
        before = len(found)
        for rank, order in enumerate(schedule.orders):
            action = order[position[rank]] if position[rank] < len(order) else None
            key, need = key_and_need(action, last) if action else (None, None)
            if action is None or (need is not None and need not in done):
                continue
            position[rank] += 1
            done.add(key)
            found[action] = posted[rank]
            posted[rank] = 0
            other = receiver(action, schedule.stage_rank)
            if other is not None:
                posted[rank] += 1
                posted[other] += 1
    return found


def key_and_need(action: Action, last: int) -> tuple[Key, Key | None]:
    """An action's key, and the one key it needs. A backward's own forward follows from the chain of
    needs."""
    stage, kind, microbatch = action
    if kind == "F" and stage == 0:
        return action, None
    if kind == "F":
        return action, (stage - 1, "F", microbatch)
    done = (stage, "B", microbatch)
    if kind == "W":
        return action, done
    if stage < last:
        return done, (stage + 1, "B", microbatch)
    return done, (stage, "F", microbatch)


def validate(schedule: Schedule) -> None:
    """Checks that every stage does F and B (or I and W) of every microbatch once, in an order that
    can run.

    Raises ValueError whose text names the fault and prints the rank-by-step grid with the fault
    marked ``>2F0<``.
    """
    for text, marks in chain(_wrong(schedule), _missing(schedule), _stuck(schedule)):
        raise ValueError(f"{text}\n{_grid(schedule, marks)}")


Fault = tuple[str, list[tuple[int, int]]]
"""what is wrong, and the (rank, step) to mark"""


def _wrong(schedule: Schedule) -> Iterator[Fault]:
    for rank, order in enumerate(schedule.orders):
        seen: set[Action] = set()
        for step, action in enumerate(order):
            rule = _broken_rule(schedule, rank, action, seen)
            if rule:
                yield f"{action} (rank {rank}, step {step}) {rule}", [(rank, step)]
            seen.add(action)


def _broken_rule(schedule: Schedule, rank: int, action: Action, seen: set[Action]) -> str:
    stage, kind, microbatch = action
    if stage >= schedule.num_stages or microbatch >= schedule.num_microbatches:
        return (
            f"is not in {schedule.num_stages} stages and {schedule.num_microbatches} "
            "microbatches, counted from 0"
        )
    if schedule.stage_rank[stage] != rank:
        return f"belongs to rank {schedule.stage_rank[stage]}, which holds stage {stage}"
    for rival in {"F": "F", "B": "BIW"}.get(kind, kind + "B"):
        if (stage, rival, microbatch) in seen:
            return (
                f"repeats {stage}{rival}{microbatch}: F, and B or I and W, of a microbatch run "
                "once on a stage"
            )
    first = Action(stage, "I" if kind == "W" else "F", microbatch)
    return f"needs {first} before it" if kind != "F" and first not in seen else ""


def _missing(schedule: Schedule) -> Iterator[Fault]:
    present = set(chain.from_iterable(schedule.orders))
    split = any(action.kind in "IW" for action in present)
    for (stage, rank), microbatch in product(
        enumerate(schedule.stage_rank), range(schedule.num_microbatches)
    ):
        whole = not split or (stage, "B", microbatch) in present
        for kind in "FB" if whole else "FIW":
            if (stage, kind, microbatch) not in present:
                end = len(schedule.orders[rank])
                yield f"rank {rank} lacks {stage}{kind}{microbatch}", [(rank, end)]


def _stuck(schedule: Schedule) -> Iterator[Fault]:
    position = [0] * schedule.num_ranks
    for rank, *_ in walk(schedule):
        position[rank] += 1
    heads = {
        rank: order[position[rank]]
        for rank, order in enumerate(schedule.orders)
        if position[rank] < len(order)
    }
    if not heads:
        return
    rank = next(iter(heads))
    texts: dict[int, str] = {}  # in the order in which ranks wait for each other
    while rank not in texts:
        _, need = key_and_need(heads[rank], schedule.num_stages - 1)
        stage, kind, microbatch = need
        if kind != "F":
            kind = heads[rank].kind
        texts[rank] = f"rank {rank} stands at {heads[rank]}, which needs {stage}{kind}{microbatch}"
        rank = schedule.stage_rank[stage]
    waiting = list(texts)
    cycle = waiting[waiting.index(rank) :]
    yield (
        "deadlock: " + "; ".join(texts[rank] for rank in cycle),
        [(rank, position[rank]) for rank in cycle],
    )


def _grid(schedule: Schedule, marks: list[tuple[int, int]]) -> str:
    """Ranks as rows, steps as columns, the marked cells in > <; of a large grid, what lies near the
    marks."""
    near_steps: set[int] = set()
    for _, step in marks:
        near_steps |= set(range(step - 6, step + 7))
    num_steps = max(map(len, schedule.orders)) + 1
    steps = [step for step in range(num_steps) if step in near_steps]
    rows = [["step", *map(str, steps)]]
    for rank, order in enumerate(schedule.orders):
        if any(abs(rank - marked) < 5 for marked, _ in marks):
            cells = {step: str(order[step]) if step < len(order) else "" for step in steps}
            cells |= {step: f">{cells[step] or '?'}<" for marked, step in marks if marked == rank}
            rows.append([f"rank {rank}", *cells.values()])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)).rstrip() for row in rows)
