"""What strangers can do: nothing listens beyond this machine, nobody else reads a run's files, and
a folder or a file from elsewhere is only data: loading it runs nothing, whatever it holds."""

import ast
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import house
import numpy as np
import psutil
import pytest
import torch
from jupyter_client.manager import KernelManager, start_new_kernel

import labkit as lab
from labkit.launching import run as run_room
from labkit.launching import zygote_client
from labkit.launching.run import Run
from labkit.machine import ops, resources
from labkit.timeline import Timeline, from_rows

ROOT = Path(__file__).parents[2]
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")

# --- sockets ---


def reachable(family: list[psutil.Process]) -> list[str]:
    """Each socket of a process that is bound to another address than loopback's, or joined with
    one."""
    return [
        f"{process.name()} {process.pid}: {joined}"
        for process in family
        for joined in process.net_connections(kind="inet")
        for end in (joined.laddr, joined.raddr)
        if end and end.ip not in LOOPBACK
    ]


def listening(process: psutil.Process) -> int:
    """How many TCP sockets of a process wait for connections."""
    return sum(
        joined.status == psutil.CONN_LISTEN for joined in process.net_connections(kind="tcp")
    )


def test_a_socket_on_every_interface_would_be_found():
    code = "import socket, time; s = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen(); print(1, flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    found, count = reachable([psutil.Process(child.pid)]), listening(psutil.Process(child.pid))
    child.communicate(b"\n", timeout=10)
    assert len(found) == count == 1 and "0.0.0.0" in found[0]


CELL = """
import labkit as lab, os, time
from labkit.launching import zygote_client as server
def work():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))
    while not os.path.exists("GO"):
        time.sleep(0.05)
    return os.getpid()
server.seconds_to_ready()
time.sleep(0.5)
"""


def ask(client, code: str) -> dict:
    """Runs a cell of a notebook and returns the reply. Raises AssertionError with its traceback if
    it fails."""
    reply = client.execute_interactive(code, timeout=60, output_hook=lambda _: None)["content"]
    assert reply["status"] == "ok", "\n".join(reply["traceback"])
    return reply


@pytest.fixture
def notebook(tmp_path) -> Iterator[tuple[KernelManager, object]]:
    """A real Jupyter kernel in a folder of its own, with this labkit."""
    kernel, client = start_new_kernel(cwd=str(tmp_path), env=os.environ | {"PYTHONPATH": str(ROOT)})
    yield kernel, client
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def test_no_kernel_zygote_or_rank_is_reachable_from_another_machine(notebook, tmp_path):
    kernel, client = notebook
    me = psutil.Process(kernel.provisioner.pid)
    ask(client, CELL)
    idle = [me, *me.children(recursive=True)]
    assert (
        len(idle) >= 3 and reachable(idle) == []
    )  # kernel, zygote, and the spares that it has forked
    ask(client, "job = lab.start(work, ranks=3, backend='gloo', timeout_s=50)\ntime.sleep(1.5)")
    busy = [me, *me.children(recursive=True)]
    ranks = [process for process in busy if process != me and listening(process)]
    assert len(ranks) == 3 and listening(
        me
    )  # gloo's and the kernel's own: what is looked at is there
    assert reachable(busy) == []
    (tmp_path / "GO").touch()
    ask(client, "assert len(job.wait()) == 3")


SCRIPT = """
import os, psutil, torch.distributed as dist
from labkit.launching import rank
dist.init_process_group("gloo")
dist.barrier()
def open_ends(process):
    return [end.laddr.ip for end in process.net_connections(kind="tcp") if end.status == psutil.CONN_LISTEN]
rank.current().give((open_ends(psutil.Process()), open_ends(psutil.Process(os.getppid()))))
dist.barrier()
"""


def test_torchruns_own_store_is_the_one_exception_and_it_is_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    mine, store = zip(
        *lab.launch_script(tmp_path / "train.py", ranks=2, show=False, timeout_s=50), strict=True
    )
    assert {ip for ips in mine for ip in ips} <= set(LOOPBACK)
    assert not {ip for ips in store for ip in ips} <= set(LOOPBACK)  # else the words below can go
    assert "listens on every interface" in " ".join(lab.launch_script.__doc__.split())


# --- files ---

READ = 'for path; do if test -r "$path" || test -w "$path"; then echo "$path"; fi; done; echo ended'


def test_nobody_else_reads_what_a_run_keeps():
    def work() -> bytes:
        print("a secret")
        while not os.path.exists(os.environ["LABKIT_TEST_GO"]):
            time.sleep(0.05)
        return bytes(3_000_000)

    before = os.umask(0)  # the most careless of users
    try:
        home = zygote_client.running()
        os.environ["LABKIT_TEST_GO"] = str(home.folder / "go")
        job = lab.start(work, ranks=2, timeout_s=50)
        folder = home.folder / f"run-{home.num_runs}"  # those of earlier runs may be going just now
        while len([file for file in folder.rglob("log-*") if file.stat().st_size]) < 2:
            time.sleep(0.05)
        found = [home.folder, folder, *folder.rglob("*")]
        folders = [path for path in found if path.is_dir()]
        assert len(folders) >= 2 and {stat.S_IMODE(path.stat().st_mode) for path in folders} == {
            0o700
        }
        assert {"call.pkl", "log-0.txt"} <= {path.name for path in found}
        if os.geteuid() == 0:  # then it can be tried
            ask = {
                "user": 65534,
                "group": 65534,
                "extra_groups": [],
                "cwd": "/",
                "capture_output": True,
                "text": True,
            }
            told = subprocess.run(["/bin/sh", "-c", READ, "sh", *map(str, found), "/bin/sh"], **ask)
            assert told.stdout.split() == ["/bin/sh", "ended"], told
        (home.folder / "go").touch()
        job.wait()
        (home.folder / "go").unlink()
    finally:
        os.umask(before)


def test_no_shared_memory_of_the_deepspeed_command_is_left(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import glob, os, deepspeed
        from labkit.launching import rank
        deepspeed.init_distributed("gloo")
        deepspeed.comm.barrier()
        rank.current().give(glob.glob(f"/dev/shm/deepspeed_*_{os.environ['MASTER_PORT']}_*"))
        deepspeed.comm.barrier()
    """)
    )
    buffers, _ = lab.launch_script(
        tmp_path / "train.py", ranks=2, using="deepspeed", show=False, timeout_s=50
    )
    if not ops.missing() and not resources.num_gpus():
        assert len(buffers) == 2  # what is looked for was there
    assert [path for path in buffers if os.path.exists(path)] == []


# --- what comes from elsewhere ---


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
        ValueError, match=r"was not written by Timeline\.save \(.*labkit\.trace\.read"
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
        ValueError, match=r"was not written by Timeline\.save \(.*labkit\.trace\.read"
    ):
        Timeline.load(file)


def test_a_good_timeline_is_read(tmp_path):
    row = (0, "compute", "F", "0F0", 0.0, 1.0, 0)
    line = from_rows([row], num_ranks=1, origin="measured")
    assert len(Timeline.load(line.save(tmp_path / "timeline.json"))) == 1


# --- what the code calls ---

PRIVATE = "a rank's or its kernel's own file, in a folder that nobody else can enter"
ALLOWED = {
    (
        "notebooks/src/03_data_parallel.py",
        "torch.load",
    ): "a file of the cell before; weights_only by default",
    ("notebooks/src/07_fsdp.py", "exec"): "the lines of a textbook that stand above it",
    (
        "notebooks/src/04_accelerate.py",
        "runpy.run_path",
    ): "the script that the cell above has written",
    (
        "notebooks/src/13_checkpoint_and_recover.py",
        "torch.load",
    ): "a file of the cell, to show what it runs",
    (
        "notebooks/src/14_debugging.py",
        "torch.load",
    ): "a file of the cell before, to show what it runs",
    ("labkit/rank.py", "pickle.loads"): PRIVATE,
    ("labkit/job.py", "pickle.loads"): PRIVATE,
    ("labkit/script.py", "pickle.loads"): PRIVATE,
    (
        "labkit/witness.py",
        "pickle.loads",
    ): "torch's flight recorder of this very process, from memory",
}
RUNS = {
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "cloudpickle.load",
    "cloudpickle.loads",
    "marshal.load",
    "marshal.loads",
    "shelve.open",
    "joblib.load",
    "dill.load",
    "dill.loads",
    "yaml.load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "pandas.read_pickle",
    "runpy.run_path",
}


def dangers(text: str) -> list[str]:
    """Calls that run what they read: by name, or by an argument."""
    module, names, found = ast.parse(text), {}, []
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Import):
            names |= {each.asname: each.name for each in node.names if each.asname}
    for node in ast.walk(module):
        if not isinstance(node, ast.Call):
            continue
        head, _, rest = ast.unparse(node.func).partition(".")
        name = names.get(head, head) + ("." + rest if rest else "")
        given = {each.arg: ast.unparse(each.value) for each in node.keywords}
        risky = (
            name in RUNS,
            given.get("shell", "False") != "False",
            given.get("allow_pickle", "False") != "False",
            name in ("numpy.load", "np.load") and "allow_pickle" not in given,
            name == "torch.load" and given.get("weights_only") != "True",
        )
        found += [name] * any(risky)
    return found


def test_nothing_that_reads_files_runs_them():
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for part in ("labkit", "notebooks", "benchmarks")
        for path in house.files(ROOT / part)
        if path.suffix == ".py"
        for name in dangers(
            "\n".join(
                "" if line.lstrip().startswith(("%", "!")) else line
                for line in path.read_text(encoding="utf-8").splitlines()
            )
        )
    }
    assert found == set(ALLOWED)
    assert ValueError in run_room.UNREADABLE and Exception not in run_room.UNREADABLE


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.loads(b)",
        "from pickle import load as read\nread(f)",
        "import numpy as n\nn.load(f)",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import torch\ntorch.load(f)",
        "eval(x)",
        "exec(x)",
        "import torch\ntorch.load(f, weights_only=False)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import os\nos.system(x)",
        "import numpy as np\nnp.load(f, allow_pickle=flag)",
    ],
)
def test_a_dangerous_call_would_be_found(code):
    assert len(dangers(code)) == 1
    assert (
        dangers(
            "import torch, numpy as np\ntorch.load(f, weights_only=True)\nnp.load(f, "
            "allow_pickle=False)\n"
            "model.eval()\nimport json\njson.load(f)\n'eval(x)'"
        )
        == []
    )
