"""The order of a step under the stages of ZeRO, and its picture."""

import pytest

from labkit.pictures.sketch import Box, Words
from labkit.zero import order_picture as order


@pytest.mark.parametrize(
    "stage, models_sent", [(0, 2.0), (1, 2.0), (2, 2.0), (3, 3.0)], ids=lambda given: str(given)
)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_a_ring_sends_what_theory_says_for_these_actions(stage, models_sent, num_layers):
    times = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}
    found = order.actions(stage, num_layers)
    sent = sum(times.get(kind, 0) * (1 if layer < 0 else 1 / num_layers) for kind, layer in found)
    assert sent == pytest.approx(models_sent)
    computed = [each for each in found if each[0] in ("forward", "backward")]
    forth = [("forward", layer) for layer in range(num_layers)]
    assert computed == forth + [("backward", layer) for _, layer in reversed(forth)]


def test_stage_3_gathers_before_each_computation_and_sends_nothing_after_the_update():
    found = order.actions(3)
    for at, (kind, layer) in enumerate(found):
        if kind in ("forward", "backward"):
            assert found[at - 1] == ("all_gather", layer)
    assert found[-1] == ("update", -1)


@pytest.mark.parametrize("num_layers", [1, 2, 3])
def test_a_message_is_as_wide_as_what_it_sends(num_layers):
    ends = {}
    for box in order.drawn(num_layers).only(Box):
        if box.height_px == 26:
            ends[box.y_px] = max(ends.get(box.y_px, 0), box.x_px + box.width_px)
    plain, zero1, zero2, zero3 = (ends[y_px] for y_px in sorted(ends))
    assert plain == pytest.approx(zero1) and zero1 == pytest.approx(zero2)
    assert zero3 > zero2


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_picture_has_a_box_for_each_action_within_its_width(language):
    picture = order.drawn(language=language)
    boxes = picture.only(Box)
    assert len(boxes) == sum(len(order.actions(stage)) for stage in range(4)) + 6
    assert max(box.x_px + box.width_px for box in boxes) <= 900
    assert {"ZeRO 0", "ZeRO 3"} <= {words.text for words in picture.only(Words)}
    assert len(picture.table) == 5


@pytest.mark.parametrize("stage", [-1, 4, 1.5])
def test_a_stage_that_there_is_not_is_refused(stage):
    with pytest.raises(ValueError, match="stage"):
        order.actions(stage)
