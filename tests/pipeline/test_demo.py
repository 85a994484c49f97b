"""The demo writes what it promises, and what it prints comes from the runs it saved."""

import json
import sys
import time

import pytest

import labkit as lab
from labkit.launching import job
from labkit.launching.run import Run
from labkit.pipeline import demo
from labkit.timeline import bubble
from labkit.units import format_share

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "FORWARD_MS", 8.0)
        yield demo.main(folder)


def test_pictures_trace_and_runs_are_there(folder):
    for name in demo.NAMES:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "prefers-color-scheme" in (folder / f"{name}.svg").read_text()
        events = json.loads((folder / f"{name}.trace.json").read_text())["traceEvents"]
        assert {f"{rank}F0" for rank in range(demo.NUM_RANKS)} <= {
            event["name"] for event in events
        }


def test_the_table_is_made_of_the_saved_runs(folder, capsys):
    runs = {name: Run.load(folder / "runs" / f"{name}-1") for name in demo.NAMES}
    rows = [(name, run.timeline(), run.timeline(), run) for name, run in runs.items()]
    demo.print_table(rows)
    printed = capsys.readouterr().out
    for run in runs.values():
        num_actions = (run.timeline().lane == "compute").sum()
        assert num_actions == 2 * demo.NUM_RANKS * demo.NUM_MICROBATCHES
        assert (
            format_share(bubble(run.timeline())) in printed and "recorded, gloo, paced" in printed
        )


def test_gpipe_holds_every_microbatch_and_1f1b_only_as_many_as_stages(folder):
    held = {
        name: Run.load(folder / "runs" / f"{name}-1")[0]["peak_activation_bytes"]
        for name in demo.NAMES
    }
    assert held["gpipe"] == pytest.approx(
        held["1f1b"] * demo.NUM_MICROBATCHES / demo.NUM_RANKS, rel=0.05
    )


def test_a_terminal_sees_each_rank_while_it_runs_and_a_clean_line_afterwards(monkeypatch, capsys):
    def work():
        time.sleep(1.5)

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(job, "listeners", [demo.live])
    lab.launch(work, ranks=2)
    seen = capsys.readouterr().err
    assert "rank 0 running" in seen and "rank 1 running" in seen and seen.endswith("\r\x1b[K")
