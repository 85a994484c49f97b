"""A law of bars: their numbers stand clear of the upright lines."""

import pytest

from labkit.pictures import bar_groups
from labkit.pictures.sketch import Line, Words


@pytest.mark.parametrize("value", [77.3, 90.0])
def test_a_number_beside_a_bar_stands_clear_of_an_upright_line(value: float) -> None:
    bill = {"the bill": value - 7, "left out": 7.0}
    unsaid = dict.fromkeys(bill, "")
    said = f"{value} GB"
    shapes, _ = bar_groups.stacked(["cards"], [bill], [unsaid], [("the card", 80.0)], [said])
    upright = next(each for each in shapes if isinstance(each, Line) and each.dash)
    number = next(each for each in shapes if isinstance(each, Words) and each.text == said)
    assert number.x_px > upright.points_px[0][0]
