"""Laws of the pictures of bytes: areas are bytes, nothing is cut or covered, what differs is
said."""

import numpy as np
import pytest
from drawn import faults, rgb

from labkit.footprint import PARTS
from labkit.pictures import bytes_held
from labkit.pictures.sketch import Box, Words
from labkit.sharding import (
    moments,
    partition,
    states,
)
from labkit.sharding import (
    picture as sharding_picture,
)
from labkit.sharding.step import Step
from labkit.shards import from_rows

UNITS = moments.transformer(num_layers=3, dim=32, num_heads=2, batch=1, seq_len=16)
SHAPES = moments.shapes(UNITS)
ENGINES = [
    ("ddp", "none", 2),
    ("zero1", "none", 4),
    ("zero2", "optimizer", 3),
    ("zero3", "all", 2),
    ("fsdp", "none", 4),
    ("fsdp_hybrid", "none", 4),
    ("fsdp1", "none", 8),
]


def held(engine, offload, ranks, origin="predicted"):
    shards = partition.predict(engine, SHAPES, ranks, offload=offload, bucket_size=9000)
    return from_rows(shards.rows(), num_ranks=ranks, origin=origin)


def boxes(picture, part):
    return [box for box in picture.only(Box) if box.colour == bytes_held.LOOKS[part][0]]


def drawn_px(picture, part):
    """The width of all boxes of a part, the legend's left out."""
    return sum(box.width_px for box in boxes(picture, part) if box.height_px != 14)


@pytest.mark.parametrize("engine, offload, ranks", ENGINES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_is_cut_or_covered(engine, offload, ranks, language):
    both = held(engine, offload, ranks), held(engine, offload, ranks, "measured")
    assert not faults(
        bytes_held.shards(*both, title={"en": "Shards", "zh": "分片"}, language=language)
    )
    assert not faults(bytes_held.shards(both[0], language=language))
    if engine != "fsdp1":
        step = moments.predict(engine, UNITS, ranks, offload=offload, bucket_size=9000)
        assert not faults(bytes_held.footprint(step, step, marked="B2", language=language))


@pytest.mark.parametrize("engine, offload, ranks", [case for case in ENGINES if case[0] != "fsdp1"])
def test_areas_are_bytes(engine, offload, ranks):
    """The widths of all boxes of a part, in the scale of one of them, are its bytes."""
    shards = held(engine, offload, ranks)
    picture = bytes_held.shards(shards)
    widths = {part: drawn_px(picture, part) for part in ("parameters", "optimizer")}
    real = shards.select(
        (shards.tensor != "(padding)") & (shards.tensor != "(unused)") & (shards.kind != "step")
    )
    num_bytes = {part: per_rank.sum() for part, per_rank in real.bytes_by("category").items()}
    assert widths["optimizer"] / widths["parameters"] == pytest.approx(
        num_bytes["optimizer"] / num_bytes["parameters"], rel=0.06
    )  # a slice is drawn 0.8 pixels wide or more


def test_what_differs_stands_beside_the_rank_and_in_the_title():
    mine = held("zero2", "none", 2)
    rows = [row for row in mine.rows() if row[0] == 0 or row[1] != "exp_avg"]
    other = from_rows(rows, num_ranks=2, origin="measured", notes=["gloo"])
    picture = bytes_held.shards(mine, other)
    missing = int(mine.rank_bytes[1] - other.rank_bytes[1])
    texts = [words.text for words in picture.only(Words)]
    assert any(f"{-missing:+,} B" in text for text in texts) and any(
        text.endswith("= ✓") for text in texts
    )
    assert (
        "difference",
        f"{missing:,} B",
    ) in picture.numbers and picture.badge == "measured, gloo / predicted"
    assert "per rank" in picture.summary and len(picture.table) == 5


def test_slices_on_the_host_have_another_hatch():
    picture = bytes_held.shards(held("zero3", "optimizer", 2))
    assert {box.hatch for box in boxes(picture, "optimizer")} == {
        "/",
        bytes_held.LOOKS["optimizer"][1],
    }  # the legend's
    assert "on the host" in [words.text for words in picture.only(Words)]
    assert "on the host" not in [
        words.text for words in bytes_held.shards(held("zero3", "none", 2)).only(Words)
    ]


def test_a_stack_is_as_high_as_its_bytes():
    step = moments.predict("fsdp", UNITS, 2)
    picture = bytes_held.footprint(step)
    stacks = {}
    for box in picture.only(Box):
        if box.colour and box.height_px != 14:
            stacks.setdefault(round(box.x_px, 1), []).append(box.height_px)
    heights = np.array([sum(stack) for _, stack in sorted(stacks.items())])
    assert heights / heights.max() == pytest.approx(step.totals / step.peak_bytes, abs=0.005)
    assert set(bytes_held.LOOKS) == set(PARTS)
    assert len({tuple(rgb(colour)) for colour, _ in bytes_held.LOOKS.values()}) == len(PARTS)


def test_the_table_of_one_footprint_has_its_parts():
    step = moments.predict("fsdp", UNITS, 2)
    head, *rows = bytes_held.footprint(step).table
    assert len(rows) == len(step.labels)
    for row in rows:
        total, *parts = (int(cell.replace(",", "")) for cell in row[1:])
        assert total == sum(parts) and len(row) == len(head)
    assert "activations" in head and len(bytes_held.footprint(step, step).table[0]) == 3


def test_two_runs_of_unlike_size_are_refused():
    with pytest.raises(ValueError, match=r"as many ranks; got \[2, 3\]"):
        bytes_held.shards(held("ddp", "none", 2), held("ddp", "none", 3))


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "fsdp_grad_op", "fsdp_hybrid"])
def test_layers_are_whole_when_the_footprint_has_them_gathered(strategy):
    sizes = {unit.name: 4 * unit.num_params for unit in UNITS}
    step = moments.predict(strategy, UNITS, 4)
    for label, row in zip(step.labels, step.num_bytes, strict=True):
        for language in ("en", "zh"):
            picture = sharding_picture.layers(sizes, 4, label, strategy=strategy, language=language)
            assert not faults(picture)
        whole = (
            {name for name, state in picture.table[1:] if state == "暂时完整"}
            if strategy != "ddp"
            else set()
        )
        gathered = row[PARTS.index("gathered")]
        if label.startswith("F") and strategy != "fsdp_grad_op":
            assert gathered == sum(sizes[name] for name in whole)
        assert bool(gathered) == bool(whole), (label, whole)


@pytest.mark.real
def test_the_collectives_of_a_step_are_the_ones_that_fully_shard_calls():
    sizes = {unit.name: 4 * unit.num_params for unit in UNITS}
    for strategy, wanted in (("fsdp", (10, 5)), ("fsdp_grad_op", (5, 5)), ("ddp", (0, 0))):
        headings = " ".join(
            sharding_picture.layers(sizes, 2, label, strategy=strategy).heading
            for label in moments.predict("fsdp", UNITS, 2).labels
        )
        assert (headings.count("all-gather"), headings.count("reduce-scatter")) == wanted
        if strategy != "ddp":
            step = Step(engine=strategy, layers=3, dim=32, heads=2, microbatches=1)
            run = step.run()
            assert (run[0]["calls"]["all_gather"], run[0]["calls"]["reduce_scatter"]) == wanted


def test_between_groups_every_unit_is_all_reduced():
    sizes = {unit.name: 4 * unit.num_params for unit in UNITS}
    for index in range(len(UNITS)):
        drawn = sharding_picture.layers(sizes, 4, f"B{index}", strategy="fsdp_hybrid")
        assert f"reduce-scatter and all-reduce {list(sizes)[index]}" in drawn.heading


@pytest.mark.parametrize(
    "stage, offload, microbatches, down, up",
    [
        (2, "optimizer", 1, 4, 2),
        (3, "optimizer", 1, 6, 4),
        (3, "all", 1, 6, 6),
        (2, "optimizer", 3, 4 + 6, 2 + 4),
        (3, "all", 2, 4 + 4, 8 + 4),
    ],
)
def test_what_offload_moves_per_parameter(stage, offload, microbatches, down, up):
    moves = states.offload_moves(1e9, 1, stage, offload, microbatches)
    to_host = sum(move.num_bytes for move in moves if move.to_host) / 1e9
    to_device = sum(move.num_bytes for move in moves if not move.to_host) / 1e9
    assert [to_host, to_device] == [down, up]
    for language in ("en", "zh"):
        picture = sharding_picture.flow(
            moves,
            {"parameters": 2e9},
            {"optimizer": 12e9},
            25,
            marked="backward",
            language=language,
        )
        assert not faults(picture)
        assert [float(value.split()[0]) for _, value in picture.numbers[:2]] == [down, up]


def test_offload_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="got 'all' for stage 2"):
        states.offload_moves(1e9, 2, 2, "all")


def test_every_part_is_told_apart_without_colour():
    assert len({hatch for _, hatch in bytes_held.LOOKS.values()}) == len(bytes_held.LOOKS)
