"""Training under a communication hook: a mean is a mean, what is counted is what was handed in, and
error feedback sends less without losing anything."""

import pytest
import torch

from labkit.communication import compressed_run


def as_it_is(state, bucket):
    """DDP's own all-reduce, written as a hook."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return default_hooks.allreduce_hook(None, bucket)


def halved(state, bucket):
    """A wrong hook: half of the mean."""
    return as_it_is(state, bucket).then(lambda done: done.value() / 2)


def losses(run):
    """The readings of the loss."""
    return list(run[0]["loss"].values())


@pytest.fixture(scope="module")
def dense():
    return compressed_run.launch(num_steps=24)


def test_the_hook_decides_what_is_trained(dense):
    assert losses(compressed_run.launch(as_it_is, num_steps=24)) == losses(dense)
    assert losses(compressed_run.launch(halved, num_steps=24)) != losses(dense)


def test_it_counts_what_a_step_hands_in(dense):
    from labkit import model

    net = model.Transformer(1, 32, 2, max_len=32)
    every = sum(weight.nbytes for weight in net.parameters())
    assert dense[0]["handed_in_bytes"] == every
    assert len(dense[0]["loss"]) == compressed_run.READINGS
    assert list(dense[0]["loss"])[-1] == pytest.approx(24 * every / 1e6, rel=0.02)
    assert dense[0]["last_loss"] == losses(dense)[-1]
    assert list(dense[0]["loss_by_exchange"]) == list(range(3, 25, 3))
    assert list(dense[0]["loss_by_exchange"].values()) == losses(dense)
    assert dense[0]["hook_ms"] > 0


def noted(state, bucket):
    """A hook that counts its calls, and leaves a float."""
    state["calls"] = state.get("calls", 0.0) + 1
    state["left out"] = 3
    return as_it_is(state, bucket)


def test_more_microbatches_are_the_same_gradients_at_once():
    run = compressed_run.launch(noted, num_steps=8, accumulate=2)
    assert run[0]["calls"] == 8
    assert "left out" not in run[0]
    assert losses(run) != losses(compressed_run.launch(noted, num_steps=8))


def test_a_stated_link_is_waited_for(dense):
    from labkit.collectives.network import Link

    run = compressed_run.launch(num_steps=8, link=Link(alpha_us=500, bandwidth_gb_per_s=0.005))
    stated_ms = 2 * 0.5 + dense[0]["handed_in_bytes"] / 0.005e6
    assert run[0]["link_ms"] == pytest.approx(stated_ms, rel=0.05)
    assert run[0]["hook_ms"] >= 0.99 * stated_ms
    assert dense[0]["link_ms"] == 0


def test_a_report_has_a_row_for_each_run(dense):
    told = str(compressed_run.report({"as it is": dense, "again": dense}))
    lines = told.splitlines()
    assert lines[0].split() == ["name", "handed", "in", "on", "the", "wire", "last", "loss"]
    assert lines[1].startswith("as it is") and lines[2].startswith("again")


def to_be_written(gradient, memory, k):
    raise NotImplementedError


def only_memory(gradient, memory, k):
    """A wrong answer: never sends anything."""
    return torch.zeros_like(gradient), memory + gradient


def test_top_k_with_feedback_sends_little_and_still_trains(dense):
    run = compressed_run.launch(compressed_run.with_feedback(to_be_written), num_steps=40)
    assert run[0]["handed_in_bytes"] < 0.021 * dense[0]["handed_in_bytes"]
    assert losses(run)[-1] < losses(run)[0]


def test_the_answer_is_what_runs():
    run = compressed_run.launch(compressed_run.with_feedback(only_memory), num_steps=8)
    assert len(set(losses(run))) == 1
    assert run[0]["handed_in_bytes"] == 0


def sent_and_kept():
    """Three calls: the sum of all gradients, and of all means with what is kept."""
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    given, sent, memory = torch.zeros(3, 50)
    for _ in range(3):
        gradient = torch.randn(50)
        mean, memory = compressed_run.largest_with_feedback(gradient, memory, 5)
        sent = sent + mean
        given = given + gradient
    for total in (given, memory):
        dist.all_reduce(total)
    return given / 2, sent + memory / 2


def test_feedback_loses_nothing():
    from labkit import launch

    for rank in launch(sent_and_kept, ranks=2):
        assert torch.allclose(*rank, atol=1e-5)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="num_steps"):
        compressed_run.launch(num_steps=5)
