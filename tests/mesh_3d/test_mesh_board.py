"""The board of all axes: every page true to its setting, groups lit as the mesh has them, a run
that hands in what theory counts."""

import itertools

import pytest
from browserless import from_browser, settle

from labkit import mesh_3d, widgets
from labkit.mesh_3d import board as mesh_board
from labkit.mesh_3d import held, picture, times
from labkit.pictures.sketch import Box, Line
from labkit.units import format_bytes, format_share, format_us

AXES = [
    {"pp": 2, "dp_shard": 2, "tp": 2},
    {"pp": 4, "dp_replicate": 2, "tp": 1},
    {"pp": 1, "dp_replicate": 2, "dp_shard": 2, "tp": 2},
    {"pp": 8, "dp_shard": 8, "dp_replicate": 2, "tp": 8},
]
STEPS = [mesh_3d.Step(**axes, layers=8, heads=8, batch=64, node_size=4) for axes in AXES]


def boxes_of(step, drawn):
    """Rank -> its box."""
    return dict(zip(picture.drawn_ranks(step), drawn.only(Box), strict=True))


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("view", picture.VIEWS)
def test_ranks_have_a_colour_with_their_group_and_never_touch(step, view):
    drawn = picture.grid(step, view, language="en")
    found = boxes_of(step, drawn)
    for (one, a), (other, b) in itertools.combinations(found.items(), 2):
        apart_x = a.x_px + a.width_px < b.x_px or b.x_px + b.width_px < a.x_px
        apart_y = a.y_px + a.height_px < b.y_px or b.y_px + b.height_px < a.y_px
        assert apart_x or apart_y, (one, other)
        if view in mesh_3d.AXES:
            groups = step.mesh.groups(view)
            together = groups.of(one) == groups.of(other)
        elif view == "node":
            together = step.node(one) == step.node(other)
        else:
            together = step.mesh.coordinates(one)["pp"] == step.mesh.coordinates(other)["pp"]
        few = len({box.colour + box.hatch for box in found.values()}) < 16
        assert ((a.colour, a.hatch) == (b.colour, b.hatch)) == together or not few
    assert all(box.x_px + box.width_px <= 900 for box in found.values())
    assert all(str(rank) in box.texts[-1] for rank, box in found.items())


@pytest.mark.parametrize("step", STEPS[:3], ids=str)
@pytest.mark.parametrize("axis", mesh_3d.AXES)
def test_lit_links_join_the_groups_and_broken_ones_leave_a_node(step, axis):
    drawn = picture.grid(step, axis, language="en")
    lit = [line for line in drawn.only(Line) if line.width_px > 2]
    pairs = []
    for group in step.mesh.groups(axis):
        pairs += itertools.pairwise(group)
    assert len(lit) == len(pairs)
    crossing = sum(step.node(one) != step.node(other) for one, other in pairs)
    assert sum(bool(line.dash) for line in lit) == crossing


def test_no_link_crosses_a_box():
    for step, axis in itertools.product(STEPS, mesh_3d.AXES):
        drawn = picture.grid(step, axis, language="en")
        for line in drawn.only(Line):
            if line.width_px > 2:
                assert not any(_crosses(line, box) for box in drawn.only(Box)), (step, axis)


def _crosses(line, box):
    """Whether a line lies inside a box anywhere on its way."""
    for (x0, y0), (x1, y1) in itertools.pairwise(line.points_px):
        for share in range(1, 20):
            x = x0 + (x1 - x0) * share / 20
            y = y0 + (y1 - y0) * share / 20
            inside_x = box.x_px + 0.5 < x < box.x_px + box.width_px - 0.5
            if inside_x and box.y_px + 0.5 < y < box.y_px + box.height_px - 0.5:
                return True
    return False


def test_what_has_no_room_is_said():
    drawn = picture.grid(STEPS[3], "tp", language="en")
    assert drawn.notes == ("64 of 1024 ranks are drawn.",)
    assert len(drawn.table) == 65
    with pytest.raises(ValueError, match="a view is one of"):
        picture.grid(STEPS[0], "cp")
    with pytest.raises(ValueError, match="as many layers each"):
        picture.grid(STEPS[0].but(pp=3))


@pytest.mark.parametrize("size", mesh_board.SIZES)
def test_it_has_a_page_for_every_view(size):
    board = widgets.three_d_parallelism(size=size)
    settle()
    assert len(board.book.pages) == len(picture.VIEWS)
    for page in board.book.pages:
        assert page.value.count("<svg") == 3
    told = board.book.pages[1].value
    held = board.step.memory().peak_bytes
    assert format_bytes(held) in told
    assert ("It fits" in told) == board.step.fits()
    assert board.button.disabled == (size != "small")
    (_, num_bytes) = board.step.messages()["tp"]["all_reduce"]
    assert format_bytes(num_bytes) in told


def test_turning_a_control_turns_the_step_and_what_can_t_be_is_told():
    board = widgets.three_d_parallelism("zh")
    settle()
    board.controls["inside"].value = "pp"
    settle()
    assert board.step.inside == "pp"
    assert "pp" in board.book.pages[0].value
    board.controls["dp_shard"].value = 8
    board.controls["dp_replicate"].value = 8
    board.controls["microbatches"].value = 8
    settle()
    assert board.step.impossible("zh") in board.book.pages[0].value
    assert board.scene() is None
    assert board.button.disabled
    with pytest.raises(ValueError, match="size is one of"):
        widgets.three_d_parallelism(size="1T")


def test_sizes_of_one_s_own_have_their_place_in_the_control():
    step = mesh_3d.Step(layers=6, hidden=24, heads=2, batch=8, pp=3, tp=2)
    board = step.board()
    settle()
    assert board.step == step
    board.controls["tp"].value = 1
    settle()
    assert board.step == step.but(tp=1)


def test_a_step_of_many_microbatches_is_shown_with_fewer():
    step = mesh_3d.Step(microbatches=64, batch=128)
    short = mesh_board.shortened(step)
    assert (short.microbatches, short.microbatch) == (8, step.microbatch)
    assert mesh_board.shortened(short) == short
    assert "the step has 64" in mesh_board.board(step, "en").page(step, "pp")


@pytest.mark.real
def test_it_runs_for_real_and_every_rank_hands_in_what_theory_counts():
    step = mesh_3d.Step(batch=4, microbatches=2, forward_ms=2.0)
    board = mesh_board.board(step, "en")
    run = board.run()
    settle()
    for rank, result in enumerate(run):
        due = step.messages(rank)
        for axis, by_collective in due.items():
            calls = {name: each.calls for name, each in by_collective.items()}
            sizes = {name: each.num_bytes for name, each in by_collective.items()}
            seen = {name: result["calls"][axis][name] for name in calls}
            assert seen == calls
            assert {name: result["payload_bytes"][axis][name] for name in sizes} == sizes
        assert set(result["calls"]) == set(due)
    from_browser(board.controls["view"], index=2)
    page = board.book.pages[2].value
    assert f"{max(each['loss_difference'] for each in run):.1e}" in page
    assert "Its recorded step took" in page
    assert board.found(step).num_ranks == 4


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    "axes",
    [
        {"pp": 2, "dp_shard": 2, "tp": 2},
        {"pp": 1, "dp_replicate": 2, "dp_shard": 2, "tp": 1},
        {"pp": 2, "dp_shard": 2, "tp": 2, "zero": 1},
        {"pp": 1, "dp_replicate": 2, "tp": 4},
    ],
    ids=str,
)
def test_what_is_coloured_is_what_a_rank_holds(axes, language):
    step = mesh_3d.Step(**axes)
    drawn = mesh_3d.parts(step, language=language)
    frames = [box for box in drawn.only(Box) if not box.colour and box.width_px != 22]
    parameters = step.states().bytes_by()["parameter"]
    whole = sum(
        unit.num_elements for unit in held_units(step.but(tp=1, dp_shard=1, dp_replicate=1))
    )
    by_rank = {}
    rows = sorted({box.y_px for box in frames})
    for box in drawn.only(Box):
        if box.colour and box.width_px != 22:
            rank = max(index for index, y in enumerate(rows) if y <= box.y_px)
            by_rank[rank] = by_rank.get(rank, 0.0) + box.width_px * box.height_px
    area = frames[0].height_px * sum(box.width_px for box in frames if box.y_px == rows[0])
    for rank in range(step.ranks):
        assert by_rank[rank] / area == pytest.approx(parameters[rank] / 4 / whole, rel=0.02)
        assert format_share(parameters[rank] / 4 / whole) == drawn.table[1 + rank][1]


def held_units(step):
    """The layers of all stages."""
    for stage in range(step.pp):
        yield from held.units(step, stage)


def test_its_time_ends_with_the_last_message_and_sums_have_a_colour_for_each_axis():
    step = mesh_3d.Step(pp=1, dp_replicate=2, tp=2, microbatches=1, forward_ms=20, nic_mb_per_s=1)
    line = step.predict()
    drawn = step.drawn(line, line)
    assert line.end_us.max() > line.span_us
    assert drawn.marks_us == (line.end_us.max(),)
    assert {"all_reduce_tp", "all_reduce_dp"} <= set(drawn.kind) and "all_reduce" not in drawn.kind
    told = times.by_axis(line)
    along_tp = line.label[told.kind == "all_reduce_tp"]
    assert set(along_tp) == {"tp"} and (told.start_us == line.start_us).all()


def test_two_steps_stand_on_one_axis_with_what_their_messages_take():
    stated = {"forward_ms": 120, "node_size": 2, "node_mb_per_s": 12, "nic_mb_per_s": 1}
    near = mesh_3d.Step(pp=1, dp_replicate=2, microbatches=1, layers=2, **stated)
    far = near.but(inside="dp_replicate")
    drawn = mesh_3d.beside({"inside": near, "across": far}, title="tp", language="en")
    assert drawn.heading == "tp"
    assert [each.text for each in drawn.headings] == ["inside", "across"]
    assert drawn.end_us == max(each.predict().end_us.max() for each in (near, far))
    for name, step, note in zip(("inside", "across"), (near, far), drawn.notes, strict=True):
        took = step.times().axis_us(0)
        assert set(took) == {"tp", "dp_replicate"}
        assert note.startswith(name)
        assert all(f"{format_us(us)} along {axis}" in note for axis, us in took.items())
    with pytest.raises(ValueError, match="two steps"):
        mesh_3d.beside({"inside": near})
