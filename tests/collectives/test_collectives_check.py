"""The exercises of chapter 02: right answers pass; faults, deadlocks and waste get their words."""

import math
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch.distributed import P2POp, irecv, isend

from labkit import check as room
from labkit.collectives import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("halving_all_reduce", "tree_broadcast", "which_algorithm", "predicted_all_reduce")


def swap(send, received, right, left):
    work = dist.isend(send.contiguous(), right)
    dist.recv(received, left)
    work.wait()


def ring(rank, num_ranks, tensor, swap=swap):
    """Right, and its bytes are the fewest; but it takes 2(N-1) steps."""
    chunks = tensor.tensor_split(num_ranks)
    right = (rank + 1) % num_ranks
    left = (rank - 1) % num_ranks
    for step in range(2 * num_ranks - 2):
        to = chunks[(rank - step - 1) % num_ranks]
        received = torch.empty_like(to)
        swap(chunks[(rank - step) % num_ranks], received, right, left)
        to.add_(received) if step < num_ranks - 1 else to.copy_(received)


def halving(rank, num_ranks, tensor, swap=swap):
    """The reference for halving_all_reduce."""
    part = tensor
    path = []
    distance = num_ranks // 2
    while distance:
        lower, upper = part.chunk(2)
        mine, theirs = (upper, lower) if rank & distance else (lower, upper)
        received = torch.empty_like(mine)
        swap(theirs, received, rank ^ distance, rank ^ distance)
        mine.add_(received)
        path.append((rank ^ distance, mine, theirs))
        part = mine
        distance //= 2
    for partner, mine, theirs in reversed(path):
        received = torch.empty_like(theirs)
        swap(mine, received, partner, partner)
        theirs.copy_(received)


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


def which(num_bytes, sent_bytes):
    """The reference for which_algorithm."""
    in_order = sorted(sent_bytes)
    if in_order[0] == in_order[-1]:
        return "ring"
    return "parameter_server" if in_order[-2] == num_bytes else "tree"


def predicted(alpha_us, bandwidth_gb_per_s, num_ranks, num_bytes, bytes_per_us=1000, steps=None):
    """The reference for predicted_all_reduce."""

    def message(size):
        return alpha_us + size / (bytes_per_us * bandwidth_gb_per_s)

    ring_us = 2 * (num_ranks - 1) * message(num_bytes / num_ranks)
    tree_us = 2 * (steps or math.ceil)(math.log2(num_ranks)) * message(num_bytes)
    return min(("ring", ring_us), ("tree", tree_us), key=lambda way: way[1])


REFERENCES = dict(zip(EXERCISES, (halving, tree, which, predicted), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def imported(rank, num_ranks, tensor):
    """Names of its own for isend and irecv, and waits with a limit."""

    def swap(send, received, right, left):
        for work in dist.batch_isend_irecv(
            [P2POp(irecv, received, left), P2POp(isend, send.contiguous(), right)]
        ):
            work.wait(timeout=timedelta(seconds=20))

    halving(rank, num_ranks, tensor, swap)


def near_first(rank, num_ranks, tensor):
    """Neighbours exchange first, the farthest last: another order of the same steps."""
    part = tensor.view(num_ranks, -1)
    path = []
    distance = 1
    while distance < num_ranks:
        bit = (rank // distance) % 2
        mine, theirs = part[bit::2], part[1 - bit :: 2]
        received = torch.empty_like(mine)
        swap(theirs, received, rank ^ distance, rank ^ distance)
        mine.add_(received)
        path.append((rank ^ distance, mine, theirs))
        part = mine
        distance *= 2
    for partner, mine, theirs in reversed(path):
        received = torch.empty_like(theirs)
        swap(mine, received, partner, partner)
        theirs.copy_(received)


@pytest.mark.parametrize("answer", [imported, near_first])
def test_other_optimal_ways_pass_too(answer):
    assert repr(check.halving_all_reduce(answer)) == repr(room.Verdict(state="passed"))


def nothing_back(rank, num_ranks, tensor):
    """The first half alone: a reduce-scatter."""
    before = tensor.clone()
    halving(rank, num_ranks, before)
    mine = tensor.chunk(num_ranks)[rank]
    mine.copy_(before.chunk(num_ranks)[rank])


def same_half(rank, num_ranks, tensor):
    lower, upper = tensor.chunk(2)
    received = torch.empty_like(lower)
    swap(upper, received, rank ^ 1, rank ^ 1)
    lower.add_(received)


def turned_round(*asked):
    name, time_us = predicted(*asked)
    return {"ring": "tree", "tree": "ring"}[name], time_us


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


@pytest.mark.a_few(6)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("halving_all_reduce", same_half, "2 ranks, 6 numbers: rank r brings 1, 2, ... times 10^r"),
        (
            "halving_all_reduce",
            nothing_back,
            "rank 0 ends with [11, 22, 33, 4, 5, 6]\nright is         [11, 22",
        ),
        ("halving_all_reduce", same_half, "rank 0 sends  >1\nrank 1 sends  >0"),
        ("halving_all_reduce", library, "only; you called all_reduce"),
        ("tree_broadcast", root_is_zero, "5 ranks, 3 numbers, root 3: rank r"),
        ("tree_broadcast", nobody, "rank 1 ends with [10, 20, 30]\nright is         [1, 2, 3]"),
        ("tree_broadcast", beyond, "ranks are 0 to 3; got 4"),
        ("tree_broadcast", from_anyone, "say from which rank you receive"),
        (
            "which_algorithm",
            lambda size, sent: "ring",
            "answer(1200, [1200, 2400, 1200, 2400]) is 'ring'; it was a tree",
        ),
        ("which_algorithm", lambda *_: None, "is None; it was a ring"),
        (
            "predicted_all_reduce",
            lambda *asked: predicted(*asked, bytes_per_us=1),
            "answer(10000, 0.1, 4, 400000) is ('ring', 6060000.0); a ring takes 66000 us, a tree",
        ),
        (
            "predicted_all_reduce",
            lambda *asked: predicted(*asked, steps=math.floor),
            "answer(50, 1, 6, 1000) is ('tree', 204.0); a ring takes 501.667 us, a tree 306 us",
        ),
        (
            "predicted_all_reduce",
            turned_round,
            "answer(10000, 0.1, 4, 400000) is ('ring', 56000.0)",
        ),
        ("predicted_all_reduce", lambda *_: ("ring", float("nan")), "is ('ring', nan); a ring"),
        ("predicted_all_reduce", lambda *_: ("tree", "soon"), "is ('tree', 'soon'); a ring"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample


def whole_buffer(rank, num_ranks, tensor):
    """Doubling alone: whole buffers in log2 N steps."""
    distance = 1
    while distance < num_ranks:
        received = torch.empty_like(tensor)
        swap(tensor.clone(), received, rank ^ distance, rank ^ distance)
        tensor += received
        distance *= 2


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
            "halving_all_reduce",
            whole_buffer,
            "4 ranks, 12 numbers: a rank sends up to 96 bytes of 72; the messages take 2 steps",
        ),
        (
            "halving_all_reduce",
            ring,
            "72 bytes of 72; the messages take 6 steps of 4\nrank 0 sends  >1  >1",
        ),
        ("halving_all_reduce", in_turns, "the messages take 4 steps of 2"),
        (
            "tree_broadcast",
            star,
            "4 ranks, 3 numbers, root 0: 3 steps, a tree takes 2; 36 bytes in all, a tree sends 36",
        ),
        ("tree_broadcast", around, "3 steps, a tree takes 2"),
        ("tree_broadcast", imported_star, "3 steps, a tree takes 2"),
        (
            "tree_broadcast",
            star,
            "rank 0 sends  >1  >2  >3\nrank 1 sends  .   .   .",
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
    [
        ("halving_all_reduce", everyone_sends_first, "send"),
        ("tree_broadcast", everyone_waits, "recv"),
    ],
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
    assert [check._num_steps(each) for each in (both, [[], []])] == [1, 0]


@pytest.mark.parametrize("name", EXERCISES[2:])
@pytest.mark.parametrize("rubbish", [3, "ring ", [None]])
def test_rubbish_is_wrong_and_never_raises(name, rubbish):
    assert getattr(check, name)(lambda *_: rubbish).state == "wrong"
