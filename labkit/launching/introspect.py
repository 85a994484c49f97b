"""What a rank can tell about itself: where it is, which collectives it has called, what it
raised."""

import json
import linecache
import os
import pickle
import sys
import traceback
import types
from pathlib import Path

_OURS = os.path.dirname(os.path.dirname(__file__))
_PROGRAMS = os.path.join(_OURS, "debugging", "faults.py")


def collectives() -> dict:
    """From torch's flight recorder: collectives that are under way, and the last sequence number of
    each group.

    gloo records them by default. Point-to-point messages are not in it.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace_json

    if not dist.is_initialized():
        return {"pending": [], "groups": {}, "last": None}  # unknown, which is not zero
    entries = json.loads(_dump_fr_trace_json(True, True)).get("entries", [])
    pending = [_entry(entry) for entry in entries if not entry["retired"] and not entry["is_p2p"]]
    # a rank outside a group has a number for it, not a group
    members = list(dist.distributed_c10d._world.pg_group_ranks.items())
    mine = {group: ranks for group, ranks in members if hasattr(group, "group_name")}
    names = {str(group.group_name): sorted(ranks) for group, ranks in mine.items()}
    last = {str(group.group_name): group._get_sequence_number_for_group() for group in mine}
    return {"pending": pending, "groups": names, "last": last}


def calls_file(folder: Path, rank: int) -> Path:
    """Where a rank tells which collectives it has called."""
    return folder / f"calls-{rank}.json"


def read_calls(folder: Path, rank: int) -> list[dict]:
    """What a rank has told; nothing if it told nothing."""
    file = calls_file(folder, rank)
    return json.loads(file.read_text()) if file.exists() else []


def tell_calls(folder: Path, rank: int, sources: dict) -> None:
    """Writes every collective that this rank has called, in order, each with the learner's line
    that called it.

    The flight recorder keeps the last 2,000, and Python's frames of each. A reader finds a whole
    file or none.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    if not dist.is_initialized():
        return
    entries = pickle.loads(_dump_fr_trace(True, True, False)).get("entries", [])
    calls = [
        {**_entry(entry), **_own(entry["frames"], sources)}
        for entry in entries
        if not entry["is_p2p"]
    ]
    draft = calls_file(folder, rank).with_suffix(".draft")
    draft.write_text(json.dumps(calls))
    draft.replace(calls_file(folder, rank))


def where(frame: types.FrameType | None, sources: dict) -> dict:
    """The innermost torch.distributed call of a stack, the peer of a send or recv, and the
    innermost own line."""
    call = peer = line = None
    while frame is not None:
        code, file = frame.f_code, frame.f_code.co_filename
        if (
            "/torch/distributed/" in file
            and line is None
            and not code.co_name.startswith(("wrapper", "_", "<"))
        ):
            call = code.co_name
            peer = _peer(frame) if call in ("send", "recv") else None
        if line is None and is_own(file, sources):
            line = _spot(file, frame.f_lineno, code.co_name, sources)
        frame = frame.f_back
    return {"call": call, "peer": peer, **(line or {})}


def describe(error: BaseException, sources: dict) -> dict:
    """An exception as text: the learner's own frames and the last one, cells named as in the
    notebook."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if is_own(frame.filename, sources)]
    kept = [*mine, *frames[-1:]] if frames[-1:] != mine[-1:] else mine
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(
        (_name(f.filename, sources), f.lineno, f.name, f.line) for f in kept
    )
    spot = _spot(mine[-1].filename, mine[-1].lineno, mine[-1].name, sources) if mine else {}
    spot = {**spot, "file": os.path.basename(spot["file"])} if spot else {}
    said = {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(shown.format()),
        "where": spot,
    }
    return {**said, **collectives()}


def is_own(file: str, sources: dict) -> bool:
    """Whether a file is the learner's: a cell, a script or a program of ``faults``; not Python's, a
    package's or ours."""
    return file in (_PROGRAMS, *sources) or not (
        file.startswith(("<frozen", sys.base_prefix, _OURS)) or "site-packages" in file
    )


def _entry(entry: dict) -> dict:
    return {
        "group": entry["process_group"][0],
        "seq": entry["collective_seq_id"],
        "op": entry["profiling_name"].split(":")[-1],
        "shapes": entry["input_sizes"],
        "dtypes": entry["input_dtypes"],
    }


def _own(frames: list[dict], sources: dict) -> dict:
    """The innermost own line, and the lines of all own frames, innermost first."""
    mine = [frame for frame in frames if is_own(frame["filename"], sources)]
    spot = _spot(mine[0]["filename"], mine[0]["line"], mine[0]["name"], sources) if mine else {}
    return {**spot, "stack": [[frame["filename"], frame["line"]] for frame in mine]}


def _spot(file: str, line: int, function: str, sources: dict) -> dict:
    name, lines = sources.get(file, (os.path.basename(file), None))
    text = (lines[line - 1] if lines else linecache.getline(file, line)).strip()
    return {"file": name, "line": line, "function": function, "text": text}


def _peer(frame: types.FrameType) -> int | None:
    """The rank that a send or recv names, if it names one; a rank of the world, also where there is
    a group."""
    return frame.f_locals.get("dst", frame.f_locals.get("src"))


def _name(file: str, sources: dict) -> str:
    return sources.get(file, (file,))[0]
