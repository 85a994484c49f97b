"""What really happened: ranks record with torch.profiler (Kineto), and their files become one
Timeline.

    def train():
        with trace.record(stage):     # a pipeline's stages are labelled exactly; without any, plain torch code
            schedule.step(tokens)

A label "2F0" is stage 2, forward, microbatch 0 (``labels``); a message from rank 0 to rank 1 is
called "0>1".
"""

import contextlib
import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.measure import labels
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows

ACTION = re.compile(r"(?:\d+([FBIW])|([FB]))\d+")
LAYER = {"F": "forward", "B": "backward"}
"""The kinds of labels without a stage: "F3" and "B3", forward and backward of layer 3, in data
parallelism."""
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
_spans: list[dict] | None = None  # what ``span`` added to the recording under way


@contextlib.contextmanager
def record(
    *stages: Any, operators: bool | None = None, folder: str | Path | None = None
) -> Iterator[None]:
    """Records this rank while the block runs, into ``trace-<rank>.json`` of the run's folder (or of
    ``folder``).

    ``stages``: PipelineStage objects, after ``pace`` has wrapped them, or a DeepSpeed
    PipelineEngine. ``operators``: every operator too, at some 5 us each; by default only without
    stages, for those have labels. One recording per rank and run: a later one replaces it. Raises
    ValueError where there is no folder to write to.
    """
    from labkit.launching import rank
    from labkit.measure import traffic

    global _spans
    here = rank.current()
    folder = folder or here.folder
    if folder is None:
        raise ValueError(
            "a recording needs a folder; outside a launch give record(folder=...) or set "
            "LABKIT_RUN_DIR"
        )
    with contextlib.ExitStack() as restored:
        for stage in stages:
            restored.enter_context(labels.replaced(stage, **labels.labelled(stage)))
        counted = restored.enter_context(traffic.count())
        profiler = _started(not stages if operators is None else operators)
        _spans = []
        try:
            yield
            about = {
                "rank": here.rank,
                "num_ranks": here.world_size,
                "notes": list(here.notes),
                "spans": _spans,
                "peers": counted.peers,
            }
            profiler.add_metadata_json("labkit", json.dumps(about))
        finally:
            _spans = None
            with _quiet():
                profiler.stop()
    profiler.export_chrome_trace(os.fspath(Path(folder) / f"trace-{here.rank}.json"))


def span(
    kind: str, label: str, start_ns: int, end_ns: int, num_bytes: int = 0, waited_ns: int = 0
) -> None:
    """Adds a span on the comm lane to this rank's recording: what a stated link took. Without a
    recording, nothing.

    Times are ``time.time_ns()``, which is Kineto's clock. Reading puts it in the place of the
    ``gloo:*`` spans that it meets, also while it waited for its link: ``waited_ns`` before its
    start. For any thread, until the recording ends.
    """
    if _spans is not None:
        _spans.append(
            {
                "kind": kind,
                "label": label,
                "start_ns": start_ns,
                "end_ns": end_ns,
                "num_bytes": num_bytes,
                "waited_ns": waited_ns,
            }
        )


def _started(operators: bool) -> Any:
    """A running profiler. Without operators it keeps to labels and messages (a scope that torch
    offers privately)."""
    import torch
    from torch._C._profiler import RecordScope
    from torch.autograd import profiler as kineto
    from torch.profiler import ProfilerActivity, profile

    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    profiler = profile(activities=[ProfilerActivity.CPU, *cuda], record_shapes=True)
    scopes = set() if operators else {RecordScope.USER_SCOPE}
    enable = functools.partial(kineto._enable_profiler, scopes=scopes)
    with labels.replaced(kineto, _enable_profiler=enable), _quiet():
        profiler.start()
    return profiler


def read(source: str | Path | Iterable[str | Path]) -> Timeline:
    """The recordings of a run (its folder, or paths) as one measured Timeline, all ranks on one
    clock.

    The compute lane holds a pipeline's actions ("2F0") or a model's layers ("F0"); in a run without
    any, the operators that are not communication, or the GPU's kernels where there are some. The
    comm lane holds what ``gloo:*`` and NCCL spans say: a send or receive lasts from its posting to
    the end of its wait; and what ``span`` added, in place of the gloo spans under it. Lane "mark"
    holds your own ``record_function`` labels, where there are no actions. Across machines the
    clocks are those machines' own.
    """
    traces = _load(source)
    zero_ns = min(trace["baseTimeNanoseconds"] for trace in traces)
    rows = [
        row
        for trace in traces
        for row in _rows(trace, (trace["baseTimeNanoseconds"] - zero_ns) / 1e3)
    ]
    if any(kind in ACTIONS for _, _, kind, *_ in rows):
        rows = _within_step(rows)
    earliest_us = min((row[4] for row in rows), default=0.0)
    rows = [(*row[:4], row[4] - earliest_us, row[5] - earliest_us, row[6]) for row in rows]
    notes = dict.fromkeys(note for trace in traces for note in trace["labkit"]["notes"])
    num_ranks = max(trace["labkit"]["num_ranks"] for trace in traces)
    return from_rows(rows, num_ranks=num_ranks, origin="measured", notes=notes)


def merge_chrome(source: str | Path | Iterable[str | Path], path: str | Path) -> Path:
    """Everything Kineto recorded on all ranks in one Chrome trace for Perfetto, processes named
    after ranks."""
    traces, merged = _load(source), []
    zero_ns = min(trace["baseTimeNanoseconds"] for trace in traces)
    for trace in traces:
        rank, shift_us = trace["labkit"]["rank"], (trace["baseTimeNanoseconds"] - zero_ns) / 1e3
        pids: dict[Any, int] = {}
        for event in trace["traceEvents"]:
            event["pid"] = 1000 * rank + pids.setdefault(event["pid"], len(pids))
            event["ts"] = event.get("ts", 0) + shift_us
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
            merged.append(event)
    path = Path(path)
    path.write_text(
        json.dumps({"traceEvents": merged, "displayTimeUnit": "ms", "baseTimeNanoseconds": zero_ns})
    )
    return path


def _within_step(rows: list[tuple]) -> list[tuple]:
    """Actions, and the communication between the first and the last of them: no barriers, no marks.
    What layers reduce may come after the last."""
    actions = [row for row in rows if row[2] in ACTIONS]
    begin_us, end_us = min(row[4] for row in actions), max(row[5] for row in actions)
    end_us = math.inf if any(row[2] in LAYER.values() for row in actions) else end_us
    messages = (row for row in rows if row[1] == COMM and row[2] != "barrier")
    return actions + [row for row in messages if row[5] > begin_us and row[4] < end_us]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kineto writes two lines of no use to stderr, from C++, whenever it starts and stops."""
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)


def _load(source: str | Path | Iterable[str | Path]) -> list[dict]:
    """The Kineto files, by rank. Raises ValueError where there are none, or one that ``record`` did
    not write."""
    paths = [Path(source)] if isinstance(source, (str, Path)) else [Path(path) for path in source]
    paths = [
        file for path in paths for file in (path.glob("trace-*.json") if path.is_dir() else [path])
    ]
    if not paths:
        raise ValueError(
            f"`with trace.record():` in a rank writes trace-<rank>.json; {source!r} holds no such "
            "file"
        )
    traces = []
    for path in paths:
        trace = json.loads(path.read_bytes())
        if "labkit" not in trace or "baseTimeNanoseconds" not in trace:
            raise ValueError(
                f"labkit.measure.trace reads what labkit.measure.trace.record wrote; {path} is "
                "another kind of file"
            )
        trace["traceEvents"] += _link_events(trace)
        traces.append(trace)
    return sorted(traces, key=lambda trace: trace["labkit"]["rank"])


def _link_events(trace: dict) -> list[dict]:
    """What ``span`` added, as events of that rank's process on a thread "links"."""
    zero_ns, pid = (
        trace["baseTimeNanoseconds"],
        next((e["pid"] for e in trace["traceEvents"] if "dur" in e), 0),
    )
    return [
        {
            "ph": "X",
            "cat": "link",
            "name": each["label"],
            "pid": pid,
            "tid": "links",
            "ts": (each["start_ns"] - zero_ns) / 1e3,
            "dur": (each["end_ns"] - each["start_ns"]) / 1e3,
            "args": {
                "kind": each["kind"],
                "bytes": each["num_bytes"],
                "waited_us": each["waited_ns"] / 1e3,
            },
        }
        for each in trace["labkit"].get("spans", [])
    ]


def _rows(trace: dict, shift_us: float) -> Iterator[tuple]:
    """The rows of one rank: actions, communication, marks, and what else it computed."""
    rank = trace["labkit"]["rank"]
    events = [
        {**event, "ts": event["ts"] + shift_us} for event in trace["traceEvents"] if "dur" in event
    ]
    notes = [event for event in events if event.get("cat") == "user_annotation"]
    gloo = [event for event in notes if event["name"].startswith("gloo:")]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    for event in notes:
        match = ACTION.fullmatch(event["name"])
        start_us, end_us = (
            _without_messages(event, gloo) if match else (event["ts"], event["ts"] + event["dur"])
        )
        if match:
            yield rank, COMPUTE, match[1] or LAYER[match[2]], event["name"], start_us, end_us, 0
        elif not event["name"].startswith(("gloo:", "nccl:", "ProfilerStep")):
            yield rank, "mark", "mark", event["name"], start_us, end_us, 0
    ways = _ways(trace["labkit"], gloo)
    links = [(e["ts"], e["ts"] + e["dur"], e) for e in events if e.get("cat") == "link"]
    for start_us, end_us, event in links:
        yield (
            rank,
            COMM,
            event["args"]["kind"],
            event["name"],
            start_us,
            end_us,
            event["args"]["bytes"],
        )
    taken = [(start_us - event["args"]["waited_us"], end_us) for start_us, end_us, event in links]
    gloo = [
        e
        for e in gloo
        if not any(start < e["ts"] + e["dur"] and e["ts"] < end for start, end in taken)
    ]
    for event in gloo + [kernel for kernel in kernels if "nccl" in kernel["name"]]:
        kind = event["args"].get("Collective name") or event["name"].removeprefix(
            "gloo:"
        ).removesuffix("AnySource")
        label, end_us = ways.get(id(event), kind), event["ts"] + event["dur"]
        yield rank, COMM, kind, label, event["ts"], end_us, _num_bytes(event["args"])
    work = [kernel for kernel in kernels if "nccl" not in kernel["name"]]
    for start_us, end_us, name in _merged(
        work or [event for event in events if event.get("cat") == "cpu_op"]
    ):
        yield rank, COMPUTE, COMPUTE, name, start_us, end_us, 0


def _ways(about: dict, gloo: list[dict]) -> dict[int, str]:
    """The way of each message, "0>1", by its event's id: the n-th that was posted has the n-th peer
    counted."""
    posted = sorted(
        (e for e in gloo if e["name"].startswith(("gloo:send", "gloo:recv"))), key=lambda e: e["ts"]
    )
    told = about.get("peers", [])
    if [event["name"][5:9] for event in posted] != [kind for kind, _ in told]:
        return {}  # one was posted before the recording, or ends after it
    pairs = zip(posted, told, strict=True)
    return {
        id(event): f"{about['rank']}>{peer}" if kind == "send" else f"{peer}>{about['rank']}"
        for event, (kind, peer) in pairs
        if peer is not None
    }


def _without_messages(action: dict, gloo: list[dict]) -> tuple[float, float]:
    """An action from the end of the last message it received to the start of the first one it sent.

    A pipeline by hand may receive and send inside its label; torch's runtime does neither.
    """
    start_us, end_us = action["ts"], action["ts"] + action["dur"]
    inside = [
        e
        for e in gloo
        if start_us <= e["ts"] and e["ts"] + e["dur"] <= end_us and e["tid"] == action["tid"]
    ]
    received_us = max((e["ts"] + e["dur"] for e in inside if "recv" in e["name"]), default=start_us)
    sent_us = min(
        (e["ts"] for e in inside if "send" in e["name"] and e["ts"] >= received_us), default=end_us
    )
    return received_us, sent_us


def _merged(work: list[dict]) -> Iterator[tuple[float, float, str]]:
    """Outermost operators, c10d left out, neighbours as one span under the name of its longest
    operator."""
    spans: list[list] = []
    outer_end_us: dict[Any, float] = {}
    for event in sorted(work, key=lambda e: (e["ts"], -e["dur"])):
        start_us, end_us, name = (
            event["ts"],
            event["ts"] + event["dur"],
            event["name"].removeprefix("aten::"),
        )
        if start_us < outer_end_us.get(event["tid"], -1.0):
            continue
        outer_end_us[event["tid"]] = end_us
        if name.startswith("c10d::"):
            continue
        if not spans or start_us - spans[-1][1] > GAP_US:
            spans.append([start_us, end_us, (event["dur"], name)])
        else:
            spans[-1][1:] = max(spans[-1][1], end_us), max(spans[-1][2], (event["dur"], name))
    yield from ((start_us, end_us, name) for start_us, end_us, (_, name) in spans)


def _num_bytes(args: dict) -> int:
    """The payload of one message or collective on this rank: what NCCL says it takes in, or gloo's
    input tensors."""
    if "In msg nelems" in args:
        return int(args["In msg nelems"]) * BYTES_OF_TYPE.get(args.get("dtype", "").lower(), 1)
    total = 0
    for shape, kind in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False):
        shapes = (
            shape if shape and isinstance(shape[0], list) else [shape]
        )  # a list of tensors, or one
        total += sum(map(math.prod, shapes)) * BYTES_OF_TYPE.get(kind.lower(), 1)
    return total
