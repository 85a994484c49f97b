"""FSDP's moves: what they are for a step that is written down, and for a real one."""

import itertools

import pytest
import torch.distributed as dist

import labkit as lab
from labkit import fsdp
from labkit.timeline import COMM, from_rows

MARK = "mark"


def written(*, messages=True, ahead=False):
    """One step of one layer after another, as a profiler would label it: (start, end, label)."""
    gathers = [(0, 4, "a"), (5, 9, "b")] if ahead else [(0, 4, "a"), (20, 24, "b")]
    labels = [
        (-1, 0, "FSDP::root_pre_forward"),
        *((start, end, f"FSDP::all_gather ({name})") for start, end, name in gathers),
        (14, 15, "FSDP::post_forward (a)"),
        (34, 35, "FSDP::post_forward (b)"),
        (50, 51, "FSDP::post_backward_accumulate (b)"),
        (52, 56, "FSDP::post_backward_reduce (b)"),
        (70, 71, "FSDP::post_backward_accumulate (a)"),
        (72, 76, "FSDP::post_backward_reduce (a)"),
    ]
    rows = [(0, MARK, MARK, label, start, end, 0) for start, end, label in labels]
    kinds = [(*gathers[0][:2], "all_gather"), (*gathers[1][:2], "all_gather")]
    kinds += [(52, 56, "all_reduce"), (72, 76, "all_reduce")]
    for start, end, kind in kinds if messages else ():
        rows.append((0, COMM, kind, kind, start + 1, end, 64))
    return from_rows(rows, num_ranks=1, origin="measured", notes=["gloo"])


def test_the_order_of_a_written_step_is_the_one_written():
    assert fsdp.order(written()) == ["g0", "F0", "g1", "F1", "B1", "r1", "B0", "r0"]
    assert fsdp.order(written(ahead=True)) == ["g0", "g1", "F0", "F1", "B1", "r1", "B0", "r0"]


def test_a_layer_computes_between_two_labels_and_messages_bear_its_number():
    line = fsdp.by_layer(written())
    found = {
        label: (start_us, end_us)
        for label, start_us, end_us in zip(line.label, line.start_us, line.end_us, strict=True)
    }
    assert found["F0"] == (3, 13) and found["B1"] == (34, 49)  # the first message begins at 1
    assert found["g1"] == (20, 23) and found["r0"] == (72, 75)
    kinds = dict(zip(line.label, line.kind, strict=True))
    assert kinds["r1"] == "reduce_scatter" and kinds["g0"] == "all_gather"
    assert line.badge == "measured, gloo" and line.num_bytes[line.lane == COMM].tolist() == [64] * 4


def test_only_the_last_step_counts():
    once = written()
    rows = [*zip(*(getattr(once, name).tolist() for name in _COLUMNS), strict=True)]
    later = [(*row[:4], row[4] + 1000, row[5] + 1000, row[6]) for row in rows]
    twice = from_rows([*rows, *later], num_ranks=1, origin="measured")
    assert fsdp.order(twice) == fsdp.order(once)
    assert len(fsdp.by_layer(twice)) == len(fsdp.by_layer(once))


def test_a_message_too_many_gets_no_layer():
    line = written()
    rows = [*zip(*(getattr(line, name).tolist() for name in _COLUMNS), strict=True)]
    rows.append((0, COMM, "all_gather", "all_gather", 80.0, 81.0, 8))
    found = fsdp.by_layer(from_rows(rows, num_ranks=1, origin="measured"))
    gathers = found.label[found.kind == "all_gather"]
    assert set(gathers) == {"all_gather"} and len(gathers) == 3


def test_a_recording_without_fsdp_is_refused_with_the_way_out():
    line = from_rows([(0, COMM, "send", "0>1", 0.0, 1.0, 8)], num_ranks=1, origin="measured")
    with pytest.raises(ValueError, match="record=True"):
        fsdp.by_layer(line)
    with pytest.raises(ValueError, match="fully_shard"):
        fsdp.order(line)


def _two_steps(ahead):
    from torch.distributed.fsdp import fully_shard

    from labkit import model

    net = model.Transformer(2, 32, 2, max_len=16)
    layers = list(net.layers)
    for layer in [*layers, net]:
        fully_shard(layer)
    for layer, following in itertools.pairwise(layers):
        if ahead:
            layer.set_modules_to_forward_prefetch([following])
    tokens, targets = model.story_tokens(1, 16, seed=dist.get_rank())
    for _ in range(2):
        model.loss(net(tokens), targets).backward()


@pytest.mark.real
def test_a_real_step_gathers_every_layer_and_prefetch_brings_its_gather_forward():
    plain, early = (lab.launch(_two_steps, ahead, record=True) for ahead in (False, True))
    moves = fsdp.order(plain.timeline())
    assert [move for move in moves if move[0] == "F"] == ["F0", "F1", "F2", "F3"]
    assert [move for move in moves if move[0] == "B"] == ["B3", "B2", "B1", "B0"]
    assert moves.index("g1") > moves.index("F0")
    again = len(moves) - 1 - moves[::-1].index("g2")  # for the backward
    assert moves.index("F3") < again < moves.index("B3")  # early, asked for or not
    ahead = fsdp.order(early.timeline())
    assert ahead.index("g1") < ahead.index("F0")
    line = fsdp.by_layer(plain.timeline())
    assert {"g0", "F0", "B0", "r0", "r3"} <= {*line.label.tolist()}


_COLUMNS = ("rank", "lane", "kind", "label", "start_us", "end_us", "num_bytes")
