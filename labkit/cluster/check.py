"""The exercises of many machines: a script for sbatch, which is run where Slurm is here; a slow
link in a matrix; a training that goes on when a node is lost."""

import contextlib
import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from labkit.check import exercise, faults, hint, limit, on_ranks, status, wrong
from labkit.cluster import matrix
from labkit.cluster.one_machine import network_run, slurm_run, up_run
from labkit.cluster.one_machine.plan import Layout
from labkit.launching.nodes import practice
from labkit.launching.nodes.practice import Practice
from labkit.launching.verdicts.verdict import LaunchError
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["hint", "resume_after_loss", "sbatch_script", "slow_link", "status"]

PROBE = """
import os, socket, sys
import torch, torch.distributed as dist
dist.init_process_group()
total = torch.ones(1)
dist.all_reduce(total)
with open(os.path.join(sys.argv[1], f"rank-{dist.get_rank()}"), "w") as file:
    file.write(f"{socket.gethostname()}:{os.environ['SLURM_NODEID']} {int(total)}")
dist.barrier()
"""
JOB_S = 60.0
"""how long a learner's job may take"""


@exercise
def sbatch_script(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(nodes, ranks_per_node, command)`` is the text for sbatch that runs ``command`` (a
    script and its arguments, as one types them) by torchrun, on so many nodes, so many ranks each.

    It is read first; and where a practice cluster with Slurm is up, or can be, it is run there, and
    every rank has to answer. What was done is printed.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-sbatch-") as name:
        folder = Path(name)
        (folder / "probe.py").write_text(PROBE)
        command = f"{shlex.quote(str(folder / 'probe.py'))} {shlex.quote(name)}"
        for nodes, ranks_per_node in ((4, 8), (2, 2)):
            text = answer(nodes, ranks_per_node, command)
            for fault in script_faults(text, nodes, ranks_per_node, command):
                yield wrong(
                    "{nodes} nodes, {ranks} ranks each: {fault}",
                    nodes=nodes,
                    ranks=ranks_per_node,
                    fault=fault,
                )
        with limit(JOB_S + 60), _slurm() as (cluster, why):
            if cluster is None:
                print(say("Judged by reading it; it was not run: {why}", why=why))
                return
            print(say("Judged by running it on the practice cluster: 2 nodes, 2 ranks each."))
            if fault := _ran(cluster, text, folder):
                yield wrong("run on 2 nodes, 2 ranks each: {fault}", fault=fault)


def script_faults(text: object, nodes: int, ranks_per_node: int, command: str) -> Iterator[str]:
    """What is wrong with a text for sbatch, as far as reading tells."""
    if not isinstance(text, str):
        yield say("a text is expected; got a {kind}", kind=type(text).__name__)
        return
    if not text.startswith("#!"):
        yield say("sbatch wants a first line that names the shell: #!/bin/bash")
        return
    settings = " ".join(re.findall(r"^#SBATCH\s+(.*)$", text, re.M))
    program = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    program = program.replace("\\\n", " ")
    if not re.search(rf"(--nodes[= ]|-N\s*){nodes}\b", settings):
        yield say("no #SBATCH line asks for {nodes} nodes (--nodes)", nodes=nodes)
    if not re.search(r"--ntasks-per-node[= ]1\b", settings):
        yield say("one task per node is one torchrun per node: --ntasks-per-node=1")
    if "srun" not in program:
        yield say("the script runs on the first node only: srun starts a step on every node")
    if not re.search(r"torchrun|torch\.distributed\.run", program):
        yield say("nothing starts torchrun")
    if not re.search(rf"--nproc[-_]per[-_]node[= ]{ranks_per_node}\b", program):
        yield say("torchrun starts {ranks} ranks on a node: --nproc-per-node", ranks=ranks_per_node)
    if not re.search(rf"--nnodes[= ]({nodes}\b|1:{nodes}\b|\$\{{?SLURM_)", program):
        yield say("torchrun must know of {nodes} nodes: --nnodes", nodes=nodes)
    if not re.search(r"--rdzv[-_]endpoint|--master[-_]addr", program):
        yield say("nobody says where the ranks meet: --rdzv-endpoint or --master-addr")
    if command not in text:
        yield say("the command that was given is not in it: {command}", command=command)


@contextlib.contextmanager
def _slurm() -> Iterator[tuple[Practice | None, str]]:
    """The practice cluster with Slurm, started where none is up and it can be; else why not."""
    found = practice.current()
    # on the loopback the nodes' names, which a script meets by, are not known
    if found and found.slurm and found.namespaces and len(found.nodes) == 2:
        yield found, ""
        return
    if practice.read():
        yield None, say("the practice cluster that is up has no two networked nodes with Slurm")
        return
    if why := slurm_run.obstacle() or network_run.obstacle():
        yield None, why
        return
    try:
        yield up_run.up(Layout()), ""
    finally:
        up_run.down()


def _ran(cluster: Practice, text: str, folder: Path) -> str:
    """What is wrong with what a script did; "" where every rank has answered."""
    (folder / "job.sbatch").write_text(text)
    output = folder / "output.txt"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environ = {**os.environ, **cluster.environment(), "PATH": path}

    def slurm(*command: str) -> subprocess.CompletedProcess:
        line = [*cluster.login, shlex.join(command)] if cluster.login else list(command)
        about = {"capture_output": True, "text": True, "timeout": 30, "cwd": folder}
        return subprocess.run(line, env=environ, **about)

    told = slurm("sbatch", "--parsable", f"--output={output}", str(folder / "job.sbatch"))
    if told.returncode:
        return say("sbatch refused it: {said}", said=told.stderr.strip())
    job = told.stdout.strip()
    deadline = time.monotonic() + JOB_S
    try:
        while slurm("squeue", "--noheader", f"--jobs={job}").stdout.strip():
            if time.monotonic() > deadline:
                return say("it did not end within {seconds:g} s", seconds=JOB_S)
            time.sleep(0.3)
    finally:
        slurm("scancel", job)
    return _unanswered(folder, output)


def _unanswered(folder: Path, output: Path) -> str:
    """What the ranks' answers lack."""
    answers = [file.read_text().split() for file in sorted(folder.glob("rank-*"))]
    said = output.read_text(errors="replace")[-800:] if output.exists() else ""
    if len(answers) != 4:
        return say("{num} of 4 ranks answered. It printed:\n{said}", num=len(answers), said=said)
    if {total for _, total in answers} != {"4"}:
        return say("the ranks are not one group of 4: they formed several")
    if len({host for host, _ in answers}) != 2:
        return say("all ranks were on one node")
    return ""


@exercise
def slow_link(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(mb_per_s, hosts)`` names the slow links of a matrix, as a list of (from, to).

    ``mb_per_s`` (ranks, ranks) is what rank [row] sent to rank [column] in MB/s, nan on the
    diagonal; ``hosts`` names each rank's host. A link's speed is the median over its pairs of
    ranks; it is slow below half of the median of all links between hosts. What is inside a host is
    no link.
    """
    generator = np.random.default_rng(17)
    for sizes, slow in (
        ((2, 2), [("n1", "n0")]),
        ((2, 2, 2), []),
        ((2, 2, 2, 2), [("n3", "n0"), ("n3", "n1"), ("n3", "n2")]),
        ((1, 3, 2), [("n0", "n2")]),
        ((4, 4), []),
    ):
        names = [f"n{host}" for host in range(len(sizes))]
        hosts = np.repeat(names, sizes).tolist()
        speeds = _speeds(generator, hosts, slow)
        found = answer(speeds.copy(), list(hosts))
        right = matrix.slow_links(speeds, hosts)
        mine = sorted(tuple(link) for link in found)
        if mine != sorted(right):
            yield wrong(
                "{num} ranks on {hosts} hosts: you name {mine}; slow is {right}\nlinks: {links}",
                num=len(hosts),
                hosts=len(sizes),
                mine=_named(mine),
                right=_named(right),
                links=_named_speeds(speeds, hosts),
            )


def _speeds(generator: np.random.Generator, hosts: list[str], slow: list) -> np.ndarray:
    """A matrix with noise, slow where it is told; one pair of ranks is an outlier."""
    speeds = np.full((len(hosts), len(hosts)), np.nan)
    for source, target in itertools.permutations(range(len(hosts)), 2):
        link = (hosts[source], hosts[target])
        usual = 900.0 if link[0] == link[1] else 100.0
        speeds[source, target] = usual * generator.uniform(0.8, 1.2)
        if link in slow:
            speeds[source, target] *= 0.2
    if hosts.count(hosts[-1]) > 2:
        speeds[-1, 0] *= 0.1  # one bad pair of many is no slow link
    return speeds


def _named(links: list) -> str:
    return ", ".join(f"{start} → {end}" for start, end in links) or say("none")


def _named_speeds(speeds: np.ndarray, hosts: list[str]) -> str:
    wide = matrix.by_link(speeds, hosts)
    return ", ".join(f"{start} → {end} {speed:.0f}" for (start, end), speed in wide.items())


@exercise
def resume_after_loss(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(folder, net, optimizer, train_step, steps)`` is what every rank does at every start:
    it goes on from the last checkpoint in ``folder`` (empty at first) and calls
    ``train_step(step)`` for each step up to ``steps``, saving after each.

    A rank is killed in the midst of a step, for good, and torchrun starts those that are left anew.
    No step may be left out, none that was saved trained again, and net and optimizer must come to
    the weights of undisturbed training.
    """
    for before, after, kill in ((2, 1, 3), (3, 2, 1), (2, 1, 0)):
        case = say(
            "{before} ranks, one killed in step {kill}, {after} left",
            before=before,
            after=after,
            kill=kill,
        )
        with tempfile.TemporaryDirectory() as name:
            notes = Path(name)
            folder = notes / "checkpoints"
            folder.mkdir()
            try:
                on_ranks(before, _life, answer, folder, kill)
            except LaunchError as error:
                if all(ending.status != -signal.SIGKILL for ending in error.outcomes):
                    raise
            if not (notes / "killed").exists():
                yield wrong("{case}: training never came to that step", case=case)
                return
            yield from faults(case, on_ranks(after, _life, answer, folder, None))


STEPS = 6


def _life(answer: Callable, folder: Path, kill: int | None) -> tuple[str]:
    """A start of the training on a rank: what is wrong with its end."""
    import torch.distributed as dist

    net, optimizer = _built()
    trained = []

    def train_step(step: int) -> None:
        if step == kill and dist.get_rank() == dist.get_world_size() - 1:
            (folder.parent / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        _train(net, optimizer, step, dist.get_rank(), dist.get_world_size())
        trained.append(step)
        if dist.get_rank() == 0:
            with open(folder.parent / "steps", "a") as file:
                file.write(f"{step}\n")

    answer(folder, net, optimizer, train_step, STEPS)
    steps = [int(line) for line in (folder.parent / "steps").read_text().split()]
    if steps != list(range(STEPS)):
        return (say("the steps were {steps}; each is due once", steps=steps),)
    alone, its_optimizer = _built()
    for step in range(STEPS):
        _train(alone, its_optimizer, step)
    return (_unlike(net.state_dict(), alone.state_dict()),)


def _built() -> tuple:
    """A small net and its Adam, the same at every start."""
    import torch
    from torch import nn

    net = nn.Linear(4, 1).double()
    for weight in net.parameters():
        weight.data.copy_(torch.linspace(-0.5, 0.5, weight.numel()).reshape(weight.shape))
    return net, torch.optim.Adam(net.parameters(), lr=0.05)


def _train(net: object, optimizer: object, step: int, rank: int = 0, num_ranks: int = 1) -> None:
    """A step on this rank's part of its batch; gradients are summed over the ranks."""
    import torch
    import torch.distributed as dist

    inputs = torch.from_numpy(np.random.default_rng(step).standard_normal((12, 4)))
    mine = inputs.to(torch.get_default_device()).tensor_split(num_ranks)[rank]
    optimizer.zero_grad()
    ((net(mine) - mine.sum(1, keepdim=True)).square().sum() / 12).backward()
    for weight in net.parameters() if num_ranks > 1 else ():
        dist.all_reduce(weight.grad)
    optimizer.step()


def _unlike(mine: "dict[str, Tensor]", right: "dict[str, Tensor]") -> str:
    """What weights are not, if they are not ``right``."""
    import torch

    if all(torch.allclose(mine[name], right[name], atol=1e-9) for name in right):
        return ""
    return say("the weights are not those of undisturbed training: is the optimizer saved, too?")
