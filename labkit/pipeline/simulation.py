"""What theory predicts of a schedule: when every action runs, the size of its bubble, the
activations it keeps."""

from dataclasses import dataclass, replace

import numpy as np

from labkit import timeline
from labkit.pipeline.schedule import Key, Schedule, posts, receiver, validate, walk
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_whole

PerStage = float | tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """How long each kind of work takes: one number for all stages, or one for each."""

    forward_us: PerStage = 1000.0
    """F: the forward of one microbatch through one stage, in microseconds"""
    backward_us: PerStage | None = None
    """B: its full backward; unless given, 2 x forward_us (two matrix products for each one of the
    forward)"""
    input_us: PerStage | None = None
    """I: the backward for the input; unless given, half of backward_us"""
    weight_us: PerStage | None = None
    """W: the backward for the weights; unless given, half of backward_us"""
    message_us: PerStage = 0.0
    """a message from this stage to one on another rank, between the producer's end and the
    consumer's start"""
    gap_us: float = 0.0
    """a rank's pause between two actions: what the runtime itself takes, in microseconds"""
    post_us: float = 0.0
    """what each send or receive posted in such a pause adds to it, in microseconds"""

    def table(self, num_stages: int) -> dict[str, list[float]]:
        """Per stage, the duration of "F", "B", "I", "W" and "message". Raises ValueError for a
        wrong count or sign."""
        check_whole(1, 10**6, num_stages=num_stages)
        forward = self._per_stage("forward_us", num_stages, None)
        backward = self._per_stage("backward_us", num_stages, [2 * time_us for time_us in forward])
        half = [time_us / 2 for time_us in backward]
        return {
            "F": forward,
            "B": backward,
            "I": self._per_stage("input_us", num_stages, half),
            "W": self._per_stage("weight_us", num_stages, half),
            "message": self._per_stage("message_us", num_stages, None),
        }

    def _per_stage(self, name: str, num_stages: int, default: list[float] | None) -> list[float]:
        given = getattr(self, name)
        if given is None and default is not None:
            return default
        each = given if isinstance(given, tuple | list) else [given] * num_stages
        times_us = [float(time_us) for time_us in each]
        if len(times_us) != num_stages or min(times_us) < 0:
            raise ValueError(
                f"{name} is one duration, or one for each of the {num_stages} stages, never below "
                f"0; got {given}"
            )
        return times_us


def simulate(schedule: Schedule, cost: Cost | None = None) -> Timeline:
    """When every action runs, if ranks keep to their orders and start each action as soon as they
    can.

    An action starts when its rank is free, ``gap_us`` after its last action and ``post_us`` later
    for each message posted between (``schedule.posts``), and what it needs is there: at once from a
    stage on the same rank, ``message_us`` after the producer's end from another. Messages do not
    queue. Raises ValueError, with the grid of ``validate``, for an order that deadlocks.
    """
    cost = cost or Cost()
    duration_us = cost.table(schedule.num_stages)
    message_us = duration_us["message"]
    holder = schedule.stage_rank
    posted = posts(schedule) if cost.post_us else {}
    free_us: dict[int, float] = {}  # of ranks that have begun
    end_us: dict[Key, float] = {}
    work = []
    messages = []
    for rank, action, key, need in walk(schedule):
        stage, kind, _ = action
        start = 0.0
        if rank in free_us:
            start = free_us[rank] + cost.gap_us + cost.post_us * posted.get(action, 0)
        if need is not None:
            arrived = end_us[need]
            if holder[need[0]] != rank:
                arrived += message_us[need[0]]
            start = max(start, arrived)
        end = start + duration_us[kind][stage]
        end_us[key] = end
        free_us[rank] = end
        label = str(action)
        work.append((rank, COMPUTE, kind, label, start, end, 0))
        if message_us[stage] and receiver(action, holder) is not None:
            messages.append((rank, COMM, "send", label, end, end + message_us[stage], 0))
    if len(work) < sum(map(len, schedule.orders)):
        validate(schedule)
    return from_rows([*work, *messages], num_ranks=schedule.num_ranks, origin="simulated")


def bubble_formula(
    schedule: Schedule, over: str = "total", cost: Cost | None = None
) -> float | None:
    """The bubble by the literature's closed form, for equal stages and free messages; None where
    there is none.

    With p ranks, m microbatches, v chunks, and T = F+B the work of a microbatch on a rank, each
    rank idles for naive (p-1) m T; GPipe and 1F1B (p-1) T (Huang et al. 2018, section 2.3;
    Narayanan et al. 2021, section 2.2.1); interleaved (p-1) T/v (section 2.2.2); ZB-H1
    (p-1)(F+I-W), if W is no longer than F and I (Qi et al. 2023, section 2.3; DeepSeek's DualPipe
    writes it (p-1)(F+B-2W)); ZBV 0 if F = I = W (section 6);
    ZB-H2 (p-1)(F+I-2W) (section 2.3), under the same condition. Of ZB-H2 and ZBV that is the rank
    that idles longest, from its own first action to its own last, as ``own_bubble`` counts;
    ``timeline.bubble`` also counts the staggered start, (p-1) F per rank.
    """
    if over not in ("total", "ideal"):
        raise ValueError(f'a bubble is taken over "total" or "ideal" time; got {over!r}')
    stages_us = (cost or Cost()).table(schedule.num_stages)
    if any(len(set(stages_us[kind])) > 1 for kind in "FBIW"):
        return None
    forward, backward, inputs, weights = (stages_us[kind][0] for kind in "FBIW")
    idle = _idle_formula(schedule, forward, backward, inputs, weights)
    if idle is None:
        return None
    whole = schedule.name not in ("zb_h1", "zb_h2", "zbv")
    work = forward + backward if whole else forward + inputs + weights
    num_chunks = schedule.num_stages // schedule.num_ranks
    busy = num_chunks * schedule.num_microbatches * work
    if not busy:
        return 0.0
    return idle / (busy + idle) if over == "total" else idle / busy


def _idle_formula(
    schedule: Schedule, forward: float, backward: float, inputs: float, weights: float
) -> float | None:
    """How long each rank idles by the closed form of a schedule, as ``bubble_formula`` gives them;
    the times are those of one stage."""
    p = schedule.num_ranks
    m = schedule.num_microbatches
    if schedule.name == "naive":
        return (p - 1) * m * (forward + backward)
    if schedule.name in ("gpipe", "1f1b"):
        return (p - 1) * (forward + backward)
    if schedule.name == "interleaved_1f1b" and m % p == 0:
        return (p - 1) * (forward + backward)
    if schedule.name == "zb_h1" and m >= p and weights <= min(forward, inputs):
        return (p - 1) * (forward + inputs - weights)
    if schedule.name == "zb_h2" and m >= 2 * p - 1 and weights <= min(forward, inputs):
        return (p - 1) * (forward + inputs - 2 * weights)
    if schedule.name == "zbv" and m >= 2 * p - 1 and forward == inputs == weights:
        return 0.0
    return None


def own_bubble(line: Timeline) -> float:
    """The share of its own time that the rank idles which works longest, from its first action to
    its last: the bubble rate of Qi et al. 2023, section 5.3, for schedules whose ranks wait for one
    another neither at the beginning nor before the optimizer. Raises ValueError where no rank
    computes."""
    shares = {}
    for rank in range(line.num_ranks):
        mine = line.select((line.rank == rank) & (line.lane == COMPUTE))
        if len(mine) and mine.span_us:
            shares[mine.span_us] = 1 - float(timeline.busy_us(mine)[rank]) / mine.span_us
    if not shares:
        raise ValueError("a bubble is a share of time that ranks compute in; these take none")
    return shares[max(shares)]


def in_flight(schedule_or_timeline: Schedule | Timeline) -> np.ndarray:
    """The most activations each rank keeps at once, shape (num_ranks,), in microbatches of one
    stage.

    One is kept from its F to its B, or to its W where the backward is split. A Timeline is read in
    order of start.
    """
    if isinstance(schedule_or_timeline, Timeline):
        return timeline.in_flight(schedule_or_timeline)
    peaks = []
    for order in schedule_or_timeline.orders:
        peaks.append(timeline.peak_kept(action.kind for action in order))
    return np.array(peaks, dtype=np.int64)


def steady(measured: Timeline) -> Timeline:
    """What lies between rank 0's first backward and its last forward, cut at these edges: no
    filling, no draining."""
    first = measured.rank == 0
    backwards = first & (measured.kind == "B")
    forwards = first & (measured.kind == "F")
    if not (backwards.any() and forwards.any()):
        raise ValueError(
            f"rank 0 of a pipeline does F and B; got {sorted(set(measured.kind[first].tolist()))}"
        )
    start_us = measured.start_us[backwards].min()
    end_us = measured.end_us[forwards].max()
    inside = measured.select((measured.end_us > start_us) & (measured.start_us < end_us))
    return replace(
        inside,
        start_us=np.maximum(inside.start_us, start_us),
        end_us=np.minimum(inside.end_us, end_us),
    )
