"""An order of FSDP's moves on two queues: what is hidden, what waits."""

import pytest

from labkit import fsdp
from labkit.timeline import COMM, COMPUTE

PLAIN = "g0 F0 g1 F1 g2 F2 g2 g1 B2 r2 g0 B1 r1 B0 r0"
EARLY = "g0 g1 F0 g2 F1 F2 g2 g1 B2 r2 g0 B1 r1 B0 r0"


def times(order, **us):
    line = fsdp.replay(order.split(), **us)
    return line, list(zip(line.label.tolist(), line.start_us, line.end_us, strict=True))


def begins(order, label, **us):
    return [start for each, start, _ in times(order, **us)[1] if each == label]


def test_two_buffers_take_turns_so_gathers_lie_under_the_layers_before():
    us = {"forward_us": 3, "message_us": 1}
    assert begins(PLAIN, "g1", **us) == [1, 11]  # its buffer is free; after g2, that waits for F2
    assert begins(PLAIN, "F1", **us) == [4]
    assert begins(PLAIN, "F2", **us) == [7]
    order = "g0 F0 g1 F1 g2 F2 g3 F3"
    assert [begins(order, f"g{layer}", **us)[0] for layer in range(4)] == [0, 1, 2, 4]
    assert begins(order, "F1", **us) == [4]  # g3 waits for it: g1's buffer
    late, early = (begins(each, "B0", **us) for each in (PLAIN, EARLY))
    assert late == early  # asked for a layer earlier, the step is no shorter


def test_a_backward_takes_two_forwards_and_its_reduce_waits_for_it():
    _, found = times("g0 F0 B0 r0", forward_us=10, message_us=3)
    assert found == [("g0", 0, 3), ("F0", 3, 13), ("B0", 13, 33), ("r0", 33, 36)]


def test_where_messages_are_slower_the_computation_waits_for_them():
    us = {"forward_us": 1, "message_us": 4}
    assert [begins(PLAIN, f"F{layer}", **us)[0] for layer in range(3)] == [4, 8, 12]


@pytest.mark.parametrize("forward_us", [0, 1, 3, 7])
def test_queues_keep_their_order_and_nobody_computes_without_weights(forward_us):
    line, found = times(PLAIN, forward_us=forward_us, message_us=2)
    assert line.badge == "simulated" and [label for label, *_ in found] == PLAIN.split()
    for lane in (COMPUTE, COMM):
        mine = line.select(line.lane == lane)
        assert (mine.start_us[1:] >= mine.end_us[:-1]).all()
    ends = {label: end for label, _, end in found}
    starts = {label: start for label, start, _ in found}
    for layer in range(3):
        assert ends[f"g{layer}"] <= starts[f"B{layer}"]
        assert ends[f"B{layer}"] <= starts[f"r{layer}"]


def test_what_is_no_order_is_refused():
    with pytest.raises(ValueError, match="g3"):
        fsdp.replay(["x1"], forward_us=1, message_us=1)
    with pytest.raises(ValueError, match="gathered"):
        fsdp.replay(["F0"], forward_us=1, message_us=1)
    with pytest.raises(ValueError, match="message_us"):
        fsdp.replay(["g0"], forward_us=1, message_us=-1)
