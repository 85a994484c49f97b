"""A script is recorded unchanged: its steps are found and advised; odd scripts are told."""

import json
from pathlib import Path

import pytest

import labkit as lab
from labkit.__main__ import main
from labkit.profiling.recording import flops_run, record
from labkit.profiling.recording.record_run import of_folder
from labkit.profiling.recording.window import STEP, window, without_cut
from labkit.timeline import Timeline, from_rows

TRAIN = """
import sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.004)
        return super().__getitem__(index)
dist.init_process_group()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 32))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for (x,) in DataLoader(Slow(torch.randn(40, 64)), batch_size=8):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print(sys.argv[1:], __name__)
dist.destroy_process_group()
"""

ALONE = """
import sys, torch
assert sys.argv[1:] == ["7"] and __name__ == "__main__"
weight = torch.randn(16, 16, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(2):
    optimizer.zero_grad()
    (weight @ weight).sum().backward()
    optimizer.step()
"""

LATE = """
import os
class Late:
    def __del__(self):
        os.abort()
late = Late()  # Python would end it in its own last steps
"""


def rows_of(rank: int, ends: list[float]) -> list[tuple]:
    """Optimizer's steps that end then, 5 us each, and work between them."""
    rows = []
    for end in ends:
        rows.append((rank, "mark", "mark", f"{STEP}SGD.step", end - 5, end, 0))
        rows.append((rank, "compute", "compute", "mm", end - 40, end - 10, 0))
    return rows


def test_the_first_steps_are_left_out():
    rows = rows_of(0, [100, 200, 300, 400]) + rows_of(1, [110, 210, 310])
    found = window(from_rows(rows, num_ranks=2, origin="measured"))
    assert (found.steps, found.first) == (1, 1)
    assert found.bounds_us == ((200, 300), (210, 310))
    assert len(found.timeline) == 4


def test_a_message_whose_end_was_written_down_late_belongs_to_its_step():
    rows = rows_of(0, [100, 200, 300])
    rows += [(0, "comm", "all_reduce", "", at, at + 20, 8) for at in (185, 285, 305)]
    found = window(from_rows(rows, num_ranks=1, origin="measured")).timeline
    sent = found.select(found.lane == "comm")
    assert sent.start_us.tolist() == [285] and sent.end_us.tolist() == [300]


def test_a_step_in_which_the_recording_ended_is_left_out():
    rows = rows_of(0, [100, 200, 300, 400]) + rows_of(1, [110, 210, 310, 410])
    whole = from_rows(rows, num_ranks=2, origin="measured")
    found = window(without_cut(whole, [0, 1]))
    assert (found.steps, found.bounds_us) == (1, ((200, 300), (210, 310)))
    assert len(without_cut(whole, [])) == len(whole)
    assert len(without_cut(whole, [1])) == len(whole) - 1


@pytest.mark.parametrize("ends", [[], [100]])
def test_without_whole_steps_everything_is_looked_at(ends):
    timeline = from_rows(rows_of(0, ends), num_ranks=1, origin="measured")
    found = window(timeline)
    assert found.steps == 0 and len(found.timeline) == len(timeline)


def test_operations_of_matrix_products_are_counted_between_steps(tmp_path):
    def event(cat, name, at, dims=()):
        told = {"Input Dims": dims}
        return {"cat": cat, "name": name, "ts": at, "dur": 1.0, "args": told}

    events = [
        event("user_annotation", f"{STEP}SGD.step", 10),
        event("cpu_op", "aten::mm", 5, [[9, 9], [9, 9]]),
        event("cpu_op", "aten::mm", 20, [[2, 3], [3, 4]]),
        event("cpu_op", "aten::addmm", 30, [[4], [2, 3], [3, 4]]),
        event("cpu_op", "aten::bmm", 40, [[5, 2, 3], [5, 3, 4]]),
        event("user_annotation", f"{STEP}SGD.step", 50),
    ]
    path = tmp_path / "trace-0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert flops_run.counted(path, 0, 1) == (2 * 24 * 7, "")
    events.append(event("cpu_op", "aten::convolution", 45))
    path.write_text(json.dumps({"traceEvents": events}))
    assert flops_run.counted(path, 0, 1).unknown == "convolution"


def recorded(folder: Path, rank: int, group: bool, message: bool) -> None:
    """What a rank of two leaves: three optimizer's steps, and a message between them or none."""
    marks = [("user_annotation", f"{STEP}SGD.step", at) for at in (10, 50, 90)]
    events = [*marks, ("cpu_op", "aten::add", 70)]
    if message:
        events.append(("user_annotation", "gloo:all_reduce", 75))
    same = {"dur": 1.0, "pid": rank, "tid": 1, "args": {}}
    told = [{"cat": cat, "name": name, "ts": at, **same} for cat, name, at in events]
    own = {"rank": rank, "num_ranks": 2, "notes": []}
    trace = {"traceEvents": told, "baseTimeNanoseconds": 0, "labkit": own}
    (folder / f"trace-{rank}.json").write_text(json.dumps(trace))
    facts = {"group": group, "steps": 3, "own_profiler": False, "cut": False}
    (folder / f"script-{rank}.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("group", "message", "said"),
    [(True, False, "nothing was sent"), (True, True, None), (False, False, "made no group")],
)
def test_ranks_that_train_alone_are_told(tmp_path, group, message, said):
    for rank in range(2):
        recorded(tmp_path, rank, group, message)
    found = of_folder(tmp_path, 2)
    remarks = [each for each in found.remarks if "MFU" not in each]
    assert found.steps == 1
    parts_us = found.parts_us()
    assert sum(parts_us.values()) == pytest.approx(found.step_us) and all(parts_us.values())
    assert [said in each for each in remarks] == [True] if said else not remarks


@pytest.mark.again
def test_a_script_of_ones_own_is_recorded_unchanged(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    out = tmp_path / "out"
    done = main(["record", "--ranks", "2", "--out", str(out), str(script), "--rate", "3"])
    said = capsys.readouterr().out
    assert done == 0, said
    assert "3 steps" in said and "MFU: " in said and "waiting for data" in said
    whole = json.loads((out / "perfetto.json").read_text())["traceEvents"]
    names = [each["args"]["name"] for each in whole if each["name"] == "process_name"]
    assert any("rank 1" in name for name in names)
    found = lab.advise(window(Timeline.load(out / "timeline.json")).timeline)
    assert found.best.kind == "input"
    assert "<svg" in (out / "report.html").read_text()


@pytest.mark.real
def test_a_long_script_is_recorded_for_ten_whole_steps(tmp_path):
    """The step in which the recording ends lasts as long as writing it takes: it isn't shown."""
    script = tmp_path / "long.py"
    script.write_text(ALONE.replace("range(2)", "range(12)"))
    found = record(script, "7", ranks=1, using="python", show=False)
    assert found.steps == 8
    assert sum(label.startswith(STEP) for label in found.timeline.label.tolist()) == 10
    fewer = record(script, "7", ranks=1, using="python", show=False, steps=5)
    assert fewer.steps == 3
    with pytest.raises(ValueError, match="steps"):
        record(script, ranks=1, steps=0)


@pytest.mark.real
def test_one_process_is_recorded_without_a_launcher(tmp_path, capsys):
    script = tmp_path / "alone.py"
    script.write_text(ALONE)
    assert main(["record", "--using", "python", "--out", str(tmp_path), str(script), "7"]) == 0
    said = capsys.readouterr().out
    assert "One process, no group" in said and "1 steps" in said
    assert {"report.html", "timeline.png", "perfetto.json"} <= {p.name for p in tmp_path.iterdir()}


@pytest.mark.again
def test_scripts_that_fail_hang_or_never_meet_are_told(tmp_path, capsys):
    script = tmp_path / "odd.py"
    script.write_text("import torch\nraise RuntimeError('no such luck')\n")
    assert main(["record", "--out", str(tmp_path), str(script)]) == 1
    assert "no such luck" in capsys.readouterr().err
    script.write_text("import time\ntime.sleep(600)\n")
    assert main(["record", "--seconds", "15", "--out", str(tmp_path), str(script)]) == 1
    assert "15 s" in capsys.readouterr().err
    script.write_text("import torch\ntorch.ones(3) + 1\n")
    assert main(["record", "--out", str(tmp_path), str(script)]) == 0
    said = capsys.readouterr().out
    assert "made no group" in said and "No optimizer stepped" in said
    assert main(["record", "--using", "python", "--out", str(tmp_path), str(script)]) == 0
    assert "One process, no group" in capsys.readouterr().out


@pytest.mark.again
@pytest.mark.parametrize("name", ["test_sync", "test_ops"])
def test_scripts_that_nobody_here_wrote_are_recorded(name):
    from accelerate.test_utils import scripts

    path = Path(scripts.__file__).with_name(f"{name}.py")
    found = record(path, ranks=2, using="accelerate", timeout_s=120, show=False)
    assert found.advice.timeline.num_ranks == 2 and len(found.timeline)
    assert "no group" not in found.told("en")


@pytest.mark.parametrize("wrong", [{"using": "deepspeed"}, {"using": "python", "ranks": 2}])
def test_what_can_not_be_recorded_is_refused(wrong):
    with pytest.raises(ValueError, match=r"recorded by torchrun|starts one process"):
        lab.launch_script(__file__, record=True, **wrong)


def test_pretend_devices_are_not_recorded():
    with pytest.raises(ValueError):
        lab.launch_script(__file__, record=True, devices="pretend")


@pytest.mark.again
@pytest.mark.real
def test_a_recording_outlives_pythons_own_last_steps(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(ALONE.replace('sys.argv[1:] == ["7"] and ', "") + LATE)
    found = record(script, ranks=1, using="python", show=False)
    assert found.steps == 1
    script.write_text("raise SystemExit(3)")
    with pytest.raises(lab.RankFailed, match="exit code 3"):
        record(script, ranks=1, using="python", show=False)
