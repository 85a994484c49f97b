"""The exercises of chapter 02: right answers pass, typical mistakes and deadlocks get their words,
waste its price."""

import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch.distributed import P2POp, irecv, isend

from labkit import check as room
from labkit.collectives import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("ring_all_reduce", "tree_broadcast", "least_bytes", "choose_algorithm")


def swap(send, received, right, left):
    work = dist.isend(send.contiguous(), right)
    dist.recv(received, left)
    work.wait()


def ring(rank, num_ranks, tensor, swap=swap):
    """The reference for ring_all_reduce."""
    chunks = tensor.tensor_split(num_ranks)
    right = (rank + 1) % num_ranks
    left = (rank - 1) % num_ranks
    for step in range(2 * num_ranks - 2):
        to = chunks[(rank - step - 1) % num_ranks]
        received = torch.empty_like(to)
        swap(chunks[(rank - step) % num_ranks], received, right, left)
        to.add_(received) if step < num_ranks - 1 else to.copy_(received)


def tree(rank, num_ranks, tensor, root):
    """The reference for tree_broadcast."""
    place = (rank - root) % num_ranks
    reach = 1
    while reach < num_ranks:
        if place < reach and place + reach < num_ranks:
            dist.send(tensor, (place + reach + root) % num_ranks)
        elif reach <= place < 2 * reach:
            dist.recv(tensor, (place - reach + root) % num_ranks)
        reach *= 2


def least(primitive, num_ranks, num_bytes):
    """The reference for least_bytes."""
    if num_ranks == 1:
        return 0
    share = 1 if primitive == "broadcast" else (num_ranks - 1) / num_ranks
    return (2 if primitive == "all_reduce" else 1) * share * num_bytes


def choose(num_ranks, num_bytes, alpha_us, bandwidth):
    """The reference for choose_algorithm."""
    ring_us = 2 * (num_ranks - 1) * (alpha_us + num_bytes / num_ranks / bandwidth / 1e3)
    tree_us = 2 * (num_ranks - 1).bit_length() * (alpha_us + num_bytes / bandwidth / 1e3)
    return "ring" if ring_us <= tree_us else "tree"


REFERENCES = dict(zip(EXERCISES, (ring, tree, least, choose), strict=True))


@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def batched(rank, num_ranks, tensor):
    """The receive posted first, both at once."""

    def swap(send, received, right, left):
        posts = [
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, send.contiguous(), right),
        ]
        for work in dist.batch_isend_irecv(posts):
            work.wait()

    ring(rank, num_ranks, tensor, swap)


def pairwise(rank, num_ranks, tensor):
    """No ring, but as good: every chunk goes straight to the rank that sums it, and from there to
    all."""
    chunks = [chunk.clone() for chunk in tensor.tensor_split(num_ranks)]
    mine = tensor.tensor_split(num_ranks)[rank]
    for far in range(1, num_ranks):
        received = torch.empty_like(mine)
        right = (rank + far) % num_ranks
        swap(chunks[right], received, right, (rank - far) % num_ranks)
        mine += received
    for far in range(1, num_ranks):
        left = (rank - far) % num_ranks
        received = tensor.tensor_split(num_ranks)[left].clone()
        swap(mine, received, (rank + far) % num_ranks, left)
        tensor.tensor_split(num_ranks)[left].copy_(received)


def imported(rank, num_ranks, tensor):
    """Names of its own for isend and irecv, and waits with a limit."""

    def swap(send, received, right, left):
        for work in dist.batch_isend_irecv(
            [P2POp(irecv, received, left), P2POp(isend, send.contiguous(), right)]
        ):
            work.wait(timeout=timedelta(seconds=20))

    ring(rank, num_ranks, tensor, swap)


@pytest.mark.parametrize("answer", [batched, pairwise, imported])
def test_other_optimal_ways_pass_too(answer):
    assert repr(check.ring_all_reduce(answer)) == repr(room.Verdict(state="passed"))


def textbook(rank, num_ranks, tensor):
    """Section 8.3.2 as printed, with the chunk's own place for `...`."""
    size = len(tensor) // num_ranks
    right = (rank + 1) % num_ranks
    left = (rank - 1) % num_ranks
    for _ in range(num_ranks - 1):
        received = torch.empty(size)
        swap(tensor[size * rank : size * (rank + 1)].clone(), received, right, left)
        tensor[size * left : size * (left + 1)] += received


def even_only(rank, num_ranks, tensor):
    """Forgets the numbers that are left over when the length does not divide."""
    ring(rank, num_ranks, tensor[: len(tensor) // num_ranks * num_ranks])


def half_a_ring(rank, num_ranks, tensor):
    """A reduce-scatter, and nothing after it."""
    before = tensor.clone()
    ring(rank, num_ranks, before)
    mine = (rank + 1) % num_ranks
    tensor.tensor_split(num_ranks)[mine].copy_(before.tensor_split(num_ranks)[mine])


def library(rank, num_ranks, tensor):
    dist.all_reduce(tensor)


def root_is_zero(rank, num_ranks, tensor, root):
    tree(rank, num_ranks, tensor, 0)


def nobody(rank, num_ranks, tensor, root):
    pass


def beyond(rank, num_ranks, tensor, root):
    """Forgets that the last step is not full."""
    if rank == root:
        dist.send(tensor, num_ranks)


def from_anyone(rank, num_ranks, tensor, root):
    if rank == root:
        for peer in range(num_ranks):
            peer == rank or dist.send(tensor, peer)
    else:
        dist.recv(tensor)


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("ring_all_reduce", textbook, "2 ranks, 7 numbers: rank r brings 1, 2, ... times 10^r"),
        (
            "ring_all_reduce",
            even_only,
            "rank 0 ends with [11, 22, 33, 44, 55, 66, 7]\nright is         [11, 22",
        ),
        ("ring_all_reduce", half_a_ring, "rank 0 ends with [1, 2, 3, 4, 55, 66, 77]"),
        ("ring_all_reduce", library, "only; you called all_reduce"),
        ("tree_broadcast", root_is_zero, "5 ranks, 3 numbers, root 3: rank r"),
        ("tree_broadcast", nobody, "rank 1 ends with [10, 20, 30]\nright is         [1, 2, 3]"),
        ("tree_broadcast", beyond, "ranks are 0 to 3; got 4"),
        ("tree_broadcast", from_anyone, "say from which rank you receive"),
        (
            "least_bytes",
            lambda name, n, s: s if n > 1 else 0,
            "answer('all_reduce', 4, 1000) is 1000: true, but no algorithm gets by with less than "
            "1500",
        ),
        (
            "least_bytes",
            lambda name, n, s: 2 * s,
            "answer('all_reduce', 2, 1000) is 2000: a ring gets by with 1000",
        ),
        (
            "least_bytes",
            lambda name, n, s: least("all_reduce", n, s),
            "answer('reduce_scatter', 2, 1000) is 1000.0",
        ),
        ("least_bytes", lambda *_: float("nan"), "is nan"),
        (
            "least_bytes",
            lambda name, n, s: int(least(name, n, s)),
            "answer('all_reduce', 3, 1000) is 1333",
        ),
        (
            "choose_algorithm",
            lambda *_: "parameter_server",
            'is \'parameter_server\'; choose "ring" or "tree"',
        ),
        ("choose_algorithm", lambda *_: None, "is None; choose"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample


def whole_buffer(rank, num_ranks, tensor):
    """Passes whole buffers round: N times the bytes of a ring's first half."""
    passing = tensor.clone()
    for _ in range(num_ranks - 1):
        received = torch.empty_like(tensor)
        swap(passing, received, (rank + 1) % num_ranks, (rank - 1) % num_ranks)
        tensor += received
        passing = received


def in_turns(rank, num_ranks, tensor):
    """Even ranks send first, odd ranks receive first: the right bytes, twice the steps."""

    def swap(send, received, right, left):
        if rank % 2 == 0:
            dist.send(send.contiguous(), right)
            dist.recv(received, left)
        else:
            dist.recv(received, left)
            dist.send(send.contiguous(), right)

    ring(rank, num_ranks, tensor, swap)


def star(rank, num_ranks, tensor, root):
    for peer in range(num_ranks):
        if peer != root:
            dist.send(tensor, peer) if rank == root else None
            dist.recv(tensor, root) if rank == peer else None


def imported_star(rank, num_ranks, tensor, root):
    if rank != root:
        irecv(tensor, root).wait()
    for peer in {*range(num_ranks)} - {root} if rank == root else ():
        isend(tensor, peer).wait()


def around(rank, num_ranks, tensor, root):
    """From neighbour to neighbour."""
    if rank != root:
        dist.recv(tensor, (rank - 1) % num_ranks)
    if (rank + 1) % num_ranks != root:
        dist.send(tensor, (rank + 1) % num_ranks)


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "ring_all_reduce",
            whole_buffer,
            "3 ranks, 12 numbers: a rank sends up to 96 bytes, a ring 64; the",
        ),
        (
            "ring_all_reduce",
            in_turns,
            "a rank sends up to 28 bytes, a ring 32; the messages take 4 steps, a ring's 2",
        ),
        (
            "tree_broadcast",
            star,
            "4 ranks, 3 numbers, root 0: 3 steps, a tree takes 2; 36 bytes in all, a tree sends 36",
        ),
        ("tree_broadcast", around, "3 steps, a tree takes 2"),
        ("tree_broadcast", imported_star, "3 steps, a tree takes 2"),
        (
            "choose_algorithm",
            lambda *_: "ring",
            "answer(8, 10000, 50, 1) is 'ring': 10.0 kB take 718 us, by tree 360 us",
        ),
        (
            "choose_algorithm",
            lambda *_: "tree",
            "answer(8, 200000, 50, 1) is 'tree': 200 kB take 1.50 ms, by ring 1.05 ms",
        ),
        (
            "choose_algorithm",
            lambda n, size, *_: "tree" if size < 256e3 else "ring",
            "answer(8, 200000, 50, 1) is 'tree'",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget"
    assert words in verdict.counterexample


def everyone_sends_first(rank, num_ranks, tensor):
    def swap(send, received, right, left):
        dist.send(send.contiguous(), right)
        dist.recv(received, left)

    ring(rank, num_ranks, tensor, swap)


def everyone_waits(rank, num_ranks, tensor, root):
    dist.recv(tensor, (rank - 1) % num_ranks)


@pytest.mark.usefixtures("short_patience")
@pytest.mark.parametrize(
    ("name", "answer", "call"),
    [("ring_all_reduce", everyone_sends_first, "send"), ("tree_broadcast", everyone_waits, "recv")],
)
def test_a_deadlock_on_real_ranks_names_the_line_of_each(name, answer, call):
    began = time.monotonic()
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong" and time.monotonic() - began < 30
    assert verdict.counterexample.count(f"in {call} at line") >= 2


def test_steps_are_counted_as_one_port_out_and_one_in():
    received = [("recv", 0), ("wait", 0)]
    sent = [("send", 1), ("wait", 0), ("send", 2), ("wait", 2)]
    assert check._num_steps([sent, received, received]) == 2
    both = [
        [("recv", 1), ("send", 1), ("wait", 0), ("wait", 1)],
        [("send", 0), ("recv", 0), ("wait", 0), ("wait", 1)],
    ]
    assert check._num_steps(both) == 1
    assert check._num_steps([[], []]) == 0


@pytest.mark.parametrize("name", EXERCISES[2:])
@pytest.mark.parametrize("rubbish", [3, "ring ", [None]])
def test_rubbish_is_wrong_and_never_raises(name, rubbish):
    assert getattr(check, name)(lambda *_: rubbish).state == "wrong"
