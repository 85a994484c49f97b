"""What benchmarks/planner.py says of schedules and sources, by its own functions."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    """The benchmark as a module."""
    sys.path.insert(0, str(HERE))
    try:
        spec = importlib.util.spec_from_file_location("planner_benchmark", HERE / "planner.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(HERE))
    return module


@pytest.mark.parametrize("column", ["1F1B", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"])
def test_table_5_is_simulated_to_its_fourth_digit(bench, column):
    pairs = bench.table5.rows()
    assert len(pairs) == 12
    for times, rates in pairs[::3]:
        found = bench.table5.simulated(times, column)
        assert found == pytest.approx(float(rates[column]), abs=6e-5)


@pytest.mark.parametrize(
    ("model", "chunks"), [("1.5B", 3), ("6.2B", 4), ("14.6B", 3), ("28.3B", 2)]
)
def test_interleaving_lies_within_half_a_point(bench, model, chunks):
    pairs = [pair for pair in bench.table5.rows() if pair[0]["model"] == model][:1]
    gaps = bench.table5.interleaved_gaps(pairs, chunks)
    assert max(map(abs, gaps.values())) < bench.BUBBLE_BOUND
    others = bench.table5.interleaved_gaps(pairs, chunks + 1)
    assert max(map(abs, others.values())) > bench.BUBBLE_BOUND


def test_files_of_runs_are_found_by_their_header(bench):
    names = set(bench.sources())
    assert {"megatron_sc21_table1", "megatron_sc21_table2", "korthikanti_table5"} <= names
    assert "zero_bubble_times" not in names


def test_a_row_names_what_it_misses_and_no_more_than_four(bench):
    found = bench.row("part", "what", median=0.12345, missed=list("abcdef"), rows=6)
    assert found["median"] == 0.1234 or found["median"] == 0.1235
    assert found["missed"] == "a, b, c, d and 2 more"
    assert found["numbers"] == "rows 6"
    assert bench.row("part", "what")["missed"] == ""
