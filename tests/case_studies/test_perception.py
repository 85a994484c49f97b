"""The perception training: whose ranks do what, by theory and on real ranks."""

import pytest

from labkit import words
from labkit.case_studies import POLICIES, Perception, judged_run, net_on
from labkit.case_studies.perception import CELLS, EVERY, FUSION_WEIGHTS, PLACEMENTS, WEIGHTS, WIDTH
from labkit.pictures.sketch import Box, Words
from labkit.timeline import busy_us, step_us


def test_groups_are_those_of_the_source():
    apart = Perception(placement="apart", ranks=8)
    groups = [apart.group(part) for part in ("encoders", "fusion", "heads")]
    assert groups == [(0, 1, 2, 3), (4, 5), (6, 7)]
    assert [len(each) for each in apart.scenes("heads").values()] == [8, 8]


def test_apart_ranks_wait_for_one_another():
    """The same ranks and the same work: the groups of the source idle more and take longer."""
    both = [Perception(placement=each, ranks=4) for each in ("together", "apart")]
    lines = [each.predict() for each in both]
    assert busy_us(lines[0]).sum() == pytest.approx(busy_us(lines[1]).sum())
    assert step_us(lines[1]) > step_us(lines[0])


def test_a_step_takes_the_sum_of_its_phases_and_messages():
    step = Perception(latency_us=0.0, mb_per_s=1.0)
    compute_us = 3e3 * (step.encoders_ms + step.fusion_ms + step.heads_ms) / step.ranks
    features = 4 * step.batch * WIDTH * (2 * (CELLS + 2) + 2 * CELLS)
    due = compute_us + features + 4 * sum(WEIGHTS.values())
    assert step_us(step.predict()) == pytest.approx(due)


def test_a_copied_net_sends_its_weights_gradients_once_and_no_features():
    step = Perception(placement="copied", latency_us=0.0, mb_per_s=1.0)
    compute_us = 3e3 * (step.encoders_ms + step.fusion_ms + step.heads_ms) / step.ranks
    due = compute_us + 4 * (sum(WEIGHTS.values()) + FUSION_WEIGHTS)
    assert step_us(step.predict()) == pytest.approx(due)
    assert Perception(placement="copied", ranks=8).group("fusion") == tuple(range(8))


def test_groups_apart_send_side_by_side_and_one_rank_alone_sends_nothing():
    four = Perception(placement="apart", ranks=4)
    assert "heads" not in [kind for kind, _, _ in four.gradient_messages()]
    eight = Perception(placement="apart", ranks=8)
    line = eight.predict()
    sent = {label: line.end_us[line.label == label].max() for label in ("heads", "norm")}
    handed = line.end_us[line.label == "features"].max()
    assert sent["heads"] == pytest.approx(handed + eight.message_us(4 * WEIGHTS["heads"]))
    assert sent["heads"] < sent["norm"] == line.end_us.max()


def test_a_policy_says_how_many_bytes_travel():
    steps = 2 * EVERY
    plain, half, layers, sparse = (
        Perception(ways=ways, steps=steps).gradient_bytes() for ways in POLICIES.values()
    )
    assert plain == 4 * steps * sum(WEIGHTS.values()) == 2 * half
    assert sparse < plain / 7 and sparse < layers < half


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"placement": "apart", "ranks": 6}, "a quarter fuses"),
        ({"ranks": 3, "batch": 15}, "attention heads evenly"),
        ({"batch": 18}, "share the batch evenly"),
        ({"shares": (4, 4, 4)}, "one for each"),
        ({"shares": (4, 4, 4, 3)}, "the batch together"),
        ({"ways": ()}, "each kind of layer has one way"),
        ({"ways": POLICIES["fp16"], "placement": "apart"}, "compressed among all ranks"),
        ({"ways": POLICIES["fp16"], "placement": "copied"}, "copied they are one message"),
        ({"slow": ((9, 1.0),)}, "slow_rank"),
    ],
)
def test_what_cannot_be_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        Perception(**wrong)


def test_all_that_is_paced_is_slowed_alike():
    for placement in PLACEMENTS:
        step = Perception(placement=placement)
        assert step.slowed(4).step_us() == pytest.approx(4 * step.step_us())
    with pytest.raises(ValueError, match="times"):
        step.slowed(0)


def test_placements_are_named_in_the_language_in_use():
    assert [*judged_run.placements()] == ["apart", "together", "copied"]
    with words.meanwhile("zh"):
        named = judged_run.placements()
    assert [*named] == ["分组", "只切融合", "整个复制"]
    assert [step.placement for step in named.values()] == ["apart", "together", "copied"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_picture_of_placements_has_the_scenes_and_messages_of_each(language):
    steps = judged_run.placements()
    told = net_on(steps, language=language)
    rows = told.table[1:]
    assert [row[2:] for row in rows[:4:3]] == [("8 / 16", "", ""), ("", "", "16 / 16")]
    assert rows[4][2:] == ("4 / 16", "16 / 16", "4 / 16") and rows[8][2:] == ("4 / 16",) * 3
    boxes = [box for box in told.only(Box) if box.texts]
    assert [box.fill for box in boxes].count(0.25) == 4
    lines = [words.text for words in told.only(Words)]
    for step, size in zip(steps.values(), ("176 kB", "181 kB", "57.7 kB"), strict=True):
        assert any(size in text and f"{len(step.message_bytes())}" in text for text in lines)
    assert sum(steps["copied"].message_bytes()) == steps["copied"].gradient_bytes() / 4


@pytest.mark.parametrize(
    "steps", [{}, [Perception()], {"a": 1}, dict.fromkeys("abcd", Perception())]
)
def test_a_picture_of_no_placements_is_refused(steps):
    with pytest.raises(ValueError, match="placements"):
        net_on(steps)
