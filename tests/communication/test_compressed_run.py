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
    return compressed_run.launch(num_steps=30, link=None)


def test_the_hook_decides_what_is_trained(dense):
    assert losses(compressed_run.launch(as_it_is, num_steps=30, link=None)) == losses(dense)
    assert losses(compressed_run.launch(halved, num_steps=30, link=None)) != losses(dense)


def test_it_counts_what_a_step_hands_in(dense):
    from labkit import model

    net = model.Transformer(1, 32, 2, max_len=32)
    every = sum(weight.nbytes for weight in net.parameters())
    assert dense[0]["sent_bytes"] == every
    assert len(dense[0]["loss"]) == 3
    assert list(dense[0]["loss"])[-1] == pytest.approx(30 * every / 1e6, rel=0.02)
    assert dense[0]["last_loss"] == pytest.approx(sum(losses(dense)) / 3)


def test_top_k_with_feedback_sends_little_and_still_trains(dense):
    state = {"share": 0.01}
    run = compressed_run.launch(compressed_run.top_k_feedback, state, num_steps=60, link=None)
    assert run[0]["sent_bytes"] < 0.021 * dense[0]["sent_bytes"]
    assert losses(run)[-1] < losses(run)[0]
    assert state == {"share": 0.01}


def sent_and_kept():
    """Three calls of the hook: the sum of all gradients, and of all means with what is kept."""
    import torch.distributed as dist

    state = {"share": 0.1}
    torch.manual_seed(dist.get_rank())
    given, sent = torch.zeros(2, 50)
    for _ in range(3):
        gradient = torch.randn(50)
        bucket = type("Bucket", (), {"buffer": lambda self, values=gradient: values})()
        sent += compressed_run.top_k_feedback(state, bucket).wait()
        given += gradient
    for total in (given, state["kept"]):
        dist.all_reduce(total)
    return given / 2, sent + state["kept"] / 2


def test_feedback_loses_nothing():
    from labkit import launch

    for rank in launch(sent_and_kept, ranks=2):
        assert torch.allclose(*rank, atol=1e-5)


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="num_steps"):
        compressed_run.launch(num_steps=5)
