"""A command on every node of a practice cluster, and a cluster that comes up as far as it can."""

import psutil
import pytest

from labkit import cluster
from labkit.cluster.one_machine import network_run, slurm_run, up_run
from labkit.launching.nodes import practice
from labkit.launching.nodes.places import Hosts, Slurm

FSDP = """
import socket, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group()
net = fully_shard(torch.nn.Linear(4, 1))
net(torch.ones(2, 4)).sum().backward()
print(f"rank {dist.get_rank()} on {socket.gethostname()}, of {dist.get_world_size()}")
dist.barrier()
dist.destroy_process_group()
"""
TORCHRUN = (
    "torchrun --nnodes=2 --nproc-per-node=1 --node-rank={node} --master-addr={first} "
    "--master-port={port} train.py"
)
ENGINE = """
import deepspeed, torch
deepspeed.init_distributed(dist_backend="gloo")
adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
config = {"train_micro_batch_size_per_gpu": 2, "optimizer": adam}
config["zero_optimization"] = {"stage": 1}
engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 1), config=config)
engine.backward(engine(torch.ones(2, 4)).sum())
engine.step()
print(f"rank {torch.distributed.get_rank()} took a step")
torch.distributed.barrier()
"""
DEEPSPEED = (
    "deepspeed --hostfile=hosts --no_ssh --node_rank={node} --master_addr={first} "
    "--master_port={port} train.py"
)


GOODBYE = """
echo 'rank {node} has finished'
log='E1127 18:29:38.862000 18928 /python/torch/distributed/elastic/agent/server/api.py:1008]'
for line in 'Error waiting on exit barrier. Elapsed: 0.005 s' 'Traceback (most recent call last):' \
    '  File "api.py", line 999, in _exit_barrier' '  File "store.py"' '  File "store.py"' \
    '    store.wait([last_member_key])' 'torch.distributed.DistNetworkError: got 0 bytes' 'end'; do
    echo "$log $line"
done
"""
"""What torchrun prints where the first node's has left an instant earlier."""


def printed(table):
    return [row[-1] for row in table.cells]


def ended(table):
    return [row[2] for row in table.cells]


@pytest.fixture
def on_loopback(tmp_path, monkeypatch):
    """Two plain nodes that need nobody, and whose record is the test's own."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setattr(network_run, "obstacle", lambda: "not here")
    monkeypatch.setattr(slurm_run, "obstacle", lambda: "no Slurm")
    yield
    up_run.down()


def test_it_comes_up_as_far_as_it_can_and_says_what_is_missing(on_loopback, capsys):
    table = cluster.renew(bandwidth="200Mbit", latency="1ms")
    assert "loopback" in str(table)
    said = capsys.readouterr().out
    assert "Without a link of 200 Mbit/s, 1 ms" in said and "no Slurm" in said
    assert isinstance(cluster.place(), Hosts)
    first = practice.current().folder
    cluster.renew(nodes=3)  # the one before goes
    assert len(practice.current().nodes) == 3 and not first.exists()


def test_every_node_runs_the_line_with_its_own_number(on_loopback):
    cluster.renew()
    told = cluster.run_on_nodes("cat words; echo node {node} of {first}", files={"words": "hi\n"})
    assert printed(told) == ["hi · node 0 of 127.0.0.1", "hi · node 1 of 127.0.0.1"]
    assert ended(cluster.run_on_nodes("exit {node}")) == ["0", "1"]


def test_what_takes_too_long_is_ended_with_all_that_it_started(on_loopback):
    cluster.renew()
    told = cluster.run_on_nodes("echo begun; sleep 314.159 & sleep 314.159", timeout_s=1)
    assert printed(told) == ["begun", "begun"]
    assert ended(told) == ["stopped: too late"] * 2
    lines = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in lines if line == "sleep 314.159"]


def test_a_late_goodbye_is_told_without_its_traceback(on_loopback):
    cluster.renew()
    for node, words in enumerate(printed(cluster.run_on_nodes(GOODBYE))):
        said = "torchrun, api.py:1008: Error waiting on exit barrier"
        assert words == f"rank {node} has finished · {said}"


@pytest.mark.parametrize("name", ["", "../up", "/etc/x", "a/b"])
def test_a_file_stays_in_its_folder(on_loopback, name):
    cluster.renew()
    with pytest.raises(ValueError, match="without folders"):
        cluster.run_on_nodes("true", files={name: ""})


def test_without_a_cluster_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    for ask in (cluster.place, cluster.status, lambda: cluster.run_on_nodes("true")):
        with pytest.raises(ValueError, match="cluster up"):
            ask()


@pytest.mark.real
@pytest.mark.again
def test_fsdp_by_torchrun_on_both_nodes(two_nodes):
    assert isinstance(cluster.place(), Slurm)
    told = cluster.run_on_nodes(TORCHRUN, files={"train.py": FSDP})
    assert "rank 0 on node0, of 2" in printed(told)[0]
    assert "rank 1 on node1, of 2" in printed(told)[1]


@pytest.mark.real
@pytest.mark.again
def test_deepspeed_by_its_hostfile(two_nodes):
    hosts = "node0 slots=1\nnode1 slots=1\n"
    files = {"train.py": ENGINE, "hosts": hosts}
    told = cluster.run_on_nodes(DEEPSPEED, files=files)
    for rank, words in enumerate(printed(told)):
        assert f"rank {rank} took a step" in words
