"""The set-up check on real ranks: of a practice cluster with one slow link."""

import numpy as np
import pytest

import labkit as lab
from labkit import cluster

pytestmark = pytest.mark.real


@pytest.mark.again
def test_the_slow_link_of_a_real_network_is_found(two_nodes):
    cluster.slow(1, "20Mbit")
    try:
        found = cluster.examine(on=lab.Hosts(), mib=0.25, timeout_s=60)
    finally:
        cluster.slow(1, "200Mbit")
    assert found.hosts == ["node0", "node1"]
    assert [each["address"] for each in found.ranks] == ["10.78.0.1", "10.78.0.2"]
    assert found.slow_links() == [("node1", "node0")]
    assert 1.0 < found.mb_per_s[1, 0] < 3.0 < found.mb_per_s[0, 1] < 30.0  # of 2.5 and 25 MB/s
    assert np.isnan(np.diag(found.mb_per_s)).all() and found.latency_us[0, 1] > 900
    assert "clocks" in found.badge and found.origin == "measured"


@pytest.mark.parametrize("wrong", [{"mib": 0}, {"ranks": 1}, {"ranks": 1000}])
def test_what_can_not_be_examined_is_refused(wrong):
    with pytest.raises(ValueError):
        cluster.examine(**wrong)
