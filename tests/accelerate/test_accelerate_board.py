"""The board of Accelerate: pages true to their settings, runs real, every line called what was
predicted."""

import pytest
from browserless import settle

from labkit import widgets
from labkit.accelerate import board as accelerate_board
from labkit.accelerate.update import ENGINES, Update, differing
from labkit.pictures.sketch import Sketch


@pytest.mark.parametrize("engine", ENGINES)
def test_every_page_shows_its_prediction(engine):
    board = widgets.accelerate_workflow(engine=engine)
    settle()
    for accumulation, page in zip((1, 2, 3, 4), board.book.pages, strict=True):
        assert page.value.count("sync_gradients False") == accumulation - 1
        assert page.value.count("sync_gradients True") == 1 and "measured" not in page.value
        assert ("all_gather" in page.value) == (engine in ("fsdp", "zero2"))
    rows = board.step.predict()
    assert [row["backward"]["calls"].get("all_reduce", 0) for row in rows] == {
        "one process": [0, 0],
        "ddp": [0, 2],
        "fsdp": [0, 0],
        "zero2": [1, 2],
    }[engine]
    assert ("done in backward" in board.book.pages[0].value) == (engine == "zero2")
    words = accelerate_board.AccelerateBoard.words
    assert len({key for key, *_ in words}) == len(words)
    assert isinstance(board.scene(), Sketch) and board.book.num_bytes < 1_500_000
    assert board.scene().table[1][0] == "loss = f(net(tokens))" and len(board.scene().table) == 6
    if engine == "zero2":
        box = board.scene().table[2][-1]
        assert box.index("all_reduce") < box.index("weights change") < box.index("all_gather")


@pytest.mark.a_few(2)
@pytest.mark.parametrize(
    ("engine", "precision", "accumulation", "ranks"),
    [
        ("one process", "bf16", 3, 2),
        ("ddp", "no", 1, 3),
        ("ddp", "bf16", 4, 2),
        ("fsdp", "no", 2, 2),
        ("fsdp", "bf16", 1, 4),
        ("zero2", "no", 2, 2),
        ("zero2", "bf16", 3, 2),
    ],
)
def test_it_runs_for_real_and_every_line_calls_what_was_predicted(
    engine, precision, accumulation, ranks
):
    board = widgets.accelerate_workflow(
        "en", engine=engine, precision=precision, accumulation=accumulation, num_ranks=ranks
    )
    run = board.run()
    settle()
    assert len(run) == (1 if engine == "one process" else ranks)
    assert differing(board.step.predict(), run[0]["lines"]) == 0
    page = board.book.pages[accumulation - 1].value
    assert "every line called the predicted collectives" in page and "measured, gloo" in page
    assert "before prepare" in page and run[0]["after"]["model"] in page
    assert run[0]["sync"] == [False] * (accumulation - 1) + [True]


@pytest.mark.a_few(1)
@pytest.mark.parametrize("engine", ["one process", "ddp", "fsdp"])
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_a_spike_skips_the_update_in_fp16_alone(engine, precision):
    update = Update(engine=engine, precision=precision, spike=True, accumulation=1)
    run = update.run()
    assert differing(update.predict(), update.measured(run)) == 0
    step = update.measured(run)[0]["step"]
    assert step["moved"] == (precision != "fp16") and update.skips == (precision == "fp16")
    if precision == "fp16":
        before, after = step["scale"]
        assert after == before / 2
        assert update.measured(update.but(spike=False).run())[0]["step"]["moved"]
    inside = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}
    assert run[0]["after"]["inside"] == inside[precision]


def test_fp16_is_scaled_on_the_page_and_refused_to_deepspeed():
    board = widgets.accelerate_workflow(precision="fp16", spike=True)
    settle()
    page = board.book.pages[1].value
    assert "loss × 65,536" in page and "gradients ÷ 65,536" in page
    assert "skipped: a gradient is infinite" in page and "65,536 → 32,768" in page
    board.controls["engine"].value = "zero2"
    assert board.button.disabled and "an fp16 of its own" in board.why_off.value


def test_another_count_is_told_apart():
    """The comparison can fail: a call more, a line less, another place where the weights change."""
    update = Update(engine="zero2")
    right = update.predict()
    more = update.predict()
    more[0]["backward"]["calls"]["all_reduce"] += 1
    less = update.predict()
    del less[1]["clip"]
    moved = update.predict()
    moved[1]["step"]["moved"] = True
    assert [differing(right, other) for other in (right, more, less, moved)] == [0, 1, 1, 1]
    fp16 = Update(precision="fp16")
    halved = fp16.but(spike=True).predict()
    assert differing(fp16.predict(), halved) == 1
    halved[1]["step"]["moved"] = True
    assert differing(fp16.predict(), halved) == 1


def test_it_speaks_chinese_and_refuses_what_is_unknown():
    board = widgets.accelerate_workflow("zh", engine="zero2")
    assert "一次更新" in board.book.pages[1].value and "什么也不做" in board.book.pages[1].value
    with pytest.raises(ValueError, match=r"engine is one of one process, .*got 'fsdp1'"):
        widgets.accelerate_workflow(engine="fsdp1")
