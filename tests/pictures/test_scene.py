"""Laws of a picture's data: nothing is wider than it is, nothing is lost, every number is the
Timeline's."""

from dataclasses import replace

import numpy as np
import pytest
from drawn import busy, predicted, shares

from labkit.collectives import algorithms, network
from labkit.pictures import scene
from labkit.pictures.painters import layout
from labkit.pictures.style import IDLE, KINDS
from labkit.pipeline import schedules
from labkit.timeline import COMM, COMPUTE, Timeline, bubble, from_rows
from labkit.words import WORDS


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zbv"])
def test_boxes_and_idle_tile_every_rank(name: str) -> None:
    tl = predicted(name)
    drawn = scene.timeline(tl)
    width = drawn.x1_us - drawn.x0_us
    assert shares(drawn)[IDLE] == pytest.approx(bubble(tl))
    for row in range(4):
        assert width[drawn.row == row].sum() == pytest.approx(tl.span_us)
        x0_us = drawn.x0_us[drawn.row == row]
        x1_us = drawn.x1_us[drawn.row == row]
        assert x0_us[1:] == pytest.approx(x1_us[:-1]), (
            "boxes of a row neither overlap nor leave a gap"
        )


def test_boxes_keep_their_times_and_names() -> None:
    tl = predicted("zbv")
    drawn = scene.timeline(tl)
    found = {
        (int(r), text, x0, x1)
        for r, text, x0, x1, kind in zip(
            drawn.row, drawn.texts[:, 0], drawn.x0_us, drawn.x1_us, drawn.kind, strict=True
        )
        if kind != IDLE
    }
    assert found == set(
        zip(
            tl.rank.tolist(),
            tl.label.tolist(),
            tl.start_us.tolist(),
            tl.end_us.tolist(),
            strict=True,
        )
    )
    assert set(drawn.chunk.tolist()) == {0, 1}, "two stages per rank have two shades"


def test_communication_never_covers_communication() -> None:
    rows = [
        (0, COMPUTE, "compute", "step", 0, 100, 0),
        *((0, COMM, "send", "send", start, start + 30, 8) for start in (0, 10, 40)),
    ]
    drawn = scene.timeline(from_rows(rows, num_ranks=1, origin="measured"))
    assert [row.lane for row in drawn.rows] == [COMPUTE, COMM, COMM]
    for row in (1, 2):
        assert (drawn.x0_us[drawn.row == row][1:] >= drawn.x1_us[drawn.row == row][:-1]).all()


def test_sends_and_receives_that_overlap_have_a_strip_each() -> None:
    rows = [
        (0, COMM, kind, kind, start, start + 10, 8)
        for kind, start in (("send", 0), ("recv", 5), ("recv", 16), ("send", 18), ("send", 30))
    ]
    drawn = scene.timeline(from_rows(rows, num_ranks=1, origin="measured"))
    assert [set(drawn.kind[drawn.row == row]) for row in (0, 1)] == [{"send"}, {"recv"}]
    apart = scene.timeline(from_rows([rows[0], rows[2], rows[4]], num_ranks=1, origin="measured"))
    assert len(apart.rows) == 1, "one strip is enough where none covers another"


def test_messages_that_overlap_by_a_rounded_nanosecond_share_a_strip() -> None:
    rows = [(0, COMM, "recv", "recv", start, start + 50, 8) for start in (0, 49.999, 99.998)]
    drawn = scene.timeline(from_rows(rows, num_ranks=1, origin="measured"))
    assert len(drawn.rows) == 1
    sends = [(0, COMM, "send", "send", start, start + 9, 8) for start in (10, 30, 38.999)]
    drawn = scene.timeline(from_rows([*rows, *sends], num_ranks=1, origin="measured"))
    assert len(drawn.rows) == 2


def test_title_carries_the_numbers_and_the_origin() -> None:
    assert (
        scene.timeline(predicted(), title="GPipe").title
        == "GPipe: bubble 27.3 % of total time, span 33.0 ms, peak in flight 8 (simulated)"
    )
    measured = from_rows(
        [(0, COMPUTE, "F", "0F0", 5, 15, 0)],
        num_ranks=2,
        origin="measured",
        notes=("paced", "gloo"),
    )
    assert "measured, paced, gloo" in scene.timeline(measured).title
    assert "实测，固定时长，gloo" in scene.timeline(measured, language="zh").title
    assert (
        scene.timeline(predicted(), title="GPipe", language="zh").title
        == "GPipe：气泡 占总时间 27.3 %，总时长 33.0 ms，激活峰值 8（模拟）"
    )


def test_comparison_shares_one_axis_and_names_the_difference() -> None:
    fast = predicted()
    slow = predicted(message_us=500.0)
    drawn = scene.compare(fast, slow)
    assert drawn.end_us == slow.span_us and drawn.marks_us == (fast.span_us,)
    assert ("bubble", f"27.3 % → {100 * bubble(slow):.1f} %") in drawn.numbers
    assert ("difference", f"{100 * (bubble(slow) - bubble(fast)):+.1f} points") in drawn.numbers
    assert [heading.text for heading in drawn.headings] == ["Predicted", "Measured"]
    assert len(drawn.table) == 1 + 2 * 4


def test_bars_and_table_give_the_activations_in_flight() -> None:
    drawn = scene.timeline(predicted("1f1b"))
    assert [row.side_text for row in drawn.rows] == ["4", "3", "2", "1"]
    assert [row.side for row in drawn.rows] == [1.0, 0.75, 0.5, 0.25]
    assert [line[-1] for line in drawn.table[1:]] == ["4", "3", "2", "1"]


def sent(num_ranks: int = 4) -> Timeline:
    link = network.Link(alpha_us=100.0, bandwidth_gb_per_s=1.0)
    return network.simulate(
        algorithms.plan("all_reduce", "ring", num_ranks), network.uniform(num_ranks, link), 4e6
    )


def test_messages_alone_have_the_whole_height_and_numbers_of_their_own() -> None:
    drawn = scene.timeline(sent(), title="Ring")
    assert drawn.title == "Ring: span 6.60 ms, sent by the busiest rank 6.00 MB (simulated)"
    assert {row.lane for row in drawn.rows} == {COMM} and IDLE not in drawn.kinds
    assert all(row.height_px >= 13 for row in drawn.rows) and any(layout.fitted(drawn)), (
        "there is room for words"
    )
    for row in range(8):
        assert set(drawn.kind[drawn.row == row]) == {"send" if row % 2 == 0 else "recv"}
    assert [row.side_text for row in drawn.rows] == ["100 %", ""] * 4 and drawn.side_name == "busy"
    assert [line[1:6] for line in drawn.table[1:]] == [
        ("0 us", "0 us", "0.0 %", "6.60 ms", "6.00 MB")
    ] * 4
    assert "bubble" not in drawn.title + drawn.summary
    assert "最忙的 rank 发送" in scene.timeline(sent(), language="zh").title
    both = scene.compare(sent(), sent())
    assert both.numbers == (("span", "6.60 ms → 6.60 ms"), ("difference", "+0.0 %"))


def test_the_badge_of_a_compared_step_has_room_beside_its_numbers() -> None:
    rows = [
        (0, COMPUTE, "forward", "F0", 0, 100, 0),
        (0, COMM, "all_reduce", "a0", 50, 150, 8),
    ]
    step = from_rows(rows, num_ranks=1, origin="measured")
    notes = ("gloo", "pretend device", "paced", "paced links", "overran")
    detail = scene.compare(step, replace(step, notes=notes)).headings[1].detail
    assert detail.startswith("idle 33.3 % · communication hidden 50.0 % · measured, gloo, ")
    assert detail.endswith("overran") and len(detail) <= 105, "what fits in the picture's width"


def test_a_step_ends_with_its_last_message() -> None:
    rows = [
        (0, COMPUTE, "forward", "F0", 0, 100, 0),
        (0, COMPUTE, "backward", "B0", 100, 300, 0),
        (0, COMM, "all_reduce", "bucket 0", 300, 400, 8_000),
    ]
    drawn = scene.timeline(from_rows(rows, num_ranks=1, origin="simulated"))
    assert drawn.numbers == (
        ("idle", "25.0 % of total time"),
        ("span", "400 us"),
        ("communication hidden", "0.0 %"),
    )
    assert [KINDS[kind].colour for kind in drawn.kinds[:2]] == [
        KINDS["F"].colour,
        KINDS["B"].colour,
    ]
    assert drawn.x1_us[drawn.kind == IDLE].tolist() == [400.0] and drawn.table[1][5] == "8.00 kB"


ONE_STAGE = [
    (0, COMM, "all_gather", "dp", 0, 100, 8_000),
    (0, COMPUTE, "F", "0F0", 100, 200, 0),
    (0, COMPUTE, "B", "0B0", 200, 300, 0),
    (0, COMM, "all_reduce", "dp", 300, 400, 8_000),
]


def test_a_step_of_one_stage_is_no_pipeline_where_its_messages_count() -> None:
    line = from_rows(ONE_STAGE, num_ranks=1, origin="simulated")
    drawn = scene.timeline(line, messages=True)
    assert drawn.numbers[:2] == (("idle", "50.0 % of total time"), ("span", "400 us"))
    assert drawn.side_name == "busy"
    both = scene.compare(line, line, messages=True)
    assert both.numbers == (("span", "400 us → 400 us"), ("difference", "+0.0 %"))


def test_a_pipelines_span_has_the_messages_outside_where_asked() -> None:
    rows = [*ONE_STAGE, (0, COMM, "send", "pp", 200, 220, 8_000)]
    line = from_rows(rows, num_ranks=1, origin="simulated")
    assert scene.timeline(line).numbers[:2] == (
        ("bubble", "0.0 % of total time"),
        ("span", "200 us"),
    )
    drawn = scene.timeline(line, messages=True)
    assert drawn.numbers[:2] == (("bubble", "50.0 % of total time"), ("span", "400 us"))
    assert drawn.x1_us[drawn.kind == IDLE].tolist() == [100.0, 400.0]
    both = scene.compare(line, line, messages=True)
    assert both.marks_us == (400.0,) and both.end_us == 400.0


def test_a_step_begins_with_its_first_message() -> None:
    rows = [
        (0, COMM, "all_gather", "g0", 20, 60, 0),
        (0, COMPUTE, "forward", "F0", 60, 100, 0),
    ]
    drawn = scene.timeline(from_rows(rows, num_ranks=1, origin="simulated"))
    idle = drawn.kind == IDLE
    assert (drawn.x0_us[idle].tolist(), drawn.x1_us[idle].tolist()) == ([0.0], [40.0])
    assert (drawn.start_us, drawn.end_us) == (0.0, 80.0), "its span, 80 us, and no more"


@pytest.mark.parametrize("num_boxes", [4_000, 40_000])
def test_level_of_detail_keeps_the_share_of_every_kind_on_every_row(num_boxes: int) -> None:
    drawn = scene.timeline(busy(num_boxes))
    merged = layout.merged(drawn)
    assert len(merged.row) < len(drawn.row)
    for row in range(8):
        for kind in drawn.kinds:
            before, after = (
                float((s.x1_us - s.x0_us)[(s.row == row) & (s.kind == kind)].sum())
                for s in (drawn, merged)
            )
            assert after == pytest.approx(before, abs=2 * drawn.end_us / scene.PLOT_PX)


def test_small_pictures_are_left_alone() -> None:
    drawn = scene.timeline(predicted())
    assert layout.merged(drawn) is drawn


def test_axis_has_round_times_within_the_picture() -> None:
    units = {3.0: "us", 950.0: "us", 1000.0: "ms", 33_000.0: "ms", 2.5e6: "s", 7.7e8: "s"}
    for end_us, said in units.items():
        tl = from_rows([(0, COMPUTE, "F", "0F0", 0, end_us, 0)], num_ranks=1, origin="simulated")
        ticks, unit = layout.ticks(scene.timeline(tl))
        assert 3 <= len(ticks) <= 9 and ticks[0] == (0.0, "0") and ticks[-1][0] <= end_us * 1.000001
        assert unit == said


def test_axis_can_be_lengthened_but_never_cuts() -> None:
    assert scene.timeline(predicted(), span_us=50_000.0).end_us == 50_000.0
    assert scene.timeline(predicted(), span_us=1.0).end_us == 33_000.0


def test_texts_stay_inside_their_boxes() -> None:
    for name in schedules.SCHEDULES:
        drawn = scene.timeline(predicted(name))
        width_px = (drawn.x1_us - drawn.x0_us) * scene.PLOT_PX / drawn.end_us
        texts = layout.fitted(drawn)
        assert any(texts)
        assert all(
            6.7 * len(text) <= width for text, width in zip(texts, width_px, strict=True) if text
        )


def test_every_kind_is_told_apart_without_colour_and_named_in_both_languages() -> None:
    assert len({kind.letter for kind in KINDS.values()}) == len(KINDS)
    communication = [kind.hatch for kind in KINDS.values() if kind.letter.islower()]
    assert len(set(communication)) == len(communication), (
        "thin strips have no room for letters: hatches differ"
    )
    assert len({KINDS[kind].hatch for kind in ("F", "I", "W", IDLE)}) == 4
    assert all(set(kind.words) == {"en", "zh"} for kind in KINDS.values())
    assert set(WORDS["en"]) == set(WORDS["zh"])


def test_idle_and_empty_timelines_have_a_picture() -> None:
    empty = scene.timeline(from_rows([], num_ranks=2, origin="recorded"))
    assert len(empty.rows) == 2 and not empty.kinds and empty.summary == WORDS["en"]["nothing"]
    assert layout.legend(empty)[0][3] == WORDS["en"]["nothing"]


def test_an_unknown_language_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="one of en, zh; got 'fr'"):
        scene.timeline(predicted(), language="fr")


def test_a_measured_pipeline_shows_the_messages_that_ranks_waited_for_and_the_viewer_all() -> None:
    rows = [
        (0, COMPUTE, "F", "0F0", 0, 10, 0),
        (0, COMM, "send", "beside work", 10, 60, 8),
        (0, COMPUTE, "F", "0F1", 10, 40, 0),
        (0, COMM, "recv", "waited for", 40, 90, 8),
        (0, COMPUTE, "B", "0B0", 90, 95, 0),
    ]
    measured = from_rows(rows, num_ranks=1, origin="measured")
    labels = [
        set(one.texts[:, 0]) for one in (scene.timeline(measured), scene.compare(*[measured] * 2))
    ]
    assert all("waited for" in found and "beside work" not in found for found in labels)
    assert "beside work" in scene.timeline(measured, every_message=True).texts[:, 0]
    simulated = replace(measured, origin="simulated")
    assert "beside work" in scene.timeline(simulated).texts[:, 0], "a prediction knows how long"
    other = measured.select(measured.kind != "F")
    training = replace(other, kind=np.where(other.kind == "B", "compute", other.kind))
    assert "beside work" in scene.timeline(training).texts[:, 0], "only a pipeline hides it"
    whole = scene.timeline(measured, every_message=True)
    assert scene.timeline(measured).table == whole.table, "the numbers are those of all messages"


def test_the_predicted_end_strikes_through_no_heading() -> None:
    drawn = scene.compare(predicted("gpipe"), replace(predicted("1f1b"), origin="measured"))
    top_px = min(row.top_px for row in drawn.rows) - 3
    pieces = layout.mark_pieces(drawn, top_px)
    (heading,) = [each for each in drawn.headings if each.bottom_px > top_px]
    assert len(pieces) == 2 and pieces[0][0] == top_px and pieces[-1][1] == drawn.bottom_px
    assert pieces[0][1] < heading.bottom_px < pieces[1][0]
    alone = scene.timeline(predicted("gpipe"))
    assert layout.mark_pieces(alone, 5.0) == [(5.0, alone.bottom_px)]


def test_idle_time_is_a_bubble_only_where_there_are_stages() -> None:
    rows = [(0, COMPUTE, "compute", "a", 0, 10, 0), (1, COMPUTE, "compute", "a", 5, 10, 0)]
    plain = scene.timeline(from_rows(rows, num_ranks=2, origin="measured"))
    staged = scene.timeline(predicted())
    assert (plain.called(IDLE), staged.called(IDLE)) == ("idle", "idle (bubble)")
    assert "idle (bubble)" not in [text for *_, text in layout.legend(plain)]


def test_ranks_of_several_nodes_stand_under_their_node():
    rows = [(rank, "comm", "send", "", 0.0, 5.0 + rank, 8) for rank in range(4)]
    hosts = ("a", "a", "b", "b")
    tl = replace(from_rows(rows, num_ranks=4, origin="measured", notes=["gloo"]), nodes=hosts)
    drawn = scene.timeline(tl)
    assert [heading.text for heading in drawn.headings] == ["a", "b"]
    assert drawn.headings[0].detail == "measured, gloo" and not drawn.headings[1].detail
    tops = [row.top_px for row in drawn.rows]
    assert tops[1] < drawn.headings[1].bottom_px < tops[2] == sorted(tops)[2]
    assert not scene.timeline(replace(tl, nodes=("a",) * 4)).headings


def test_a_legend_names_the_letters_of_messages_that_stand_in_boxes() -> None:
    """A message's letter stands where its name has no room; without a name there is none."""
    for label, letters in (("data parallel", {"forward": "→", "all_gather": "g"}), ("", None)):
        rows = [(0, COMPUTE, "forward", "", 0.0, 90.0, 0)]
        rows.append((0, COMM, "all_gather", label, 90.0, 93.0, 1))
        told = layout.letters(scene.timeline(from_rows(rows, num_ranks=1, origin="simulated")))
        assert told == (letters or {"forward": "→"}), label
