"""What a rank can tell about itself: where it is, which collectives it has called, what it
raised."""

import contextlib
import itertools
import json
import linecache
import os
import pickle
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from operator import attrgetter, itemgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.launching.fork.request import Source

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Sources = Mapping[str, Source]

_DEFAULT_DEVICE = os.path.join("torch", "utils", "_device.py")
_LABKIT = str(Path(__file__).parents[2])
_PROGRAMS = os.path.join(_LABKIT, "debugging", "faults.py")
"""The one file of ours whose lines a learner shall see: its programs are launched as they stand,
and a verdict on them names the line that is at fault. By its path, for launching stands left of
debugging and may not import it."""
_PEERS = {"send": "dst", "recv": "src"}
"""torch's calls that name another rank, and what they call it."""


def collectives() -> dict:
    """From torch's flight recorder: ``pending`` (collectives that are under way), ``groups`` (name
    -> ranks), and ``last``, the last sequence number of each group.

    gloo records them by default. Point-to-point messages are not in it.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace_json

    if not dist.is_initialized():
        return {"pending": (), "groups": {}, "last": None}  # unknown, which is not zero
    entries = json.loads(_dump_fr_trace_json(True, True)).get("entries", [])
    pending = [_entry(entry) for entry in entries if not entry["retired"] and not entry["is_p2p"]]
    names = {}
    last = {}
    for group, ranks in list(dist.distributed_c10d._world.pg_group_ranks.items()):
        if hasattr(group, "group_name"):  # a rank outside a group has a number for it, not a group
            names[str(group.group_name)] = sorted(ranks)
            last[str(group.group_name)] = _sequence_number(group)
    return {"pending": tuple(pending), "groups": names, "last": last}


def calls(sources: Sources) -> list[dict] | None:
    """Every collective that this rank has called, in order, each with the learner's line that
    called it. None where there is no process group.

    The flight recorder keeps the last 2,000, and Python's frames of each.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace

    if not dist.is_initialized():
        return None
    with inductor_left_alone():
        dump = _dump_fr_trace(True, True, False)
    entries = pickle.loads(dump).get("entries", [])
    return [
        {**_entry(entry), **_own_lines(entry["frames"], sources)}
        for entry in entries
        if not entry["is_p2p"]
    ]


@contextlib.contextmanager
def inductor_left_alone() -> Iterator[None]:
    """Inside, torch's recorder and its profiler do not import torch._inductor (1 s, on every rank)
    only to ask it for the lines of compiled code, or for CUDA graphs: where it is not loaded there
    is neither."""
    import torch

    if "torch._inductor" in sys.modules:
        yield
        return
    empty = types.ModuleType("torch._inductor")
    empty.config = types.ModuleType("torch._inductor.config")
    empty.config.triton = types.SimpleNamespace(cudagraphs=False)
    torch._inductor = empty
    sys.modules["torch._inductor"] = empty
    sys.modules["torch._inductor.config"] = empty.config
    try:
        yield
    finally:
        del torch._inductor
        del sys.modules["torch._inductor"]
        del sys.modules["torch._inductor.config"]


def where(thread: int, sources: Sources) -> dict:
    """The innermost torch.distributed call of a thread's stack (``call``), the ``peer`` of a send
    or recv, and the innermost own line."""
    found = {"call": None, "peer": None}
    for depth, (code, line) in enumerate(_stack(thread)):
        if is_own(code.co_filename, sources):
            return found | _place(code.co_filename, line, code.co_name, sources)
        if _is_public_call(code):
            found = {"call": code.co_name, "peer": None}
            if code.co_name in _PEERS:
                found["peer"] = _peer(thread, depth, _PEERS[code.co_name])
    return found


def _frames(thread: int) -> Iterator[types.FrameType]:
    """A thread's frames, innermost first. To be used up by one call of C's, as here, where Python
    runs in no other thread.

    Who holds a frame while its function returns is left its locals, and they end where it is let
    go. torch's guards are such locals (one for each tensor that is printed): ended by another
    thread they change their own thread's state in the midst of its work, which then fails with
    "Attempted to make a tensor into a differentiable view", or goes on in the wrong state.
    """
    innermost = map(itemgetter(thread), iter(sys._current_frames, None))
    steps = itertools.chain(itertools.islice(innermost, 1), itertools.repeat("f_back"))
    return itertools.takewhile(bool, itertools.accumulate(steps, getattr))


def _stack(thread: int) -> list[tuple[types.CodeType, int]]:
    """The code of each of a thread's frames and the line that it is at, innermost first."""
    return list(map(attrgetter("f_code", "f_lineno"), _frames(thread)))


def _peer(thread: int, depth: int, name: str) -> int | None:
    """What a frame calls ``name``: a rank of the world, also where there is a group. None where the
    call names none, or the thread has moved on since."""
    frame = itertools.islice(_frames(thread), depth, depth + 1)
    peers = list(map(methodcaller("get", name), map(attrgetter("f_locals"), frame)))
    return peers[0] if peers and isinstance(peers[0], int) else None


def describe(error: BaseException, sources: Sources) -> dict:
    """An exception as text: its ``type`` and ``message``, a ``traceback`` of the learner's own
    frames and the last one, cells named as in the notebook, and ``where`` it was raised. Where no
    frame is the learner's, the innermost of a package that is not torch stands for them."""
    found = traceback.extract_tb(error.__traceback__)
    # torch's default device stands between a cell and the operation that it called
    frames = [frame for frame in found if not frame.filename.endswith(_DEFAULT_DEVICE)]
    mine = [frame for frame in frames if is_own(frame.filename, sources)]
    mine = mine or [frame for frame in frames if _is_a_packages(frame.filename)][-1:]
    kept = [*mine, *frames[-1:]] if frames[-1:] != mine[-1:] else mine
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(
        (_shown_name(each.filename, sources), each.lineno, each.name, each.line) for each in kept
    )
    place = {}
    if kept:
        last = (mine or kept)[-1]
        place = _place(last.filename, last.lineno, last.name, sources)
        place["file"] = os.path.basename(place["file"])
    return {
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(shown.format()),
        "where": place,
    }


def is_own(file: str, sources: Sources) -> bool:
    """Whether a file is the learner's: a cell, a script or a program of ``faults``; not Python's, a
    package's or ours."""
    if file == _PROGRAMS or file in sources:
        return True
    return not file.startswith(("<frozen", sys.base_prefix, _LABKIT)) and (
        "site-packages" not in file
    )


def _is_a_packages(file: str) -> bool:
    """Whether a file is of an installed package that is neither torch nor ours."""
    package = file.rpartition(f"site-packages{os.sep}")[2].partition(os.sep)[0]
    return "site-packages" in file and package != "torch" and not file.startswith(_LABKIT)


def _is_public_call(code: types.CodeType) -> bool:
    """Whether a frame is one of torch.distributed's functions, and not what wraps it."""
    return "/torch/distributed/" in code.co_filename and not code.co_name.startswith(
        ("wrapper", "_", "<")
    )


def _sequence_number(group: "ProcessGroup") -> int:
    """Of a group's last collective. Its backends are asked: the group itself knows torch's own
    only, and not those of ``devices.through_host``."""
    backends = [group._get_backend(device) for device in group._device_types]
    return max(each._get_sequence_number_for_group() for each in backends)


def _entry(entry: dict) -> dict:
    """A call of the flight recorder in our words."""
    return {
        "group": entry["process_group"][0],
        "seq": entry["collective_seq_id"],
        "op": entry["profiling_name"].split(":")[-1],
        "shapes": entry["input_sizes"],
        "dtypes": entry["input_dtypes"],
    }


def _own_lines(frames: list[dict], sources: Sources) -> dict:
    """The innermost own line, and the lines of all own frames, innermost first."""
    mine = [frame for frame in frames if is_own(frame["filename"], sources)]
    place = {}
    if mine:
        place = _place(mine[0]["filename"], mine[0]["line"], mine[0]["name"], sources)
    return {**place, "stack": [[frame["filename"], frame["line"]] for frame in mine]}


def _place(file: str, line: int, function: str, sources: Sources) -> dict:
    """A line: its file as the notebook shows it, its number, function and text."""
    name = os.path.basename(file)
    text = linecache.getline(file, line)
    if file in sources:
        name = sources[file].name
        text = sources[file].lines[line - 1]
    return {"file": name, "line": line, "function": function, "text": text.strip()}


def _shown_name(file: str, sources: Sources) -> str:
    """A cell's name, or a file's: of an installed package from the package on."""
    if file in sources:
        return sources[file].name
    return file.rpartition(f"site-packages{os.sep}")[2]
