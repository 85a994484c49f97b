"""DeepSpeed's ops: where they stand, what counts as built, and that a second call repairs what the
first left."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from labkit.machine import ops


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def pretend(folder, name):
    """What a finished build leaves."""
    place = folder / ops.EXTENSIONS[name]
    place.mkdir(exist_ok=True)
    (place / f"{place.name}.so").write_bytes(b"")


def test_ops_stand_inside_the_environment_by_version_and_not_at_home(monkeypatch):
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setattr(sys, "prefix", str(Path(sys.prefix)))
    monkeypatch.setattr(sys, "base_prefix", "elsewhere")
    assert ops.folder().is_relative_to(sys.prefix)
    assert "torch2.13.0" in ops.folder().name
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    if not Path(sys.prefix, "conda-meta").is_dir():
        assert ops.folder().is_relative_to(Path.home() / ".cache")


def test_ranks_find_the_ops_and_ninja(folder, monkeypatch):
    monkeypatch.setenv("PATH", "nowhere")
    environment = ops.environment()
    assert environment["TORCH_EXTENSIONS_DIR"] == str(folder)
    assert environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "nowhere"]
    monkeypatch.setenv("PATH", environment["PATH"])
    assert ops.environment()["PATH"] == environment["PATH"]


def test_an_interrupted_build_counts_as_missing(folder):
    assert ops.missing() == ["shm_comm", "fused_adam", "cpu_adam"]
    for name in ops.EXTENSIONS:
        pretend(folder, name)
    assert ops.missing() == []
    (folder / "cpu_adam" / "lock").touch()
    assert ops.missing() == ["cpu_adam"]


MAKES = """import sys
from pathlib import Path
place = Path({folder!r}, sys.argv[1].split(":")[0].replace("comm", "deepspeed_shm_comm"))
assert not place.exists(), "what was left"
place.mkdir()
(place / f"{{place.name}}.so").touch()"""


def test_build_removes_what_was_left_and_says_each_op(folder, monkeypatch):
    for name in ops.EXTENSIONS:
        pretend(folder, name)
    (folder / "fused_adam" / "lock").touch()
    (folder / "cpu_adam" / "cpu_adam.so").unlink()
    said = []
    monkeypatch.setattr(ops, "_BUILD", MAKES.format(folder=str(folder)))
    assert ops.build(ops.jobs(), said.append)
    assert said[0] == "compiling cpu_adam, fused_adam, three at a time\n"
    ended = {line.split()[1] for line in said[1:]}
    assert ended == {"cpu_adam:", "fused_adam:"} and said[2].startswith("[2/2] ")
    assert ops.missing() == [] == list(ops.jobs())


def test_what_another_has_built_meanwhile_is_not_built_again(folder, monkeypatch):
    jobs = ops.jobs()
    for name in ops.EXTENSIONS:
        pretend(folder, name)
    monkeypatch.setattr(ops, "_BUILD", "raise SystemExit(1)")
    assert ops.build(jobs, lambda text: None)


def test_builds_run_at_the_same_time_and_one_that_fails_stops_no_other(folder):
    together = threading.Barrier(2, timeout=10)
    said = []

    def waits():
        together.wait()
        return ""

    jobs = {"first": waits, "second": waits, "third": lambda: "no such thing", "last": str}
    assert not ops.build(jobs, said.append)
    assert any(line.endswith("third: failed\nno such thing\n") for line in said)
    assert len(said) == 5 and any("last: 0 s" in line for line in said)


def test_a_build_that_fails_shows_its_last_words(folder, monkeypatch):
    monkeypatch.setattr(
        ops, "_BUILD", "print('x.cpp:1: error: no such thing'); raise SystemExit(1)"
    )
    said = []
    assert not ops.build({"shm_comm": ops.jobs()["shm_comm"]}, said.append)
    assert said[1] == "[1/1] shm_comm: failed\nx.cpp:1: error: no such thing\n"


def test_a_build_that_claims_success_without_an_op_is_a_failure(folder, monkeypatch):
    monkeypatch.setattr(ops, "_BUILD", "pass")
    assert not ops.build(ops.jobs(), lambda text: None)


@pytest.mark.parametrize("given_by_path", [False, True])
def test_ops_are_compiled_without_debug_information(folder, monkeypatch, tmp_path, given_by_path):
    compiler = tmp_path / "told"
    compiler.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join((str(tmp_path), os.environ["PATH"])))
    monkeypatch.setenv("CXX", str(compiler) if given_by_path else compiler.name)
    call = ["-O3", "-g", "-DNAME=two words", "-o", "x.o"]
    compile_it = f"import os; os.execvp(os.environ['CXX'], [os.environ['CXX'], *{call}])"
    monkeypatch.setattr(ops, "_BUILD", compile_it)
    kept = call if given_by_path else [word for word in call if word != "-g"]
    assert ops._build_one("cpu_adam") == "".join(f"{word}|" for word in kept)


def test_two_builds_wait_for_each_other(folder):
    code = (
        "from labkit.machine import ops\nwith ops._alone(print): print('in', flush=True); input()"
    )
    first = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "in\n"
    said = []

    def say(text):
        said.append(text)
        first.communicate("\n", timeout=30)

    with ops._alone(say):
        assert first.returncode == 0
    assert said == ["another build is under way: waiting for it\n"]


def test_what_is_missing_is_hopeless_only_where_a_rank_could_not_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "apt-get install g++" in ops.hopeless()
    monkeypatch.setattr(ops, "missing", list)
    assert ops.hopeless() is None
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "plan9")
    monkeypatch.setattr(ops, "missing", lambda: ["cpu_adam"])
    assert ops.hopeless() is None, "DeepSpeed builds there what it can"


def test_an_obstacle_comes_with_the_way_out(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "apt-get install g++" in ops.obstacle()
    monkeypatch.setattr(ops, "ninja", lambda: None)
    assert "make env" in ops.obstacle()
    monkeypatch.setattr(sys, "platform", "plan9")
    assert "only on Linux" in ops.obstacle()
