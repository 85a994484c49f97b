"""The picture of an all-reduce's messages shows those of its plan."""

import pytest
from drawn import faults

from labkit.collectives import Ways, plan
from labkit.collectives.overview import ways_picture as pictured
from labkit.collectives.overview.ways_picture import ALGORITHMS
from labkit.pictures.sketch import Box, Line, Words


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("ranks", range(2, 7))
def test_every_message_that_adds_is_an_arrow_with_its_step(ranks, language):
    drawn = pictured._ways(Ways(ranks=ranks), language=language)
    plans = [plan("all_reduce", name, ranks) for name in ALGORITHMS]
    assert faults(drawn) == []
    assert len(drawn.only(Box)) == ranks * len(ALGORITHMS)
    assert len(drawn.only(Line)) == sum(len(pictured._arrows(each)) for each in plans)
    assert len(drawn.only(Words)) == len(drawn.only(Line)) + len(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", range(2, 7))
def test_no_two_ranks_stand_in_one_place(name, ranks):
    at = pictured._places(plan("all_reduce", name, ranks))
    assert len(set(at)) == ranks
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in at)


def test_the_arrows_of_four_ranks():
    found = {name: pictured._arrows(plan("all_reduce", name, 4)) for name in ALGORITHMS}
    assert found["ring"] == {(rank, (rank + 1) % 4): [1, 2, 3] for rank in range(4)}
    assert found["tree"] == {(1, 0): [1], (3, 2): [1], (2, 0): [2]}
    assert sorted(found["parameter_server"].values()) == [[1], [2], [3]]
    assert found["hierarchical"][0, 1] == found["hierarchical"][3, 2] == [1]
    assert found["hierarchical"][0, 2] == found["hierarchical"][3, 1] == [2]


def test_it_shows_itself():
    assert "Ring" in Ways(algorithms=["ring"]).bundle()["text/plain"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"ranks": 1}, "ranks"),
        ({"ranks": 7}, "ranks"),
        ({"algorithms": []}, "algorithms"),
        ({"algorithms": ["mesh"]}, "an algorithm"),
        ({"algorithms": ["ring"] * 5}, "algorithms"),
    ],
)
def test_what_can_not_be_drawn_is_told(fault, words):
    with pytest.raises(ValueError, match=words):
        Ways(**fault)
