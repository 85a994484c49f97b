"""What the planner draws: bars as long as the plan's numbers, one plan beside another, all layouts
of a search, the card of the running story."""

import itertools

import pytest
from drawn import faults, rgb

from labkit import planner
from labkit.pictures.painters import svg
from labkit.pictures.sketch import Box, Line, Words
from labkit.planner.models import names, training_tokens
from labkit.planner.plan import layout, memory, picture, search, steptime
from labkit.planner.plan.plan import Plan
from labkit.units import format_bytes, format_us

FITS = Plan(gpus=8, zero=1, batch=512)
TOO_LARGE = Plan(gpus=8, batch=512)
DEEP = Plan(model="GPT-3 175B", gpus=1024, tp=8, pp=16, vpp=2, batch=1536, zero=1, recompute="full")
OTHER_CARD = Plan(model="GPT-3 175B", gpu="H200", gpus=1024, tp=8, pp=8, batch=1536)


def bars(drawn, height):
    """The coloured parts of each bar of a height, from top to bottom, the legend left out. A part
    that a line cuts is two boxes."""
    found = {}
    for box in drawn.only(Box):
        if box.height_px == height and not box.marked:
            parts = found.setdefault(box.y_px, {})
            look = box.colour, box.hatch
            parts[look] = parts.get(look, 0.0) + box.width_px
    return [list(found[y].values()) for y in sorted(found)]


def lines(drawn):
    """Where upright lines stand."""
    return sorted({line.points_px[0][0] for line in drawn.only(Line)})


def test_bars_of_memory_are_the_plans_parts_and_the_line_is_the_cards_memory():
    drawn = picture.memory_bars([("now", TOO_LARGE), ("last", FITS)])
    first, second = bars(drawn, picture.BAR_PX)
    parts = TOO_LARGE.memory().parts
    scale = first[0] / parts["parameters"]
    for widths, plan in ((first, TOO_LARGE), (second, FITS)):
        held = [amount for amount in plan.memory().parts.values() if amount]
        assert [width / scale for width in widths] == pytest.approx(held)
    left = min(box.x_px for box in drawn.only(Box))
    (line,) = lines(drawn)
    assert (line - left) / scale == pytest.approx(80e9)
    # what does not fit hangs over the line, framed
    (over,) = [box for box in drawn.only(Box) if box.marked]
    lacks = TOO_LARGE.memory().peak_bytes - 80e9
    assert over.x_px == line and over.width_px / scale == pytest.approx(lacks)
    said = [words.text for words in drawn.only(Words)]
    assert f"{format_bytes(lacks)} too much" in said and "17.2 GB left" in said
    # and no number stands in the frame's part of what the line cuts
    ends = [(box.x_px, box.x_px + box.width_px) for box in drawn.only(Box) if box.texts]
    assert not any(start < line < end for start, end in ends)
    assert drawn.badge == "predicted"


def test_a_dashed_line_stands_where_so_much_of_a_card_is_left():
    plain = picture.memory_bars({"now": TOO_LARGE, "last": OTHER_CARD})
    drawn = picture.memory_bars({"now": TOO_LARGE, "last": OTHER_CARD}, spare=0.25)
    assert bars(drawn, picture.BAR_PX) == bars(plain, picture.BAR_PX)
    left = min(box.x_px for box in drawn.only(Box))
    *dashed, key = [line.points_px[0] for line in drawn.only(Line) if line.dash]
    wanted = [left + 0.75 * (line - left) for line in lines(plain)]
    assert sorted({x for x, _ in dashed}) == pytest.approx(wanted)
    assert key[1] > max(y for _, y in dashed)  # in the legend
    assert not any(line.dash for line in plain.only(Line))
    assert "up to here 25% stay free" in {words.text for words in drawn.only(Words)}
    with pytest.raises(ValueError, match="spare is a number"):
        picture.memory_bars({"now": FITS}, spare=1)


def test_parts_that_a_run_showed_to_be_others_are_drawn_so():
    planned = FITS.memory()
    found = planned.parts["gradients"] + 3e9
    drawn = picture.memory_bars({"now": FITS}, found={"gradients": found})
    said = [words.text for words in drawn.only(Words)]
    assert any(text.startswith(format_bytes(planned.peak_bytes + 3e9)) for text in said)
    assert drawn.badge == "gradients: computed from what a run keeps; the rest: predicted"
    for wrong in ({"weights": 1.0}, {"gradients": -1.0}, 3):
        with pytest.raises(ValueError):
            picture.memory_bars({"now": FITS}, found=wrong)


def test_every_stage_of_a_pipeline_has_a_bar_and_two_cards_have_a_line_each():
    drawn = picture.memory_bars([("now", DEEP), ("last", OTHER_CARD)])
    stages = bars(drawn, picture.THIN_PX)
    sums = [sum(widths) for widths in stages]
    held = DEEP.memory().stage_bytes
    scale = sums[0] / held[0]
    assert [total / scale for total in sums] == pytest.approx(held) and len(sums) == 16
    left = min(box.x_px for box in drawn.only(Box))
    assert [(x - left) / scale for x in lines(drawn)] == pytest.approx([80e9, 141e9])
    assert drawn.badge == "predicted"
    times = picture.time_bars([("now", DEEP), ("last", OTHER_CARD)])
    assert times.badge.endswith("megatron-a100, megatron-h100")
    # they have the batch in common, not the machines
    assert drawn.numbers == (("all rows", "batch 1536"), ("stages of", "now"))


def test_a_legend_names_what_can_be_seen():
    drawn = picture.memory_bars([("now", DEEP)])
    words = {each.text for each in drawn.only(Words)}
    thin = {part for part, held in DEEP.memory().parts.items() if held < 80e9 / 1000}
    assert thin and not words & {picture.WORDS["en"][part] for part in thin}
    assert picture.WORDS["en"]["parameters"] in words


def test_of_very_many_stages_some_are_drawn_the_fullest_among_them():
    plan = DEEP.but(pp=48, vpp=1, gpus=768, batch=1536)
    drawn = picture.memory_bars([("now", plan)])
    shown = [row[0] for row in drawn.table if row[0].startswith("stage")]
    assert len(shown) <= picture.MOST_STAGES + 1
    assert {"stage 0", "stage 47", f"stage {plan.memory().fullest}"} <= set(shown)


def test_bars_of_time_are_the_steps_parts():
    plan = DEEP
    drawn = picture.time_bars([("now", plan), ("last", OTHER_CARD)])
    first, second = bars(drawn, picture.BAR_PX)
    time_us = plan.time().step_us
    scale = sum(first) / time_us
    assert sum(second) / scale == pytest.approx(OTHER_CARD.time().step_us)
    spent = [plan.time().parts()[part] for part in picture.TIME_LOOKS]
    assert [width / scale for width in first] == pytest.approx([each for each in spent if each])
    assert drawn.numbers == (("all rows", "batch 1536"),)
    (step, mfu) = picture.time_bars([("now", plan)]).numbers
    assert step == ("step", format_us(time_us)) and mfu[0] == "MFU"


def test_every_part_has_a_look_of_its_own_and_words():
    for looks, parts in (
        (picture.MEMORY_LOOKS, memory.PARTS),
        (picture.TIME_LOOKS, steptime.PARTS),
    ):
        assert set(looks) == set(parts) and len(set(looks.values())) == len(parts)
        assert all(picture.WORDS[code][part] for part in parts for code in ("en", "zh"))


@pytest.mark.parametrize("looks", [picture.MEMORY_LOOKS, picture.TIME_LOOKS])
def test_a_number_in_a_bar_can_be_read_on_its_hatch_too(looks):
    ink = luminance(rgb(svg.INK))
    for part, (colour, hatch) in looks.items():
        if colour:
            stroke = 0.78 * rgb(colour) + 0.22 * rgb(svg.INK)
            behind = luminance(stroke if hatch else rgb(colour))
            assert (behind + 0.05) / (ink + 0.05) > 4.55, part


def luminance(colour):
    """WCAG 2's relative luminance."""
    linear = [((each / 255 + 0.055) / 1.055) ** 2.4 for each in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_cut_or_covered(language):
    alone = [[("now", plan)] for plan in (FITS, TOO_LARGE, DEEP, DEEP.but(gpus=8 * 16 * 12))]
    pairs = [[("now", one), ("last", other)] for one, other in itertools.permutations(PLANS, 2)]
    for plans in (*alone, *pairs):
        for make in (picture.memory_bars, picture.time_bars):
            assert faults(make(plans, language=language)) == []
    for one, other in itertools.permutations(PLANS, 2):
        for price in (None, 2.5, (1.5, 400.0)):
            card = planner.card(one, other, tokens=2e13, price_per_gpu_hour=price)
            assert faults(card.picture(language=language)) == []


PLANS = (
    FITS,
    TOO_LARGE,
    DEEP,
    OTHER_CARD,
    Plan(model="BERT-base", gpu="GB200", gpus=1, batch=1),
    Plan(model="Mixtral 8x7B", gpu="T4", gpus=64, batch=64, tp=4, zero=3, ep=2),
)


@pytest.mark.parametrize("gpus", [8, 64])
def test_a_search_draws_its_frontier_and_names_its_best(gpus):
    found = planner.search(Plan(gpus=gpus, batch=512))
    drawn = found.picture()
    assert faults(drawn) == []
    said = " ".join(words.text for words in drawn.only(Words))
    assert f"fastest: {layout.written(found.fitting[0].layout)}" in said
    told = dict(drawn.numbers)
    assert told["fit"] == f"{len(found.fitting):,}"
    assert told["too large"] == f"{len(found.too_large):,}"
    paths = [line for line in drawn.only(Line) if line.dash and len(line.points_px) > 2]
    frontier = paths[0].points_px
    assert len(frontier) == len(found.frontier())
    assert list(frontier) == sorted(frontier)  # slower, and lower: y grows downwards
    # no dot is both left of the frontier's first point and below it
    dots = next(line for line in drawn.only(Line) if line.mark and len(line.points_px) > 9)
    assert min(x for x, _ in dots.points_px) >= frontier[0][0] - 1e-6
    assert max(y for _, y in dots.points_px) <= frontier[-1][1] + 1e-6
    assert "measured" not in said
    assert [row[0] for row in drawn.table[1:]] == [
        layout.written(each.layout) for each in found.frontier()
    ]
    # the line of the error: what is left of it is as fast as the fastest
    dashed = [line.points_px for line in drawn.only(Line) if line.dash == (4, 3)]
    (error,) = (ends for ends in dashed if ends[0][0] == ends[1][0])
    spread = found.plan.stack_for(found.best.zero).spread
    limit_us = (1 + spread) * found.fitting[0].step_us
    near = [each for each in found.fitting if each.step_us < limit_us]
    at = error[0][0]
    assert 0 < sum(x < at for x, _ in frontier) <= len(near) and f"{spread:.0%} slower" in said
    bundle = found.bundle()
    assert set(bundle) == {"text/html", "image/png", "text/plain"}
    assert len(bundle["text/html"]) < 700_000


def test_a_plan_that_is_marked_has_its_name_and_a_dot_where_its_time_and_memory_are():
    found = planner.search(Plan(gpus=8, batch=64))
    last = found.frontier()[-1]
    slowest = search.as_plan(found.plan, last.layout)
    drawn = found.mark({"the lightest": slowest}).picture()
    assert faults(drawn) == [] and not found.marked
    assert "the lightest" in {words.text for words in drawn.only(Words)}
    frontier = next(line for line in drawn.only(Line) if line.dash and len(line.points_px) > 2)
    single = [line.points_px[0] for line in drawn.only(Line) if len(line.points_px) == 1]
    assert frontier.points_px[-1] in single


def test_a_search_that_finds_nothing_shows_what_is_nearest_or_says_so():
    large = planner.search(Plan(model="GPT-3 175B", gpus=8, batch=64))
    drawn = large.picture()
    assert not large.fitting and faults(drawn) == []
    said = " ".join(words.text for words in drawn.only(Words))
    assert "nearest to fitting" in said and "frontier" not in said
    none = Plan(model="BERT-base", gpus=64, batch=1)
    found = planner.search(none)
    assert not found.fitting and not found.too_large
    assert found.picture().heading == "No layout divides"
    assert "none" in repr(found) and len(repr(found)) < 200


def test_a_card_has_both_plans_numbers_and_money_only_at_a_price():
    after = FITS.but(gpus=64)
    card = planner.card(FITS, after)
    drawn = card.picture()
    said = [words.text for words in drawn.only(Words)]
    for plan in (FITS, after):
        assert format_us(plan.time().step_us) in said
        assert f"{plan.tokens_per_s():,.0f}" in said
        assert any(text.startswith(format_bytes(plan.memory().peak_bytes)) for text in said)
    assert f"{FITS.days(1e12):,.0f}" in said and "cost" not in said
    priced = planner.card(FITS, after, price_per_gpu_hour=2.0).picture()
    row = next(row for row in priced.table if row[0] == "cost")
    assert row[1:] == tuple(f"{plan.cost(1e12, 2.0):,.0f}" for plan in (FITS, after))
    assert priced.notes[1] == "2.00 for an hour of a GPU."
    apart = planner.card(FITS, after, price_per_gpu_hour=(1.0, 3.0), tokens=2e12)
    assert apart.numbers(after, 3.0)["cost"] == after.cost(2e12, 3.0)


def test_a_plan_that_does_not_fit_says_by_how_much_and_no_time():
    card = planner.card(TOO_LARGE, FITS, price_per_gpu_hour=1.0)
    lacks = TOO_LARGE.memory().peak_bytes - 80e9
    found = card.numbers(TOO_LARGE, 1.0)
    assert found["over_bytes"] == lacks
    assert [found[name] for name in ("step_us", "days", "cost")] == [None] * 3
    rows = {row[0]: row[1:] for row in card.picture().table}
    assert rows["does not fit; a GPU lacks"] == (format_bytes(lacks), "")
    assert rows["time of a step"][0] == "" and rows["time of a step"][1]
    chinese = card.picture(language="zh")
    assert chinese.heading == "改动前后"
    assert chinese.in_english().heading == "Before and after"
    far = Plan(model="LLaMA 7B", gpus=8, per_node=1, nic_gb_per_s=1.25, zero=3, mbs=4, batch=64)
    row = planner.card(far, far.but(memory_gb=40)).picture(language="zh").table[1]
    told = "8 x A100 80 GB, 每台机器 1 张, 网卡 1.25 GB/s, dp 8, ZeRO 3, mbs 4, 一批 64 条"
    assert row[1] == f"LLaMA 7B, {told}" and "每张 40 GB" in row[2]
    counts = [planner.card_picture.tokens_told(1e12, code) for code in ("en", "zh")]
    assert counts == ["1 T", "1 万亿"]
    assert planner.card_picture.tokens_told(1.4e12, "zh") == "1.4 万亿"
    assert planner.card_picture.tokens_told(3e11, "zh") == "3,000 亿"
    assert planner.card_picture.tokens_told(5e8, "zh") == "500,000,000"


def test_a_card_refuses_what_is_no_plan_and_what_is_no_price():
    with pytest.raises(ValueError, match="40 heads can't be cut"):
        planner.card(FITS, Plan(model="LLaMA 13B", gpus=16, tp=16, per_node=16, batch=512))
    for price in (-1.0, (1.0, float("nan"))):
        with pytest.raises(ValueError, match="price_per_gpu_hour is a number"):
            planner.card(FITS, FITS, price_per_gpu_hour=price)
    with pytest.raises(ValueError, match="one before and one after"):
        planner.card(FITS, FITS, price_per_gpu_hour=(1.0, 2.0, 3.0))


def test_days_are_for_the_models_own_tokens_or_none_are_told():
    assert training_tokens("LLaMA 7B") == 1e12 and training_tokens("mine") is None
    assert set(picture.MEMORY_LOOKS) == set(memory.PARTS) and "Mistral 7B" in names("models.csv")
    untold = Plan(model="Mistral 7B", gpus=8, zero=1, batch=512)
    drawn = planner.card(untold, untold).picture()
    assert "days" not in [row[0] for row in drawn.table] and drawn.notes == ()
