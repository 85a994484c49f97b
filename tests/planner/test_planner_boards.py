"""The boards of chapter 01: bills as the papers count them, measured ones to the byte, pages light
and true."""

import csv
import itertools

import pytest
from browserless import from_browser

import labkit as lab
from labkit import widgets
from labkit.collectives import algorithms
from labkit.collectives.plans import sent_bytes
from labkit.machine import resources
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Words
from labkit.planner import (
    links,
    models,
    need,
    need_board,
    need_run,
    picture,
    strategies,
    strategies_board,
    strategies_run,
    ways,
)
from labkit.planner.models import DEVICES, MODELS, PARTS
from labkit.sharding import states
from labkit.units import format_bytes
from labkit.widgets import trial


def test_models_and_devices_are_those_of_the_data_and_each_names_its_source():
    for name, table in (("models.csv", MODELS), ("hardware.csv", DEVICES)):
        rows = list(csv.DictReader((models.DATA / name).read_text().splitlines()))
        offered = [row["name"] for row in rows if row["board"] == "1"]
        assert offered == list(table)
        assert all(len(row["source"]) > 15 for row in rows)
    # what a transformer of that shape has, give or take embeddings and the MLP's shape
    for each in MODELS.values():
        blocks = 12 * each.layers * each.dim**2
        assert 0.7 < blocks / each.params < 1.15, each
    assert DEVICES["A100 80 GB"] == 80e9


@pytest.mark.parametrize("recipe", need.RECIPES)
def test_a_bill_has_the_recipes_bytes_and_korthikantis_activations(recipe):
    model = MODELS["GPT-3 175B"]
    itemsize = 4 if recipe in ("fp32", "sgd") else 2
    bill = model.bill(2, recipe)
    state_bytes = sum(bill.values()) - bill["activations"]
    assert state_bytes == states.recipe(recipe).bytes_per_parameter * model.params
    sbh = model.seq_len * 2 * model.dim * model.layers
    per_unit = {
        "flash": 16 * itemsize + 2,
        "recompute": itemsize,  # masks of dropout have a byte in any type
        "stored": 16 * itemsize + 2 + (2 * itemsize + 1) * model.heads * model.seq_len / model.dim,
    }
    for attention in need.ATTENTION:
        assert model.activation_bytes(2, recipe, attention) == pytest.approx(
            per_unit[attention] * sbh
        )


def test_every_page_says_what_fits_and_is_light():
    board = widgets.training_need(device="A100 80 GB")
    assert len(board.book.pages) == len(MODELS) and board.book.num_bytes < 1_500_000
    for index, page in enumerate(board.book.pages):
        from_browser(board.controls["model"], index=index)
        setting = board.step
        total = sum(setting.bill().values())
        assert setting.model in page.value and format_bytes(total) in page.value
        if total <= 80e9:
            assert "It fits on one device" in page.value and "ZeRO 1" not in page.value
        for stage in (1, 2, 3) if total > 80e9 else ():
            num = setting.needed(stage)
            if num is None:
                assert f"ZeRO {stage}: no number" in page.value
                continue
            assert f"ZeRO {stage}: {num:,}" in page.value
            enough = sum(setting.bill(num, stage).values())
            too_few = sum(setting.bill(num - 1, stage).values())
            assert enough <= 80e9 < too_few


def test_bars_are_as_long_as_their_bytes_and_the_line_stands_at_the_device():
    board = widgets.training_need(model="LLaMA 13B")
    boxes = [box for box in board.scene().only(Box) if box.height_px == 24]
    bill = board.step.bill()
    scale = boxes[0].width_px / bill["parameters"]
    assert [box.width_px / scale for box in boxes[:4]] == pytest.approx(
        [bill[part] for part in PARTS]
    )
    strokes = [line.points_px for line in board.scene().only(Line) if line.dash]
    places = [x - boxes[0].x_px for x, _ in itertools.chain.from_iterable(strokes)]
    assert [place / scale for place in places] == pytest.approx([80e9] * len(places)) and places
    assert len({(box.colour, box.hatch) for box in boxes[:4]}) == 4
    assert all(box.x_px >= 0 and box.x_px + box.width_px <= WIDTH_PX - 60 for box in boxes)
    assert all(words.size_px >= 11 for words in board.scene().only(Words))


@pytest.mark.parametrize("recipe", ["fp32", "sgd", "bf16"])
def test_the_small_models_bill_is_measured_as_predicted_to_the_byte(recipe):
    run = lab.launch(need_run.train, recipe, 2, ranks=2, backend="gloo", timeout_s=50)
    assert need_run.measured_bills(run) == [need.small_bill(recipe, 2)] * 2


def test_the_mixed_recipe_is_deepspeeds_and_its_page_says_which_model_was_measured():
    board = widgets.training_need("zh")
    run = board.run()
    assert need_run.measured_bills(run) == [need.small_bill("mixed", 1)] * 2
    page = board.book.pages[board.book.at[board.book.slider]].value
    assert page.count("<svg") == 2 and "在这里运行的小模型" in page
    assert f"{run[0]['num_params']:,}" in page and "0 B" in page
    # the run is of the small model, whichever is shown
    from_browser(board.controls["model"], index=0)
    assert board.measured is not None


def test_what_the_small_model_does_not_do_is_off_and_a_machine_is_a_device_too():
    board = widgets.training_need(device="here")
    assert board.step.device_bytes == resources.total_bytes()
    board.controls["attention"].value = "stored"
    assert board.button.disabled and "flash attention" in board.why_off.value
    with pytest.raises(ValueError, match="flash attention"):
        board.run()
    with pytest.raises(ValueError, match="a model is one of BERT-base"):
        widgets.training_need(model="GPT-5")


@pytest.mark.parametrize("way", strategies.STRATEGIES)
@pytest.mark.parametrize("num_ranks", [4, 8])
def test_a_strategy_divides_what_it_should(way, num_ranks):
    setting = strategies.Strategy(
        strategy=way, model="GPT-3 175B", device="H100 80 GB", ranks=num_ranks, batch=64
    )
    whole = MODELS["GPT-3 175B"].bill(64, "fp32")
    bill = setting.bill()
    parts = {"data": 1, "sharded": num_ranks, "layers": num_ranks, "hybrid": 2}.get(way, num_ranks)
    for part in PARTS[:3]:
        assert bill[part] == pytest.approx(whole[part] / parts)
    # all share them out completely, but tensor parallelism: 10 of 34 bytes stay whole (fp32: 18 of
    # 66, the two masks counted once)
    left = 1 / num_ranks if way != "tensor" else (18 + 48 / num_ranks) / 66
    assert bill["activations"] == pytest.approx(whole["activations"] * left)
    model = MODELS["GPT-3 175B"]
    once = 4 * 175e9
    replicas = num_ranks / 2
    message = 4 * model.dim * model.seq_len * 64
    assert setting.sent_bytes() == pytest.approx(
        {
            "data": 2 * (num_ranks - 1) / num_ranks * once,
            "sharded": 3 * (num_ranks - 1) / num_ranks * once,
            "layers": 2 * message,
            "hybrid": 2 * (replicas - 1) / replicas * once / 2 + message / replicas,
            "tensor": 2 * (num_ranks - 1) / num_ranks * 4 * model.layers * message,
        }[way]
    )
    assert setting.idle == pytest.approx(
        {
            "layers": (num_ranks - 1) / (64 + num_ranks - 1),
            "hybrid": 1 / (64 / (num_ranks / 2) + 1),
        }.get(way, 0.0)
    )


def test_layers_that_do_not_divide_leave_the_longest_stage_more():
    setting = strategies.Strategy(
        strategy="layers", model="BERT-base", device="T4 16 GB", ranks=8, batch=64
    )
    assert setting.part == 2 / 12


@pytest.mark.parametrize("way", strategies.STRATEGIES)
def test_each_page_has_its_picture_and_all_beside_it(way):
    board = widgets.strategies("zh", strategy=way, num_ranks=8)
    page = board.book.pages[strategies.STRATEGIES.index(way)].value
    assert page.count("<svg") == 2 and page.count("▸") == 1
    assert format_bytes(board.step.sent_bytes()) in page
    assert board.button.disabled and "4 个 rank" in board.why_off.value
    assert board.book.num_bytes < 1_500_000
    held_px = sum(box.width_px for box in board.scene().only(Box) if box.colour == "#4f9fe3")
    boxes = [box for box in board.scene().only(Box) if not box.colour and box.x_px < 480]
    share = {"data": 1, "hybrid": 1 / 2}.get(way, 1 / 8)
    assert held_px / sum(box.width_px for box in boxes) == pytest.approx(share)


@pytest.mark.a_few(2)
@pytest.mark.parametrize("way", strategies.STRATEGIES)
def test_a_strategy_on_real_ranks_holds_and_hands_over_what_was_predicted(way):
    run = strategies_run.start(way, 4, 16).wait()
    for rank, (bill, handed) in enumerate(strategies.predicted(way, 4, 16)):
        measured = strategies_run.held(run, rank)
        head_bytes = 4 * strategies.small_units(1)[-1].sizes["logits.weight"]
        # FSDP is watched: the batch's tokens count as kept, and at times what gloo's thread
        # gathered for the last layer
        slack = dict.fromkeys(PARTS, 0)
        if way == "sharded":
            slack["activations"] = 2000 + 1.01 * head_bytes
        for part in PARTS:
            assert abs(measured[part] - bill[part]) <= slack[part], part
        expected = {name: num for name, num in handed.items() if num}
        assert strategies_run.payload(run[rank]) == expected
    assert run.timeline().span_us > 0


def test_all_strategies_train_the_same_model():
    found = {}
    for way, num_ranks in (
        ("data", 1),
        ("data", 4),
        ("layers", 4),
        ("hybrid", 4),
        ("tensor", 2),
        ("tensor", 4),
    ):
        run = lab.launch(
            strategies_run.train, way, 8, ranks=num_ranks, backend="gloo", timeout_s=50
        )
        losses = [each["losses"] for each in run if each["losses"][0] == each["losses"][0]]
        found[way, num_ranks] = [sum(step) / len(losses) for step in zip(*losses, strict=True)]
    one = found.pop(("data", 1))
    assert one[1] < one[0]
    for losses in found.values():
        assert losses == pytest.approx(one, rel=1e-5)


def test_the_board_of_strategies_puts_the_measured_bill_under_the_predicted_one():
    board = widgets.strategies(strategy="layers")
    board.run()
    page = board.book.pages[board.book.at[board.book.slider]].value
    assert page.count("<svg") == 3 and "largest difference" in page and "rank 3, measured" in page
    assert "send 262,144 (predicted: send 262,144)" in page
    board.controls["batch"].value = 64
    assert board.button.disabled and "up to 16 sequences" in board.why_off.value


def test_heads_that_cannot_be_split_are_refused():
    assert "splits the 4 heads" in strategies.Strategy(strategy="tensor", ranks=3).refusal("en")
    assert strategies.Strategy(strategy="tensor", ranks=2).refusal() is None


def test_ways_beside_each_other_say_what_travels_between_whom():
    every = {
        way: strategies.Strategy(strategy=way, recipe="mixed") for way in strategies.STRATEGIES
    }
    drawn = ways(every)
    told = {row[0]: row[1:] for row in drawn.table[1:]}
    assert told["data"] == ("1/1", "1/4", "", "●", "")
    assert told["sharded"] == ("1/4", "1/4", "", "●", "●")
    assert told["layers"] == ("1/4", "1/1", "●", "", "")
    assert told["hybrid"] == ("1/2", "1/2", "●", "●", "")
    assert told["tensor"] == ("1/4", "1/1", "●", "", "")
    lines = [line for line in drawn.only(Line) if line.mark != "o"]
    arrows = [line for line in lines if line.arrow]
    assert len(arrows) == 2 * (3 + 2)  # there, and the gradients back
    assert len(lines) == len(arrows) + 1 + 2 + 2 + 1 + 3  # one for each group, and the legend's
    assert "谁存什么" in ways(every, language="zh").heading
    with pytest.raises(ValueError, match="number of ways"):
        ways({})
    with pytest.raises(ValueError, match="ranks"):
        ways({"many": strategies.Strategy(ranks=9)})


def test_what_ways_cost_is_a_row_each():
    every = {way: strategies.Strategy(strategy=way) for way in ("data", "layers")}
    told = strategies.costs(every)
    assert [row[0] for row in told.cells] == ["data", "layers"]
    assert told.cells[0][2] == format_bytes(every["data"].sent_bytes())
    assert strategies.costs({"x": every["data"]}).heads[1] == "fullest rank holds"
    with pytest.raises(ValueError, match="number of ways"):
        strategies.costs({})


def test_one_by_one_every_way_keeps_one_sequence_and_sharded_states_travel_for_each():
    whole = {way: strategies.Strategy(strategy=way) for way in strategies.STRATEGIES}
    single = {way: step.but(one_by_one=True) for way, step in whole.items()}
    one = whole["data"].but(batch=4).bill()["activations"]  # a sequence on each rank
    for way in ("data", "sharded", "layers", "hybrid"):
        assert single[way].bill()["activations"] == pytest.approx(one)
        assert whole[way].bill()["activations"] == pytest.approx(4 * one)
    assert single["tensor"].bill()["activations"] == whole["tensor"].bill()["activations"] / 16
    grown = {way: single[way].sent_bytes() / whole[way].sent_bytes() for way in single}
    assert grown == {way: 4 if way == "sharded" else 1 for way in single}


def test_the_fewest_cards_of_every_model_are_those_of_its_bill():
    told = {row[0]: row[1:] for row in need.cards().cells}
    assert list(told) == list(need.MODELS)
    assert told["LLaMA 13B"] == ("208 GB", "12", "4", "3")
    assert told["GPT-3 175B"] == ("2.80 TB", "", "", "38")
    assert dict((row[0], row[2]) for row in need.cards(85e9).cells)["LLaMA 13B"] == "9"
    with pytest.raises(ValueError, match="device"):
        need.cards("A 1000")


@pytest.mark.parametrize("way", strategies.STRATEGIES)
def test_in_16_bits_half_as_many_bytes_travel_and_the_states_stay(way):
    wide = strategies.Strategy(strategy=way)
    mixed = wide.but(recipe="mixed")
    assert 2 * mixed.sent_bytes() == pytest.approx(wide.sent_bytes())
    held = [sum(each.bill().values()) - each.bill()["activations"] for each in (wide, mixed)]
    assert held[0] == pytest.approx(held[1])
    assert "16 bit, fp32 copy, Adam" in mixed.board("en").page(mixed, None)
    assert mixed.as_run() == wide.as_run()
    with pytest.raises(ValueError, match="a recipe"):
        wide.but(recipe="sgd")


def test_links_of_an_architecture_are_as_thick_as_their_bytes():
    hierarchical = algorithms.plan("all_reduce", "hierarchical", 8, island_size=4)
    drawn = {
        "parameter_server": algorithms.plan("all_reduce", "parameter_server", 8),
        "ring": algorithms.plan("all_reduce", "ring", 8),
        "hierarchical": hierarchical,
    }
    lines = widgets.architectures(drawn, 4).only(Line)
    across = [line for line in lines if line.colour == picture.ACROSS and not line.dash]
    # the server's, the ring's, one for each place, the legend's
    assert len(across) == 4 + 2 + 4 + 1
    twins = across[-5:-1]  # all level, beside each other, so none hides another
    assert all(line.points_px[0][1] == pytest.approx(line.points_px[1][1]) for line in twins)
    assert len({round(line.points_px[0][1]) for line in twins}) == 4
    thick = sorted(line.width_px for line in across)
    assert thick[-1] == picture.THICK_PX
    assert thick[0] == picture.THICK_PX * (2 * 2 / 8) / 2  # of 2 S, the server's
    for plan in drawn.values():
        assert links.crossing_bytes(plan, 8, 1) == 0
        assert sent_bytes(plan, 1).sum() == pytest.approx(2 * 7)
    assert links.crossing_bytes(hierarchical, 4, 3.0) == pytest.approx(2 * 3.0)


def test_boards_and_pictures_speak_both_languages():
    for board in (widgets.training_need("zh"), widgets.strategies("zh")):
        bundle = board._repr_mimebundle_()
        assert bundle["image/png"] and bundle["text/plain"]
        assert "计算值" in board.scene().badge and board.scene().in_english().badge == "computed"
    for make in (widgets.training_need, widgets.strategies):
        with pytest.raises(ValueError, match="a language is one of en, zh"):
            make("fr")


@pytest.mark.parametrize("room", [need_board, strategies_board, picture])
def test_a_word_has_one_key_of_its_own(room):
    keys = [key for key, *_ in room._WORDS]
    assert len(set(keys)) == len(keys) > 4
    # or a board's own word hides the button's
    assert not {key for key, *_ in trial._WORDS} & set(keys)
