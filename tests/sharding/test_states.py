"""The bill of a rank against the ZeRO paper's tables, DeepSpeed's estimators, Korthikanti's
equations and autograd."""

import csv
from pathlib import Path

import pytest
import torch

from labkit import model
from labkit.measure import memory
from labkit.sharding import states
from labkit.sharding.states import (
    RECIPES,
    block_activation_bytes,
    deepspeed_estimate,
    largest_model,
    layer_activation_bytes,
    ranks_needed,
    state_bytes,
    step_volume,
)

PUBLISHED = Path(__file__).parents[2] / "data" / "published"


def table(name):
    return list(csv.DictReader((PUBLISHED / name).open(encoding="utf-8")))


def test_every_cell_of_the_zero_paper_is_met_to_three_decimals():
    cells = [row for row in table("zero_memory.csv") if row["gb_formula"]]
    gb = [
        sum(
            state_bytes(float(row["params_b"]) * 1e9, int(row["ranks"]), int(row["stage"])).values()
        )
        / 1e9
        for row in cells
    ]
    assert len(cells) == 54 and [round(each, 3) for each in gb] == [
        float(row["gb_formula"]) for row in cells
    ]
    assert (
        sum(round(each, 3) != float(row["gb_printed"]) for each, row in zip(gb, cells, strict=True))
        == 21
    )


def test_the_largest_model_is_the_papers_table_2():
    units = {"B": 1e9, "T": 1e12}
    for row in table("zero_max_model.csv"):
        split, ranks = int(row["model_parallel"]), int(row["ranks"])
        for stage, column in enumerate(("baseline", "stage1", "stage2", "stage3")):
            printed = float(row[column][:-1]) * units[row[column][-1]]
            ours = split * largest_model(32e9, ranks // split, stage)
            assert ours == pytest.approx(printed, rel=0.03), (row, stage)


def test_the_errata_of_the_textbook():
    seven = [sum(state_bytes(7e9, 4, stage).values()) / 1e9 for stage in range(4)]
    assert seven == pytest.approx([112, 49, 38.5, 28])  # printed: 112, 28, 14.5, 7
    for ranks, printed in ((4, [2.29, 2.91, 4]), (64, [3.82, 7.21, 64])):
        savings = [16 / sum(state_bytes(1, ranks, stage).values()) for stage in (1, 2, 3)]
        assert [round(each, 2) for each in savings] == printed
    assert ranks_needed(70e9, 80e9, 3) == 14 and ranks_needed(70e9, 80e9, 2) is None
    assert sum(state_bytes(175e9, 8, 1).values()) / 8 / 1e9 == pytest.approx(120.3, abs=0.05)


@pytest.mark.parametrize(
    "name, num_bytes",
    [
        ("sgd", 12),
        ("fp32", 16),
        ("mixed", 16),
        ("deepspeed", 18),
        ("accumulate", 20),
        ("megatron", 18),
        ("bf16", 8),
    ],
)
def test_bytes_per_parameter_of_each_recipe(name, num_bytes):
    assert (
        RECIPES[name].bytes_per_parameter == num_bytes == sum(state_bytes(1, 1, 3, name).values())
    )


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_megatrons_distributed_optimizer(ranks):
    assert sum(state_bytes(1, ranks, 1, "megatron").values()) == pytest.approx(6 + 12 / ranks)


@pytest.mark.parametrize("num_params", [1_234_567, 7_000_000_001])
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_deepspeeds_own_estimators_say_the_same(num_params, ranks):
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as third
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as second

    assert (
        deepspeed_estimate(num_params, ranks, 2) == second(num_params, ranks, cpu_offload=False)[1]
    )
    theirs = third(num_params, 55_555, ranks, cpu_offload=False, cpu_offload_params=False)[1]
    assert deepspeed_estimate(num_params, ranks, 3, 55_555) == theirs


def test_the_fewest_ranks_are_enough_and_one_less_is_not():
    for num_params, stage in ((7e9, 1), (13e9, 2), (70e9, 3)):
        for extra in (0, 5e9):
            ranks = ranks_needed(num_params, 80e9, stage, extra_bytes=extra)
            if ranks is None:
                assert sum(state_bytes(num_params, 1 << 20, stage).values()) + extra > 80e9
                continue
            assert sum(state_bytes(num_params, ranks, stage).values()) + extra <= 80e9
            assert (
                ranks == 1 or sum(state_bytes(num_params, ranks - 1, stage).values()) + extra > 80e9
            )


def test_korthikantis_equations():
    s, b, h, a, t = 2048, 4, 6144, 64, 8  # the 22B model of the paper
    sizes = {"seq_len": s, "batch": b, "hidden": h, "heads": a}
    square = 5 * a * s / h
    assert layer_activation_bytes(**sizes) == s * b * h * (34 + square)  # equation 1
    assert layer_activation_bytes(**sizes, tensor_parallel=t) == s * b * h * (
        10 + 24 / t + square / t
    )  # equation 2
    both = layer_activation_bytes(**sizes, tensor_parallel=t, sequence_parallel=True)
    assert both == pytest.approx(s * b * h / t * (34 + square))  # equation 4
    chosen = layer_activation_bytes(
        **sizes, recompute="selective", tensor_parallel=t, sequence_parallel=True
    )
    assert chosen == pytest.approx(34 * s * b * h / t)  # equation 6, per layer
    assert layer_activation_bytes(**sizes, flash=True) == layer_activation_bytes(
        **sizes, recompute="selective"
    )
    assert layer_activation_bytes(**sizes, recompute="full") == 2 * s * b * h


@pytest.mark.parametrize(
    "batch, seq_len, dim, heads, dtype",
    [(2, 32, 64, 4, torch.float32), (3, 48, 96, 2, torch.bfloat16), (1, 16, 32, 1, torch.float32)],
)
def test_a_blocks_activations_are_those_that_autograd_keeps(batch, seq_len, dim, heads, dtype):
    block = model.Block(dim, heads).to(dtype)
    held = memory.Activations(block.parameters())
    with held.chunk("forward"):
        kept = block(torch.randn(batch, seq_len, dim, dtype=dtype, requires_grad=True))
    assert held.num_bytes == block_activation_bytes(batch, seq_len, dim, heads, dtype.itemsize)
    del kept
    assert held.num_bytes == 0


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_zero_2_sends_as_much_as_ddp_and_zero_3_half_as_much_again(ranks):
    sent = [sum(step_volume(1e9, ranks, stage).values()) for stage in range(4)]
    assert sent[0] == pytest.approx(2 * (ranks - 1) / ranks * 1e9)
    assert sent[1] == sent[2] == pytest.approx(sent[0]) and sent[3] == pytest.approx(1.5 * sent[0])
    assert sum(step_volume(1e9, ranks, 3, reshard=False).values()) == pytest.approx(sent[0])


def test_what_accumulation_costs_each_stage():
    ddp, zero1, zero2, zero3 = (
        sum(step_volume(1e9, 4, stage, 3).values()) / 0.75e9 for stage in range(4)
    )
    assert (ddp, zero1, zero2, zero3) == pytest.approx((2, 2, 4, 9))


def test_parts_of_the_bill_sum_the_kinds_up():
    parts = states.by_category(state_bytes(1e9, 4, 2, "accumulate"))
    assert parts == pytest.approx({"parameters": 2e9, "gradients": 1.5e9, "optimizer": 3e9})


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: state_bytes(1, 1, 4), "a stage is 0 .DDP., 1, 2 or 3; got 4"),
        (lambda: state_bytes(1, 1, 0, "fp8"), "a recipe is one of sgd, fp32, .*; got 'fp8'"),
        (lambda: state_bytes(-1), "num_params is a number from 0 to .*; got -1"),
        (lambda: state_bytes(1, 0), "num_ranks is a whole number from 1 to .*; got 0"),
        (lambda: layer_activation_bytes(0, 1, 8, 1), "seq_len is a number from 1 to .*; got 0"),
        (
            lambda: layer_activation_bytes(8, 1, 8, 1, recompute="some"),
            "recompute is one of none, selective, full",
        ),
        (lambda: deepspeed_estimate(1, 1, 1), "DeepSpeed estimates stages 2 and 3; got 1"),
    ],
)
def test_what_has_no_bill_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
