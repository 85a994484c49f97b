"""The boards of ZeRO and offload: every page true to its setting, runs real, refusals in words."""

import pytest
from browserless import settle

from labkit import widgets
from labkit.pictures.sketch import Sketch
from labkit.sharding import states
from labkit.units import format_bytes


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", ["small", "7B"])
def test_every_page_of_the_stages_has_its_bill(stage, model):
    board = widgets.zero_stages(stage=stage, model=model)
    settle()
    for ranks, page in zip((1, 2, 3, 4, 8, 16, 32, 64), board.book.pages, strict=True):
        total = sum(states.state_bytes(board.step.size, ranks, stage).values())
        assert f"Per rank, by the formula: {format_bytes(total)} = " in page.value
        assert f"ZeRO {stage}, {ranks} ranks" in page.value
        assert ("has to send" in page.value) == (ranks > 1)
    assert board.book.num_bytes < 1_500_000 and isinstance(board.scene(), Sketch)


@pytest.mark.parametrize(
    "control, value, why",
    [
        ("model", "70B", "is here to be looked at"),
        ("ranks", 8, "up to 4 ranks"),
        ("recipe", "accumulate", "runs the recipe mixed"),
    ],
)
def test_what_does_not_run_says_why(control, value, why):
    board = widgets.zero_stages(num_ranks=2)
    board.controls[control].value = value
    assert board.button.disabled and why in board.why_off.value
    with pytest.raises(ValueError, match=why):
        board.run()


def test_the_stages_run_for_real_and_hold_what_was_predicted():
    board = widgets.zero_stages("zh", stage=2, num_ranks=2)
    run = board.run()
    page = board.book.pages[1].value
    assert "从运行中的引擎读出：每一片都与预测相同" in page and "线路上" in page and "相差" in page
    assert board.step.measured(run).rank_bytes.tolist() == board.step.predict().rank_bytes.tolist()


def test_offload_shows_each_phase_and_where_the_shards_lie():
    board = widgets.offload_flow(mode="zero3", num_ranks=2)
    assert len(board.book.pages) == 4 and "host stands for the device" in board.book.pages[0].value
    run = board.run()
    held = board.step.measured(run)
    assert set(held.device[held.kind == "master"].tolist()) == {"host"}
    page = board.book.pages[0].value
    assert page.count("<svg") == 2 and "every slice is the predicted one" in page
    board.controls["model"].value = "70B"
    settle()
    assert board.button.disabled and board.book.pages[0].value.count("<svg") == 1


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r"one of ddp, .*got 'zero'"):
        widgets.fsdp_sharding(strategy="zero")
    with pytest.raises(ValueError, match="a language is one of en, zh; got 'fr'"):
        widgets.zero_stages("fr")
