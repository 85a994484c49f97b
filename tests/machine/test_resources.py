"""What the machine says of itself; and that it notices what is missing."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from labkit.machine import doctor, ops, resources

ROWS = (
    "python",
    "torch",
    "accelerate",
    "deepspeed",
    "jupyterlab",
    "ipywidgets",
    "jupyterlab_widgets",
    "gloo",
    "nccl",
    "loopback",
    "GPUs",
    "cores",
    "memory",
    "compiler",
    "ninja",
    "DeepSpeed's ops",
)


@pytest.fixture(scope="module")
def report():
    return doctor.examine()


@pytest.fixture
def cgroup(tmp_path, monkeypatch):
    """Puts this process into a cgroup made of files: ``cgroup("0::/a/b", {"a/cpu.max":
    "..."})``."""

    def put(line, files):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text + "\n")
        (tmp_path / "self").write_text(line + "\n")
        monkeypatch.setattr(resources, "_CGROUP", tmp_path)
        monkeypatch.setattr(resources, "_PROC_CGROUP", tmp_path / "self")

    return put


def test_doctor_looks_at_everything_and_says_what_to_do(report):
    assert set(ROWS) <= {row.name for row in report.rows}
    assert all(row.value and row.fix for row in report.rows)
    assert report.ok, report
    assert report["torch"].value.startswith("2.13.0")


def test_a_report_shows_each_row_and_the_way_out_only_where_needed():
    good = doctor.Row(name="gloo", value="here", ok=True, fix="do this")
    bad = doctor.Row(name="<ninja>", value="none", ok=False, fix="do that")
    spare = doctor.Row(name="nccl", value="none", ok=False, fix="buy one", required=False)
    report = doctor.Report(rows=(good, bad, spare))
    for shown in (repr(report), report._repr_html_()):
        assert "do this" not in shown and "do that" in shown and "buy one" in shown
    assert [row.state for row in report.rows] == ["ok", "missing", "optional"]
    lacking, _, there = report._repr_html_().partition("<details>")
    assert "gloo" not in lacking and "1 of 3 are here" in there and "ninja" not in there
    assert [mark in lacking for mark in "✗–✓"] == [True, True, False]
    assert "&lt;ninja&gt;" in report._repr_html_() and "#" not in report._repr_html_()
    assert not report.ok and doctor.Report(rows=(good, spare)).ok


def test_a_report_speaks_chinese(chinese):
    bad = doctor.Row(name="memory", value="1 GB", ok=False, fix="等一等")
    good = doctor.Row(name="torch", value="2", ok=True, fix="")
    report = doctor.Report(rows=(bad, good))
    assert repr(report) == "缺少      内存   1 GB  -> 等一等\n正常      torch  2"
    assert "<th style='text-align:left'>解决办法</th>" in report._repr_html_()
    told = [*doctor._memory_rows(), *doctor._compiler_rows(), *doctor._device_rows()]
    assert all(re.search("[\u4e00-\u9fff]", row.fix) for row in told)
    assert report["memory"] is bad, "rows keep their names"


def test_doctor_notices_a_missing_compiler_and_missing_ops(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    rows = {row.name: row for row in doctor._compiler_rows()}
    assert (rows["compiler"].ok, rows["compiler"].fix[:7]) == (False, "apt-get")
    assert rows["DeepSpeed's ops"].value == "0 of 3 built"
    assert "apt-get install g++" in rows["DeepSpeed's ops"].fix, "what they can't be built without"
    monkeypatch.setattr(ops, "obstacle", lambda: None)
    rows = {row.name: row for row in doctor._compiler_rows()}
    assert "python -m labkit ops" in rows["DeepSpeed's ops"].fix


def test_a_package_that_is_missing_or_broken_is_a_row_and_no_exception(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBED", ("torch", "no_such_package"))
    rows = {row.name: row for row in doctor._package_rows(doctor._probe())}
    assert rows["torch"].ok
    assert rows["no_such_package"].value == "ModuleNotFoundError: No module named 'no_such_package'"


def test_an_import_that_ends_the_process_is_a_row_and_the_gloo_row_fails_with_torch(monkeypatch):
    monkeypatch.setattr(doctor, "_PROBE", "import os; os.abort()")
    found = doctor._probe()
    rows = {row.name: row for row in (*doctor._package_rows(found), *doctor._backend_rows(found))}
    assert rows["torch"].value == "importing it ended the process"
    assert rows["gloo"].state == "missing"


def test_a_missing_widget_stack_is_noticed(monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda package: None)
    rows = {row.name: row for row in doctor._package_rows({})}
    assert not rows["ipywidgets"].ok and "make env" in rows["ipywidgets"].fix


def test_too_little_memory_and_shared_memory_are_noticed(monkeypatch):
    monkeypatch.setattr(doctor, "available_bytes", lambda: 10**9)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(64_000_000, 0, 64_000_000)
    )
    rows = {row.name: row for row in doctor._memory_rows()}
    assert rows["memory"].value.startswith("1.00 GB free") and not rows["memory"].ok
    assert sys.platform != "linux" or rows["/dev/shm"].state == "optional"


def test_a_summary_names_no_host_and_no_path():
    text = str(resources.summary())
    assert {"cpu", "cores", "memory_bytes", "gpus", "os", "python", "torch"} == set(
        resources.summary()
    )
    assert os.uname().nodename not in text and sys.prefix not in text


def test_cores_are_what_affinity_and_quota_leave(cgroup):
    everything = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )
    cgroup("0::/a/b", {"a/b/cpu.max": "max 100000"})
    assert resources.cores() == everything
    cgroup(
        "0::/a/b", {"a/cpu.max": "150000 100000"}
    )  # a limit above counts too; one and a half is one
    assert resources.cores() == 1
    cgroup(
        "3:cpu,cpuacct:/c", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}
    )
    assert resources.cores() == 1
    cgroup("3:cpu:/c", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"})
    assert resources.cores() == everything


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "0::/job",
            {
                "job/memory.max": "1000000",
                "job/memory.current": "400000",
                "job/memory.stat": "inactive_file 100000",
            },
        ),
        (
            "4:memory:/job",
            {
                "memory/job/memory.limit_in_bytes": "1000000",
                "memory/job/memory.usage_in_bytes": "400000",
                "memory/job/memory.stat": "inactive_file 7\ntotal_inactive_file 100000",
            },
        ),
    ],
    ids=["v2", "v1"],
)
def test_memory_is_what_the_cgroup_leaves(cgroup, line, files):
    cgroup(line, files)
    assert resources.total_bytes() == 1_000_000
    assert resources.available_bytes() == 700_000


def test_memory_without_a_limit_is_the_machines(cgroup):
    cgroup("0::/", {"memory.max": "max", "memory.current": "5"})
    assert 0 < resources.available_bytes() <= resources.total_bytes() != 5


def test_gpus_are_those_that_torch_and_the_environment_let_be_seen(monkeypatch):
    monkeypatch.setattr(resources.glob, "glob", lambda pattern: ["/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.setattr(resources, "_torch_has_cuda", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert resources.num_gpus() == 0
    assert (
        "2 are present"
        in next(row for row in doctor._device_rows() if row.name == "GPUs" and not row.ok).fix
    )
    monkeypatch.setattr(resources, "_torch_has_cuda", lambda: True)
    assert resources.num_gpus() == 2
    for visible, count in (("", 0), ("-1", 0), ("1", 1), ("0,1,7", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert resources.num_gpus() == count


def test_asking_the_machine_does_not_import_torch():
    code = (
        "import sys; from labkit.machine import resources as m; m.summary(); m.num_gpus(); "
        "m.cores(); m.available_bytes(); "
        "assert m.loopback() in ('lo', 'lo0'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert ops.folder()
