"""Ranks on named axes: groups partition them, the product is the world, torch groups them alike."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import labkit as lab
from labkit.mesh import AXES, EVERY_AXIS, Mesh
from labkit.pictures.sketch import Box
from labkit.planner.plan.layout import Layout

SIZES = st.integers(1, 4)


@st.composite
def meshes(draw):
    sizes = {axis: draw(SIZES) for axis in AXES}
    divisors = [each for each in range(1, 5) if sizes["dp_shard"] % each == 0]
    ep = draw(st.sampled_from(divisors))
    return Mesh(**sizes, ep=ep, node_size=draw(st.integers(1, 9)))


@given(meshes(), st.sampled_from(EVERY_AXIS))
def test_the_groups_of_an_axis_partition_the_ranks(mesh, axis):
    groups = list(mesh.groups(axis))
    assert sorted(chain.from_iterable(groups)) == [*range(mesh.num_ranks)]
    assert {len(group) for group in groups} == {getattr(mesh, axis)}
    assert len(groups) == len(mesh.groups(axis))
    for number, group in enumerate(groups):
        found = {(mesh.groups(axis).of(rank), mesh.groups(axis).number(rank)) for rank in group}
        assert found == {(group, number)}


@given(meshes())
def test_the_product_of_the_axes_is_the_world_and_every_rank_has_one_place(mesh):
    world = 1
    for axis in AXES:
        world *= getattr(mesh, axis)
    assert mesh.num_ranks == world
    places = [mesh.coordinates(rank) for rank in range(world)]
    assert len({tuple(place.values()) for place in places}) == world
    assert [mesh.rank(**place) for place in places] == [*range(world)]


@given(meshes(), st.sampled_from(AXES))
def test_ranks_of_a_group_differ_in_its_axis_alone(mesh, axis):
    for group in mesh.groups(axis):
        places = [mesh.coordinates(rank) for rank in group]
        assert [place[axis] for place in places] == [*range(len(group))]
        others = [{**place, axis: 0} for place in places]
        assert all(other == others[0] for other in others)


@given(meshes())
def test_experts_are_shared_out_among_ranks_of_one_dp_shard_group(mesh):
    for group in mesh.groups("ep"):
        assert set(group) <= set(mesh.groups("dp_shard").of(group[0]))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_it_is_the_planner_s_order_of_ranks(tp, cp, dp, pp):
    mesh = Mesh(tp=tp, cp=cp, dp_shard=dp, pp=pp)
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=pp, gbs=dp)
    assert mesh.num_ranks == layout.num_ranks
    for axis in ("tp", "cp", "pp"):
        group = layout.group(axis)
        assert (mesh.groups(axis).size, mesh.stride(axis)) == (group.size, group.stride)


def test_an_axis_crosses_nodes_where_its_ranks_lie_on_several():
    inside = Mesh(tp=4, dp_shard=4, node_size=4)
    assert [inside.groups(axis).num_nodes for axis in ("tp", "dp_shard")] == [1, 4]
    across = Mesh(tp=8, node_size=4)
    assert across.groups("tp").num_nodes == across.num_nodes == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tp": 0}, "tp is a whole number"),
        ({"dp_shard": 4, "ep": 3}, "ep divides it"),
        ({"tp": 2000, "pp": 2000}, "make one of them smaller"),
    ],
)
def test_what_is_no_mesh_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        Mesh(**given)


def test_a_rank_or_place_or_axis_that_there_is_not_is_refused():
    mesh = Mesh(tp=2)
    for ask in (
        lambda: mesh.coordinates(2),
        lambda: mesh.rank(tp=2),
        lambda: mesh.rank(ep=0),
        lambda: mesh.groups("dp"),
        lambda: mesh.groups("tp").of(-1),
    ):
        with pytest.raises(ValueError, match=r"whole number|is one of"):
            ask()


@settings(max_examples=30)
@given(meshes(), st.sampled_from(EVERY_AXIS), st.sampled_from(["en", "zh"]))
def test_its_picture_has_a_colour_for_each_group(mesh, axis, language):
    groups = mesh.groups(axis)
    drawn = groups.picture(language=language)
    boxes = {int(box.texts[0]): (box.colour, box.hatch) for box in drawn.only(Box)}
    looks = {}
    for rank, look in boxes.items():
        assert looks.setdefault(groups.number(rank), look) == look
    nearby = [number for number in looks if number + 1 in looks]
    assert all(looks[number] != looks[number + 1] for number in nearby)


def test_a_large_mesh_is_drawn_in_part_and_says_so():
    drawn = Mesh(dp_shard=1024, tp=8).groups("tp").picture(language="en")
    assert len(drawn.only(Box)) == 64
    assert drawn.notes == ("64 of 8192 ranks are drawn.",)


def _as_torch_sees_it(mesh):
    made = mesh.device_mesh()
    import torch.distributed as dist

    found = {}
    for axis in EVERY_AXIS:
        if getattr(mesh, axis) > 1:
            found[axis] = tuple(dist.get_process_group_ranks(made[axis].get_group()))
    return found


@pytest.mark.real
@pytest.mark.parametrize("mesh", [Mesh(dp_shard=2, tp=2), Mesh(pp=2, dp_shard=2, ep=2)], ids=str)
def test_torch_s_device_mesh_has_the_same_groups(mesh):
    run = lab.launch(_as_torch_sees_it, mesh, ranks=4)
    for rank, found in enumerate(run):
        assert found == {axis: mesh.groups(axis).of(rank) for axis in found}
    assert set(run[0]) == {axis for axis in EVERY_AXIS if getattr(mesh, axis) > 1}


@pytest.mark.real
def test_a_mesh_of_another_size_than_the_world_is_refused():
    with pytest.raises(lab.RankFailed, match="launch as many"):
        lab.launch(_as_torch_sees_it, Mesh(tp=3), ranks=2)
