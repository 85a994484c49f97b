"""What a run brought back: each rank's result, what it printed, and what it recorded. Saved without
pickles."""

import json
import shutil
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from reprlib import repr as brief

import numpy as np

from labkit.footprint import PARTS, Footprint, from_moments
from labkit.launching import introspect
from labkit.shards import Shards, from_rows
from labkit.timeline import Timeline
from labkit.units import check_real, check_whole, check_word


class Unsaved(str):
    """The repr of a result that fits none of JSON, npz and safetensors: all that a saved run keeps
    of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """The outcome of one launch. ``run[r]`` is what rank r returned."""

    results: tuple
    """one result per rank"""
    logs: tuple[str, ...]
    """what each rank printed, standard output and errors together"""
    seconds: float
    """from the call to the last result, in seconds"""
    backend: str
    """"gloo" or "nccl\""""
    notes: tuple[str, ...]
    """what must be said with every number of it: the backend, "paced", ..."""
    peak_rss_bytes: tuple[int, ...] = ()
    """the largest resident memory of each rank's process, in bytes"""
    machine: dict = field(default_factory=dict)
    """the machine it ran on, as ``machine.summary`` tells it"""
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S"))
    """when, local time"""
    folder: Path | None = None
    """where its traces lie, for as long as the Run lives"""
    origin: str = "measured"
    """"measured", or "recorded" once it was loaded from disk"""

    def __getitem__(self, rank: int) -> object:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    def __repr__(self) -> str:
        return (
            f"Run({len(self)} ranks, {self.origin}, {', '.join(self.notes)}, {self.seconds:.2f} s)"
        )

    def timeline(self) -> Timeline:
        """Everything the ranks recorded with ``trace.record``, on one clock. Raises ValueError when
        they recorded nothing."""
        if self.folder and (saved := self.folder / "timeline.json").exists():
            return replace(Timeline.load(saved), origin=self.origin)
        from labkit.measure import trace

        traces = (
            sorted(self.folder.glob("trace-*")) if self.folder and self.origin == "measured" else []
        )
        if not traces:
            raise ValueError(
                "a timeline needs a recording; these ranks recorded none. Wrap the part to be "
                "seen in "
                "`with trace.record():` inside the launched function."
            )
        return trace.read(traces)

    def calls(self) -> list[list[dict]]:
        """The collectives that each rank called, in order, point-to-point messages left out: one
        list per rank.

        Each is a dict of group, seq (its number in the group), op, shapes, dtypes, and file, line,
        function, text of the line that called it. torch's flight recorder keeps the last 2,000.
        Empty for a script's ranks.
        """
        return [
            introspect.read_calls(self.folder, rank) if self.folder else []
            for rank in range(len(self))
        ]

    def memory(self) -> list[dict]:
        """One row per rank: rank, peak_rss_bytes (largest resident memory of its process)."""
        return [
            {"rank": rank, "peak_rss_bytes": num_bytes}
            for rank, num_bytes in enumerate(self.peak_rss_bytes)
        ]

    def save(self, folder: str | Path) -> Path:
        """Writes the run as JSON, npz and safetensors, with its timeline. Returns the folder, which
        must be new or empty.

        A result that fits none of these formats is kept as its repr, and ``run.json`` names it
        under ``kept_as_repr``.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"a run is saved into a new or empty folder; {folder} holds "
                f"{next(folder.iterdir()).name}. Choose another name or delete it first."
            )
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict = {}
        tensors: dict = {}
        reprs: list[str] = []
        results = [
            _encode(result, f"rank{rank}", arrays, tensors, reprs)
            for rank, result in enumerate(self.results)
        ]
        if arrays:
            np.savez_compressed(folder / "arrays.npz", **arrays)
        if tensors:
            from safetensors.torch import save_file

            save_file(tensors, folder / "tensors.safetensors")
        names = ("logs", "seconds", "backend", "notes", "peak_rss_bytes", "machine", "started")
        about = {name: getattr(self, name) for name in names} | {
            "results": results,
            "kept_as_repr": reprs,
        }
        (folder / "run.json").write_text(json.dumps(about, indent=1, ensure_ascii=False))
        if self.folder and (
            any(self.folder.glob("trace-*")) or (self.folder / "timeline.json").exists()
        ):
            self.timeline().save(folder / "timeline.json")
        for rank, calls in enumerate(self.calls()):
            if calls:
                introspect.calls_file(folder, rank).write_text(json.dumps(calls))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Reads what ``save`` wrote; unpickles nothing. Its origin is "recorded". Raises ValueError
        for any other folder."""
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            raise ValueError(f"a saved run is a folder with a run.json; {str(folder)!r} has none")
        try:
            about, arrays, tensors = _read(folder)
            results = tuple(_decode(result, arrays, tensors) for result in about["results"])
            lists = {name: tuple(about[name]) for name in ("logs", "notes", "peak_rss_bytes")}
            rest = {name: about[name] for name in ("seconds", "backend", "machine", "started")}
            _check(len(results), **lists, **rest)
        except UNREADABLE as error:
            raise ValueError(
                f"a saved run holds what Run.save wrote; {str(folder)!r} does not "
                f"({type(error).__name__}: {str(error)[:500]}). Save it once more."
            ) from error
        return cls(results=results, folder=folder, origin="recorded", **lists, **rest)


UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What readers of JSON, npz and safetensors raise for files that are none."""


def _read(folder: Path) -> tuple[dict, dict, dict]:
    """The files of a saved run. Nothing in them is run: no pickles."""
    about, arrays, tensors = json.loads((folder / "run.json").read_bytes()), {}, {}
    if (folder / "arrays.npz").exists():
        with np.load(folder / "arrays.npz", allow_pickle=False) as file:
            arrays = dict(file)
        if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise ValueError(f"arrays.npz holds arrays only; got {odd[0]!r}")
    if (folder / "tensors.safetensors").exists():
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(folder / "tensors.safetensors")
        except SafetensorError as error:
            raise ValueError(f"tensors.safetensors holds tensors only: {error}") from error
    return about, arrays, tensors


def _check(
    num_ranks: int,
    logs: tuple,
    notes: tuple,
    peak_rss_bytes: tuple,
    seconds: float,
    backend: str,
    machine: dict,
    started: str,
) -> None:
    """Raises ValueError where a part of a saved run is not of its kind."""
    check_real(seconds=seconds)
    check_whole(
        0,
        **{
            f"peak_rss_bytes of rank {rank}": num_bytes
            for rank, num_bytes in enumerate(peak_rss_bytes)
        },
    )
    if not all(
        isinstance(text, str) for text in (*logs, *notes, backend, started)
    ) or not isinstance(machine, dict):
        raise ValueError(
            "logs, notes, backend and started are words, and a machine is a dict; got "
            f"{brief([logs, notes, backend, started, machine])}"
        )
    if {len(logs), len(peak_rss_bytes) or num_ranks} != {num_ranks}:
        raise ValueError(
            f"a run has a result, a log and a peak for each rank; got {num_ranks} results and "
            f"{len(logs)} "
            "logs"
        )


def remove(folder: Path) -> None:
    """Deletes a run's temporary folder."""
    shutil.rmtree(folder, ignore_errors=True)


def _encode(value: object, key: str, arrays: dict, tensors: dict, reprs: list[str]) -> object:
    """JSON for a value; arrays and tensors go into their own files, named by where they stand in
    the result."""
    if value is None or (
        isinstance(value, (bool, int, float, str)) and not isinstance(value, Unsaved)
    ):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str)):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype != object:
        arrays[key] = value
        return {"$npz": key}
    if type(value).__module__.startswith("torch") and hasattr(value, "is_contiguous"):
        tensors[key] = value.detach().contiguous().clone()
        return {"$safetensors": key}
    if type(value) in (list, tuple):
        items = [
            _encode(item, f"{key}.{i}", arrays, tensors, reprs) for i, item in enumerate(value)
        ]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict) and type(value).__name__ in ("dict", "OrderedDict"):
        pairs = []
        for i, (k, v) in enumerate(
            value.items()
        ):  # a key may hold a dot, 1 is not "1": the number keeps names apart
            named = ((k, f"{key}.key{i}"), (v, f"{key}.{k}#{i}"))
            pairs.append([_encode(part, name, arrays, tensors, reprs) for part, name in named])
        return {"$dict": pairs}
    if isinstance(value, Shards):
        return {"$shards": [value.rows(), value.num_ranks, value.notes]}
    if isinstance(value, Footprint):
        return {"$footprint": [value.labels, value.num_bytes.tolist(), value.notes]}
    reprs.append(key)
    return {"$repr": str(value) if isinstance(value, Unsaved) else repr(value)}


TAGS = ("$npz", "$safetensors", "$shards", "$footprint", "$tuple", "$dict", "$repr")


def _decode(value: object, arrays: dict, tensors: dict) -> object:
    if isinstance(value, list):
        return [_decode(item, arrays, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    check_word(tag, TAGS, "what stands for a value")
    if tag == "$npz":
        return arrays[content]
    if tag == "$safetensors":
        return tensors[content]
    if tag == "$shards":
        rows, num_ranks, notes = content
        return from_rows(rows, num_ranks=num_ranks, origin="recorded", notes=notes)
    if tag == "$footprint":
        labels, num_bytes, notes = content
        moments = (
            (label, dict(zip(PARTS, row, strict=True)))
            for label, row in zip(labels, num_bytes, strict=True)
        )
        return from_moments(moments, "recorded", notes)
    if tag == "$tuple":
        return tuple(_decode(item, arrays, tensors) for item in content)
    if tag == "$dict":
        return {_decode(k, arrays, tensors): _decode(v, arrays, tensors) for k, v in content}
    return Unsaved(str(content))


def tail(text: str, num_lines: int = 12) -> str:
    """The last lines of a log."""
    lines: Sequence[str] = str.strip(text).splitlines()[-num_lines:]
    return "\n".join(lines)
