"""Laws of diagrams: every chunk, message, link and core is there, where it should be, and nothing
covers a word."""

import numpy as np
import pytest
from drawn import faults, pixel_share
from topologies import PAIR, dgx_a100

from labkit.collectives import network_picture, picture, topology_picture
from labkit.collectives.algorithms import ALGORITHMS, lower_bound_bytes, plan
from labkit.collectives.call import Call
from labkit.collectives.network import Link, Network, islands, time_us, uniform
from labkit.collectives.plans import Plan, holdings, sent_bytes
from labkit.machine.topology import Cpu, Topology, parse_topo
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Box, Line, Sketch, Words
from labkit.timeline import step_us
from labkit.units import format_bytes, format_us

LINK = Link(alpha_us=1e3, bandwidth_gb_per_s=0.1)
SLOW = Link(alpha_us=5.0, bandwidth_gb_per_s=0.01)
CHOICES = [
    (primitive, algorithm) for primitive, builders in ALGORITHMS.items() for algorithm in builders
]
GREY = picture.KINDS["wait"].colour


def chunk_boxes(drawn: Sketch, of: Plan) -> np.ndarray:
    """The boxes of chunks, as an object array (rank, column of the rank, row)."""
    boxes = [box for box in drawn.only(Box) if box.y_px >= picture._TOP_PX]
    columns = 2 if of.primitive == "all_to_all" else 1
    rows = of.num_ranks if columns == 2 else of.num_chunks
    grid = np.empty(of.num_ranks * columns * rows, dtype=object)
    grid[:] = boxes[: len(grid)]
    return grid.reshape(of.num_ranks, columns, rows)


def arrows(drawn: Sketch) -> list[Line]:
    return [line for line in drawn.only(Line) if line.arrow and line.points_px[0][1] == 92]


@pytest.mark.parametrize(("primitive", "algorithm"), CHOICES)
def test_every_collective_is_drawn_with_all_its_chunks_and_messages(
    primitive: str, algorithm: str
) -> None:
    for num_ranks in (1, 2, 5, 16):
        steps = plan(primitive, algorithm, num_ranks)
        for step in {0, len(steps.steps) // 2, len(steps.steps)}:
            for language in ("en", "zh"):
                links = uniform(num_ranks, LINK)
                drawn = picture.collective(
                    steps, step, num_bytes=4e6, network=links, language=language
                )
                assert faults(drawn) == []
            moves = steps.steps[step - 1] if step else ()
            assert len(arrows(drawn)) == len(moves)
            boxes = chunk_boxes(drawn, steps)
            held = holdings(steps, step)
            whole = max(len(chunk) for rank in holdings(steps) for chunk in rank)
            if primitive != "all_to_all":
                for drawn_chunks, chunks in zip(boxes[:, 0], held, strict=True):
                    shares = [box.fill for box in drawn_chunks]
                    assert shares == [len(chunk) / whole for chunk in chunks]
            changed = sum(box.marked for box in boxes.ravel())
            assert changed == sum(len(move.chunks) for move in moves)


def test_messages_go_from_the_senders_column_to_the_box_that_they_change() -> None:
    steps = plan("all_reduce", "ring", 4)
    drawn = picture.collective(steps, 2)
    middle = {
        words.text: words.x_px for words in drawn.only(Words) if words.text.startswith("rank ")
    }
    boxes = chunk_boxes(drawn, steps)[:, 0]
    for line, move in zip(arrows(drawn), steps.steps[1], strict=True):
        start, *_, end = line.points_px
        changed = boxes[move.dst, move.chunks[0]]
        assert start[0] == middle[f"rank {move.src}"]
        assert 0 < changed.x_px - end[0] < 3
        assert end[1] == pytest.approx(changed.y_px + changed.height_px / 2)
    assert (
        {line.dash for line in arrows(drawn)}
        == {()}
        != {line.dash for line in arrows(picture.collective(steps, 5))}
    )
    assert [box.texts[0] for box in drawn.only(Box) if box.y_px == 74] == [
        f"+ chunk {m.chunks[0]}" for m in steps.steps[1]
    ]
    for step in range(7):
        words = [each.text for each in picture.collective(steps, step).only(Words)]
        assert any("nothing" in text for text in words) == (step == 0)


def test_a_message_of_several_chunks_has_an_arrow_into_each() -> None:
    steps = plan("all_reduce", "hierarchical", 4)
    drawn = picture.collective(steps, 1)
    ends = [line.points_px[-1][1] for line in drawn.only(Line) if line.arrow and not line.colour]
    for chunk, box in enumerate(chunk_boxes(drawn, steps)[0, 0]):
        assert ends.count(box.y_px + box.height_px / 2) == 2, f"chunk {chunk} goes to two ranks"


def test_a_chunk_says_how_many_contributions_it_holds_and_shows_it_in_the_pixels() -> None:
    steps = plan("all_reduce", "ring", 4)
    drawn = picture.collective(steps, 2)
    boxes = chunk_boxes(drawn, steps)[:, 0]
    held = holdings(steps, 2)
    for rank in range(4):
        for chunk in range(4):
            count = len(held[rank][chunk])
            assert boxes[rank, chunk].texts[0] == f"{count}/4"
            if not boxes[rank, chunk].marked:
                assert pixel_share(drawn, boxes[rank, chunk]) == pytest.approx(count / 4, abs=0.02)
    done = chunk_boxes(picture.collective(steps, 6), steps).ravel()
    assert {box.texts for box in done} == {("4/4 ✓", "✓")} and len(
        {(box.colour, box.hatch) for box in done}
    ) == 4


def test_an_all_to_all_ends_with_a_row_turned_into_a_column() -> None:
    steps = plan("all_to_all", "pairwise", 3)
    before, after = (chunk_boxes(picture.collective(steps, step), steps) for step in (0, 2))
    sent, received = after[1]
    assert [box.texts for box in sent] == [("1>0",), ("1>1",), ("1>2",)]
    assert [box.texts for box in received] == [("0>1",), ("1>1",), ("2>1",)]
    assert [bool(box.colour) for box in before[1, 1]] == [False, True, False]


def test_volume_and_time_are_those_of_the_plan() -> None:
    steps = plan("all_reduce", "parameter_server", 4)
    links = uniform(4, LINK)
    drawn = picture.collective(steps, 3, num_bytes=4e6, network=links)
    begun = Plan(
        primitive="all_reduce",
        algorithm="parameter_server",
        num_ranks=4,
        num_chunks=1,
        steps=steps.steps[:3],
    )
    sent = [sent_bytes(each, 4e6).max() for each in (begun, steps)]
    took = [time_us(each, links, 4e6) for each in (begun, steps)]
    assert drawn.numbers[1:] == (
        ("sent by the busiest rank", " / ".join(map(format_bytes, sent))),
        ("time", " / ".join(map(format_us, took))),
    )
    meters = [box for box in drawn.only(Box) if box.colour == GREY]
    assert [box.fill for box in meters] == pytest.approx([sent[0] / sent[1], took[0] / took[1]])
    assert pixel_share(drawn, meters[1]) == pytest.approx(took[0] / took[1], abs=0.02)
    (bound,) = [line.points_px[0][0] for line in drawn.only(Line) if line.dash == (3, 2)]
    least = lower_bound_bytes("all_reduce", 4, 4e6)
    assert (bound - meters[0].x_px) / meters[0].width_px == pytest.approx(least / sent[1])
    assert picture.collective(steps, 3).numbers[1][1] == "1 S / 3 S", (
        "without a size volumes are parts of it"
    )


def test_sixteen_ranks_stay_small_enough_to_flip_through() -> None:
    for primitive, algorithm in CHOICES:
        steps = plan(primitive, algorithm, 16)
        assert len(svg.render(picture.collective(steps, len(steps.steps) // 2))) < 45_000


@pytest.mark.parametrize("step", [-1, 7])
def test_a_step_that_is_not_there_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"6 steps, and 0 is before the first; got {step}"):
        picture.collective(plan("all_reduce", "ring", 4), step)


def is_inside(box: Box, frame: Box) -> bool:
    return (
        frame.x_px < box.x_px
        and box.x_px + box.width_px < frame.x_px + frame.width_px
        and frame.y_px < box.y_px < frame.y_px + frame.height_px
    )


def num_inside(frame: Box, boxes: list[Box]) -> int:
    return sum(is_inside(box, frame) for box in boxes)


@pytest.mark.parametrize(("size", "island"), [(2, 1), (8, 2), (6, 4), (16, 8), (16, 2), (12, 4)])
def test_islands_stand_in_frames_joined_by_one_line_for_each_pair(size: int, island: int) -> None:
    drawn = network_picture.network(islands(size, island, inside=LINK, between=SLOW), language="zh")
    ranks = [box for box in drawn.only(Box) if box.colour == GREY]
    frames = [box for box in drawn.only(Box) if not box.colour]
    assert [box.texts[0] for box in sorted(ranks, key=lambda box: int(box.texts[0]))] == list(
        map(str, range(size))
    )
    if island == 1:
        return
    num = -(-size // island)
    groups = [num_inside(frame, ranks) for frame in frames]
    for number, one in enumerate(frames):
        assert all(
            abs(one.x_px - other.x_px) > one.width_px or abs(one.y_px - other.y_px) > one.height_px
            for other in frames[:number]
        ), "no frame covers another"
    assert sorted(groups) == sorted(min(island, size - start) for start in range(0, size, island))
    inside = sum(count * (count - 1) // 2 for count in groups)
    assert len(drawn.only(Line)) == inside + num * (num - 1) // 2 + 2, "and two in the legend"
    widths = {line.dash: line.width_px for line in drawn.only(Line)}
    assert widths[()] == max(widths.values()) > min(widths.values()) and faults(drawn) == []


def test_few_links_between_two_islands_are_drawn_one_by_one_and_a_shared_wire_once() -> None:
    own = network_picture.network(islands(4, 2, inside=LINK, between=SLOW))
    assert len(own.only(Line)) == 2 + 4 + 2 and faults(own) == [], "inside, between, in the legend"
    shared = network_picture.network(islands(4, 2, inside=LINK, between=SLOW, shared=True))
    assert len(shared.only(Line)) == 2 + 1 + 2 and faults(shared) == []


@pytest.mark.parametrize(("algorithm", "named"), [("ring", {0}), ("tree", {0, 1, 2, 3})])
def test_where_messages_are_many_only_those_of_rank_0_are_named(algorithm, named) -> None:
    call = Call(algorithm=algorithm, ranks=4)
    drawn = call.drawn(call.predict())
    ranks = np.array([row.rank for row in drawn.rows])
    assert set(ranks[drawn.row[drawn.texts[:, 0] != ""]]) == named
    assert "" not in call.predict().label, "the prediction keeps its names"


def test_a_call_shows_the_way_of_its_ring_and_counts_how_often_it_leaves_an_island() -> None:
    links = islands(4, 2, inside=LINK, between=SLOW)
    straight = Call(ranks=4, network=links)
    crossing = straight.but(order=[0, 2, 1, 3])
    assert ("crossings", "2 / 4") in straight.way().picture().numbers
    assert ("crossings", "4 / 4") in crossing.way().picture().numbers
    assert crossing.plan() == plan("all_reduce", "ring", 4, order=(0, 2, 1, 3))
    assert step_us(crossing.predict()) == step_us(straight.predict())
    levels = straight.but(algorithm="hierarchical", island_size=2)
    assert levels.plan() == plan("all_reduce", "hierarchical", 4, island_size=2)
    with pytest.raises(ValueError, match="order"):
        straight.but(order=(0, 1))


@pytest.mark.parametrize(("order", "num"), [(range(8), 2), ((0, 4, 1, 5, 2, 6, 3, 7), 8)])
def test_a_ring_s_arrows_run_side_by_side_along_a_shared_wire(order, num) -> None:
    links = islands(8, 4, inside=LINK, between=SLOW, shared=True)
    drawn = Call(ranks=8, network=links, order=tuple(order)).way().picture()
    arrows = [line for line in drawn.only(Line) if line.arrow]
    along = [line for line in arrows if len(line.points_px) == 4]
    assert len(along) == num and len(arrows) == 8 + 1, "and one in the legend"
    heights = [line.points_px[1][1] for line in along]
    assert heights == pytest.approx([line.points_px[2][1] for line in along])
    assert len({round(height) for height in heights}) == num
    rightward = {line.colour: line.points_px[1][0] < line.points_px[2][0] for line in along}
    assert sorted(rightward.values()) == [False, True], "a colour for each direction"
    assert faults(drawn) == []


def test_a_ring_that_leaves_a_rank_out_is_refused() -> None:
    with pytest.raises(ValueError, match="each of 4 ranks once"):
        network_picture.network(uniform(4, LINK), order=(0, 1, 9))


def test_any_links_have_a_picture_and_a_ring_its_way() -> None:
    links = (
        (None, LINK, LINK, None),
        (LINK, None, SLOW, LINK),
        (LINK, SLOW, None, LINK),
        (None, LINK, LINK, None),
    )
    drawn = network_picture.network(Network(name="a square", links=links), order=(0, 2, 3, 1))
    assert (
        sum(line.arrow for line in drawn.only(Line)) == 4 + 1 and len(drawn.only(Line)) == 5 + 4 + 3
    )
    assert ("ring", "0 → 2 → 3 → 1") in drawn.numbers and not [
        box for box in drawn.only(Box) if not box.colour
    ]
    assert (
        drawn.table[1] == ("0", "", "0.1 GB/s, 1.00 ms", "0.1 GB/s, 1.00 ms", "")
        and faults(drawn) == []
    )
    for lonely in (uniform(1, LINK), Network(name="none", links=((None, None), (None, None)))):
        assert faults(network_picture.network(lonely)) == []


@pytest.mark.parametrize("matrix", ["", PAIR, dgx_a100()], ids=["none", "pair", "a100"])
@pytest.mark.parametrize("per_core", [1, 2])
def test_a_machine_shows_every_thread_and_the_way_between_any_two_devices(
    matrix: str, per_core: int
) -> None:
    cpus = tuple(
        Cpu(number=i, core=i // per_core, cache=i // 8, node=i // 16, package=i // 32)
        for i in range(128)
    )
    devices = (
        parse_topo(matrix) if matrix else Topology(cpus=(), num_usable=1, node_bytes={}).devices
    )
    machine = Topology(
        cpus=cpus, num_usable=100, node_bytes=dict.fromkeys(range(8), 64 * 10**9), devices=devices
    )
    for language in ("en", "zh"):
        drawn = topology_picture.topology(machine, language=language)
        assert faults(drawn) == []
    texts = [box.texts[0] for box in drawn.only(Box) if box.texts]
    assert texts[:128:16] == [str(i) for i in range(0, 128, 16)] or matrix, "node by node"
    assert sum(text.isdigit() for text in texts) == 128
    ways = [way for row in devices.links for way in row]
    assert sorted(text for text in texts if text in set(ways)) == sorted(ways)
    assert dict(drawn.numbers)["GPU"] == str(machine.num_gpus) and (
        "512 GB" in dict(drawn.numbers).values()
    )
