"""Laws of collectives: every plan does what its primitive promises, and moves as much as theory
says."""

import math

import numpy as np
import pytest

from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, plan, square_island
from labkit.collectives.plans import Plan, received_bytes, sent_bytes, validate
from labkit.words import TITLES

CHOICES = [
    (primitive, algorithm) for primitive, builders in ALGORITHMS.items() for algorithm in builders
]
SIZES = (*range(1, 10), 16)
SIZE_BYTES = 720_720.0  # divides by 1 to 16

OPTIONS = [
    ("broadcast", "star", {"root": 3}),
    ("broadcast", "tree", {"root": 4}),
    ("broadcast", "tree", {"root": 2, "num_segments": 3}),
    ("reduce", "star", {"root": 5}),
    ("reduce", "tree", {"root": 1, "num_segments": 2}),
    ("reduce", "tree", {"root": 5}),
    ("broadcast", "ring", {"root": 4, "order": (1, 3, 0, 5, 4, 2), "num_segments": 2}),
    ("reduce", "ring", {"root": 2, "order": (1, 3, 0, 5, 4, 2)}),
    ("all_reduce", "ring", {"order": (0, 2, 4, 1, 3, 5)}),
    ("all_gather", "ring", {"order": (5, 0, 3, 1, 2, 4)}),
    ("reduce_scatter", "ring", {"order": (5, 0, 3, 1, 2, 4)}),
    ("all_reduce", "tree", {"num_segments": 5}),
    ("all_reduce", "double_tree", {"num_segments": 7}),
    ("all_reduce", "double_tree", {"num_segments": 1}),
    ("all_reduce", "parameter_server", {"root": 3}),
    *(("all_reduce", "hierarchical", {"island_size": size}) for size in (1, 2, 3, 6)),
    ("all_reduce", "hierarchical", {"island_size": 3, "order": (0, 2, 4, 1, 3, 5)}),
]


def run(made: Plan, buffers: np.ndarray) -> np.ndarray:
    """The plan on numbers, shape (num_ranks, num_chunks): written apart from ``holdings``."""
    now = buffers.copy()
    for step in made.steps:
        before = now.copy()
        for src, dst, chunks, op in step:
            where = list(chunks)
            now[dst, where] = before[src, where] + (before[dst, where] if op == "add" else 0)
    return now


def check_on_numbers(made: Plan) -> None:
    """A plan's result on random integers is the one numpy gives."""
    n, c = made.num_ranks, made.num_chunks
    x = np.random.default_rng(n * c).integers(1, 1000, (n, c))
    got = run(made, x)
    own = np.arange(c) * n // c
    if made.primitive in ("all_reduce", "reduce"):
        np.testing.assert_array_equal(
            got[made.root if made.primitive == "reduce" else slice(None)] - x.sum(0), 0
        )
    elif made.primitive == "broadcast":
        np.testing.assert_array_equal(got, np.tile(x[made.root], (n, 1)))
    elif made.primitive == "all_gather":
        np.testing.assert_array_equal(got, np.tile(x[own, np.arange(c)], (n, 1)))
    elif made.primitive == "reduce_scatter":
        np.testing.assert_array_equal(got[own, np.arange(c)], x.sum(0))
    elif made.primitive == "all_to_all":
        blocks = got.reshape(n, n, n)
        before = x.reshape(n, n, n)
        for src in range(n):
            for dst in range(n):
                assert blocks[dst, src, dst] == before[src, src, dst]
    elif n > 1:
        np.testing.assert_array_equal(got[1], x[0])


@pytest.mark.parametrize(("primitive", "algorithm"), CHOICES)
def test_every_plan_does_what_its_primitive_promises(primitive, algorithm):
    for num_ranks in SIZES:
        made = plan(primitive, algorithm, num_ranks)
        validate(made)
        check_on_numbers(made)
        assert (made.primitive, made.algorithm, made.num_ranks) == (primitive, algorithm, num_ranks)


@pytest.mark.parametrize(("primitive", "algorithm", "options"), OPTIONS)
def test_every_option_leads_to_the_same_result(primitive, algorithm, options):
    made = plan(primitive, algorithm, 6, **options)
    validate(made)
    check_on_numbers(made)
    assert made.root == options.get("root", 0)


def test_in_step_s_of_a_pairwise_exchange_a_rank_sends_to_the_rank_s_further_on():
    steps = plan("all_to_all", "pairwise", 4).steps
    for shift, step in enumerate(steps, 1):
        sent = {message.src: message.dst for message in step}
        assert sent == {rank: (rank + shift) % 4 for rank in range(4)}


@pytest.mark.parametrize("num_ranks", SIZES)
def test_ring_moves_the_lower_bound_from_every_rank(num_ranks):
    """2(N-1)/N of the data for an all-reduce; (N-1)/N for all-gather, reduce-scatter and pairwise
    all-to-all."""
    share = (num_ranks - 1) / num_ranks
    for primitive, algorithm, factor in (
        ("all_reduce", "ring", 2),
        ("all_gather", "ring", 1),
        ("reduce_scatter", "ring", 1),
        ("all_to_all", "pairwise", 1),
    ):
        made = plan(primitive, algorithm, num_ranks)
        for volume in (sent_bytes, received_bytes):
            assert volume(made, SIZE_BYTES) == pytest.approx(
                np.full(num_ranks, factor * share * SIZE_BYTES)
            )
        assert lower_bound_bytes(primitive, num_ranks, SIZE_BYTES) == pytest.approx(
            factor * share * SIZE_BYTES
        )
        assert len(made.steps) == factor * (num_ranks - 1)


@pytest.mark.parametrize(("primitive", "algorithm"), CHOICES)
def test_no_plan_beats_the_lower_bound_and_what_is_sent_is_received(primitive, algorithm):
    for num_ranks in SIZES:
        made = plan(primitive, algorithm, num_ranks)
        sent = sent_bytes(made, SIZE_BYTES)
        received = received_bytes(made, SIZE_BYTES)
        assert sent.shape == received.shape == (num_ranks,) and sent.sum() == pytest.approx(
            received.sum()
        )
        assert (
            max(sent.max(), received.max())
            >= lower_bound_bytes(primitive, num_ranks, SIZE_BYTES) - 1e-6
        )


@pytest.mark.parametrize("num_ranks", SIZES)
def test_the_servers_port_carries_n_minus_1_times_the_data_each_way(num_ranks):
    made = plan("all_reduce", "parameter_server", num_ranks)
    for volume in (sent_bytes(made, SIZE_BYTES), received_bytes(made, SIZE_BYTES)):
        assert volume[0] == volume.max(initial=0) == (num_ranks - 1) * SIZE_BYTES
        assert (volume[1:] == SIZE_BYTES).all()
    assert len(made.steps) == 2 * (num_ranks - 1)


@pytest.mark.parametrize("num_ranks", [*range(1, 34), 64])
def test_steps_of_trees_grow_with_log_n_and_those_of_rings_with_n(num_ranks):
    log = math.ceil(math.log2(num_ranks))
    assert (
        len(plan("broadcast", "tree", num_ranks).steps)
        == len(plan("reduce", "tree", num_ranks).steps)
        == log
    )
    assert len(plan("all_reduce", "tree", num_ranks).steps) == 2 * log
    assert len(plan("all_reduce", "double_tree", num_ranks, num_segments=1).steps) <= 4 * log
    for num_segments in (1, 5):
        made = plan("broadcast", "ring", num_ranks, num_segments=num_segments)
        assert len(made.steps) == (num_ranks - 2 + num_segments if num_ranks > 1 else 0)


@pytest.mark.parametrize("num_ranks", range(2, 34))
def test_no_port_carries_more_than_twice_the_data_in_a_double_tree(num_ranks):
    """A binary tree's busiest port carries three times the data: two children and a parent."""
    made = plan("all_reduce", "double_tree", num_ranks)
    assert max(sent_bytes(made, 1.0).max(), received_bytes(made, 1.0).max()) <= 2.0
    if num_ranks > 3:
        assert sent_bytes(plan("all_reduce", "tree", num_ranks, num_segments=8), 1.0).max() == 3.0


@pytest.mark.parametrize("num_ranks", [2, 4, 6, 8, 10, 16])
def test_a_rank_of_a_double_tree_is_a_leaf_of_one_tree_and_interior_in_the_other(num_ranks):
    made = plan("all_reduce", "double_tree", num_ranks, num_segments=3)
    adds = [message for message in made.messages() if message.op == "add"]
    interior = [set(), set()]
    for message in adds:
        interior[message.chunks[0] // 3].add(message.dst)
    assert interior[0] | interior[1] == set(range(num_ranks)) and not interior[0] & interior[1]


@pytest.mark.parametrize("num_ranks", [4, 6, 8, 16])
def test_a_long_double_tree_needs_two_steps_for_its_pair_of_segments_and_a_tree_three_for_one(
    num_ranks,
):
    """Both ports of all ranks are busy all the time, but for the filling of the pipeline, and a
    little at 16."""
    double, single = (
        len(plan("all_reduce", name, num_ranks, num_segments=128).steps) / 128
        for name in ("double_tree", "tree")
    )
    assert 4 <= double <= 4.5 and 3 <= single <= 3.15


def _ends(message):
    return frozenset(message[:2])


def test_a_hierarchy_groups_the_ranks_that_are_neighbours_in_its_order():
    made = plan("all_reduce", "hierarchical", 4, order=(0, 2, 1, 3))
    pairs = [set(map(_ends, step)) for step in made.steps]
    groups = {frozenset({0, 2}), frozenset({1, 3})}
    across = {frozenset({0, 1}), frozenset({2, 3})}
    assert pairs == [groups, across, across, groups]


def test_a_hierarchy_reduces_inside_then_across_then_gathers_inside():
    made = plan("all_reduce", "hierarchical", 12, island_size=4)

    def kind(message):
        if message.src // 4 == message.dst // 4:
            return "inside", message.op
        return "across" if message.src % 4 == message.dst % 4 else "other", message.op

    kinds = [set(map(kind, step)) for step in made.steps]
    assert kinds == (
        [{("inside", "add")}] * 3
        + [{("across", "add")}] * 2
        + [{("across", "copy")}] * 2
        + [{("inside", "copy")}] * 3
    )
    crossing = (
        sum(len(m.chunks) for step in made.steps for m in step if m.src // 4 != m.dst // 4)
        / made.num_chunks
    )
    assert crossing == pytest.approx(
        12 * 2 * (2 / 3) / 4
    )  # per rank what a ring of the 3 islands moves of a quarter
    assert sent_bytes(made, 1.0) == pytest.approx([lower_bound_bytes("all_reduce", 12, 1.0)] * 12)


def test_the_default_island_is_nearly_square():
    assert [square_island(n) for n in (1, 2, 4, 6, 7, 8, 12, 16, 64)] == [1, 1, 2, 2, 1, 2, 3, 4, 8]


def test_the_size_of_an_all_to_all_is_what_one_rank_starts_with():
    assert plan("all_to_all", "pairwise", 4).chunk_bytes(400) == 100
    assert plan("all_gather", "ring", 4).chunk_bytes(400) == 100


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (
            ("all_reduce", "butterfly", 4),
            {},
            "broadcast: star, tree, ring.*all_reduce: parameter_server, ring, tree,",
        ),
        (("allreduce", "ring", 4), {}, "got 'allreduce', 'ring'"),
        (("all_reduce", "ring", 0), {}, "num_ranks is a whole number from 1 to 256; got 0"),
        (
            ("all_reduce", "ring", 4),
            {"root": 1},
            r"all_reduce ring takes options \['order'\]; got \['root'\]",
        ),
        (
            ("all_to_all", "pairwise", 4),
            {"order": (0, 1, 2, 3)},
            r"takes options \[\]; got \['order'\]",
        ),
        (("broadcast", "tree", 4), {"root": 4}, "root is one of 4 ranks, counted from 0; got 4"),
        (
            ("all_reduce", "tree", 4),
            {"num_segments": 0},
            "num_segments is a whole number from 1 .* got 0",
        ),
        (
            ("all_reduce", "ring", 3),
            {"order": (0, 1, 1)},
            r"order names each of 3 ranks once; got \(0, 1, 1\)",
        ),
        (
            ("all_reduce", "hierarchical", 6),
            {"island_size": 4},
            r"divides 6 ranks: it is one of \[1, 2, 3, 6\]; got 4",
        ),
        (("all_reduce", "hierarchical", 6), {"island_size": 0}, "got 0"),
    ],
)
def test_a_wrong_choice_is_told_what_there_is(arguments, options, words):
    with pytest.raises(ValueError, match=words):
        plan(*arguments, **options)


def test_a_bound_is_known_for_the_primitives_only():
    with pytest.raises(ValueError, match=r"broadcast, reduce, .*; got 'gossip'"):
        lower_bound_bytes("gossip", 4, 1.0)
    with pytest.raises(ValueError, match=r"num_ranks is a whole number from 1 .*got 0"):
        lower_bound_bytes("reduce", 0, 1.0)


def test_every_primitive_and_algorithm_has_a_title():
    assert set(TITLES) == {word for choice in CHOICES for word in choice}
