"""What a practice cluster is asked to be, and the texts that make it."""

import pytest

from labkit.cluster.one_machine import plan, relay_run
from labkit.cluster.one_machine.plan import Layout


@pytest.mark.parametrize(
    ("text", "bits"), [("100Mbit", 1e8), ("1 gbit/s", 1e9), ("2.5Gbit", 2.5e9), ("64kbit", 64e3)]
)
def test_a_bandwidth_is_read(text, bits):
    assert plan.bandwidth(text) == bits


@pytest.mark.parametrize("text", ["", "100", "fast", "5ms", "-1Mbit", "1Mbyte"])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(ValueError, match="Write 100Mbit"):
        plan.bandwidth(text)


def test_a_latency_is_read():
    assert plan.latency("5ms") == 0.005 and plan.latency("50us") == pytest.approx(50e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"ranks_per_node": 0},
        {"latency_s": -1.0},
        {"bandwidth_bit_per_s": 0.0},
        {"loopback": True, "latency_s": 0.001},
    ],
)
def test_a_cluster_that_can_be_none_is_refused(wrong):
    with pytest.raises(ValueError):
        Layout(**wrong)


def test_ranks_are_reached_over_the_delayed_network_where_there_is_one():
    slow = Layout(nodes=3, latency_s=0.005)
    assert slow.data_address(2) == "10.78.0.3" and slow.address(2) == "10.77.0.3"
    assert Layout().data_address(1) == Layout().address(1) == "10.77.0.2"
    assert "10.78.0.1 node0\n" in plan.hosts(slow)
    assert slow.interface == "wire0" and Layout().interface == "eth0"


def test_on_the_loopback_slurm_listens_nowhere_else(tmp_path):
    about = {"host": "box", "user": "me", "cores": 2, "memory_mib": 100}
    text = plan.slurm_conf(Layout(loopback=True), tmp_path, **about)
    assert "NoCtldInAddrAny,NoInAddrAny" in text and "SlurmctldHost=box(127.0.0.1)" in text
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    assert len(lines) == 2 and all("NodeAddr=127.0.0.1" in line for line in lines)
    paths = [line.partition("=")[2] for line in text.splitlines() if "/" in line.partition("=")[2]]
    own = [path for path in paths if "/" in path and not path.startswith(("auth/", "cred/"))]
    for path in own:
        kind = path.partition("/")[0]
        assert kind in ("proctrack", "task", "switch", "select") or str(tmp_path) in path


def test_the_relay_finds_where_a_packet_goes():
    packet = bytearray(20)
    packet[0] = 0x45
    packet[16:20] = bytes([10, 78, 0, 2])
    assert relay_run.destination(bytes(packet)) == 1
    assert relay_run.destination(b"\x60" + bytes(39)) is None
    assert relay_run.destination(b"") is None
