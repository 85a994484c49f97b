"""Laws of links: simulated time is the closed form on even networks; what uneven ones change;
measured times fitted."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from labkit.collectives.algorithms import ALGORITHMS, plan
from labkit.collectives.network import (
    Link,
    Network,
    algbw,
    crossover_bytes,
    fit,
    formula_us,
    islands,
    simulate,
    time_us,
    uniform,
)
from labkit.collectives.plans import sent_bytes

LINK = Link(alpha_us=10.0, bandwidth_gb_per_s=10.0)
INSIDE = Link(alpha_us=2.0, bandwidth_gb_per_s=100.0)
BETWEEN = Link(alpha_us=20.0, bandwidth_gb_per_s=5.0)
CHOICES = [
    (primitive, algorithm) for primitive, builders in ALGORITHMS.items() for algorithm in builders
]


def test_a_message_takes_alpha_and_its_bytes_over_the_bandwidth():
    assert LINK.us(0) == 10.0 and LINK.us(1e6) == 110.0  # 1 MB at 10 GB/s: 100 us
    for wrong in ({"alpha_us": -1.0}, {"bandwidth_gb_per_s": 0.0}, {"alpha_us": float("nan")}):
        with pytest.raises(
            ValueError, match="alpha_us is at least 0 and its bandwidth_gb_per_s above 0"
        ):
            replace(LINK, **wrong)


@pytest.mark.parametrize("num_ranks", [*range(1, 10), 16])
def test_every_closed_form_is_exact_on_a_uniform_network(num_ranks):
    compared = set()
    for (primitive, algorithm), num_bytes in itertools.product(CHOICES, (0, 1e3, 1e8)):
        formula = formula_us(primitive, algorithm, num_ranks, num_bytes, LINK)
        if formula is not None:
            made = plan(primitive, algorithm, num_ranks)
            assert time_us(made, uniform(num_ranks, LINK), num_bytes) == pytest.approx(formula), (
                primitive,
                algorithm,
            )
            compared.add(algorithm)
    assert compared == {algorithm for _, algorithm in CHOICES} - {"double_tree"}


def test_a_plan_is_simulated_alike_however_often_and_whoever_wrote_it():
    made = plan("all_reduce", "double_tree", 6)
    links = islands(6, 3, inside=INSIDE, between=BETWEEN, shared=True)
    first = simulate(made, links, 1e6)
    simulate(made, uniform(6, LINK), 5e3)
    for again in (made, replace(made, steps=tuple(map(tuple, made.steps)))):
        repeated = simulate(again, links, 1e6)
        assert repeated.label.tolist() == first.label.tolist()
        assert repeated.end_us.tolist() == first.end_us.tolist()


def test_closed_forms_with_options_are_exact_too():
    for num_segments in (1, 3, 40):
        made = plan("reduce", "ring", 6, num_segments=num_segments)
        formula = formula_us("reduce", "ring", 6, 1e6, LINK, num_segments=num_segments)
        assert time_us(made, uniform(6, LINK), 1e6) == pytest.approx(formula)
    for island_size in (1, 2, 3, 4, 6, 12):
        made = plan("all_reduce", "hierarchical", 12, island_size=island_size)
        formula = formula_us("all_reduce", "hierarchical", 12, 1e6, LINK, island_size=island_size)
        assert time_us(made, uniform(12, LINK), 1e6) == pytest.approx(formula)
    assert formula_us("all_reduce", "tree", 8, 1e6, LINK, num_segments=2) is None
    assert formula_us("all_reduce", "tree", 8, 1e6, LINK, num_segments=1) == 6 * LINK.us(1e6)


def test_latency_of_a_ring_grows_with_n_and_of_a_tree_with_log_n():
    for n in (2, 3, 8, 9, 16, 64, 100):
        assert formula_us("all_reduce", "ring", n, 0, LINK) == 2 * (n - 1) * 10.0
        assert formula_us("all_reduce", "tree", n, 0, LINK) == 2 * math.ceil(math.log2(n)) * 10.0
        assert time_us(plan("all_reduce", "ring", n), uniform(n, LINK), 0) == pytest.approx(
            2 * (n - 1) * 10.0
        )


@pytest.mark.parametrize("num_ranks", [4, 5, 8, 16, 64])
def test_below_the_crossover_the_tree_is_faster_above_it_the_ring(num_ranks):
    size = crossover_bytes(num_ranks, LINK)
    even = uniform(num_ranks, LINK)
    ring = plan("all_reduce", "ring", num_ranks)
    tree = plan("all_reduce", "tree", num_ranks)
    assert time_us(ring, even, size) == pytest.approx(time_us(tree, even, size))
    assert time_us(ring, even, size * 0.9) > time_us(tree, even, size * 0.9)
    assert time_us(ring, even, size * 1.1) < time_us(tree, even, size * 1.1)
    slower = replace(LINK, alpha_us=20.0)
    assert crossover_bytes(num_ranks, slower) == pytest.approx(
        2 * size
    )  # in proportion to alpha times bandwidth


def test_where_two_lines_do_not_cross():
    assert (
        crossover_bytes(2, LINK) == crossover_bytes(3, LINK) == 0.0
    )  # the ring has no more steps than the tree
    assert crossover_bytes(8, LINK, "tree", "ring") == math.inf
    assert crossover_bytes(8, LINK, "ring", "ring") == 0.0
    assert crossover_bytes(8, LINK, "ring", "hierarchical") == math.inf  # same bytes, fewer steps
    assert crossover_bytes(8, LINK, "ring", "star", "broadcast") > 0
    with pytest.raises(ValueError, match="closed form; got 'ring' and 'double_tree'"):
        crossover_bytes(8, LINK, "ring", "double_tree")


def test_a_double_tree_is_best_of_the_three_at_middling_sizes_and_many_ranks():
    made = {name: plan("all_reduce", name, 64) for name in ("tree", "ring")}
    made["double_tree"] = plan("all_reduce", "double_tree", 64, num_segments=8)

    def best(num_bytes: float) -> str:
        return min(made, key=lambda name: time_us(made[name], uniform(64, LINK), num_bytes))

    assert [best(size) for size in (1e4, 2e6, 1e8)] == ["tree", "double_tree", "ring"]


@pytest.mark.parametrize(("primitive", "algorithm"), CHOICES)
@pytest.mark.parametrize("shared", [False, True])
def test_messages_keep_to_the_rule_of_ports_steps_and_wires(primitive, algorithm, shared):
    """A message starts at once when both ends are through with earlier steps and its wire is free;
    never before."""
    made = plan(primitive, algorithm, 8)
    network = islands(8, 4, inside=INSIDE, between=BETWEEN, shared=shared)
    timeline = simulate(made, network, 1e6)
    sends = timeline.select(timeline.kind == "send")
    spans = {
        (label, start): end
        for label, start, end in zip(sends.label, sends.start_us, sends.end_us, strict=True)
    }
    through = np.zeros(8)
    wires = {}
    left = dict(spans)
    for step in made.steps:
        ends = through.copy()
        for message in step:
            src, dst, chunks, _ = message
            label = made.label(message)
            start = min(start for named, start in left if named == label)
            link = network.link(src, dst)
            end = left.pop((label, start))
            assert end - start == pytest.approx(link.us(len(chunks) * made.chunk_bytes(1e6)))
            ready = max(through[src], through[dst])
            assert start >= ready - 1e-6 and (link.wire or start == pytest.approx(ready))
            wires.setdefault(link.wire, []).append((start, end, ready))
            ends[[src, dst]] = np.maximum(ends[[src, dst]], end)
        through = ends
    assert not left
    for spans in (sorted(spans) for wire, spans in wires.items() if wire):
        for (_, end, early), (start, _, late) in itertools.pairwise(spans):
            assert start == pytest.approx(max(end, late)) and early <= late + 1e-6


def test_rows_stand_on_both_ends_and_carry_the_bytes():
    made = plan("all_reduce", "ring", 4)
    timeline = simulate(made, uniform(4, LINK), 1e6)
    assert (
        timeline.origin == "simulated"
        and set(timeline.lane) == {"comm"}
        and timeline.num_ranks == 4
    )
    for rank in range(4):
        mine = timeline.select(timeline.rank == rank)
        assert mine.num_bytes[mine.kind == "send"].sum() == sent_bytes(made, 1e6)[rank] == 1.5e6
        right = {f"{rank}>{(rank + 1) % 4} [{chunk}]" for chunk in range(4)}
        left = {f"{(rank - 1) % 4}>{rank} [{chunk}]" for chunk in range(4)}
        assert set(mine.label[mine.kind == "send"]) == right
        assert set(mine.label[mine.kind == "recv"]) == left


def test_at_a_server_messages_wait_their_turn():
    timeline = simulate(plan("all_reduce", "parameter_server", 4), uniform(4, LINK), 1e6)
    at_server = timeline.select((timeline.rank == 0) & (timeline.kind == "recv"))
    assert at_server.start_us.tolist() == [0.0, 110.0, 220.0] and timeline.end_us.max() == 660.0


def test_nothing_is_simulated_where_nothing_is_sent():
    assert len(simulate(plan("all_reduce", "ring", 1), uniform(1, LINK), 1e6)) == 0
    assert time_us(plan("send_recv", "direct", 1), uniform(1, LINK), 1e6) == 0.0


def test_a_network_must_fit_the_plan():
    with pytest.raises(
        ValueError, match="a plan of 4 ranks needs a network of as many; 3 ranks has 3"
    ):
        simulate(plan("all_reduce", "ring", 4), uniform(3, LINK), 1e6)
    chain = Network(
        name="a chain", links=((None, LINK, None), (LINK, None, LINK), (None, LINK, None))
    )
    with pytest.raises(
        ValueError, match="a chain has no link from rank 2 to 0; choose another algorithm or order"
    ):
        simulate(plan("all_reduce", "ring", 3), chain, 1e6)
    assert time_us(plan("broadcast", "ring", 3), chain, 3e6) == 4 * LINK.us(1e6)
    with pytest.raises(ValueError, match="island_size is a whole number from 1"):
        islands(4, 0, inside=INSIDE, between=BETWEEN)


def test_islands_have_their_own_links_and_share_a_wire_each_way():
    network = islands(5, 2, inside=INSIDE, between=BETWEEN, shared=True)
    assert network.name == "5 ranks on 3 islands" and network.num_ranks == 5
    assert (
        network.link(0, 1) == INSIDE
        and network.link(0, 2).wire == network.link(1, 3).wire == "island 0>1"
    )
    assert network.link(2, 0).wire == "island 1>0" and network.link(4, 1).wire == "island 2>0"
    assert islands(4, 2, inside=INSIDE, between=BETWEEN).link(0, 2) == BETWEEN


@pytest.mark.parametrize(("num_ranks", "size"), [(4, 2), (8, 4), (8, 2), (16, 4)])
@pytest.mark.parametrize("num_bytes", [0, 1e3, 1e8])
def test_one_slow_link_makes_the_whole_ring_slow(num_ranks, size, num_bytes):
    network = islands(num_ranks, size, inside=INSIDE, between=BETWEEN)
    slow = formula_us("all_reduce", "ring", num_ranks, num_bytes, BETWEEN)
    assert time_us(plan("all_reduce", "ring", num_ranks), network, num_bytes) == pytest.approx(slow)


@pytest.mark.parametrize(("num_ranks", "size"), [(4, 2), (8, 4), (8, 2), (16, 4)])
@pytest.mark.parametrize("num_bytes", [0, 1e3, 1e8])
def test_the_order_of_a_ring_matters_where_its_crossings_share_a_wire(num_ranks, size, num_bytes):
    """An order that changes island at every hop takes island_size times as long: so many messages
    queue for a wire.

    Where each pair of ranks has a link of its own they cross side by side, and the order costs
    nothing.
    """
    zigzag = tuple(island + place for place in range(size) for island in range(0, num_ranks, size))
    good = plan("all_reduce", "ring", num_ranks)
    bad = plan("all_reduce", "ring", num_ranks, order=zigzag)
    for shared, ratio in ((True, size), (False, 1)):
        network = islands(num_ranks, size, inside=INSIDE, between=BETWEEN, shared=shared)
        assert time_us(bad, network, num_bytes) == pytest.approx(
            ratio * time_us(good, network, num_bytes)
        )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("num_ranks", "size"), [(4, 2), (6, 3), (8, 2), (8, 4), (16, 4), (16, 8)])
def test_a_hierarchy_is_faster_than_a_flat_ring_on_islands_at_any_size(num_ranks, size, shared):
    """The model counts neither kernels nor the filling of pipelines, so the hierarchy wins even
    where links are alike: it moves as much in fewer steps. Between islands it moves 1/size of the
    data per rank."""
    flat = plan("all_reduce", "ring", num_ranks)
    made = plan("all_reduce", "hierarchical", num_ranks, island_size=size)
    for num_bytes in (0, 1e3, 1e5, 1e9):
        network = islands(num_ranks, size, inside=INSIDE, between=BETWEEN, shared=shared)
        assert time_us(made, network, num_bytes) < time_us(flat, network, num_bytes)
    even = uniform(num_ranks, LINK)
    assert time_us(flat, even, 1e6) - time_us(made, even, 1e6) == pytest.approx(
        2 * (num_ranks - 1 - (size - 1) - (num_ranks // size - 1)) * LINK.alpha_us
    )


def test_a_hierarchy_gains_up_to_the_island_size_or_at_most_twofold_where_wires_are_shared():
    made = plan("all_reduce", "hierarchical", 16, island_size=8)
    flat = plan("all_reduce", "ring", 16)
    quick = replace(INSIDE, bandwidth_gb_per_s=1e6)
    gains = []
    for shared in (False, True):
        network = islands(16, 8, inside=quick, between=BETWEEN, shared=shared)
        gains.append(time_us(flat, network, 1e9) / time_us(made, network, 1e9))
    assert gains == pytest.approx(
        [15, 15 / 8], rel=0.01
    )  # 2 * 15/16 of the data; 2 * 1/2 of 1/8 of it, 8 side by side


def test_what_there_is_no_formula_for_has_none_and_nonsense_is_refused():
    link = Link(alpha_us=10, bandwidth_gb_per_s=1)
    assert (
        formula_us("gossip", "ring", 4, 100, link) is None
        and formula_us("all_gather", "tree", 4, 1, link) is None
    )
    for wrong, words in (
        ({"island_size": 3}, "a divisor"),
        ({"num_segments": -1}, "num_segments is .*; got -1"),
    ):
        with pytest.raises(ValueError, match=words):
            formula_us("all_reduce", "hierarchical", 8, 1e3, link, **wrong)
    with pytest.raises(ValueError, match="above 0"):
        algbw(1e3, 0)
    for pair in ((0, 9), (0, -1)):
        with pytest.raises(ValueError, match="no link from rank 0"):
            uniform(4, link).link(*pair)
    with pytest.raises(ValueError, match="got 'gossip'"):
        fit("gossip", 4, [1e3, 1e4], [5.0, 6.0])
