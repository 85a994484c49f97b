"""The planner's board: its numbers are the plan's, the last setting stands beside, what can't be is
told in words, its pages are light."""

import re
from html import escape

import pytest
from browserless import from_browser, settle

from labkit import planner, widgets
from labkit.planner.models import names
from labkit.planner.plan import plan_board
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.plan_board import shortened
from labkit.planner.plan.shape import Shape
from labkit.units import format_bytes, format_share, format_us
from labkit.widgets import export, gallery, trial, turning
from labkit.words import say


def shown(board):
    """The page that the browser shows."""
    return board.book.pages[board.book.at[board.book.slider]].value


def move(board, name, value):
    """A control moved, and every page drawn."""
    control = board.controls[name]
    from_browser(control, index=[each for _, each in control.options].index(value))
    settle()


def test_the_gallery_finds_it_and_a_plan_has_it():
    assert gallery.homes()["training_plan"] == "labkit.planner.plan.plan_board"
    assert widgets.training_plan is plan_board.training_plan
    assert planner.board is plan_board.board
    board = Plan(gpus=64, gpu="h100", model="llama-7b", zero=1, batch=512).board()
    assert board.controls["gpu"].value == "H100 80 GB" and board.step.gpus == 64
    assert board.controls["model"].value == "LLaMA 7B"
    least = Plan().board()
    batch = least.controls["batch"]
    assert least.step == Plan() and batch.options[batch.index] == ("the least", 0)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_every_page_has_the_numbers_of_its_plan(zero):
    board = planner.board(Plan(gpus=64, zero=zero, batch=512))
    for index, tp in enumerate((1, 2, 4, 8)):
        plan = Plan(gpus=64, zero=zero, batch=512, tp=tp)
        page = board.book.pages[index].value
        peak = plan.memory().peak_bytes
        for told in (
            format_us(plan.time().step_us),
            f"{plan.tokens_per_s():,.0f}",
            format_share(plan.mfu()),
            format_bytes(peak),
            escape(plan.trust()),
        ):
            assert told in page, told
        assert ("It fits" in page) == plan.fits
        assert f"{plan_board.days(plan.days(1e12))}</td>" in page
        if not plan.fits:
            assert f"needs {format_bytes(peak - 80e9)} more than its 80.0 GB" in page


def test_the_last_setting_stands_beside_this_one_whichever_control_moved():
    board = planner.board()
    first = board.step
    assert board.at is None and ">before</th>" not in shown(board)
    move(board, "zero", 3)
    second = board.step
    assert board.at == first and first.title() in shown(board)
    assert ">before</th>" in shown(board)
    move(board, "tp", 4)  # flipped in the browser: what was drawn before stands beside the same
    assert board.at == second and second.title() in shown(board)
    move(board, "tp", 2)
    assert board.at == second.but(tp=4) and board.at.title() in shown(board)
    for index, page in enumerate(board.book.pages):
        if index != board.book.at[board.book.slider]:
            assert board.step.title() in page.value


def row_of(board, name):
    """What a row of the table of numbers says, this setting first; None where there is none."""
    head = f"{board._words[name]}</th>"
    found = shown(board).partition(head)[2].partition("</tr>")[0]
    return re.findall(">([^<]+)</td>", found) or None


def test_a_row_says_which_control_differs():
    board = planner.board()
    assert row_of(board, "batch") is None
    move(board, "batch", 64)
    assert row_of(board, "batch") == ["64", "512"]
    move(board, "recompute", "full")
    assert row_of(board, "batch") is None and row_of(board, "recompute") == ["full", "none"]
    move(board, "nic_gb_per_s", 3.0)
    assert row_of(board, "nic_gb_per_s") == ["3", "usual"]


def test_sequence_parallelism_is_a_control_that_cuts_activations():
    board = planner.board(Plan(gpus=8, tp=8, batch=64))
    move(board, "sp", True)
    assert row_of(board, "sp") == ["on", "off"]
    now, before = board.step, board.at
    assert now == before.but(sp=True)
    held = [plan.memory().parts["activations"] for plan in (now, before)]
    assert held[0] < 0.7 * held[1]
    for plan in (now, before):
        assert format_bytes(plan.memory().peak_bytes) in shown(board)


def test_moving_the_first_control_finds_its_page_drawn_with_the_setting_it_comes_from():
    board = planner.board()
    before = {index: page.value for index, page in enumerate(board.book.pages)}
    come_from = board.step.title()
    assert all(come_from in before[index] for index in before)
    from_browser(board.controls["tp"], index=2)
    unlike = re.sub("lk[0-9a-f]{8}", "", shown(board))
    assert unlike == re.sub("lk[0-9a-f]{8}", "", before[2])
    settle()


def test_an_impossible_layout_is_told_in_words_and_no_number_stands():
    board = planner.board()
    move(board, "pp", 16)
    page = shown(board)
    assert "<svg" not in page and "<table" not in page
    reason = say(
        "{axes} is {ranks} ranks; the cluster has {gpus} GPUs",
        axes="tp 1 x cp 1 x pp 16 x dp 1",
        ranks=16,
        gpus=8,
    )
    assert f"No such layout: {reason}. tp x cp x pp divides 8." in page
    assert board.scene() is None and "image/png" not in board._repr_mimebundle_()
    assert board.why_off.value == ""  # it stands on the page
    move(board, "pp", 2)
    assert "The setting before was no layout." in shown(board) and "<svg" in shown(board)
    move(board, "batch", 8)
    move(board, "mbs", 16)
    assert "A batch of 64 sequences divides evenly" in shown(board)
    with pytest.raises(ValueError, match="not a multiple of dp 4 x 16"):
        board.run()


def test_it_can_not_be_started_and_says_so():
    board = planner.board()
    assert board.button not in board.children
    assert board.why_off.value == "Nothing was started: all numbers are predicted."
    with pytest.raises(ValueError, match="is not started here"):
        board.run()
    assert "button" not in export.offline(board, "en")
    move(board, "batch", 8)
    move(board, "mbs", 16)
    assert board.why_off.value == ""


def test_a_step_of_few_actions_is_drawn_whole_and_one_of_many_with_fewer_microbatches():
    board = planner.board(Plan(gpus=8, pp=4, batch=32))
    assert shown(board).count("<svg") == 3 and "The step, a row for each stage" in shown(board)
    assert "rank 3" in shown(board) and "with 8 microbatches" not in shown(board)
    move(board, "batch", 4096)
    told = "The same layout with 8 microbatches; the step has 2,048"
    assert shown(board).count("<svg") == 3 and told in shown(board)
    wide = planner.board(Plan(model="LLaMA-2 70B", gpus=640, pp=40, batch=4096))
    assert shown(wide).count("<svg") == 2 and "too many" in shown(wide)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("pp", [1, 2, 8])
def test_a_shortened_step_is_a_plan_of_the_same_layout(pp, vpp):
    plan = Plan(gpus=64, pp=pp, vpp=vpp if pp > 1 else 1, zero=1, batch=4096)
    short = shortened(plan)
    short.check()
    assert short.layout.num_microbatches == max(4, 2 * pp)
    assert short == plan.but(batch=short.batch)
    assert shortened(short) == short


@pytest.mark.parametrize("language", ["zh", pytest.param("en", marks=pytest.mark.again)])
@pytest.mark.parametrize(
    "plan",
    [
        Plan(**plan_board.FIRST),
        pytest.param(Plan(gpus=64, batch=128), marks=pytest.mark.again),
        Plan(model="GPT-3 175B", gpus=1024, tp=8, pp=16, batch=2048, recompute="full"),
    ],
    ids=["story", "short", "large"],
)
def test_the_books_pages_are_light_and_three_controls_turn(plan, language):
    board = planner.board(plan, language)
    free = turning.free_controls(board.book)
    packed = turning.pages(board.book, free)
    assert [each.description for each in free] == [
        board._words[name] for name in ("tp", "pp", "zero")
    ]
    assert 20_000 < len(packed) < 1_500_000
    html = export.offline(board, language)
    assert len(html) < 1_500_000 and html.count("data-place") == 3
    assert board.book.num_bytes < 1_500_000


def test_a_model_of_ones_own_and_stated_tokens():
    mine = Shape(name="mine", layers=8, hidden=1024, heads=16, vocab=32_000)
    board = planner.board(Plan(model=mine, gpus=8, batch=64))
    assert "nothing says how many tokens" in shown(board) and "mine, 8 x" in shown(board)
    labels = [label for label, _ in board.controls["model"].options]
    assert labels == [*names("models.csv"), "mine"]
    told = planner.board(Plan(model=mine, gpus=8, batch=64), tokens=5e10)
    days = plan_board.days(told.step.days(5e10))
    assert "days for 50 B tokens" in shown(told) and f"{days}</td>" in shown(told)
    with pytest.raises(ValueError, match="tokens is a number"):
        planner.board(tokens=-1.0)


def test_it_speaks_its_own_language_whatever_is_in_use():
    board = widgets.training_plan("zh", num_gpus=1024)
    page = shown(board)
    assert "放得下" in page and board._repr_mimebundle_()["image/png"]
    assert "预测" in board.scene().badge
    english = board.scene().in_english()
    assert english.badge == "predicted"
    assert english.numbers[0][0] == "this setting"
    move(board, "vpp", 2)
    assert "没有这样的布局" in shown(board) and "vpp 为 1 总能整除" in shown(board)
    with pytest.raises(ValueError, match="a language is one of en, zh"):
        widgets.training_plan("fr")


def test_a_word_has_one_key_of_its_own():
    keys = [key for key, *_ in plan_board._WORDS]
    assert len(set(keys)) == len(keys) and set(plan_board._ORDER) <= set(keys)
    assert not {key for key, *_ in trial._WORDS} & set(keys)
    assert set(plan_board._ORDER) == set(plan_board.PlanBoard.options)
