"""A folder or a file from elsewhere is only data: loading it runs nothing, whatever it holds."""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.launching.run import Run
from labkit.timeline import Timeline, from_rows

ROOT = Path(__file__).parents[2]


class Trap:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> tuple:
        return os.mkdir, (self.canary,)


GOOD = {
    "results": [1, 2],
    "logs": ["", ""],
    "notes": ["gloo"],
    "peak_rss_bytes": [1, 2],
    "seconds": 1.0,
    "backend": "gloo",
    "machine": {},
    "started": "2026-01-01T00:00:00",
    "kept_as_repr": [],
}
ROW = [0, "parameter", "w", 0, 4, "float32", "cpu"]
RESULTS = (
    {"$npz": "../../x"},
    {"$npz": "/etc/passwd"},
    {"$npz": ["a"]},
    {"$npz": None},
    {"$safetensors": "../../x"},
    {"$safetensors": {}},
    {"$exec": "import os"},
    {"$py/reduce": [["os.system"], ["x"]]},
    {},
    {"a": 1, "b": 2},
    {"$tuple": 3},
    {"$tuple": None},
    {"$dict": [[1]]},
    {"$dict": [[[1], 2]]},
    {"$dict": {"a": 1}},
    {"$dict": 7},
    {"$shards": []},
    {"$shards": [[ROW], 10**30, []]},
    {"$shards": [[ROW], -1, []]},
    {"$shards": [[ROW[:3]], 1, []]},
    {"$shards": [[[0, "parameter", "w", 0, 10**30, "float32", "cpu"]], 1, []]},
    {"$shards": [[ROW], "1", []]},
    {"$shards": [[[0, "parameter", "w", 0, 4, "pickle", "cpu"]], 1, []]},
    {"$shards": [7, 1, []]},
    {"$footprint": [["F0"], [[1, 2]], []]},
    {"$footprint": [[], [], []]},
    {"$footprint": [["F0"], [[10**30] * 7], 0]},
    {"$footprint": [["F0", "F1"], [[1] * 7], []]},
    {"$footprint": None},
    {"$footprint": [["F0"], [["x"] * 7], []]},
)
FIELDS = (
    {"results": None},
    {"results": 3},
    {"logs": None},
    {"logs": [1, 2]},
    {"logs": ["one"]},
    {"notes": [None]},
    {"peak_rss_bytes": ["much", 2]},
    {"peak_rss_bytes": [10**30, 2]},
    {"seconds": "long"},
    {"seconds": None},
    {"seconds": float("nan")},
    {"seconds": 10**400},
    {"machine": []},
    {"backend": 3},
    {"devices": 3},
    {"started": {}},
)
TEXTS = (
    "",
    "{",
    "[]",
    "3",
    "null",
    '"results"',
    "\xff",
    "{}",
    "[" * 100_000,
    '{"results":' * 50_000,
    '{"results": ' + "9" * 5000 + "}",
    json.dumps({**GOOD, "results": [[]]}).replace("[[]]", "[" * 900 + "]" * 900),
)


def refused(folder: Path) -> str:
    """The words in which loading a run is refused."""
    with pytest.raises(
        ValueError, match=r"holds what Run\.save wrote; .* does not \(.*Save it once more"
    ) as caught:
        Run.load(folder)
    assert len(str(caught.value)) < 1500
    return str(caught.value)


def stranger(folder: Path, **fields: object) -> Path:
    """A folder that could be a saved run's."""
    (folder / "run.json").write_text(json.dumps({**GOOD, **fields}))
    return folder


def test_the_good_folder_is_good(tmp_path):
    assert list(Run.load(stranger(tmp_path))) == [1, 2]


@pytest.mark.parametrize("result", RESULTS, ids=str)
def test_a_strange_result_is_refused(tmp_path, result):
    refused(stranger(tmp_path, results=[1, result]))


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_strange_field_is_refused(tmp_path, fields):
    refused(stranger(tmp_path, **fields))


@pytest.mark.parametrize("name", [name for name in GOOD if name != "kept_as_repr"])
def test_a_missing_field_is_refused_by_name(tmp_path, name):
    (tmp_path / "run.json").write_text(
        json.dumps({key: value for key, value in GOOD.items() if key != name})
    )
    assert name in refused(tmp_path)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:12])
def test_a_run_json_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text, encoding="latin-1")
    refused(tmp_path)


def planted(kind: str, trap: Trap) -> bytes:
    """A file of arrays that holds a pickle in one of the ways that there are, or no arrays at
    all."""
    if kind == "object array":
        buffer = io.BytesIO()
        np.savez(buffer, **{"rank0": np.array([trap], dtype=object)})
        return buffer.getvalue()
    if kind == "npy of objects":
        buffer = io.BytesIO()
        np.save(buffer, np.array([trap], dtype=object), allow_pickle=True)
        return buffer.getvalue()
    if kind == "npy":
        buffer = io.BytesIO()
        np.save(buffer, np.ones(3))
        return buffer.getvalue()
    if kind == "torch.save":
        buffer = io.BytesIO()
        torch.save(trap, buffer)
        return buffer.getvalue()
    if kind in ("zip of a pickle", "huge", "code for a header"):
        header = {
            "huge": "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
            "code for a header": f"__import__('os').mkdir({trap.canary!r})",
        }.get(kind, "")
        head = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("rank0.npy", head if header else pickle.dumps(trap))
        return buffer.getvalue()
    return {
        "pickle": pickle.dumps(trap),
        "empty": b"",
        "noise": os.urandom(300),
        "text": b"x" * 9,
        "half a zip": b"PK\x03\x04" + bytes(40),
        "long header": (2**63 - 1).to_bytes(8, "little") + b"{}",
    }[kind]


KINDS = (
    "object array",
    "npy of objects",
    "npy",
    "torch.save",
    "zip of a pickle",
    "huge",
    "code for a header",
    "pickle",
    "empty",
    "noise",
    "text",
    "half a zip",
    "long header",
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["arrays.npz", "tensors.safetensors"])
def test_a_planted_file_runs_nothing_and_is_refused(tmp_path, name, kind):
    tag = {"arrays.npz": "$npz", "tensors.safetensors": "$safetensors"}[name]
    stranger(tmp_path, results=[{tag: "rank0"}, 2])
    (tmp_path / name).write_bytes(planted(kind, Trap(tmp_path / "canary")))
    refused(tmp_path)
    assert not (tmp_path / "canary").exists()


def test_the_trap_works(tmp_path):
    pickle.loads(planted("pickle", Trap(tmp_path / "canary")))
    assert (tmp_path / "canary").is_dir()


def test_a_loaded_run_reads_no_traces_but_its_own_timeline(tmp_path):
    (tmp_path / "trace-0.json").write_text("{}")
    with pytest.raises(ValueError, match="these ranks recorded none"):
        Run.load(stranger(tmp_path)).timeline()
    (tmp_path / "timeline.json").write_bytes(planted("pickle", Trap(tmp_path / "canary")))
    with pytest.raises(ValueError, match=r"was not written by Timeline\.save"):
        Run.load(tmp_path).timeline()
    assert not (tmp_path / "canary").exists()


EVENT = {
    "ph": "X",
    "pid": 0,
    "tid": "compute",
    "cat": "F",
    "name": "0F0",
    "ts": 0.0,
    "dur": 1.0,
    "args": {"bytes": 0},
}
ABOUT = {"num_ranks": 1, "origin": "measured", "notes": []}


@pytest.mark.parametrize(
    "event",
    [
        {"ts": None},
        {"ts": "0"},
        {"dur": -1},
        {"dur": float("nan")},
        {"dur": float("inf")},
        {"pid": -1},
        {"pid": 10**30},
        {"pid": "x"},
        {"pid": 7},
        {"pid": [0]},
        {"tid": ["compute", "comm"]},
        {"args": {}},
        {"args": None},
        {"args": {"bytes": 10**30}},
        {"args": {"bytes": "many"}},
    ],
    ids=str,
)
def test_a_strange_event_in_a_timeline_is_refused(tmp_path, event):
    file = tmp_path / "timeline.json"
    file.write_text(json.dumps({"traceEvents": [{**EVENT, **event}], "labkit": ABOUT}))
    with pytest.raises(
        ValueError, match=r"was not written by Timeline\.save \(.*labkit\.measure\.trace\.read"
    ):
        Timeline.load(file)


@pytest.mark.parametrize(
    "text",
    [
        *TEXTS[:11],
        json.dumps({"traceEvents": []}),
        json.dumps({"labkit": ABOUT}),
        json.dumps({"traceEvents": 3, "labkit": ABOUT}),
        json.dumps({"traceEvents": [3], "labkit": ABOUT}),
        *(
            json.dumps({"traceEvents": [EVENT], "labkit": {**ABOUT, **odd}})
            for odd in (
                {"num_ranks": "1"},
                {"num_ranks": 10**30},
                {"num_ranks": None},
                {"num_ranks": -1},
                {"origin": []},
                {"origin": "dreamt"},
                {"notes": 3},
                {"notes": [[1]]},
                {"notes": None},
            )
        ),
    ],
    ids=lambda text: text[-40:],
)
def test_a_timeline_that_is_none_is_refused(tmp_path, text):
    file = tmp_path / "timeline.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(
        ValueError, match=r"was not written by Timeline\.save \(.*labkit\.measure\.trace\.read"
    ):
        Timeline.load(file)


def test_a_good_timeline_is_read(tmp_path):
    row = (0, "compute", "F", "0F0", 0.0, 1.0, 0)
    line = from_rows([row], num_ranks=1, origin="measured")
    assert len(Timeline.load(line.save(tmp_path / "timeline.json"))) == 1
