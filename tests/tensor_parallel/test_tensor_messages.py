"""What ranks tell one another, by theory: the planner's bytes, the papers' counts, one time."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.planner.plan import compute, steptime
from labkit.planner.plan.cluster import Cluster, gpu
from labkit.planner.plan.compute import Bench
from labkit.planner.plan.stacks import STACKS
from labkit.planner.strategies import SMALL, predicted
from labkit.tensor_parallel import messages, times
from labkit.tensor_parallel.layer import Layer
from labkit.timeline import busy_us, hidden_comm, step_us

BIG = Layer(ranks=8, hidden=4096, heads=32, sequence=2048, batch=1, precision="bf16", gpu="H100")
LAYERS = st.builds(
    Layer,
    ranks=st.sampled_from([1, 2, 4]),
    engine=st.sampled_from(["by hand", "torch", "megatron"]),
    sequence=st.sampled_from([4, 16]),
    batch=st.integers(1, 3),
    vocab=st.sampled_from([0, 24]),
    precision=st.sampled_from(["fp32", "bf16"]),
)


def moved(found, num_ranks):
    """Bytes that a rank sends for collectives at their lower bound."""
    total = 0.0
    share = (num_ranks - 1) / num_ranks
    for each in found:
        sizes = {"all_reduce": 2 * share, "reduce_scatter": share, "all_gather": num_ranks - 1}
        total += sizes[each.collective] * each.num_bytes
    return total


@given(LAYERS)
def test_sequence_parallelism_sends_as_many_bytes_unless_inputs_are_gathered_again(layer):
    plain = messages.of_layer(layer.stream())
    halves = messages.of_layer(layer.but(sequence_parallel=True).stream())
    expected = moved(plain, layer.ranks)
    if layer.engine == "megatron":
        expected *= 1.25  # of 8 halves two come twice
    assert moved(halves, layer.ranks) == pytest.approx(expected)


@given(LAYERS)
def test_a_layer_has_two_sums_a_pass_and_one_rank_alone_none(layer):
    found = messages.of_layer(layer.stream())
    for way in messages.PASSES:
        sums = [each for each in found if each.way == way and each.collective == "all_reduce"]
        assert len(sums) == (2 if layer.ranks > 1 else 0)
        assert all(each.num_bytes == layer.stream().whole_bytes for each in sums)


@given(LAYERS)
def test_payload_and_calls_sum_the_messages(layer):
    found = layer.messages()
    assert sum(layer.payload().values()) == sum(each.num_bytes for each in found)
    assert sum(messages.calls(found).values()) == len(found)


def test_what_is_held_whole_is_summed_where_tokens_are_cut():
    """Two norms of a weight and a bias each, and the biases behind the two rows: six widths."""
    layer = Layer(ranks=2, hidden=64, sequence_parallel=True, precision="fp32")
    (found,) = messages.of_whole_weights(layer.stream())
    assert (found.place, found.collective, found.num_bytes) == ("norms", "all_reduce", 6 * 64 * 4)
    assert messages.of_whole_weights(layer.but(sequence_parallel=False).stream()) == []


def test_bytes_are_those_of_the_planner_s_tensor_strategy():
    layer = Layer(ranks=2, hidden=SMALL["dim"], heads=4, sequence=SMALL["seq_len"], batch=4)
    (payload,) = {each.payload["all_reduce"] for each in predicted("tensor", 2, 4)}
    assert SMALL["num_layers"] * layer.payload()["all_reduce"] == payload


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("node_size", [8, 4])
def test_the_simulated_step_is_the_planner_s_layer(sequence_parallel, node_size):
    layer = BIG.but(sequence_parallel=sequence_parallel, node_size=node_size)
    line = layer.timeline()
    stack = STACKS["megatron-h100"]
    cluster = Cluster(gpu=gpu("H100"), num_gpus=8, per_node=node_size)
    own = compute.layer_pass(layer.shape(), layer.layout(), Bench(gpu=cluster.gpu, stack=stack))
    whole = steptime.step_time(layer.shape(), cluster, layer.layout(), stack).stages[0]
    tensor_us = whole.forward["tensor"] + whole.backward["tensor"]
    assert busy_us(line, "comm") == pytest.approx([tensor_us] * 8)
    assert busy_us(line)[0] == pytest.approx(own.forward_us + own.backward_us)
    assert step_us(line) == pytest.approx(own.forward_us + own.backward_us + tensor_us)


def test_across_nodes_the_same_bytes_take_longer():
    inside = BIG.timeline()
    across = BIG.but(node_size=4).timeline()
    assert inside.num_bytes.sum() == across.num_bytes.sum()
    assert step_us(across) > step_us(inside)


@pytest.mark.parametrize("engine", ["by hand", "megatron"])
def test_overlap_hides_messages_of_the_backward_alone(engine):
    layer = BIG.but(engine=engine, sequence_parallel=True)
    plain = layer.timeline()
    hidden = layer.but(overlap=True).timeline()
    assert hidden_comm(plain) == 0.0 < hidden_comm(hidden) < 0.7
    assert step_us(hidden) < step_us(plain)
    assert busy_us(hidden) == pytest.approx(busy_us(plain))
    forward = [each for each in layer.messages() if each.way == "forward"]
    assert not any(each.hides for each in forward)


def test_what_can_hide_is_what_the_timeline_hides():
    layer = BIG.but(engine="megatron", sequence_parallel=True)
    cost = times.cost(
        layer.shape(), layer.layout(), Bench(gpu=gpu("H100"), stack=STACKS["megatron-h100"])
    )
    timed = [(each, 1.0) for each in messages.of_layer(layer.stream())]
    spans = [*times.spans(cost, timed, overlap=True)]
    assert sum(each.beside for each in spans) == sum(each.hides for each, _ in timed)


def test_loss_and_embedding_add_their_own():
    layer = Layer(vocab=50)
    extra = [each for each in layer.messages() if each.place in ("embedding", "head", "loss")]
    tokens = layer.batch * layer.sequence
    assert [(each.place, each.num_bytes) for each in extra] == [
        ("embedding", layer.stream().whole_bytes),
        ("loss", 4 * tokens),
        ("loss", 8 * tokens),
        ("head", layer.stream().whole_bytes),
    ]
    gathered_logits = 4 * tokens * layer.vocab
    assert sum(each.num_bytes for each in extra if each.place == "loss") < gathered_logits


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"engine": "colossal"}, "an engine is one of by hand, torch, megatron"),
        ({"heads": 5}, "heads divide the width"),
        ({"precision": "int4"}, "a precision is one of"),
        ({"gpu": "abacus"}, "abacus"),
        ({"ranks": 0}, "ranks is a whole number"),
    ],
)
def test_what_is_no_layer_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        Layer(**given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ranks": 1}, "take 2 ranks or more"),
        ({"ranks": 8, "hidden": 40, "heads": 4}, "4 heads can't be dealt to 8 ranks"),
        ({"heads": 8, "kv_heads": 1}, "a number of ranks that divides 1"),
        ({"hidden": 512, "heads": 8}, "up to 256 hidden"),
        ({"precision": "bf16"}, "this is bf16"),
        ({"sequence": 7, "sequence_parallel": True}, "take a sequence that they divide"),
        ({"engine": "torch", "ffn": 71}, "an MLP 71 wide"),
        ({"engine": "megatron", "vocab": 51}, "a vocabulary of 51"),
        ({"engine": "torch", "heads": 3, "hidden": 48}, "3 heads"),
    ],
)
def test_what_can_t_run_is_refused_in_words(given, told):
    layer = Layer(**given)
    assert told in layer.refusal("en")
    assert layer.refusal("zh") != layer.refusal("en")
    layer.predict()


def test_megatron_core_is_optional(monkeypatch):
    found = "labkit.tensor_parallel.layer.importlib.util.find_spec"
    monkeypatch.setattr(found, lambda name: None)
    assert "megatron-core is not installed" in Layer(engine="megatron").refusal("en")
    assert Layer().refusal("en") is None


def test_what_only_the_simulation_knows_is_no_other_run():
    one = Layer(gpu="H100", overlap=True, node_size=4)
    assert one.as_run() == Layer()
    assert dataclasses.replace(one, ranks=4).as_run() != Layer()
