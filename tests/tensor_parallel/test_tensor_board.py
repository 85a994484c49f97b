"""The board of tensor parallelism: every page true to its setting, slices where the theory has
them, runs real."""

import itertools

import pytest
from browserless import from_browser, settle

from labkit import widgets
from labkit.pictures.sketch import Box
from labkit.pictures.style import CYCLE
from labkit.tensor_parallel import Layer, picture
from labkit.tensor_parallel import board as tensor_board
from labkit.units import format_bytes

CASES = [
    Layer(engine=engine, ranks=ranks, heads=8, kv_heads=kv, sequence_parallel=sp)
    for engine, ranks, kv, sp in itertools.product(
        ("by hand", "megatron"), (2, 8), (8, 2), (False, True)
    )
]


@pytest.mark.parametrize("layer", CASES, ids=str)
def test_every_collective_of_the_layer_goes_at_one_moment(layer):
    shown = []
    for moment in range(len(picture.STOPS)):
        shown += picture.messages_at(layer, moment)
    assert shown == layer.messages()[: len(shown)]
    assert {each.place for each in layer.messages()[len(shown) :]} <= {"norms"}


@pytest.mark.parametrize("layer", CASES, ids=str)
@pytest.mark.parametrize("moment", [0, 1, 5, 8, 13])
def test_slices_are_as_wide_as_their_share_and_lie_in_their_frames(layer, moment):
    drawn = picture.layer(layer, moment, language="en")
    boxes = drawn.only(Box)
    frames = [box for box in boxes if not box.colour]
    num_rows = min(layer.ranks, picture.MOST_ROWS)
    assert len(frames) == num_rows * len(picture.STATIONS)
    for rank in range(num_rows):
        mine = frames[rank * len(picture.STATIONS) : (rank + 1) * len(picture.STATIONS)]
        pieces = {each.name: each for each in layer.pieces(rank)}
        for frame, (name, kind) in zip(mine, picture.STATIONS, strict=True):
            inside = [box for box in boxes if box.colour and _within(box, frame)]
            assert inside
            area = sum(box.width_px * box.height_px for box in inside)
            if kind == "weight":
                piece = pieces[f"{name}.weight"]
                share = piece.num_elements / (piece.shape[0] * piece.shape[1])
                assert area == pytest.approx(share * frame.width_px * frame.height_px)
                assert {box.colour for box in inside} == {CYCLE[rank][0]}


def _within(box, frame):
    right = box.x_px + box.width_px <= frame.x_px + frame.width_px + 1e-6
    below = box.y_px + box.height_px <= frame.y_px + frame.height_px + 1e-6
    return box.x_px >= frame.x_px - 1e-6 and box.y_px >= frame.y_px - 1e-6 and right and below


def test_the_picture_fits_and_speaks_both_languages():
    drawn = picture.layer(Layer(ranks=8, heads=8), 3, language="zh")
    assert all(box.x_px + box.width_px <= 900 for box in drawn.only(Box))
    assert "2 个 rank 上的一层，手工" in Layer().title("zh")
    assert Layer(engine="megatron").title("zh").endswith("megatron")
    assert "张量" in drawn.title or "rank" in drawn.title
    assert "4 of 8 ranks are drawn" in drawn.in_english().notes[0]
    with pytest.raises(ValueError, match="moment is a whole number"):
        picture.layer(Layer(), 14)


@pytest.mark.parametrize("size", tensor_board.SIZES)
def test_it_has_a_page_for_every_moment(size):
    board = widgets.tensor_parallelism(size=size)
    settle()
    assert len(board.book.pages) == len(picture.STOPS)
    for page in board.book.pages:
        assert page.value.count("<svg") == 2
    held = format_bytes(board.step.rank_bytes())
    assert held in board.book.pages[0].value
    assert board.button.disabled == (not size.startswith("small"))


def test_turning_sequence_parallelism_keeps_the_bytes_and_lowers_what_is_kept():
    board = widgets.tensor_parallelism(size="4096")
    settle()
    plain = board.step
    board.controls["sequence_parallel"].value = True
    settle()
    assert board.step == plain.but(sequence_parallel=True)
    assert board.step.kept_bytes() < plain.kept_bytes()
    assert "all-gather" in board.book.pages[1].value
    assert format_bytes(plain.kept_bytes()) in board.book.pages[1].value


def test_sizes_of_one_s_own_have_their_place_in_the_control():
    layer = Layer(ranks=3, hidden=30, heads=5, sequence=7)
    board = layer.board("zh")
    settle()
    assert board.step.as_run() == layer
    board.controls["sequence_parallel"].value = True
    settle()
    assert "不能整除" in board.why_off.value
    with pytest.raises(ValueError, match="size is one of"):
        widgets.tensor_parallelism(size="huge")


@pytest.mark.real
def test_it_runs_for_real_and_says_how_near_it_was():
    board = widgets.tensor_parallelism(num_ranks=2)
    run = board.run()
    settle()
    from_browser(board.controls["moment"], index=3)
    page = board.book.pages[3].value
    assert "Every live slice is the predicted one" in page
    assert f"{max(each['output_difference'] for each in run):.1e}" in page
