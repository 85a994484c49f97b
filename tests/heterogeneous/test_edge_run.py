"""A network that is really cut: bytes as counted, answers as one process gives them."""

import pytest
import torch

from labkit import heterogeneous
from labkit.heterogeneous import edge_run
from labkit.heterogeneous.edge import FORMS, NETWORK, packed_bytes
from labkit.timeline import step_us


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(3, 5), (1,), (2, 4, 4)])
def test_what_is_packed_has_its_bytes_and_comes_back(form, shape):
    torch.manual_seed(0)
    values = torch.randn(shape)
    message = edge_run.pack(values, form)
    assert message.dtype == torch.uint8 and message.numel() == packed_bytes(values.numel(), form)
    back = edge_run.unpack(message, form, shape)
    steps = 2 ** FORMS[form] - 1
    half = (values.max() - values.min()).item() / steps / 2 if form.startswith("int") else 1e-3
    assert back.shape == values.shape and (back - values).abs().max() <= half * 1.01


def test_the_network_gives_what_theory_says_it_does():
    net = edge_run.network()
    made = torch.zeros(2, 1, 32, 32)
    for layer, told in zip(net, NETWORK, strict=True):
        made = layer(made)
        assert made[0].numel() == told.num_values, told.name


@pytest.fixture(scope="module")
def whole():
    return heterogeneous.Cut(requests=3, stream=True, edge_gflops=0.2).run()


def test_a_cut_network_answers_as_one_process(whole):
    told = whole[0]
    assert told["answer_difference"] < 1e-5 and told["agree_share"] == 1
    assert told["accuracy"] == told["accuracy_whole"] > 0.85
    assert told["payload_bytes"] == 3 * 4 * 16 * 512
    assert len(told["latency_us"]) == 3


def test_the_recording_has_the_messages_and_the_requests(whole):
    step = heterogeneous.Cut(requests=3, stream=True, edge_gflops=0.2)
    found = {}
    for timeline in (whole.timeline(), step.predict()):
        rows = zip(timeline.rank, timeline.lane, timeline.label, timeline.num_bytes, strict=True)
        found[timeline.origin] = sorted(map(str, rows))
    assert found["measured"] == found["simulated"]
    assert step_us(whole.timeline()) > 0.95 * step_us(step.predict())


@pytest.mark.parametrize("after", [0, 4, pytest.param(6, marks=pytest.mark.again)])
def test_integers_cost_a_little_and_send_less(after):
    cut = heterogeneous.Cut(after=after, form="int8", edge_gflops=1.0)
    told = cut.run()[0]
    assert told["payload_bytes"] == cut.message_bytes()
    if after == 6:
        assert told["answer_difference"] < 1e-6
    else:
        assert 0 < told["answer_difference"] < 0.3
    assert told["agree_share"] > 0.95
