"""The boards of ZeRO and offload: every page true to its setting, runs real, refusals in words."""

import pytest
from browserless import settle

from labkit import widgets
from labkit.devices import library
from labkit.pictures.sketch import Sketch, Words
from labkit.sharding import states
from labkit.units import format_bytes
from labkit.zero.offload_times import ADAM_BYTES, tokens_that_hide
from labkit.zero.stages import MODES, Offload


@pytest.mark.a_few(4)
@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("model", ["small", "7B"])
def test_every_page_of_the_stages_has_its_bill(stage, model):
    board = widgets.zero_stages(stage=stage, model=model)
    settle()
    for ranks, page in zip((1, 2, 3, 4, 8, 16, 32, 64), board.book.pages, strict=True):
        total = sum(states.state_bytes(board.step.size, ranks, stage).values())
        assert f"Per rank, by the formula: {format_bytes(total)} = " in page.value
        assert f"ZeRO {stage}, {ranks} ranks" in page.value
        assert "has to send" not in page.value  # the reader's to find out
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
    assert "至少" in page
    assert board.step.measured(run).rank_bytes.tolist() == board.step.predict().rank_bytes.tolist()


def test_offload_shows_what_moves_how_long_it_takes_and_where_the_shards_lie():
    board = widgets.offload_flow(mode="zero3", num_ranks=2, tokens=512)
    assert len(board.book.pages) == len(board.options["tokens"])
    assert board.book.pages[0].value.count("<svg") == 2
    run = board.run()
    held = board.step.measured(run)
    assert set(held.device[held.kind == "master"].tolist()) == {"host"}
    page = board.book.pages[0].value
    assert page.count("<svg") == 4 and "every slice is the predicted one" in page
    assert "one after another" in page and "no counts of its copies" in page  # on the CPU
    board.controls["model"].value = "70B"
    settle()
    assert board.button.disabled and board.book.pages[0].value.count("<svg") == 2


@pytest.mark.a_few(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_real_step_moves_what_is_predicted_and_its_link_takes_the_time_it_needs(
    mode, microbatches, monkeypatch
):
    """Bytes but for DeepSpeed's few numbers of norm and overflow, and for the tensors that stage 2
    accumulates whole though a rank needs a part; the link takes no less than bytes over
    bandwidth."""
    if library.missing():
        pytest.skip("no pretend devices here: python -m labkit ops builds them")
    monkeypatch.setenv("LABKIT_DEVICE", "pretend")
    step = Offload(mode=mode, ranks=2, tokens=64, microbatches=microbatches, gb_per_s=0.05)
    run = step.run()
    due = {each.name: each for each in step.predict().phases}
    for rank in range(2):
        for taken in run[rank]["phases"]:
            predicted_bytes = due[taken.name].link_us * step.gb_per_s * 1e3
            assert taken.took_us > taken.link_us >= 0
            assert taken.link_us >= 0.999 * taken.num_bytes / step.gb_per_s / 1e3
            assert taken.num_bytes >= 0.9 * predicted_bytes
    moved = sum(taken.num_bytes for result in run for taken in result["phases"])
    predicted = 2 * sum(each.num_bytes for each in step.predict().moves)
    assert 0 <= moved - predicted < 0.05 * predicted


def test_what_hides_is_the_slowest_of_three():
    step = Offload(mode="zero2", model="7B", ranks=1, tokens=4096)
    forward, backward, update = step.predict().phases
    size = 7e9
    assert forward.device_us == pytest.approx(2 * size * 4096 / 150e6)
    assert backward.link_us == pytest.approx(4 * size / 25e3)
    assert update.host_us == pytest.approx(ADAM_BYTES * size / 100e3)
    assert backward.hidden_us == max(backward[1:]) and update.in_turn_us == sum(update[1:])
    enough = tokens_that_hide([forward, backward, update], 4096)
    there = step.but(tokens=round(enough)).predict().phases[1]
    assert there.device_us == pytest.approx(there.link_us, rel=1e-3)


def test_the_axis_stays_while_tokens_are_turned():
    board = widgets.offload_flow(model="7B")
    ends = set()
    for tokens in board.options["tokens"]:
        words = board._times(board.step.but(tokens=tokens)).only(Words)
        ends.add(words[-1].text)
    assert len(ends) == 1


def test_a_run_of_too_many_tokens_is_refused():
    board = widgets.offload_flow(tokens=32768)
    assert board.button.disabled and "up to 8192 tokens" in board.why_off.value


def test_an_unknown_setting_is_refused():
    with pytest.raises(ValueError, match=r"one of ddp, .*got 'zero'"):
        widgets.fsdp_sharding(strategy="zero")
    with pytest.raises(ValueError, match="a language is one of en, zh; got 'fr'"):
        widgets.zero_stages("fr")
