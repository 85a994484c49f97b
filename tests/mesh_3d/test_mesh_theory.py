"""What theory says of a step of all axes: who holds what, who says what, how long it takes; held
against the planner, the pipeline's simulation and the papers' counts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import mesh_3d, pipeline
from labkit.mesh_3d import held, messages, times
from labkit.pipeline import SCHEDULES, in_flight
from labkit.planner.plan.memory import memory
from labkit.planner.plan.steptime import step_time
from labkit.timeline import COMM, COMPUTE, step_us

STEPS = st.builds(
    mesh_3d.Step,
    pp=st.sampled_from([1, 2, 4]),
    dp_replicate=st.sampled_from([1, 2]),
    dp_shard=st.sampled_from([1, 2, 4]),
    tp=st.sampled_from([1, 2, 4]),
    zero=st.sampled_from([1, 3]),
    microbatches=st.sampled_from([1, 2]),
    schedule=st.sampled_from(mesh_3d.SCHEDULES),
    hidden=st.sampled_from([8, 32]),
    vocab=st.sampled_from([256, 30]),
    inside=st.sampled_from(mesh_3d.AXES),
    node_size=st.sampled_from([1, 2, 4, 8]),
    forward_ms=st.sampled_from([0.0, 20.0]),
)
BUSY = settings(max_examples=40, deadline=None)
"""On a machine that does other things as well, an example has no deadline."""
LARGE = mesh_3d.Step(
    pp=1,
    tp=1,
    layers=32,
    hidden=4096,
    heads=32,
    vocab=51_200,
    sequence=2048,
    batch=64,
    microbatches=16,
    precision="bf16",
)


# --- where ranks lie ---


@BUSY
@given(STEPS)
def test_ranks_fill_the_places_of_the_nodes_and_the_inner_axis_lies_closest(step):
    places = [step.place(rank) for rank in range(step.ranks)]
    assert sorted(places) == list(range(step.ranks))
    assert step.distance(step.inside) == 1
    for axis in mesh_3d.AXES:
        for group in step.mesh.groups(axis):
            steps = np.diff([step.place(rank) for rank in group])
            assert set(steps.tolist()) <= {step.distance(axis)}


def test_the_mesh_s_own_order_is_the_usual_placement():
    step = mesh_3d.Step(pp=2, dp_replicate=2, dp_shard=2, tp=2, node_size=4)
    assert [step.node(rank) for rank in range(16)] == [step.mesh.node(rank) for rank in range(16)]
    assert [step.nodes_of_group(axis) for axis in mesh_3d.AXES] == [2, 2, 1, 1]
    turned = step.but(inside="pp")
    assert [turned.nodes_of_group(axis) for axis in mesh_3d.AXES] == [1, 2, 2, 1]


# --- what ranks hold ---


@settings(BUSY, max_examples=25)
@given(STEPS.filter(lambda step: step.ranks <= 8))
def test_every_weight_lies_somewhere_as_often_as_its_axes_say(step):
    """Parameters of all ranks: the model once for each copy, what tp leaves whole tp times more."""
    found = step.states().bytes_by("kind")
    assert set(found) == {"parameter", "gradient", "exp_avg", "exp_avg_sq", "step"}
    cut = whole = 0
    for stage in range(step.pp):
        for unit in held.units(step, stage):
            for weight in unit.weights:
                size = weight.num_elements
                cut += size * step.tp * weight.is_cut
                whole += size * (not weight.is_cut)
    assert cut + whole == step.shape().params
    shares = step.dp_shard > 1
    copies = step.dp_replicate * (1 if shares and step.zero == 3 else step.dp_shard)
    due = 4 * copies * (cut + step.tp * whole)
    slices = step.states()
    slices = slices.select(slices.tensor != "(padding)").bytes_by("kind")
    assert slices["parameter"].sum() == slices["gradient"].sum() == due
    moments = due // step.dp_shard if shares and step.zero == 1 else due
    assert slices["exp_avg"].sum() == slices["exp_avg_sq"].sum() == moments


@pytest.mark.parametrize(("zero", "dp_shard", "pp"), [(1, 1, 2), (3, 4, 1), (1, 4, 2), (3, 4, 4)])
def test_states_are_the_planner_s_where_nothing_is_cut_unevenly(zero, dp_shard, pp):
    step = mesh_3d.Step(pp=pp, tp=1, dp_shard=dp_shard, zero=zero, microbatches=1, hidden=64)
    bills = memory(step.shape(), times.layout(step), step.times().bench.stack).stages
    for stage in range(pp):
        mine = held.rank_bytes(step, step.mesh.rank(pp=stage))
        counters = step.states().bytes_by()["step"][step.mesh.rank(pp=stage)]
        mine["optimizer"] -= int(counters)
        assert mine == {part: pytest.approx(bills[stage][part], rel=1e-3) for part in mine}


def test_too_many_ranks_are_not_listed():
    with pytest.raises(ValueError, match="whole number from 1 to 64"):
        LARGE.but(tp=8, dp_shard=16, batch=256).states()


# --- what ranks say ---


@BUSY
@given(STEPS)
def test_messages_are_the_papers_counts(step):
    stream = step.microbatch * step.sequence * step.hidden * 4
    for stage in range(step.pp):
        found = step.messages(step.mesh.rank(pp=stage))
        assert set(found) <= {axis for axis in mesh_3d.AXES if getattr(step, axis) > 1}
        if step.tp > 1:  # two sums a block and pass
            calls = 4 * step.layers // step.pp * step.microbatches
            assert found["tp"] == {"all_reduce": (calls, calls * stream)}
        if step.pp > 1:  # onward and back, at the ends one of them
            calls = step.microbatches * (2 - (stage in (0, step.pp - 1)))
            assert found["pp"] == {"send": (calls, calls * stream)}


@BUSY
@given(STEPS)
def test_gradients_are_reduced_once_however_states_are_shared(step):
    """A ring all-reduce's traffic is that of reduce-scatter and all-gather: ZeRO sends no more."""
    if not step.dp_shard > 1:
        return
    for stage in range(step.pp):
        found = step.messages(step.mesh.rank(pp=stage))
        along = found["dp_shard"]
        assert along["reduce_scatter"].num_bytes == step.dp_shard * along["all_gather"].num_bytes
        mine = 4 * held.rank_elements(step, stage)
        spare = along["reduce_scatter"].num_bytes - mine
        assert 0 <= spare < 4 * step.dp_shard * step.hidden * 40
        if step.dp_replicate > 1:
            summed = found["dp_replicate"]["all_reduce"].num_bytes
            assert summed == along["all_gather"].num_bytes


def test_stages_are_told_and_others_refused():
    with pytest.raises(ValueError, match="stage"):
        held.units(mesh_3d.Step(), 2)
    with pytest.raises(ValueError, match="rank"):
        mesh_3d.Step().messages(4)


# --- how long it takes ---


@BUSY
@given(STEPS)
def test_a_rank_does_one_thing_at_a_time_and_every_microbatch_twice(step):
    line = step.predict()
    assert line.num_ranks == (step.ranks if step.ranks <= times.MOST_DRAWN else step.pp)
    for rank in range(line.num_ranks):
        mine = line.select((line.rank == rank) & (line.lane == COMPUTE))
        order = np.argsort(mine.start_us, kind="stable")
        assert (mine.start_us[order][1:] >= mine.end_us[order][:-1] - 1e-6).all()
        labels = set(mine.label[mine.kind != "optimizer"].tolist())
        assert len(labels) == 2 * step.microbatches


@BUSY
@given(STEPS)
def test_messages_of_the_timeline_are_those_that_are_counted(step):
    line = step.predict()
    if step.ranks > times.MOST_DRAWN:
        return
    for rank in {0, step.ranks - 1}:
        mine = line.select((line.rank == rank) & (line.lane == COMM))
        due = 0
        for each in itertools.chain.from_iterable(
            one.values() for one in step.messages(rank).values()
        ):
            due += each.num_bytes
        assert mine.num_bytes.sum() == due


@pytest.mark.parametrize("schedule", mesh_3d.SCHEDULES)
@pytest.mark.parametrize("latency_ms", [0.0, 5.0])
def test_along_pp_alone_it_is_the_pipeline_s_simulation(schedule, latency_ms):
    step = mesh_3d.Step(
        pp=4, tp=1, schedule=schedule, forward_ms=20.0, latency_ms=latency_ms, node_mb_per_s=1e9
    )
    line = step.predict()
    other = pipeline.Step(
        schedule=schedule, ranks=4, microbatches=4, forward_ms=20.0, message_ms=latency_ms
    ).predict()
    assert step_us(line) == pytest.approx(step_us(other), rel=1e-6)
    peaks = in_flight(SCHEDULES[schedule](4, 4))
    assert (in_flight(line) == peaks).all()


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"tp": 8},
        {"tp": 8, "node_size": 4},
        {"pp": 4},
        {"dp_shard": 4, "zero": 1},
        {"tp": 2, "pp": 2, "dp_shard": 2, "zero": 1},
        {"tp": 2, "recompute": "full", "gpu": "H100 80 GB", "dp_shard": 4, "zero": 1},
    ],
    ids=str,
)
def test_the_timeline_takes_as_long_as_the_planner_s_closed_form(axes):
    step = LARGE.but(**axes)
    one = step.times()
    closed = step_time(step.shape(), one.cluster, one.layout, one.bench.stack)
    assert step_us(step.predict()) == pytest.approx(closed.step_us, rel=0.02)


def test_stated_messages_take_their_latency_and_their_bytes():
    step = mesh_3d.Step(
        pp=2, dp_shard=2, tp=2, node_size=2, forward_ms=20.0, latency_ms=3.0, nic_mb_per_s=10.0
    )
    reduced = step.message_us("all_reduce", "tp", 1e6)
    assert reduced == pytest.approx(3000 + 1e6 / 100)  # 2 (n - 1) / n = 1 at 100 MB/s
    gathered = step.message_us("all_gather", "dp_shard", 1e6)
    hop_us = 5.0  # NODE_ALPHA_US of the planner, for one doubling of the nodes
    assert gathered == pytest.approx(3000 + hop_us + 1e6 / 10)
    assert step.message_us("send", "pp", 1e6) == step.message_us("recv", "pp", 1e6)
    assert step.message_us("send", "pp", 1e6) == pytest.approx(3000 + 1e6 / 10)
    with pytest.raises(ValueError, match="a collective is one of"):
        step.message_us("broadcast", "tp", 1.0)


def test_tensor_parallelism_across_nodes_costs_more():
    inside = LARGE.but(tp=4, pp=2, node_size=4)
    across = inside.but(inside="pp")
    assert across.nodes_of_group("tp") == 2
    assert step_us(across.predict()) > 1.5 * step_us(inside.predict())
    assert across.messages() == inside.messages()
    assert across.times().gb_per_s("tp") < inside.times().gb_per_s("tp")
    assert across.times().gb_per_s("pp") > inside.times().gb_per_s("pp")
    roomy = inside.but(node_size=8)
    assert step_us(roomy.predict()) == step_us(roomy.but(inside="pp").predict())


@pytest.mark.parametrize("axes", [{"pp": 2, "tp": 2}, {"dp_shard": 4}], ids=str)
def test_a_step_of_many_spans_is_drawn_in_fewer_and_takes_as_long(axes, monkeypatch):
    step = LARGE.but(**axes, batch=32, microbatches=8)
    whole = step.predict()
    monkeypatch.setattr(times, "MOST_SPANS", 0)
    fewer = step.predict()
    assert len(fewer) < len(whole) / 4
    assert step_us(fewer) == pytest.approx(step_us(whole))
    assert fewer.num_bytes.sum() == whole.num_bytes.sum()


def test_what_hides_on_a_gpu_does_not_at_stated_times():
    step = LARGE.but(dp_shard=4, pp=2)
    spans = [
        step.times()._said(each, 1e4, 0)
        for _, parts in messages.order(step, 0)
        for each in messages.of_kind(parts, messages.Message)
        if each.collective == "all_gather"
    ]
    assert all(each.adds_us < each.long_us for each in spans)
    stated = step.but(forward_ms=1e3)
    line = stated.predict()
    gathers = line.select((line.kind == "all_gather") & (line.rank == 0))
    work = line.select((line.lane == COMPUTE) & (line.rank == 0))
    for start, end in zip(gathers.start_us, gathers.end_us, strict=True):
        assert not ((work.start_us < end - 1e-6) & (work.end_us > start + 1e-6)).any()


def test_gradients_travel_in_fp32_but_where_everything_is_fp16():
    found = {name: messages.gradient_bytes(name) for name in ("fp32", "bf16", "fp16")}
    assert found == {"fp32": 4, "bf16": 4, "fp16": 2}
    with pytest.raises(ValueError, match="precision"):
        messages.gradient_bytes("fp64")


def test_the_source_s_175_b_model_needs_what_its_zero_stage_says():
    """64 GPUs, 8 x 4 x 2: 43.75 GB of states is ZeRO 3; the stage that its file names needs 120."""
    step = LARGE.but(layers=96, hidden=12_288, heads=96, pp=4, tp=2, batch=512, precision="fp16")
    wanted = {3: 43.75, 1: 120.3}
    for zero, held_gb in wanted.items():
        memory_of = step.but(dp_shard=8, zero=zero).memory()
        assert memory_of.state_bytes / 1e9 == pytest.approx(held_gb, rel=0.02)
    assert step.but(dp_replicate=8).memory().state_bytes / 1e9 == pytest.approx(350, rel=0.02)
    assert not step.but(dp_shard=8, zero=1, recompute="full").fits()
    assert step.but(pp=8, tp=8, microbatches=256, recompute="full").fits()
