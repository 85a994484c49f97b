"""What the second half of chapter 18 says of numbers, held against the package."""

import pytest

from labkit import collectives
from labkit.case_studies import Perception, Script, foreseen, llama, small, stories
from labkit.case_studies.story_run import Story, _net


def test_thirteen_billion_on_four_cards():
    case = llama.as_written()
    assert case.over_bytes == pytest.approx(19.4e9, rel=0.01) and case.plan.batch == 128
    host = llama.cures()[3]
    assert host.host_bytes == pytest.approx(156e9, rel=0.01)
    rows = {(row["card_gb"], number % 2): row for number, row in enumerate(llama.on_four_cards())}
    assert [rows[gb, 0]["over_bytes"] > 0 for gb in (24, 40, 80)] == [True, True, False]
    assert rows[80, 0]["layout"].startswith("pp 4")


def test_a_third_of_a_microbatch_is_reading():
    script = Script()
    reading_ms = script.batch * script.read_ms
    assert (reading_ms, reading_ms + script.microbatch_ms) == (30, 90)


def test_the_story_model_is_as_small_as_the_page_says():
    story = Story()
    assert (story.page, story.steps, story.vocabulary) == (500, 45, 400)
    weights = sum(weight.numel() for weight in _net(story.vocabulary).parameters())
    assert weights == 151_872 and stories.MIDDLE.params / weights > 30_000


def test_what_the_page_says_of_five_and_twenty_billion():
    plans = [*stories.plans().values()]
    assert [plan.fits for plan in plans] == [True, True, False, True, True]
    assert plans[0].time().step_us == plans[1].time().step_us
    assert plans[4].time().step_us / plans[3].time().step_us == pytest.approx(4 / 3, abs=0.03)


def test_the_fewest_bytes_are_slowest_on_a_quick_link_and_not_on_a_slow_one():
    for link, slowest, fastest in ((10, "top-k all", "fp16"), (1, "plain", "per layer")):
        rows = sorted(foreseen(mb_per_s=link), key=lambda row: row["predicted_us"])
        assert (rows[-1]["policy"], rows[0]["policy"]) == (slowest, fastest)
    told = {row["policy"]: row for row in foreseen()}
    assert (told["plain"]["messages"], told["top-k all"]["messages"]) == (4, 8)
    bytes_sent = {name: row["gradients_bytes"] for name, row in told.items()}
    assert bytes_sent["plain"] / bytes_sent["top-k all"] == pytest.approx(8, rel=0.01)
    assert told["plain"]["predicted_us"] == pytest.approx(63e3, rel=0.01)
    assert told["top-k all"]["predicted_us"] == pytest.approx(71e3, rel=0.01)
    with pytest.raises(ValueError, match="mb_per_s"):
        foreseen(mb_per_s=0)


def test_groups_apart_and_a_batch_by_speed():
    together = Perception()
    apart = together.but(placement="apart")
    assert apart.step_us() / together.step_us() == pytest.approx(1.81, abs=0.01)
    even = Perception(slow=((3, 3.0),))
    assert even.step_us() == pytest.approx(226e3, rel=0.01)
    assert even.but(shares=(5, 5, 5, 1)).step_us() == pytest.approx(160e3, rel=0.01)


def test_what_small_clusters_do():
    layouts = {(row["cards"], number % 2): row for number, row in enumerate(small.rows())}
    assert [layouts[cards, 0]["fit"] > 0 for cards in small.COUNTS] == [False, False, False, True]
    assert [layouts[cards, 1]["fit"] > 0 for cards in small.COUNTS] == [False, True, True, True]
    assert layouts[2, 1]["layout"].startswith("pp 2") and "recompute" in layouts[2, 1]["layout"]
    assert layouts[4, 1]["layout"].startswith("pp 4") and "recompute" not in layouts[4, 1]["layout"]
    assert layouts[8, 1]["token_rate"] > layouts[8, 0]["token_rate"]


def test_the_numbers_to_remember():
    assert collectives.lower_bound_bytes("all_reduce", 1024, 1.0) == pytest.approx(1.998, abs=1e-3)
    assert round(3 / 11, 2) == 0.27
