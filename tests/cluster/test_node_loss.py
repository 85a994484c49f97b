"""A node dies in the midst of a training, for real; the other goes on."""

import psutil
import pytest

from labkit import cluster

pytestmark = pytest.mark.real


@pytest.mark.again
def test_training_goes_on_from_the_last_checkpoint(two_nodes):
    found = cluster.lose_node(steps=12, kill_after=4, timeout_s=80)
    assert (found.ranks_before, found.ranks_after, found.last_step) == (2, 1, 12)
    assert found.killed_after_step >= 4
    # a step may have ended between the look and the kill, and none is trained twice
    assert found.killed_after_step < found.resumed_at_step <= found.killed_after_step + 3
    assert found.recovery_s > 1.0
    assert len(found.commands) == 2 and "--nnodes=1:2" in found.commands[0]
    words = [" ".join(each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    assert not [line for line in words if "labkit.cluster.survivor_run" in line]


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"kill_after": 99}, {"timeout_s": 0}, {}])
def test_what_can_not_be_lost_is_refused(wrong, tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    with pytest.raises(ValueError):
        cluster.lose_node(**wrong)
