"""One rank of 1,024 with fake tensors, beside the planner's numbers."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from labkit import planner
from labkit.planner.plan import shape
from labkit.planner.real import fake_run, tensors
from labkit.planner.real.decoder_run import Decoder

SEVEN = shape.from_name("LLaMA 7B")
FEW = replace(SEVEN, layers=4)
GPT = replace(shape.from_name("GPT-2"), layers=2, tied=False)


def dense_names() -> list[str]:
    names = ("LLaMA 7B", "LLaMA-2 70B", "LLaMA-3 8B", "GPT-2", "GPT-3 175B", "BERT-base")
    return [name for name in names if shape.from_name(name).experts == 1]


@pytest.mark.parametrize("name", dense_names())
def test_the_named_weights_are_the_parameters_of_a_module_and_of_the_shape(name):
    sizes = replace(shape.from_name(name), layers=2)
    with torch.device("meta"):
        module = Decoder(sizes)
    named = {key: tuple(each.shape) for key, each in module.named_parameters()}
    wanted = {each.name: each.dims for each in tensors.outer_weights(sizes)}
    for number in range(2):
        for each in tensors.layer_weights(sizes):
            wanted[f"layers.{number}.{each.name}"] = each.dims
    assert named == wanted
    assert sum(each.numel() for each in module.parameters()) == sizes.params


@pytest.mark.a_few(2)
@pytest.mark.parametrize("fields", [{"gpus": 1024}, {"gpus": 1024, "tp": 8}, {"gpus": 24, "tp": 2}])
@pytest.mark.parametrize("sizes", [FEW, GPT])
def test_states_and_bytes_moved_are_exact(sizes, fields):
    if sizes is GPT and fields.get("tp", 1) > 1:
        sizes = replace(sizes, vocab=50_304)
        fields = {**fields, "tp": 2}
    plan = planner.Plan(model=sizes, zero=3, recipe="fp32", seq=512, **fields)
    found = planner.rehearse(plan)
    assert found.held == tensors.held_bytes(plan.shape, plan.layout)
    moved = tensors.moved_bytes(plan.shape, plan.layout)
    reduced = tensors.reduced_bytes(plan.shape, plan.layout)
    assert found.moved == {**moved, "all_reduce": reduced}
    assert found.calls["all_gather"] == 2 * sizes.layers + 1
    assert found.calls["reduce_scatter"] == sizes.layers + 1
    assert found.calls.get("all_reduce", 0) == (4 * sizes.layers + 2 if plan.tp > 1 else 0)
    assert not dist.is_initialized()


@pytest.mark.again
def test_rank_0_of_1024_holds_what_the_planner_says_for_llama_7b():
    plan = planner.Plan(model="LLaMA 7B", gpus=1024, zero=3, recipe="fp32")
    found = planner.rehearse(plan)
    parts = plan.memory().parts
    for part, num_bytes in found.held.items():
        assert num_bytes == pytest.approx(parts[part], rel=0.02)
    layers = plan.layout.itemsize * SEVEN.layers * SEVEN.layer_params
    root = plan.layout.itemsize * (SEVEN.params - SEVEN.layers * SEVEN.layer_params)
    assert found.moved["all_gather"] == pytest.approx(2 * layers + root, rel=0.015)
    assert found.moved["all_gather"] > 1.01 * 2 * layers
    assert found.moved["reduce_scatter"] == pytest.approx(layers + root, rel=0.015)
    assert found.moved["reduce_scatter"] > 1.02 * layers
    ratios = {row["what"]: row["planned / rehearsed"] for row in found.rows()}
    assert 0.985 < ratios["all_gather"] < 1 and 0.985 < ratios["reduce_scatter"] < 1
    named = [row["what"] for row in found.rows()]
    assert named[:3] == ["parameters", "gradients", "optimizer"]
    assert ratios["peak"] == pytest.approx(1, abs=0.05)


def test_the_cut_of_tensors_is_the_planners_where_rows_divide():
    plan = planner.Plan(model="LLaMA 7B", gpus=32, zero=3, recipe="fp32")
    parts = plan.memory().parts
    for part, num_bytes in tensors.held_bytes(plan.shape, plan.layout).items():
        assert num_bytes == parts[part]


def test_bf16_throughout_is_half_of_fp32():
    held = []
    for recipe in fake_run.RECIPES:
        plan = planner.Plan(model=FEW, gpus=64, zero=3, recipe=recipe, seq=128)
        held.append(sum(planner.rehearse(plan).held.values()))
    assert held[0] == 2 * held[1]


def test_recomputation_lowers_the_peak_and_moves_no_more():
    plan = planner.Plan(model=FEW, gpus=64, zero=3, recipe="fp32", seq=2048)
    plain = planner.rehearse(plan)
    again = planner.rehearse(plan.but(recompute="full"))
    assert again.moved == plain.moved
    assert again.peak_bytes < 0.8 * plain.peak_bytes


PEAKS = (
    {"gpus": 8},
    {"gpus": 64, "tp": 8},
    {"gpus": 64, "recompute": "full", "mbs": 4},
    {"gpus": 64, "seq": 512},
)


@pytest.mark.a_few(2)
@pytest.mark.parametrize("fields", PEAKS)
def test_the_peak_is_what_torchs_own_operators_hold(fields):
    plan = planner.Plan(model=FEW, zero=3, recipe="fp32", **fields)
    found = planner.rehearse(plan)
    ratios = {row["what"]: row["planned / rehearsed"] for row in found.rows()}
    assert ratios["peak"] == pytest.approx(1, abs=0.1)
    assert found.peak_bytes > sum(found.held.values())


def test_the_peak_is_drawn_by_what_it_is_made_of():
    plan = planner.Plan(model=FEW, gpus=64, zero=3, recipe="fp32", seq=512)
    found = planner.rehearse(plan)
    drawn = found.peaks()
    assert list(drawn) == ["planned", "rehearsed"]
    eager = plan.but(stack="torch-eager").memory()
    assert sum(drawn["planned"].values()) == pytest.approx(eager.peak_bytes)
    assert drawn["planned"]["states"] == pytest.approx(sum(found.held.values()), rel=0.02)
    assert drawn["rehearsed"] == {"all": found.peak_bytes}


def test_the_eager_stack_is_of_memory_alone_and_leaves_megatrons_bytes():
    plan = planner.Plan(model=SEVEN, gpus=64, zero=3, seq=2048, stack="fsdp-a100")
    eager = plan.but(stack="torch-eager")
    assert eager.time() == plan.time()
    fused = plan.memory().parts
    held = eager.memory().parts
    assert held["fixed"] == 0 < fused["fixed"]
    assert held["activations"] > 1.3 * fused["activations"]
    sizes = {"hidden": SEVEN.hidden, "ffn": SEVEN.ffn_width, "tokens": 2048}
    norms = 2 * (8 + 2) * sizes["hidden"]
    attention = 2 * 4 * sizes["hidden"] + 4 * SEVEN.heads
    layer = sizes["tokens"] * (norms + attention + 2 * 4 * sizes["ffn"])
    last = sizes["tokens"] * 10 * sizes["hidden"]
    assert held["activations"] == pytest.approx(SEVEN.layers * layer + last)
    assert "torch-eager" not in planner.STACKS


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"zero": 1, "recipe": "fp32"}, "zero 3, pp 1, cp 1"),
        ({"zero": 3}, "by the recipe fp32"),
        ({"zero": 3, "recipe": "fp32", "tp": 8, "sp": True}, "without sp"),
        ({"zero": 3, "recipe": "fp32", "model": "Mixtral 8x7B"}, "a dense decoder"),
        ({"zero": 3, "recipe": "fp32", "model": "GPT-2", "tp": 2}, "where embeddings are tied"),
    ],
)
def test_what_cannot_be_rehearsed_says_why(fields, words):
    with pytest.raises(ValueError, match=words):
        planner.rehearse(planner.Plan(gpus=64, **fields))
