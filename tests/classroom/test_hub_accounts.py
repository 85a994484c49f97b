"""A real hub for people with accounts on the machine: everybody is themselves, and reads no other's
files. The accounts are made in a mount namespace, so this machine never has them."""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from classroom.hub_learner import Learner
from classroom.test_hub_room import free_port, hub_of, needs_a_hub

from labkit.classroom import hub_command
from labkit.classroom.hub_run import Room

HERE = Path(__file__).resolve()
NAMES = ("ann", "berta")
TEACHER = "carla"
CELL = """
import os, json
import labkit as lab
from labkit.check import record

def add():
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item(), os.getuid()

def adam():
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from torch import nn

    return type(DeepSpeedCPUAdam(nn.Linear(2, 2).parameters())).__name__

def readable(folder):
    return os.access(folder, os.R_OK)

print(json.dumps({
    "ranks": list(lab.launch(add, ranks=4)),
    "adam": list(lab.launch(adam, ranks=1)),
    "record": str(record.home()),
    "course": os.getcwd(),
    "reads": [each for each in PLACES if readable(each)],
}))
"""


def homes(folder):
    """Where the accounts have theirs."""
    return folder / "hold" / "homes"


def seen(learner, places):
    """What a learner's cell tells."""
    assert learner.log_in(f"secret-{learner.name}")
    learner.spawn()
    return json.loads(learner.run(CELL.replace("PLACES", repr(places))))


def visit(folder):
    """In the namespace: learners and a teacher at a hub. Prints what they have seen."""
    room = Room(
        folder=folder / "room",
        notebooks=hub_command.NOTEBOOKS,
        accounts="learners",
        teachers=(TEACHER,),
        port=free_port(),
    )
    with hub_of(room):
        tried = {"ann": "secret-berta", "root": "", TEACHER: f"secret-{TEACHER}"}
        told = {name: Learner(room.url, name).log_in(word) for name, word in tried.items()}
        learners = [Learner(room.url, name) for name in NAMES]
        places = [str(homes(folder) / name) for name in NAMES] + [str(room.folder / "hub")]
        with ThreadPoolExecutor(len(NAMES)) as side_by_side:
            told["seen"] = list(side_by_side.map(seen, learners, [places] * len(NAMES)))
    told["gate"] = [each.name for each in (room.folder / "gate").iterdir()]
    print("told " + json.dumps(told))


@pytest.mark.again
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="a hub for accounts is started by root")
def test_everybody_works_as_themselves():
    needs_a_hub()
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    with tempfile.TemporaryDirectory(prefix="hub-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        needed = [sys.prefix, sys.base_prefix, *os.environ.get("PYTHONPATH", "").split(":")]
        paths = dict.fromkeys([str(HERE.parents[2]), *filter(None, needed)])
        line = ["unshare", "--mount", "bash", HERE.with_name("accounts.sh"), folder / "hold"]
        line += ["learners", f"{' '.join(NAMES)} {TEACHER}", " ".join(paths)]
        done = subprocess.run(
            [*line, sys.executable, HERE, folder],
            env={**os.environ, "PYTHONPATH": ":".join([*paths, str(HERE.parents[1])])},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("told ")]
    told = json.loads(line.removeprefix("told "))
    assert [told["ann"], told["root"], told[TEACHER]] == [False, False, True]
    for number, (name, each) in enumerate(zip(NAMES, told["seen"], strict=True)):
        assert each["ranks"] == [[4.0, 5001 + number]] * 4
        assert each["adam"] == ["DeepSpeedCPUAdam"]
        home = str(homes(folder) / name)
        assert [each["reads"], each["record"]] == [[home], f"{home}/.labkit"]
        assert each["course"] == f"{home}/labkit"
    assert not [each for each in told["gate"] if each.endswith(".ticket")]


if __name__ == "__main__":
    visit(Path(sys.argv[1]))
