"""Exercise 2 of chapter 02, the ring: the right second half passes; typical wrong ones get their
words."""

import pytest
import torch
from torch import distributed as dist

from labkit.collectives import check

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("a_fresh_learner")]
EXERCISES = ("ring_all_reduce",)


def pass_on(chunk):
    rank = dist.get_rank()
    size = dist.get_world_size()
    received = torch.empty_like(chunk)
    sending = dist.isend(chunk, (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    sending.wait()
    return received


def first_half(rank, size, tensor):
    """What the chapter gives: the reduce-scatter alone."""
    chunks = tensor.chunk(size)
    for step in range(1, size):
        received = pass_on(chunks[(rank - step) % size])
        chunks[(rank - 1 - step) % size].add_(received)


def ring(rank, size, tensor, ahead=1, take=torch.Tensor.copy_):
    """The reference: the all-gather begins one chunk ahead, and copies."""
    first_half(rank, size, tensor)
    chunks = tensor.chunk(size)
    for step in range(1, size):
        received = pass_on(chunks[(rank + ahead - step) % size])
        take(chunks[(rank + ahead - 1 - step) % size], received)


def in_one_loop(rank, size, tensor):
    """Both halves at once: the chunk that is sent goes down by one per step."""
    chunks = tensor.chunk(size)
    for step in range(1, 2 * size - 1):
        received = pass_on(chunks[(rank - step) % size])
        place = chunks[(rank - 1 - step) % size]
        place.add_(received) if step < size else place.copy_(received)


@pytest.mark.parametrize("answer", [ring, in_one_loop])
def test_a_whole_ring_passes(answer):
    verdict = check.ring_all_reduce(answer)
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def test_the_chapters_stub_is_not_attempted():
    def stub(rank, size, tensor):
        first_half(rank, size, tensor)
        raise NotImplementedError("your turn: replace this line")

    assert check.ring_all_reduce(stub).state == "not attempted"


def same_indices(rank, size, tensor):
    ring(rank, size, tensor, ahead=0)


def added_again(rank, size, tensor):
    ring(rank, size, tensor, take=torch.Tensor.add_)


def library(rank, size, tensor):
    dist.all_reduce(tensor)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (first_half, "rank 0 ends with [111, 222, "),
        (same_indices, "3 ranks, 6 numbers: rank r brings 1, 2, ... times 10^r"),
        (added_again, "right is         [111, 222, 333, 444, 555, 666]"),
        (library, "only; you called all_reduce"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(answer, words):
    verdict = check.ring_all_reduce(answer)
    assert verdict.state == "wrong" and words in verdict.counterexample


def test_whole_buffers_round_the_ring_cost_too_much():
    def whole(rank, size, tensor):
        passed = tensor.clone()
        for _ in range(size - 1):
            passed = pass_on(passed)
            tensor += passed

    verdict = check.ring_all_reduce(whole)
    assert verdict.state == "over budget"
    assert "3 ranks, 6 numbers: a rank sends up to 48 bytes of 32" in verdict.counterexample
