"""The boards of inference: a page for each rate, both policies on one axis; a cache's bytes by its
cut."""

import pytest

from labkit import widgets
from labkit.serving.generation import Generation
from labkit.serving.load import Load
from labkit.units import format_bytes, format_us


def test_a_page_for_each_rate_tells_both_policies():
    board = widgets.batching()
    assert len(board.book.pages) == len(board.options["rate"])
    page = board.page(board.step, None)
    other = board.step.but(policy="continuous").predict().figures()
    assert format_us(other.latency_p95_us) in page
    assert f"{board.step.capacity():.1f} requests a second" in page


def test_policies_share_an_axis():
    ends = []
    for policy in ("static", "continuous"):
        board = widgets.batching(policy=policy)
        words = [each.text for each in board.scene().shapes if hasattr(each, "text")]
        ends.append([text for text in words if text.endswith((" s", " ms"))][-1])
    assert ends[0] == ends[1]


def test_an_experiment_brings_its_board_and_values():
    board = Load(rate=7.0, slots=3, policy="static", patience_ms=20.0).board()
    assert (board.step.rate, board.step.slots, board.step.patience_ms) == (7.0, 3, 20.0)
    assert board.page(board.step, None)
    with pytest.raises(ValueError, match="stated pace"):
        Load(paced=False).board()


def test_the_cache_of_one_rank_is_not_cut_and_more_ranks_keep_less():
    board = widgets.kv_cache()
    controls = board.controls
    controls["ranks"].value = 1
    assert board.step.way == "alone"
    controls["ranks"].value = 4
    assert board.step.way == "tensor"
    assert format_bytes(board.step.cache_bytes(0)) in board.page(board.step, None)
    controls["way"].value = "pipeline"
    assert "nothing is summed" in board.page(board.step, None)


@pytest.mark.parametrize("make", [widgets.batching, widgets.kv_cache])
def test_they_speak_chinese(make):
    board = make("zh")
    page = board.page(board.step, None)
    assert "请求" in page or "缓存" in page


@pytest.mark.real
def test_the_button_weighs_the_caches():
    board = Generation(layers=2, dim=32, output=4).board()
    board.run()
    assert "of 4 answers, 0 differ" in board.page(board.step, None)


@pytest.mark.real
def test_the_button_serves_the_load():
    board = Load(requests=4, rate=50.0, output=4, prompt=4).board()
    board.run()
    assert "Of 4 answers, 0 differ" in board.page(board.step, None)
