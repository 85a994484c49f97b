"""Laws of script launches: the real command runs, every rank's output and result come back, nothing
outlives it."""

import json
import textwrap

import psutil
import pytest
import torch

import labkit as lab
from labkit.launching import script

GOOD = """
import os, sys, torch, torch.distributed as dist
{init}
from labkit.launching import rank
x = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(x)
print("rank", dist.get_rank(), "argument", sys.argv[-1], flush=True)
rank.current().give(x.item())
dist.barrier()
os._exit(0)  # torch's teardown aborts now and then after success
"""
INIT = {
    "torchrun": "dist.init_process_group('gloo')",
    "accelerate": "from accelerate import Accelerator; Accelerator()",
    "deepspeed": "import deepspeed; deepspeed.init_distributed()",
}


@pytest.mark.a_few(1)
@pytest.mark.parametrize("using", script.LAUNCHERS)
def test_the_same_run_comes_back_from_every_launcher(using, tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(GOOD.format(init=INIT[using]))
    run = lab.launch_script(path, "seven", ranks=2, using=using, timeout_s=120)
    assert list(run) == [3.0, 3.0]
    assert [f"rank {rank} argument seven" in log for rank, log in enumerate(run.logs)] == [
        True,
        True,
    ]
    shown = capsys.readouterr().out
    assert using in run.notes and shown.startswith("$") and f" {using} " in shown


def test_a_failing_script_shows_the_guilty_ranks_traceback(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            raise KeyError("no such layer")
        dist.all_reduce(torch.ones(1))
    """)
    )
    with pytest.raises(
        lab.RankFailed, match=r"(?s)rank 1 of the script failed.*KeyError: 'no such layer'"
    ):
        lab.launch_script(path, ranks=2, timeout_s=120, show=False)
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(path) in (p.info["cmdline"] or [])
    ]


AFTER = {
    "raises": 'raise ValueError("the check after training failed")',
    "is killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.again
@pytest.mark.parametrize("ending", AFTER)
def test_a_failure_after_or_without_a_result_is_a_failure(ending, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent(f"""
        import os, torch, torch.distributed as dist
        from labkit.launching import rank
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            rank.current().give(1)
            {AFTER[ending]}
        rank.current().give(0)
        dist.all_reduce(torch.ones(1))
    """)
    )
    with pytest.raises(lab.RankFailed) as caught:
        lab.launch_script(path, ranks=2, timeout_s=120, show=False)
    assert ("rank 1 of the script failed" if ending == "raises" else "exitcode  : -9") in str(
        caught.value
    )


def test_an_abort_of_torchs_own_at_the_end_is_told_from_the_scripts_errors(tmp_path):
    path = tmp_path / "ends.py"
    words = "terminate called without an active exception"
    path.write_text(f"import os\nos.write(2, b'{words}\\n')\nos.abort()\n")
    with pytest.raises(lab.RankFailed, match=r"rank 0 aborted.*Run it again"):
        lab.launch_script(path, ranks=1, using="python", timeout_s=60)


def test_a_script_that_hangs_is_ended_with_all_its_ranks(tmp_path):
    path = tmp_path / "hang.py"
    path.write_text(
        "import os, time, pathlib\nprint('waiting', os.getpid(), flush=True)\ntime.sleep(600)\n"
    )
    with pytest.raises(lab.Timeout, match="given 20 s") as caught:
        lab.launch_script(path, ranks=2, timeout_s=20, show=False)
    pids = [int(log.split()[-1]) for log in caught.value.logs]
    assert len(pids) == 2 and not any(psutil.pid_exists(pid) for pid in pids)


def test_a_wrong_launcher_or_path_is_named(tmp_path):
    with pytest.raises(
        ValueError, match="one of torchrun, accelerate, deepspeed, python; got 'mpirun'"
    ):
        lab.launch_script(__file__, using="mpirun")
    with pytest.raises(ValueError, match=r"'nowhere\.py' is no file"):
        lab.launch_script("nowhere.py")


ELASTIC = """
import os, sys, time, torch, torch.distributed as dist
from labkit.launching import rank
from labkit.recovery import checkpoint
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(net.parameters())
step = 0
if checkpoint.checkpoints("{folder}"):
    step = checkpoint.load("{folder}", net, optimizer)["step"]
seen = [(dist.get_world_size(), step, time.time())]
while step < 6:
    optimizer.zero_grad()
    net(torch.ones(2, 4)).sum().backward()
    for weight in net.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    optimizer.step()
    step += 1
    if step == 4 and seen[0][1] == 0 and dist.get_rank() == 1:
        print("killed at", time.time(), flush=True)
        for pid in {pids}:
            os.kill(pid, 9)
    checkpoint.save("{folder}", step, net, optimizer)
print("ranks, step:", seen[0][:2], flush=True)
rank.current().give((seen, net.weight.tolist()))
dist.barrier()
os._exit(0)
"""


def undisturbed():
    """The weights after the six steps of ELASTIC in one process: the ranks' gradients are equal, so
    their mean is each."""
    torch.manual_seed(0)
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return net.weight.tolist()


@pytest.mark.parametrize(
    ("pids", "options", "left"),
    [
        pytest.param("[os.getpid()]", {"max_restarts": 2}, 2, marks=pytest.mark.again),
        pytest.param(
            *("[os.getppid(), os.getpid()]", {"max_restarts": 2, "nodes": (1, 2)}, 1),
            marks=pytest.mark.again,  # 27 s; chapter 13 does it, too
        ),
    ],
)
def test_torchrun_goes_on_from_the_checkpoint_with_the_ranks_that_are_left(
    pids, options, left, tmp_path, capsys
):
    path = tmp_path / "train.py"
    path.write_text(ELASTIC.format(folder=tmp_path / "checkpoints", pids=pids))
    run = lab.launch_script(path, ranks=2, timeout_s=120, **options)
    (seen, weight), *others = run
    assert seen[0][:2] == (left, 3) and [each is None for each in others] == [left == 1]
    killed = float(run.logs[1].split("killed at ")[1].split()[0])
    assert 0 < seen[0][2] - killed < 60
    assert undisturbed() == weight
    shown = capsys.readouterr().out
    assert shown.count("$ TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun ") == 3 - left
    assert ("--nnodes 1:2" in shown) == (left == 1) and "--log-dir" not in shown
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(path) in (p.info["cmdline"] or [])
    ]


NUMBERED = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
print("node", os.environ["GROUP_RANK"], "local", os.environ["LOCAL_RANK"])
dist.destroy_process_group()
"""


@pytest.mark.again
def test_nodes_that_must_all_be_there_have_fixed_numbers(tmp_path, capsys):
    path = tmp_path / "numbered.py"
    path.write_text(NUMBERED)
    run = lab.launch_script(path, ranks=2, nodes=(2, 2), devices="cpu", timeout_s=120)
    assert [log.strip() for log in run.logs] == ["node 0 local 0", "node 1 local 0"]
    shown = capsys.readouterr().out
    assert all(f"--nnodes 2 --node-rank {node} --master-addr " in shown for node in (0, 1))


def test_restarts_that_are_none_are_refused(tmp_path):
    with pytest.raises(ValueError, match="torchrun alone restarts ranks; got using='deepspeed'"):
        lab.launch_script(__file__, using="deepspeed", max_restarts=1)
    for nodes, ranks, words in (
        ((2, 1), 2, "fewest_nodes"),
        ((0, 1), 2, "fewest_nodes"),
        (2, 2, r"\(fewest, most\); got 2"),
        ((1, 2), 3, "3 ranks are not shared by 2 nodes"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.launch_script(__file__, ranks=ranks, nodes=nodes)


ACCELERATED = """
import os
from accelerate import Accelerator
from labkit.launching import rank
a = Accelerator()
rank.current().give((a.mixed_precision, a.num_processes))
a.wait_for_everyone()
os._exit(0)
"""


@pytest.mark.again
def test_accelerate_takes_its_configuration_from_a_file_or_a_dict(tmp_path, capsys):
    path = tmp_path / "train.py"
    path.write_text(ACCELERATED)
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": 1,
        "num_processes": 4,
        "mixed_precision": "bf16",
    }
    run = lab.launch_script(path, ranks=2, using="accelerate", config=config, timeout_s=120)
    assert list(run) == [("bf16", 2)] * 2  # ranks counts for more than num_processes
    assert json.loads((tmp_path / "train.json").read_text()) == config
    shown = capsys.readouterr().out
    assert f"--config_file {tmp_path / 'train.json'}" in shown and "--mixed_precision" not in shown
    line = script.command(path, ranks=2, using="accelerate", config="mine.yaml")
    assert line[:4] == ["accelerate", "launch", "--config_file", "mine.yaml"]
    with pytest.raises(
        ValueError, match="a configuration file is accelerate's; torchrun takes none"
    ):
        script.command(path, ranks=2, using="torchrun", config="mine.yaml")
