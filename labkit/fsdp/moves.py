"""The moves of FSDP, layer by layer, read out of a recording.

``fully_shard`` labels what it does in a profiler's trace: "FSDP::all_gather (layers.3)".
``by_layer`` makes of these labels and of the messages one picture: gather, forward, backward and
reduce of each layer. ``order`` is the same in one line.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_whole

LABEL = re.compile(r"FSDP::(\w+) \((.+)\)")
BEGINS = "FSDP::root_pre_forward"
"""What FSDP's root says at the start of each forward."""
ENDS = {"post_forward": "forward", "post_backward_accumulate": "backward"}
"""The labels that begin when a layer has computed."""
ISSUES = {"all_gather": "all_gather", "post_backward_reduce": "reduce_scatter"}
"""The labels that hold a message, and which."""
LETTERS = {"forward": "F", "backward": "B", "all_gather": "g", "reduce_scatter": "r"}


class _Move(NamedTuple):
    """One thing that FSDP did for a layer."""

    kind: str
    """"all_gather", "forward", "backward" or "reduce_scatter\""""
    layer: int
    """counted from 0, in the order of the forwards"""
    start_us: float
    """when it began"""
    end_us: float
    """when it ended"""

    @property
    def label(self) -> str:
        """ "g3", "F3", "B3" or "r3"."""
        return f"{LETTERS[self.kind]}{self.layer}"


def by_layer(timeline: Timeline) -> Timeline:
    """The last recorded step of ``fully_shard``: each layer's forward and backward, and above them
    its messages ("g3" gathers layer 3, "r3" reduces its gradients).

    A layer computes from the end of FSDP's label before it to the start of the one after it. Where
    gloo runs a reduce-scatter as an all-reduce, it is called by the name it was called by. Raises
    ValueError for a recording without FSDP.
    """
    rows = []
    for rank in range(timeline.num_ranks):
        line = timeline.select(timeline.rank == rank)
        moves = list(_moves(line))
        rows += [
            (rank, COMPUTE, move.kind, move.label, move.start_us, move.end_us, 0)
            for move in moves
            if move.kind in ENDS.values()
        ]
        rows += _messages(rank, line, moves)
    began_us = min((row[4] for row in rows), default=0.0)
    rows = [(*row[:4], row[4] - began_us, row[5] - began_us, row[6]) for row in rows]
    return from_rows(
        rows, num_ranks=timeline.num_ranks, origin=timeline.origin, notes=timeline.notes
    )


def order(timeline: Timeline, rank: int = 0) -> list[str]:
    """What a rank began, in order: ["g0", "F0", "g1", ...]. Raises ValueError as ``by_layer``."""
    check_whole(0, timeline.num_ranks - 1, rank=rank)
    line = timeline.select(timeline.rank == rank)
    moves = sorted(_moves(line), key=lambda move: (move.start_us, move.end_us))
    return [move.label for move in moves]


def _moves(line: Timeline) -> Iterator[_Move]:
    """The moves of one rank's last step, in the order in which they ended."""
    begun = line.start_us[line.label == BEGINS]
    if not len(begun):
        raise ValueError(
            "FSDP's moves are read from the recording of a fully_shard step, launched with "
            f"record=True; got {line!r}, which has no label {BEGINS!r}"
        )
    step = line.select(line.start_us >= begun.max())
    marks = sorted(zip(step.start_us.tolist(), step.end_us.tolist(), step.label, strict=True))
    layers: dict[str, int] = {}
    done_us = float(begun.max())
    for start_us, end_us, label in marks:
        found = LABEL.fullmatch(label)
        if not found:
            continue
        what, name = found.groups()
        layer = layers.setdefault(name, len(layers))
        if what in ENDS:
            yield _Move(ENDS[what], layer, done_us, start_us)
        if what in ISSUES:
            yield _Move(ISSUES[what], layer, start_us, end_us)
        done_us = max(done_us, end_us)


def _messages(rank: int, line: Timeline, moves: list[_Move]) -> list[tuple]:
    """The messages of a rank's step. Each is the next one that FSDP issued; where there are more or
    fewer of them, they have no layer."""
    rows = []
    for kind in ISSUES.values():
        issued = [move for move in moves if move.kind == kind]
        part = "gather" if kind == "all_gather" else "reduce"
        named = np.array([part in each for each in line.kind], dtype=bool)
        begun = line.start_us >= min((move.start_us for move in moves), default=0.0)
        sent = line.select(named & begun & (line.lane == COMM))
        places = np.argsort(sent.start_us, kind="stable")
        labels = [move.label for move in issued] if len(issued) == len(sent) else [kind] * len(sent)
        for place, label in zip(places, labels, strict=True):
            times = float(sent.start_us[place]), float(sent.end_us[place])
            rows.append((rank, COMM, kind, label, *times, int(sent.num_bytes[place])))
    return rows
