"""ZeRO 1 beside the strategies: held in parts, sent as data parallelism sends."""

import pytest

from labkit.planner import need, strategies


def test_a_sharded_optimizer_is_held_in_parts_and_sends_as_much():
    data = strategies.Strategy(recipe="mixed", one_by_one=True)
    zero_1 = data.but(shard_optimizer=True)
    assert zero_1.bill() == need.Need(model="LLaMA 7B").bill(4, stage=1)
    assert zero_1.sent_bytes() == pytest.approx(data.sent_bytes())
    assert zero_1.as_run() == data.as_run()
    with pytest.raises(ValueError, match="shard_optimizer"):
        data.but(strategy="layers", shard_optimizer=True)
