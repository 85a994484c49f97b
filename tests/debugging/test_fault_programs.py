"""What a made-up fault does on a rank, without a launch."""

import pytest

from labkit.debugging import faults


@pytest.mark.parametrize(("is_odd", "batches"), [(True, 3), (False, 4)])
def test_it_is_the_odd_rank_that_has_a_batch_less(is_odd, batches, monkeypatch):
    reduced = []
    monkeypatch.setattr(faults, "_is", lambda odd: is_odd)
    monkeypatch.setattr(faults, "_reduce", lambda: reduced.append(1))
    faults.uneven_inputs(1)
    assert len(reduced) == batches
