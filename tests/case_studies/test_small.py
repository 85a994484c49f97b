"""Small clusters: what fits on one to eight cards, and the same division on real ranks."""

import pytest

from labkit.case_studies import llama, ran, small


def test_more_cards_fit_more_and_the_host_helps():
    rows = small.rows("GPT-2 XL")
    fits = {(row["cards"], index % 2): row["fit"] for index, row in enumerate(rows)}
    for host in (0, 1):
        counts = [fits[cards, host] for cards in small.COUNTS]
        assert counts == sorted(counts)
    for cards in small.COUNTS:
        assert fits[cards, 0] <= fits[cards, 1]
    for row in rows:
        assert (row["over_bytes"] == 0) == (row["fit"] > 0) == (row["token_rate"] is not None)
        assert row["lightest_bytes"] <= row["held_bytes"]


def test_what_leaves_a_tenth_free_is_no_faster():
    for row, roomy in zip(small.rows(free=0.0), small.rows(), strict=True):
        assert roomy["fit"] <= row["fit"]
        if roomy["fit"]:
            assert roomy["held_bytes"] <= 0.9 * 24e9 and roomy["token_rate"] <= row["token_rate"]


def test_the_cases_drawn_are_rows_of_the_table():
    rows = {(row["cards"], index % 2): row for index, row in enumerate(small.rows())}
    *cases, whole = small.cases()
    for count, case in zip(small.COUNTS, cases, strict=True):
        on_host = not rows[count, 0]["fit"]
        assert case.held_bytes == pytest.approx(rows[count, on_host]["held_bytes"])
        assert case.over_bytes < 0
        assert case.name["en"].startswith(f"{count} card")
    assert (whole.plan.gpus, whole.plan.tp) == (8, 1)
    assert whole.held_bytes == pytest.approx(21.2e9, rel=0.002)
    assert whole.held_bytes < 0.9 * 24e9
    assert [case.name["en"] for case in (*cases, whole)] == list(small.seconds())
    assert whole.name["zh"].startswith("8 张卡：pp 8")


def test_seconds_are_the_steps_of_the_cases_and_of_one_without_tensor_parallelism():
    cases = small.cases()
    told = small.seconds()
    for case, (name, parts) in zip(cases, told.items(), strict=True):
        assert name.startswith(f"{case.plan.gpus} card")
        assert sum(parts.values()) == pytest.approx(case.row()["step_us"])
    *_, best, whole = told.items()
    assert best[0] == "8 cards: tp 2, pp 4"
    assert whole[0] == "8 cards: pp 8, recompute"
    steps_us = [sum(parts.values()) for parts in (best[1], whole[1])]
    assert steps_us[1] / steps_us[0] == pytest.approx(1.0, abs=0.02)
    between_us = [parts["between cards"] for parts in (best[1], whole[1])]
    assert between_us == pytest.approx([1.22e6, 0.20e6], rel=0.02)
    one, two, four, *_ = told.values()
    computing_us = [parts["computing"] for parts in (two, four)]
    assert computing_us == pytest.approx([18.3e6, 6.75e6], rel=0.002)
    again = cases[2].plan.but(recompute="full")
    again_us = again.time().step_us - llama.between_us(again)
    assert again_us == pytest.approx(8.81e6, rel=0.002)
    pcie = "PCIe, to the host and back"
    assert [one[pcie], two[pcie]] == pytest.approx([18.9e6, 1.9e6], rel=0.01)
    sums_gb = 2 * 2 * 6.738  # there and back
    once_gb = (4 + 2) * 6.738  # gradients in fp32, new weights
    assert one[pcie] == pytest.approx(1e6 * (16 * sums_gb + once_gb) / 25, rel=0.001)
    assert two[pcie] == pytest.approx(1e6 * (2 * sums_gb + once_gb) / 2 / 25, rel=0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda: small.toy(3),
        lambda: ran(9),
        lambda: small.rows("?"),
        lambda: small.rows(free=2),
        lambda: small.cases(card="?"),
        lambda: small.seconds(free=2),
    ],
)
def test_what_is_no_small_cluster_is_refused(call):
    with pytest.raises(ValueError):
        call()


@pytest.mark.real
def test_what_a_rank_holds_is_as_planned_and_less_on_two():
    one, two = ran(2)
    for row in (one, two):
        assert row["measured_bytes"] == row["predicted_bytes"]
    assert two["measured_bytes"] < 0.6 * one["measured_bytes"]
    assert one["engine"] == "ddp" and two["engine"] == "fsdp"
