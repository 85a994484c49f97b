"""The exercises of many machines: what is right passes, and each way to be wrong is told."""

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from labkit.cluster import check
from labkit.launching.nodes import practice

EXERCISES = ("sbatch_script", "slow_link", "resume_after_loss")
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("a_fresh_learner")]

RIGHT = """#!/bin/bash
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes={nodes} --nproc-per-node={ranks} --rdzv-id=$SLURM_JOB_ID \\
    --rdzv-backend=c10d --rdzv-endpoint=$head:29500 {command}
"""


def batch(nodes, ranks, command):
    return RIGHT.format(nodes=nodes, ranks=ranks, command=command)


@pytest.mark.again  # chapter 17's own solution is run on both nodes
def test_a_right_script_is_run_on_both_nodes(two_nodes, capsys):
    verdict = check.sbatch_script(batch)
    assert verdict.state == "passed", verdict
    assert "Judged by running it" in capsys.readouterr().out


def test_a_script_is_read_where_it_can_not_be_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setattr(check.slurm_run, "obstacle", lambda: "Slurm is not installed")
    assert check.sbatch_script(batch).state == "passed"
    assert "not run: Slurm is not installed" in capsys.readouterr().out
    assert practice.current() is None


@pytest.mark.parametrize(
    ("right", "instead", "told"),
    [
        ("#!/bin/bash\n", "", "first line"),
        ("--nodes={nodes}\n", "--nodes=3\n", "--nodes"),
        ("--ntasks-per-node=1", "--ntasks-per-node={ranks}", "one torchrun per node"),
        ("srun ", "", "first node only"),
        ("torchrun", "python", "torchrun"),
        ("--nproc-per-node={ranks}", "", "--nproc-per-node"),
        ("--nnodes={nodes}", "--nnodes=1", "--nnodes"),
        ("--rdzv-endpoint=$head:29500", "", "where the ranks meet"),
        ("{command}", "train.py", "the command that was given"),
    ],
)
def test_each_way_to_write_it_wrong_is_told(right, instead, told):
    assert right in RIGHT
    text = RIGHT.replace(right, instead)
    verdict = check.sbatch_script(lambda n, r, c: text.format(nodes=n, ranks=r, command=c))
    assert verdict.state == "wrong" and told in verdict.counterexample


def slow(speeds, hosts):
    links = {}
    for i, j in itertools.permutations(range(len(hosts)), 2):
        if hosts[i] != hosts[j]:
            links.setdefault((hosts[i], hosts[j]), []).append(speeds[i, j])
    middle = {link: np.median(each) for link, each in links.items()}
    usual = np.median(list(middle.values()))
    return [link for link in middle if middle[link] < 0.5 * usual]


def slowest(speeds, hosts):
    """Names a link also where none is slow."""
    place = np.unravel_index(np.nanargmin(speeds), speeds.shape)
    return [(hosts[place[0]], hosts[place[1]])]


def turned(speeds, hosts):
    return [(end, start) for start, end in slow(speeds, hosts)]


def test_a_slow_link():
    assert check.slow_link(slow).state == "passed"
    assert check.slow_link(slowest).state == "wrong"
    verdict = check.slow_link(turned)
    assert verdict.state == "wrong" and "n1 → n0" in verdict.counterexample


def resumed(folder, net, optimizer, train_step, steps, keep=("net", "optimizer")):
    file = folder / "last.pt"
    begin = 0
    if file.exists():
        state = torch.load(file)
        net.load_state_dict(state["net"])
        if "optimizer" in keep:
            optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    for step in range(begin, steps):
        train_step(step)
        if dist.get_rank() == 0:
            draft = folder / "draft.pt"
            parts = {"net": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**parts, "step": step + 1}, draft)
            draft.replace(file)
        dist.barrier()


def forgetful(folder, net, optimizer, train_step, steps):
    resumed(folder, net, optimizer, train_step, steps, keep=("net",))


def anew(folder, net, optimizer, train_step, steps):
    for step in range(steps):
        train_step(step)


@pytest.mark.again
@pytest.mark.parametrize(
    ("answer", "told"),
    [(resumed, ""), (forgetful, "is the optimizer saved"), (anew, "each is due once")],
)
def test_a_training_goes_on_without_the_lost_rank(answer, told):
    verdict = check.resume_after_loss(answer)
    assert verdict.state == ("wrong" if told else "passed"), verdict
    assert told in (verdict.counterexample or "")
