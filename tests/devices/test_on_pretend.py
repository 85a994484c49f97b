"""Laws of scripts on pretend devices: what was written for GPUs, and exits without them, trains
there unchanged; and a script can tell what runs it by its device alone."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import labkit as lab
from labkit import __main__ as commands
from labkit.devices import library, on_pretend
from labkit.devices.rung import Pretend
from labkit.launching import script_command

pytestmark = pytest.mark.real
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="module", autouse=True)
def built():
    """Both libraries, built if they are not; with a torch that is too old these tests skip."""
    for name in library.missing():
        assert library.build(name) == ""
    if reason := library.why_not("pretend"):
        pytest.skip(reason)


def losses_of(text):
    """Those that a rank printed, first and last."""
    # two ranks may print into one line
    return [float(number) for number in re.search(r"losses ([\d.]+) ([\d.]+)", text).groups()]


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param("mingpt_ddp", 2, marks=pytest.mark.again),
        ("fsdp2", 2),
        pytest.param("sequence_parallel", 2, marks=pytest.mark.again),
        pytest.param("fsdp_and_tensor_parallel", 4, marks=pytest.mark.again),
    ],
)
def test_a_script_for_gpus_trains_unchanged(name, ranks):
    run = lab.launch_script(
        SCRIPTS / f"{name}.py",
        ranks=ranks,
        devices=Pretend(memory_mib=64),
        timeout_s=120,
        show=False,
    )
    assert run.notes == ("gloo", "pretend device", "torchrun")
    for log in run.logs:
        first, last = losses_of(log)
        assert last < first


@pytest.mark.again
def test_the_command_shows_what_it_runs_and_what_it_prints(capfd):
    script = SCRIPTS / "tensor_parallel.py"
    assert commands.main(["pretend", "--ranks", "2", "--memory-mib", "64", str(script)]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(
        "$ torchrun --standalone --nproc-per-node 2 -m labkit.devices.on_pretend --memory-mib 64 "
    )
    first, last = losses_of(shown)
    assert last < first and shown.count("losses") == 2


def test_without_pretend_devices_the_scripts_exit():
    script = [sys.executable, str(SCRIPTS / "tensor_parallel.py")]
    done = subprocess.run(script, capture_output=True, text=True)
    if "needs 2 GPUs" not in done.stderr:
        pytest.skip("this machine has the GPUs that the scripts ask for")
    assert done.returncode == 1


TAKES_1_AND_4_MIB = """
import torch
one = torch.zeros(2**18, device="pretend")
print("the first fits", flush=True)
four = torch.zeros(2**20, device="pretend")
"""


def test_the_limit_of_memory_is_the_devices(tmp_path):
    script = tmp_path / "large.py"
    script.write_text(TAKES_1_AND_4_MIB)
    with pytest.raises(lab.RankFailed, match="OutOfMemoryError") as caught:
        lab.launch_script(script, ranks=1, devices=Pretend(memory_mib=4), timeout_s=60, show=False)
    assert "the first fits" in caught.value.logs[0]


TELLS = """
import atexit, json, pickle, sys, threading, time

class Own:
    pass

def leave():
    print("at exit")

def later():
    time.sleep(0.2)
    print("a thread's last words")

atexit.register(leave)
threading.Thread(target=later).start()
assert isinstance(pickle.loads(pickle.dumps(Own())), Own)
assert sys.modules["__main__"].Own is Own
print(json.dumps([__name__, __file__, __builtins__ is not None, sys.argv, sys.path[0]]))
{ending}
"""
WITHOUT_TORCH = """
from labkit.devices import on_pretend
on_pretend._install = lambda pretend: None
on_pretend.main()
"""
ENDINGS = {
    "at its end": "",
    "exits with a number": "sys.exit(3)",
    "exits with a text": "sys.exit('no such file')",
    "raises": "def inner():\n    raise KeyError('no such layer')\ninner()",
    "is no Python": "x = = 1",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_can_not_tell_that_it_is_not_python_that_runs_it(ending, tmp_path):
    script = tmp_path / "tells.py"
    script.write_text(TELLS.format(ending=ENDINGS[ending]))
    line = [str(script), "--memory-mib", "seven"]
    by_python = subprocess.run([sys.executable, *line], capture_output=True, text=True)
    command = ["-c", WITHOUT_TORCH, *on_pretend.front(Pretend(memory_mib=8))[2:]]
    ours = subprocess.run([sys.executable, *command, *line], capture_output=True, text=True)
    assert _came_to(ours) == _came_to(by_python)
    assert ours.stdout.count("at exit") == (ending != "is no Python")


def _came_to(done):
    return done.returncode, done.stdout, done.stderr


def test_what_can_not_be_pretended_is_refused(monkeypatch):
    script = SCRIPTS / "tensor_parallel.py"
    with pytest.raises(ValueError, match="accelerate looks for devices that it knows by name"):
        lab.launch_script(script, using="accelerate", devices="pretend")
    with pytest.raises(ValueError, match="one of cpu, pretend; got 'cuda'"):
        lab.launch_script(script, devices="cuda")
    assert commands.main(["pretend", "--memory-mib", "-1", str(script)]) == 2
    assert commands.main(["pretend", "nowhere.py"]) == 2
    monkeypatch.setattr(library, "path", lambda name: SCRIPTS / "nowhere.so")
    with pytest.raises(ValueError, match="can't be had: our library pretend"):
        script_command.stand("pretend", 2, "torchrun")
    monkeypatch.setattr(library, "OLDEST_TORCH", {"pretend": (99, 0), "through_host": (99, 0)})
    with pytest.raises(ValueError, match="had: pretend needs torch 99"):
        script_command.stand("pretend", 2, "torchrun")


def test_a_devices_line_gives_back_the_device():
    import argparse

    devices = (Pretend(), Pretend(memory_mib=512, link_gb_per_s=2.5, link_latency_us=10))
    for device in devices:
        parser = argparse.ArgumentParser()
        on_pretend.add_options(parser)
        line = on_pretend.front(device)[2:]
        assert on_pretend.wanted(parser.parse_args([*line, "train.py"])) == device
