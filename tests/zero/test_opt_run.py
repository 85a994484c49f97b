"""What a Trainer of transformers is given: a net that learns, and passages of one length."""

import pytest

from labkit.zero import opt_run

pytest.importorskip("transformers")


def test_the_net_takes_the_passages_and_has_a_loss():
    net, passages = opt_run.net_and_data()
    assert len(passages) == 48
    assert {len(each["input_ids"]) for each in passages} == {32}
    first = {name: values[None] for name, values in passages[0].items()}
    assert (first["input_ids"] == first["labels"]).all()
    loss = net(**first).loss
    assert 4 < loss.item() < 8  # nothing learned yet: about ln 256
    loss.backward()
