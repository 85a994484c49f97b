"""What benchmarks/planner_peers.py asks another planner, by its own functions; the peer itself is
not installed here, so a stand-in answers."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.planner.trust import judge

HERE = Path(__file__).resolve().parents[2] / "benchmarks"
STAND_IN = """
import json, sys
told = json.load(sys.stdin)
json.dump([each["layers"] * {power} / each["efficiency"] ** {power} for each in told], sys.stdout)
"""


@pytest.fixture(scope="module")
def bench():
    """The benchmark as a module."""
    sys.path.insert(0, str(HERE))
    try:
        spec = importlib.util.spec_from_file_location("peers", HERE / "planner_peers.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def runs(bench):
    """Published rows with a time."""
    return [row for kept in bench.sources().values() for row in kept if row.step_us()]


def test_no_published_row_is_beyond_the_peers_words_and_a_skipped_one_is_named(bench, runs):
    assert [bench.untold(row) for row in runs] == [""] * len(runs)
    across = replace(runs[0], layout=replace(runs[0].layout, cp=2))
    gated = replace(runs[0], shape=replace(runs[0].shape, glu=True))
    assert bench.untold(across) == "context parallelism"
    assert "4 h wide" in bench.untold(gated)


def test_a_peer_is_asked_and_its_constant_must_be_one(bench, runs, tmp_path, monkeypatch):
    file = tmp_path / "peer.py"
    monkeypatch.setattr(bench, "PEER_FILE", file)
    file.write_text(STAND_IN.format(power=1))
    gated = replace(runs[1], shape=replace(runs[1].shape, glu=True))
    seconds, skipped = bench.answers(sys.executable, [runs[0], gated])
    assert seconds == {runs[0].id: runs[0].shape.layers}
    assert skipped == [f"{gated.id}: an MLP that is not 4 h wide"]
    file.write_text(STAND_IN.format(power=2))
    with pytest.raises(RuntimeError, match="its seconds do not go as one over"):
        bench.answers(sys.executable, runs[:1])


def test_the_middle_row_that_a_peer_saw_comes_out_right(bench, runs):
    seconds = {row.id: 1.0 + number for number, row in enumerate(runs)}
    seen, unseen = runs[:3], runs[3:]
    predict = bench.peer(seconds)(seen)
    errors = bench.judged(predict, seen)["errors"]
    assert sorted(abs(error) for error in errors.values())[0] == pytest.approx(0, abs=1e-9)
    found = bench.judged(bench.constant(seen), unseen)
    naive = judge.naive_errors(unseen, judge.naive_tflops(seen))
    assert found["median"] == pytest.approx(judge.median(naive))


def test_stacks_from_elsewhere_leave_out_what_these_tables_gave(bench, runs):
    elsewhere = [each for name, each in bench.STACKS.items() if name not in bench.FITTED_HERE]
    assert len(elsewhere) == len(bench.STACKS) - 2
    dense = [row for row in runs if row.layout.zero == 0]
    sharded = next(row for row in runs if row.layout.zero == 3)
    assert bench._usual(sharded, elsewhere).name == "fsdp-a100"
    assert bench._usual(dense[0], elsewhere).name == "deepspeed-a100"
    named = {each.name for each in elsewhere}
    assert not named & set(bench.FITTED_HERE)
