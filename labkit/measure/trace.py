"""What really happened: ranks record with torch.profiler (Kineto), and their files become one
Timeline.

    def train():
        with trace.record(stage):     # a pipeline's stages are labelled exactly
            schedule.step(tokens)

``lab.launch(train, record=True)`` records all of a function.

Without stages, plain torch code is recorded. A label "2F0" is stage 2, forward, microbatch 0
(``labels``); a message from rank 0 to rank 1 is called "0>1".
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from labkit.launching.verdicts.introspect import inductor_left_alone
from labkit.measure import labels, trace_rows
from labkit.measure.trace_rows import ACTIONS, Row
from labkit.timeline import COMM, Timeline, from_rows

_ESCAPED = {code: f"%{code:02X}" for code in (*range(32), *map(ord, '"%\\'))}
"""What Kineto can't keep: it writes a slash for each backslash, so JSON's own escapes are lost."""
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
                "notes": [note.translate(_ESCAPED) for note in here.notes],
                "spans": [{**each, "label": each["label"].translate(_ESCAPED)} for each in _spans],
                "peers": counted.peers,
            }
            profiler.add_metadata_json("labkit", json.dumps(about, ensure_ascii=False))
        finally:
            _spans = None
            with _quiet():
                profiler.stop()
    profiler.export_chrome_trace(os.fspath(Path(folder) / f"trace-{here.rank}.json"))


def recorded(fn: Callable, /, *args: object, **kwargs: object) -> object:
    """Calls ``fn`` within ``record()``, and returns what it returned."""
    with record():
        return fn(*args, **kwargs)


def span(
    kind: str,
    label: str,
    start_ns: int,
    end_ns: int,
    num_bytes: int = 0,
    waited_ns: int = 0,
    lane: str = COMM,
) -> None:
    """Adds a span to this rank's recording: what a stated link took, or on another lane a piece of
    what was computed at a stated pace. Without a recording, nothing.

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
                "lane": lane,
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
    with inductor_left_alone(), labels.replaced(kineto, _enable_profiler=enable), _quiet():
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
    rows: list[Row] = []
    notes: dict[str, None] = {}
    for trace in traces:
        rows += trace_rows.rows(trace, (trace["baseTimeNanoseconds"] - zero_ns) / 1e3)
        notes |= dict.fromkeys(trace["labkit"]["notes"])
    if any(row[2] in ACTIONS for row in rows):
        rows = trace_rows.within_step(rows)
    earliest_us = min((row[4] for row in rows), default=0.0)
    rows = [(*row[:4], row[4] - earliest_us, row[5] - earliest_us, row[6]) for row in rows]
    num_ranks = max(trace["labkit"]["num_ranks"] for trace in traces)
    return from_rows(rows, num_ranks=num_ranks, origin="measured", notes=notes)


def merge_chrome(source: str | Path | Iterable[str | Path], path: str | Path) -> Path:
    """Everything Kineto recorded on all ranks in one Chrome trace for Perfetto, processes named
    after ranks."""
    traces = _load(source)
    merged = []
    zero_ns = min(trace["baseTimeNanoseconds"] for trace in traces)
    for trace in traces:
        rank = trace["labkit"]["rank"]
        shift_us = (trace["baseTimeNanoseconds"] - zero_ns) / 1e3
        pids: dict[Any, int] = {}
        for event in trace["traceEvents"]:
            event["pid"] = 1000 * rank + pids.setdefault(event["pid"], len(pids))
            event["ts"] = event.get("ts", 0) + shift_us
            if "id" in event:
                event["id"] = f"{rank}.{event['id']}"
            if event["name"] == "process_name":
                event["args"] = {"name": f"rank {rank}: {event['args']['name']}"}
            merged.append(event)
    whole = {"traceEvents": merged, "displayTimeUnit": "ms", "baseTimeNanoseconds": zero_ns}
    Path(path).write_text(json.dumps(whole))
    return Path(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kineto writes two lines of no use to stderr, from C++, whenever it starts and stops."""
    stderr = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
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
    given = [source] if isinstance(source, (str, Path)) else source
    paths: list[Path] = []
    for path in map(Path, given):
        paths += path.glob("trace-*.json") if path.is_dir() else [path]
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
        about = trace["labkit"]
        about["notes"] = [unquote(note) for note in about["notes"]]
        for each in about.get("spans", []):
            each["label"] = unquote(each["label"])
        trace["traceEvents"] += _link_events(trace)
        traces.append(trace)
    return sorted(traces, key=lambda trace: trace["labkit"]["rank"])


def _link_events(trace: dict) -> list[dict]:
    """What ``span`` added, as events of that rank's process on a thread "links"."""
    zero_ns = trace["baseTimeNanoseconds"]
    pid = next((event["pid"] for event in trace["traceEvents"] if "dur" in event), 0)
    return [
        {
            "ph": "X",
            "cat": "link" if each["lane"] == COMM else "paced",
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
