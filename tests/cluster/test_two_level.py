"""Three ways of an all-reduce over two levels: what crosses, is predicted, and is measured."""

import numpy as np
import pytest

import labkit as lab
from labkit import cluster
from labkit.cluster import two_level
from labkit.cluster.matrix import Matrix


def test_the_hierarchical_way_sends_least_between_hosts():
    sent = {
        way: two_level.crossing_bytes(plan, 2, 4e6) for way, plan in two_level.ways(4, 2).items()
    }
    # per direction: 2 (N-1)/N S once, and from both ranks; or all-reduce of halves of two
    assert sent == pytest.approx({"ring": 6e6, "scattered ring": 12e6, "hierarchical": 4e6})


def test_the_prediction_reads_the_matrix():
    hosts = np.array(["a", "a", "b", "b"])
    same = hosts[:, None] == hosts[None, :]
    speeds = np.where(same, 1000.0, 25.0)
    found = Matrix(
        ranks=tuple({"host": host} for host in hosts),
        mb_per_s=speeds,
        latency_us=np.where(same, 50.0, 1000.0),
    )
    links = two_level.network(found, 2)
    assert links.link(0, 1).bandwidth_gb_per_s == 1.0 and links.link(0, 2).alpha_us == 1000.0
    took = two_level.predict(found, 2, 4e6)
    assert took["hierarchical"] < took["ring"] < took["scattered ring"]
    # two messages of S/4 after another, and that twice
    assert took["hierarchical"] == pytest.approx(4 * (1000 + 40_000) + 2 * (50 + 2000), rel=0.1)


@pytest.mark.parametrize(("ranks", "per_host"), [(4, 4), (4, 3), (1, 1)])
def test_one_host_has_no_two_levels(ranks, per_host):
    with pytest.raises(ValueError):
        two_level.ways(ranks, per_host)


@pytest.mark.real
@pytest.mark.again
def test_it_is_so_on_a_real_network(two_nodes):
    found = cluster.all_reduces(on=lab.Hosts(), num_bytes=1e6)
    assert found.measured_us["hierarchical"] < found.measured_us["scattered ring"]
    for way, took_us in found.measured_us.items():
        assert 0.4 < took_us / found.predicted_us[way] < 2.5
    assert len(found.table().cells) == 3
