"""What Kineto wrote about one rank, as rows of a Timeline: actions, messages, marks and other work.
``trace.read`` puts the ranks together."""

import bisect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.timeline import COMM, COMPUTE

Row = tuple[int, str, str, str, float, float, int]
"""Rank, lane, kind, label, start_us, end_us, num_bytes."""
Event = dict[str, Any]
"""As Kineto writes it; times in us."""
ACTION = re.compile(r"(?:\d+([FBIW])|([FB]))\d+")
LAYER = {"F": "forward", "B": "backward"}
"""The kinds of labels without a stage: "F3" and "B3", forward and backward of layer 3, in data
parallelism."""
UPDATE = "optimizer"
"""The label of an optimizer's step."""
ACTIONS = {"F", "B", "I", "W", *LAYER.values()}
GAP_US = 50.0
"""Operators closer than this are drawn as one span: the Python between them is work too."""
BYTES_OF_TYPE = {
    "double": 8,
    "long int": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "c10::bfloat16": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "half": 2,
}
"""Element sizes by the names that Kineto writes, for gloo and for NCCL, in lower case; any other
type is one byte."""


def rows(trace: dict, shift_us: float) -> Iterator[Row]:
    """The rows of one rank: actions, communication, marks, and what else it computed. ``shift_us``
    is added to its times."""
    rank = trace["labkit"]["rank"]
    events = [
        {**event, "ts": event["ts"] + shift_us} for event in trace["traceEvents"] if "dur" in event
    ]
    annotations = [event for event in events if event.get("cat") == "user_annotation"]
    gloo = [event for event in annotations if event["name"].startswith("gloo:")]
    links = [event for event in events if event.get("cat") == "link"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    nccl = [kernel for kernel in kernels if "nccl" in kernel["name"]]
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    yield from _annotated(rank, annotations, gloo)
    yield from _paced(rank, events)
    yield from _linked(rank, links)
    unlinked = [event for event in gloo if not _meets_a_link(event, links)]
    yield from _messages(rank, [*unlinked, *nccl], _ways(trace["labkit"], gloo))
    work = [kernel for kernel in kernels if "nccl" not in kernel["name"]]
    fsdp = [event for event in annotations if event["name"].startswith("FSDP::")]
    for start_us, end_us, name in _merged(work or list(_outside(operators, fsdp))):
        yield rank, COMPUTE, COMPUTE, name, start_us, end_us, 0


def within_step(rows: Sequence[Row]) -> list[Row]:
    """Actions, and the communication between the first and the last of them: no barriers, no marks.
    What layers reduce may come after the last, and where the optimizer is labelled its update
    too."""
    actions = [row for row in rows if row[1] == COMPUTE and row[2] != COMPUTE]
    begin_us = min(row[4] for row in actions)
    end_us = max(row[5] for row in actions)
    if any(row[2] in (*LAYER.values(), UPDATE) for row in actions):
        end_us = math.inf
    messages = [row for row in rows if row[1] == COMM and row[2] != "barrier"]
    return actions + [row for row in messages if row[5] > begin_us and row[4] < end_us]


def _end_us(event: Event) -> float:
    return event["ts"] + event["dur"]


def _annotated(rank: int, annotations: Sequence[Event], gloo: Sequence[Event]) -> Iterator[Row]:
    """Labels: a pipeline's actions and a model's layers; any other is a mark."""
    for event in annotations:
        name = event["name"]
        action = ACTION.fullmatch(name)
        if action:
            start_us, end_us = _without_messages(event, gloo)
            kind = action[1] or LAYER[action[2]]
            yield rank, COMPUTE, kind, name, start_us, end_us, 0
        elif name == UPDATE:
            yield rank, COMPUTE, UPDATE, name, event["ts"], _end_us(event), 0
        elif not name.startswith(("gloo:", "nccl:", "ProfilerStep")):
            yield rank, "mark", "mark", name, event["ts"], _end_us(event), 0


def _paced(rank: int, events: Sequence[Event]) -> Iterator[Row]:
    """Pieces of what was computed at a stated pace."""
    for event in events:
        if event.get("cat") == "paced":
            kind = event["args"]["kind"]
            yield rank, COMPUTE, kind, event["name"], event["ts"], _end_us(event), 0


def _linked(rank: int, links: Sequence[Event]) -> Iterator[Row]:
    """What stated links took."""
    for event in links:
        told = event["args"]
        yield rank, COMM, told["kind"], event["name"], event["ts"], _end_us(event), told["bytes"]


def _meets_a_link(event: Event, links: Sequence[Event]) -> bool:
    """Whether a stated link, or the wait for it, stands in the place of this event."""
    for link in links:
        begin_us = link["ts"] - link["args"]["waited_us"]
        if begin_us < _end_us(event) and event["ts"] < _end_us(link):
            return True
    return False


def _messages(rank: int, events: Sequence[Event], ways: dict[int, str]) -> Iterator[Row]:
    """What gloo and NCCL did, labelled by the way of a message or by the collective's name."""
    for event in events:
        told = event["args"]
        kind = told.get("Collective name")
        if not kind:
            kind = event["name"].removeprefix("gloo:").removesuffix("AnySource")
        label = ways.get(id(event), kind)
        yield rank, COMM, kind, label, event["ts"], _end_us(event), _num_bytes(told)


def _ways(about: dict, gloo: Sequence[Event]) -> dict[int, str]:
    """The way of each message, "0>1", by its event's id: the n-th that was posted has the n-th peer
    counted."""
    messages = [event for event in gloo if event["name"].startswith(("gloo:send", "gloo:recv"))]
    posted = sorted(messages, key=lambda event: event["ts"])
    told = about.get("peers", [])
    if [event["name"][5:9] for event in posted] != [kind for kind, _ in told]:
        return {}  # one was posted before the recording, or ends after it
    rank = about["rank"]
    ways = {}
    for event, (kind, peer) in zip(posted, told, strict=True):
        if peer is not None:
            ways[id(event)] = f"{rank}>{peer}" if kind == "send" else f"{peer}>{rank}"
    return ways


def _without_messages(action: Event, gloo: Sequence[Event]) -> tuple[float, float]:
    """An action from the end of the last message it received to the start of the first one it sent.

    A pipeline by hand may receive and send inside its label; torch's runtime does neither.
    """
    start_us = action["ts"]
    end_us = _end_us(action)
    inside = [
        event
        for event in gloo
        if start_us <= event["ts"] and _end_us(event) <= end_us and event["tid"] == action["tid"]
    ]
    received = [_end_us(event) for event in inside if "recv" in event["name"]]
    received_us = max(received, default=start_us)
    sent = [event["ts"] for event in inside if "send" in event["name"]]
    sent_us = min((at_us for at_us in sent if at_us >= received_us), default=end_us)
    return received_us, sent_us


def _outside(operators: Sequence[Event], fsdp: Sequence[Event]) -> Iterator[Event]:
    """The operators without what FSDP does around its messages, and waits for, in the same thread:
    in a backward that happens inside of operators."""
    starts: dict[Any, list[float]] = {}
    ends: dict[Any, list[float]] = {}
    for mark in sorted(fsdp, key=lambda event: event["ts"]):
        mine = ends.setdefault(mark["tid"], [])
        if mine and mark["ts"] <= mine[-1]:
            mine[-1] = max(mine[-1], _end_us(mark))
        else:
            starts.setdefault(mark["tid"], []).append(mark["ts"])
            mine.append(_end_us(mark))
    for event in operators:
        left_us = event["ts"]
        its_starts = starts.get(event["tid"], [])
        its_ends = ends.get(event["tid"], [])
        at = bisect.bisect_right(its_ends, left_us)  # the first mark that ends later
        while at < len(its_starts) and its_starts[at] < _end_us(event):
            if its_starts[at] > left_us:
                yield event | {"ts": left_us, "dur": its_starts[at] - left_us}
            left_us = its_ends[at]
            at += 1
        if left_us < _end_us(event) or not event["dur"]:
            yield event | {"ts": left_us, "dur": _end_us(event) - left_us}


@dataclass
class _Span:
    """Neighbouring operators, drawn as one."""

    start_us: float
    end_us: float
    longest: tuple[float, str]
    """duration and name of the longest"""


def _merged(work: Sequence[Event]) -> Iterator[tuple[float, float, str]]:
    """Outermost operators, c10d left out, neighbours as one span under the name of its longest
    operator."""
    spans: list[_Span] = []
    outer_end_us: dict[Any, float] = {}  # of each thread
    for event in sorted(work, key=lambda event: (event["ts"], -event["dur"])):
        start_us = event["ts"]
        end_us = _end_us(event)
        if start_us < outer_end_us.get(event["tid"], -1.0):
            continue
        outer_end_us[event["tid"]] = end_us
        name = event["name"].removeprefix("aten::")
        if name.startswith("c10d::"):
            continue
        own = (event["dur"], name)
        if spans and start_us - spans[-1].end_us <= GAP_US:
            spans[-1].end_us = max(spans[-1].end_us, end_us)
            spans[-1].longest = max(spans[-1].longest, own)
        else:
            spans.append(_Span(start_us, end_us, own))
    for span in spans:
        yield span.start_us, span.end_us, span.longest[1]


def _num_bytes(args: dict) -> int:
    """The payload of one message or collective on this rank: what NCCL says it takes in, or gloo's
    input tensors."""
    if "In msg nelems" in args:
        return int(args["In msg nelems"]) * BYTES_OF_TYPE.get(args.get("dtype", "").lower(), 1)
    total = 0
    for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False):
        is_list = shape and isinstance(shape[0], list)  # a list of tensors, or one
        shapes = shape if is_list else [shape]
        total += sum(map(math.prod, shapes)) * BYTES_OF_TYPE.get(kind.lower(), 1)
    return total
