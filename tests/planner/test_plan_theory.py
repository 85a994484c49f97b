"""The planner's theory: sizes exact, bytes and FLOPs as the papers count them, time that sums."""

import csv
import itertools
from dataclasses import fields, replace

import pytest

from labkit.pipeline import schedules, simulation
from labkit.planner.models import DATA
from labkit.planner.plan import compute, memory, shape, steptime
from labkit.planner.plan.cluster import Cluster, Group, gpu
from labkit.planner.plan.layout import Layout, refusals, warnings
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import STACKS
from labkit.sharding import states

RELEASED = {
    "GPT-2": 124_439_808,
    "GPT-2 XL": 1_557_611_200,
    "LLaMA 7B": 6_738_415_616,
    "LLaMA 13B": 13_015_864_320,
    "LLaMA-2 70B": 68_976_648_192,
    "LLaMA-3 8B": 8_030_261_248,
    "LLaMA-3 70B": 70_553_706_496,
    "LLaMA-3 405B": 405_853_388_800,
    "Mistral 7B": 7_241_732_096,
    "Mixtral 8x7B": 46_702_792_704,
}
"""Parameters of the released weights."""


@pytest.mark.parametrize("name", RELEASED)
def test_a_shape_has_every_parameter_of_the_released_model(name):
    assert shape.from_name(name).params == RELEASED[name]


def test_a_models_name_is_found_however_it_is_written_and_an_unknown_one_names_the_known():
    assert shape.from_name("llama-7b") == shape.from_name("LLaMA 7B")
    with pytest.raises(ValueError, match=r"config.json on disk or one of .*mixtral-8x7b; got 'x'"):
        shape.from_name("x")


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Mixtral"])
def test_a_config_of_hugging_face_gives_the_parameters_that_its_model_has(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    import torch

    sizes = {
        "Llama": {
            "hidden_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 160,
            "vocab_size": 320,
        },
        "GPT2": {"n_embd": 96, "n_layer": 3, "n_head": 6, "vocab_size": 320, "n_positions": 64},
        "Mixtral": {
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 160,
            "vocab_size": 320,
            "num_local_experts": 4,
        },
    }
    config = getattr(transformers, f"{kind}Config")(**sizes[kind])
    config.save_pretrained(tmp_path)
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    with torch.device("meta"):
        model = getattr(transformers, head)(config)
    held = sum(each.numel() for each in model.parameters())
    assert shape.from_config(tmp_path / "config.json").params == held
    assert Plan(model=str(tmp_path), gpus=1).shape.params == held


def test_a_config_without_sizes_is_refused_with_what_it_lacks(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 8}')
    with pytest.raises(ValueError, match=r"lacks .*layers"):
        shape.from_config(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="can be read"):
        shape.from_config(path)


def test_model_flops_are_narayanans_equation_three_without_recomputation():
    gpt = Shape(layers=96, hidden=12288, heads=96, vocab=51200)
    seq, layers, hidden, vocab = 2048, 96, 12288, 51200
    printed = 72 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert gpt.token_flops(seq) == pytest.approx(printed, rel=1e-12)


CUTS = list(itertools.product((1, 2, 8), (False, True), (False, True), states.RECOMPUTE))


@pytest.mark.parametrize(("tp", "sp", "flash", "recompute"), CUTS)
def test_a_layer_of_gpt_keeps_what_korthikanti_counts(tp, sp, flash, recompute):
    gpt = Shape(layers=4, hidden=1024, heads=16, vocab=512)
    layout = Layout(tp=tp, sp=sp, flash=flash, recompute=recompute, mbs=2, gbs=2, seq=256)
    options = {"recompute": recompute, "flash": flash, "tensor_parallel": tp}
    printed = states.layer_activation_bytes(256, 2, 1024, 16, sequence_parallel=sp, **options)
    held = memory.memory(gpt, layout, STACKS["megatron-a100"]).parts["activations"]
    once_again = memory.layer_bytes(gpt, layout) if recompute == "full" else 0.0
    assert held - once_again == pytest.approx(4 * printed)


@pytest.mark.parametrize("recipe", states.RECIPES)
@pytest.mark.parametrize("zero", states.STAGES)
def test_states_are_those_of_the_named_recipe(recipe, zero):
    model = shape.from_name("LLaMA 7B")
    layout = Layout(dp=8, zero=zero, gbs=8, recipe=recipe)
    held = memory.memory(model, layout, STACKS["megatron-a100"])
    assert held.state_bytes == sum(states.state_bytes(model.params, 8, zero, recipe).values())


def test_states_equal_deepspeeds_own_estimate_under_its_recipe():
    model = shape.from_name("LLaMA 7B")
    for zero, recipe in ((2, "accumulate"), (3, "deepspeed")):
        layout = Layout(dp=16, zero=zero, gbs=16, recipe=recipe)
        held = memory.memory(model, layout, STACKS["fsdp-a100"]).state_bytes
        assert held == pytest.approx(states.deepspeed_estimate(model.params, 16, zero), rel=1e-6)


def test_stages_share_the_parameters_and_the_footprint_peaks_where_the_memory_does():
    model = shape.from_name("GPT-3 175B")
    layout = Layout(tp=8, pp=8, gbs=64, recipe="mixed")
    found = memory.memory(model, layout, STACKS["megatron-a100"])
    held = sum(stage["parameters"] for stage in found.stages) / 2 * 8
    copies = model.embedding_params  # a tied output layer on another stage is a second table
    assert held == pytest.approx(model.params + copies, rel=1e-5)
    assert found.footprint().peak_bytes == pytest.approx(found.peak_bytes, rel=1e-6)
    assert len(found.stages) == 8
    assert found.stage_bytes[found.fullest] == max(found.stage_bytes)


PIPELINES = [(2, 1, 4), (4, 1, 8), (4, 2, 8), (8, 1, 8), (4, 4, 4)]


@pytest.mark.parametrize(("pp", "vpp", "m"), PIPELINES)
def test_the_closed_form_is_the_simulated_step_where_stages_are_equal(pp, vpp, m):
    name = "interleaved_1f1b" if vpp > 1 else "1f1b"
    counts = (pp, m, vpp) if vpp > 1 else (pp, m)
    time = steptime.StepTime(
        stages=(compute.Pass(forward={"products": 8.0}, backward={"products": 16.0}),) * pp,
        num_microbatches=m,
        num_chunks=vpp,
        schedule="1f1b",
        data={},
        optimizer_us=0.0,
    )
    cost = simulation.Cost(forward_us=8.0 / vpp, backward_us=16.0 / vpp)
    line = simulation.simulate(schedules.SCHEDULES[name](*counts), cost)
    assert time.step_us == pytest.approx(line.span_us)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("recompute", ["none", "full", "operators"])
def test_parts_sum_to_the_step_and_the_timeline_ends_with_it(zero, recompute):
    plan = Plan(gpus=16, tp=2, pp=1 if zero == 3 else 4, zero=zero, recompute=recompute, batch=64)
    time = plan.time()
    assert sum(time.parts().values()) == pytest.approx(time.step_us)
    assert float(plan.predict().end_us.max()) == pytest.approx(time.step_us)


@pytest.mark.parametrize("tied", [True, False])
def test_what_lies_outside_of_the_layers_is_gathered_once_and_scattered(tied):
    """FSDP's root unit; under ZeRO 2 its gradients alone. Of both halves one counts in memory
    twice: the head's gradients are whole when the activations are all there."""
    model = replace(shape.from_name("LLaMA 7B"), tied=tied)
    plan = Plan(model=model, gpus=16, zero=3, stack="fsdp-a100")
    root = 2 * (model.params - model.layers * model.layer_params)
    parts = plan.memory().parts
    head = 2 * (model.embedding_params + model.hidden)
    assert parts["gathered"] == 3 * 2 * model.layer_params + root + head
    group = plan.layout.group("dp")
    small = replace(model, vocab=1)
    more = root - 2 * (small.params - small.layers * small.layer_params)
    bandwidth = group.link(plan.cluster, plan.used.nic)[1]
    one_way_us = 15 / 16 * more / bandwidth / 1e3
    for zero in (2, 3):
        stage = plan.but(zero=zero).time().stages[0]
        none = plan.but(zero=zero, model=small).time().stages[0]
        gathered_us = stage.forward["gather"] - none.forward["gather"]
        scattered_us = stage.backward["gather"] - none.backward["gather"]
        assert gathered_us == pytest.approx(one_way_us if zero == 3 else 0)
        assert scattered_us == pytest.approx(one_way_us)


@pytest.mark.parametrize(
    ("zero", "called"),
    [
        (0, ["all_reduce", "optimizer"]),
        (1, ["reduce_scatter", "optimizer", "all_gather"]),
        (2, ["optimizer", "all_gather"]),
    ],
)
@pytest.mark.parametrize("stack", ["megatron-a100", "megatron-h100"])
def test_the_timeline_names_what_data_parallelism_sends(zero, called, stack):
    line = Plan(gpus=16, zero=zero, batch=16, stack=stack).predict()
    last = line.start_us >= line.end_us[line.kind == "B"].max()
    assert list(line.kind[last]) == called
    assert all(line.start_us[last][1:] == line.end_us[last][:-1])


def test_recomputing_costs_a_forward_and_saves_activations():
    plain = Plan(gpus=8, tp=8, batch=8, recompute="none")
    full = plain.but(recompute="full")
    first, second = plain.time().stages[0], full.time().stages[0]
    assert second.backward["products"] == pytest.approx(
        first.backward["products"] + plain.shape.layers * first.forward["products"] / 32, rel=0.1
    )
    assert full.memory().parts["activations"] < plain.memory().parts["activations"] / 4


def test_the_one_measured_layer_of_korthikanti_is_near_the_planners():
    """Table 4: the 22 B model's layer on 8 ranks, in ms."""
    text = (DATA / "published" / "korthikanti_table4.csv").read_text()
    rows = {row["experiment"]: row for row in csv.DictReader(text.splitlines())}
    model = Shape(layers=48, hidden=6144, heads=64, vocab=51200)
    cluster = Cluster(gpu=gpu("A100-80"), num_gpus=8)
    layouts = {
        "Baseline no recompute": Layout(tp=8, mbs=4, gbs=4, flash=False),
        "Baseline with recompute": Layout(tp=8, mbs=4, gbs=4, flash=False, recompute="full"),
        "Selective + Sequence": Layout(
            tp=8, mbs=4, gbs=4, flash=False, recompute="selective", sp=True
        ),
    }
    for name, layout in layouts.items():
        time = steptime.step_time(model, cluster, layout, STACKS["megatron-a100"])
        alone = steptime.step_time(
            replace(model, layers=1), cluster, layout, STACKS["megatron-a100"]
        )
        layer_ms = (time.stage_us[0] - alone.stage_us[0]) / 47 / 1e3
        assert layer_ms == pytest.approx(float(rows[name]["total_ms"]), rel=0.12), name


def test_a_group_is_as_fast_as_its_narrowest_link():
    cluster = Cluster(gpu=gpu("H100"), num_gpus=64)
    inside = Group(size=8).link(cluster, 0.5)[1]
    across = Group(size=16).link(cluster, 0.5)[1]
    alone = Group(size=8, stride=8).link(cluster, 0.5)[1]
    assert inside > across == 8 * 50 * 0.5 > alone == 50 * 0.5
    assert Group(size=1).us("all_reduce", 1e9, cluster, 0.5) == 0.0


def test_a_data_sheet_names_its_source_and_a_gpu_that_is_not_there_says_what_is():
    text = (DATA / "hardware.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert all(len(row["source"]) > 15 for row in rows)
    for row in rows:
        assert gpu(row["name"]).source == row["source"]
    assert gpu("A100-SXM4-80GB").name == "A100 80 GB"
    with pytest.raises(ValueError, match="got 'abacus'"):
        gpu("abacus")


def test_what_cant_be_is_refused_in_a_sentence_and_a_way_out_is_named():
    with pytest.raises(ValueError, match=r"is 6 ranks; the cluster has 8 GPUs. tp x cp x pp divid"):
        Plan(gpus=8, tp=3)
    with pytest.raises(ValueError, match="40 heads can't be cut in 16"):
        Plan(model="LLaMA 13B", gpus=16, tp=16)
    with pytest.raises(ValueError, match="ZeRO 2"):
        Plan(gpus=8, pp=2, zero=2)
    with pytest.raises(ValueError, match="chunks need a pipeline"):
        Plan(gpus=8, tp=2, vpp=2)
    with pytest.raises(ValueError, match="divides evenly"):
        Plan(gpus=8, mbs=2, batch=24)
    with pytest.raises(ValueError, match="multiple of 4 microbatches; a step has 6"):
        Plan(gpus=4, pp=4, vpp=2, batch=6)
    assert "not started" in Plan().refusal()
    with pytest.raises(ValueError, match="not started"):
        Plan().run()


def test_outliers_are_warned_of():
    cluster = Cluster(gpu=gpu("A100"), num_gpus=48)
    gpt = Shape(layers=26, hidden=1600, heads=25, vocab=50257)
    odd = Layout(pp=3, dp=16, gbs=16)
    told = " ".join(warnings(gpt, cluster, odd))
    assert "26 layers on 3 stages" in told
    assert "some stages always wait" in told
    assert not refusals(gpt, cluster, odd)
    wide = Layout(tp=16, dp=3, gbs=3)
    big = shape.from_name("LLaMA-2 70B")
    assert "leaves the node" in " ".join(warnings(big, cluster, wide))


def test_a_plans_toy_divides_as_the_plan_does():
    piped = Plan(gpus=64, pp=8, vpp=2, batch=512).toy()
    assert (piped.schedule, piped.ranks) == ("interleaved_1f1b", 4)
    assert Plan(gpus=8, zero=3).toy().engine == "fsdp"
    assert Plan(gpus=2).toy().engine == "ddp"
    with pytest.raises(ValueError, match="has neither"):
        Plan(gpus=8, tp=8).toy()


CHANGES = {
    "model": "LLaMA 13B",
    "gpu": "H100",
    "gpus": 64,
    "per_node": 4,
    "nic_gb_per_s": 5.0,
    "memory_gb": 60.0,
    "tp": 4,
    "cp": 2,
    "pp": 4,
    "vpp": 4,
    "zero": 1,
    "sp": False,
    "mbs": 2,
    "batch": 64,
    "seq": 4096,
    "recompute": "full",
    "offload": "optimizer",
    "precision": "fp8",
    "recipe": "mixed",
    "flash": False,
    "schedule": "gpipe",
    "stack": "fsdp-a100",
}


@pytest.mark.parametrize("vpp", [1, 2])
def test_two_plans_that_differ_have_two_titles(vpp):
    plan = Plan(gpus=32, tp=2, pp=2, vpp=vpp, sp=True, batch=128)
    untold = {"ep"}  # a dense model has no experts
    if vpp > 1:  # interleaving is a schedule of its own
        untold.add("schedule")
    turned = {each.name for each in fields(Plan) if each.init}
    assert set(CHANGES) == turned - {"ep"}
    titles = {plan.title()}
    for name in set(CHANGES) - untold:
        titles.add(plan.but(**{name: CHANGES[name]}).title())
    assert len(titles) == 1 + len(set(CHANGES) - untold)


def test_a_title_leaves_out_what_is_usual():
    assert Plan(gpus=1).title() == "LLaMA 7B, 1 x A100 80 GB"
    named = Plan(gpus=8, nic_gb_per_s=Plan().cluster.nic, recipe="megatron", batch=8, seq=2048)
    assert named.title() == Plan().title() == "LLaMA 7B, 8 x A100 80 GB, dp 8"
    full = Plan(gpus=64, tp=2, pp=4, vpp=2, mbs=2, zero=1, batch=512, recompute="full")
    told = "LLaMA 7B, 64 x A100 80 GB, tp 2 pp 4 vpp 2 dp 8, ZeRO 1, mbs 2, recompute full"
    assert full.title() == f"{told}, batch 512"
    assert Plan(gpus=8, sp=True).title() == Plan(gpus=8).title()  # nothing to cut without tp
