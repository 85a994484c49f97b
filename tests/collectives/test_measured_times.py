"""Laws of measured times: nccl-tests' bandwidths, and the line through a collective's times."""

import csv
import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.collectives.algorithms import ALGORITHMS, plan
from labkit.collectives.network import (
    Fit,
    Link,
    algbw,
    busbw,
    busbw_factor,
    fit,
    formula_us,
    time_us,
    uniform,
)

LINK = Link(alpha_us=10.0, bandwidth_gb_per_s=10.0)
TABLE = Path(__file__).parents[2] / "data" / "published" / "nccl_busbw.csv"


def published(node: str) -> tuple[np.ndarray, np.ndarray]:
    """Sizes in bytes and times in us of one machine, shape (num_sizes,) each."""
    with TABLE.open() as file:
        rows = [
            (float(row["bytes"]), float(row["time_us"]))
            for row in csv.DictReader(file)
            if row["node"] == node
        ]
    return tuple(np.array(rows).T)


def test_busbw_factors_are_those_of_nccl_tests():
    assert busbw_factor("all_reduce", 8) == 2 * 7 / 8
    assert (
        busbw_factor("all_gather", 8)
        == busbw_factor("reduce_scatter", 8)
        == busbw_factor("all_to_all", 8)
        == 7 / 8
    )
    assert (
        busbw_factor("broadcast", 8)
        == busbw_factor("reduce", 8)
        == busbw_factor("send_recv", 8)
        == 1.0
    )
    assert algbw(1e6, 100.0) == 10.0 and busbw("all_reduce", 4, 1e6, 100.0) == 15.0


@pytest.mark.parametrize("primitive", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_busbw_of_a_long_ring_is_the_bandwidth_of_its_links_whatever_the_number_of_ranks(primitive):
    algorithm = "pairwise" if primitive == "all_to_all" else "ring"
    for n in (2, 3, 8, 16):
        took_us = time_us(plan(primitive, algorithm, n), uniform(n, LINK), 1e12)
        assert busbw(primitive, n, 1e12, took_us) == pytest.approx(
            LINK.bandwidth_gb_per_s, rel=1e-4
        )


def test_the_published_table_agrees_with_its_own_columns():
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 80
    for row in rows:
        size = float(row["bytes"])
        took_us = float(row["time_us"])
        printed = float(row["algbw_GBps"])
        assert algbw(size, took_us) == pytest.approx(printed, rel=0.005, abs=0.006), row
        assert busbw("all_reduce", int(row["n"]), size, took_us) == pytest.approx(
            float(row["busbw_GBps"]), rel=0.005, abs=0.02
        ), row


@pytest.mark.parametrize("primitive", ALGORITHMS)
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_a_fit_gives_back_the_link_of_a_ring(primitive, num_ranks):
    algorithm = next(
        name for name in ("ring", "pairwise", "direct") if name in ALGORITHMS[primitive]
    )
    sizes = np.logspace(2, 9, 12)
    times = np.array([formula_us(primitive, algorithm, num_ranks, size, LINK) for size in sizes])
    found = fit(primitive, num_ranks, sizes, times)
    assert (found.link().alpha_us, found.link().bandwidth_gb_per_s) == pytest.approx((10.0, 10.0))
    assert [found.us(size) for size in sizes] == pytest.approx(times)


def test_a_fit_has_the_least_relative_error():
    rng = np.random.default_rng(0)
    sizes = np.logspace(3, 8, 20)
    times = (50 + sizes / 2e3) * rng.uniform(0.8, 1.2, 20)

    def error(line: Fit) -> float:
        return float(
            np.sum((line.alpha_us / times + sizes / line.bandwidth_gb_per_s / 1e3 / times - 1) ** 2)
        )

    best = fit("all_reduce", 4, sizes, times)
    for alpha, bandwidth in itertools.product((0.99, 1.0, 1.01), repeat=2):
        other = replace(
            best,
            alpha_us=best.alpha_us * alpha,
            bandwidth_gb_per_s=best.bandwidth_gb_per_s * bandwidth,
        )
        assert error(other) >= error(best)


def test_a_fit_keeps_alpha_and_the_time_per_byte_at_0_or_more():
    falling = fit("all_reduce", 4, [1e3, 1e6], [100.0, 50.0])
    assert falling.bandwidth_gb_per_s == math.inf and falling.us(
        1e9
    ) == falling.alpha_us == pytest.approx(60.0)
    steep = fit("all_reduce", 4, [1e6, 2e6], [100.0, 400.0])
    assert steep.alpha_us == 0.0 and steep.us(1e6) == pytest.approx(120.0)


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        ([1e3], [5.0]),
        ([1e3, 1e3], [5.0, 6.0]),
        ([1e3, 1e4], [5.0]),
        ([1e3, 1e4], [5.0, 0.0]),
        ([1e3, float("nan")], [5.0, 6.0]),
    ],
)
def test_a_fit_needs_two_sizes_and_times(sizes, times):
    with pytest.raises(ValueError, match="a time above 0 for each of two sizes or more"):
        fit("all_reduce", 4, sizes, times)


def test_a_link_has_two_ends():
    with pytest.raises(ValueError, match="this is a fit for 1 rank"):
        fit("all_reduce", 1, [1e3, 1e4], [5.0, 6.0]).link()


@pytest.mark.parametrize(
    ("node", "num_ranks", "median", "worst"),
    [
        ("8xA100 NVLink3", 8, 0.12, 0.37),
        ("8xH200 NVLink4 (NVLS)", 8, 0.08, 0.22),
        ("8xB200 NVLink5", 8, 0.11, 0.37),
    ],
)
def test_one_line_through_published_times_is_roughly_right(node, num_ranks, median, worst):
    """Within 7 to 12 % at the median, up to 37 % wrong: NCCL changes algorithm and protocol on the
    way."""
    sizes, times = published(node)
    line = fit("all_reduce", num_ranks, sizes, times)
    errors = np.abs([line.us(size) for size in sizes] / times - 1)
    assert median - 0.02 < np.median(errors) < median and worst - 0.02 < errors.max() < worst


def test_the_published_line_of_8_a100_asks_for_a_link_that_exists():
    """About 4 us and 211 GB/s: NVLink 3 gives an A100 300 GB/s each way."""
    link = fit("all_reduce", 8, *published("8xA100 NVLink3")).link()
    assert link.alpha_us == pytest.approx(
        4.0, abs=0.1
    ) and link.bandwidth_gb_per_s == pytest.approx(211, abs=1)
