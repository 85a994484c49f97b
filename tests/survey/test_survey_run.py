"""``python -m labkit measure`` as a user has it: short surveys on real ranks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import __main__
from labkit.launching.run import Run
from labkit.survey import run, summary, trials
from labkit.survey.trials import Trial

ROOT = Path(__file__).parents[2]
BLOCKED = Path(__file__).parent / "blocked"
SHORT = ["--minutes", "2", "--only", "collectives,sharding", "--ranks", "2"]
PLAIN = {**os.environ, "LABKIT_DEVICE": "cpu", "PYTHONPATH": f"{BLOCKED}:{ROOT}"}


def measured(*arguments: str) -> subprocess.Popen:
    """The command in a process that lacks what a plain GPU machine lacks."""
    return subprocess.Popen(
        [sys.executable, "-m", "labkit", "measure", *arguments],
        cwd=ROOT,
        env=PLAIN,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # also where the tests run in the background, where a shell has SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A survey of two parts, taken where notebooks and DeepSpeed are not installed."""
    folder = tmp_path_factory.mktemp("survey") / "taken"
    process = measured(*SHORT, "--out", str(folder))
    told, _ = process.communicate(timeout=180)
    assert process.returncode == 0, told
    return folder


def test_the_blocker_blocks():
    process = subprocess.run(
        [sys.executable, "-c", "import ipywidgets"], env=PLAIN, capture_output=True, text=True
    )
    assert "(blocked)" in process.stderr


@pytest.mark.again
def test_every_run_and_every_number_is_kept(folder):
    content = json.loads((folder / summary.FILE).read_text())
    parts = {each["part"] for each in content["numbers"]}
    assert parts == {"collectives", "sharding"} and content["machine"]["cores"] >= 1
    assert {each["origin"] for each in content["numbers"]} == {"predicted", "measured"}
    assert {each["rung"] for each in content["numbers"]} == {"cpu"}
    for each in content["taken"]:
        assert len(Run.load(folder / run.RUNS / each["name"])) == 2
    held = [each for each in content["numbers"] if each["what"] == "held"]
    assert held and len({(each["case"][0], each["value"]) for each in held}) == len(held) / 2


@pytest.mark.again
def test_the_page_needs_nothing_else_and_says_what_each_picture_is(folder):
    page = (folder / "report.html").read_text()
    assert not re.search(r"(src|href)=.(?!#)|url\((?!#)|@import", page)
    assert "prefers-color-scheme: dark" in page
    pictures = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 3
    for each in pictures:
        assert re.search(r"<title[^>]*>[^<]+", each) and re.search(r"<desc[^>]*>[^<]+", each)
    assert "all_reduce" in (folder / "report.txt").read_text()


@pytest.mark.again
def test_a_survey_is_read_again_and_is_recorded_then(folder, capsys):
    (folder / "report.html").unlink()
    before = summary.load(folder)
    assert __main__.main(["measure", "--read", str(folder)]) == 0
    assert "recorded, gloo" in (folder / "report.html").read_text()
    assert {each.origin for each in before.numbers} == {"predicted", "recorded"}
    assert __main__.main(["measure", "--read", str(folder.parent)]) == 2
    assert "python -m labkit measure" in capsys.readouterr().err


@pytest.mark.again
def test_an_earlier_folder_is_never_written_over(folder, capsys):
    before = (folder / summary.FILE).read_bytes()
    assert __main__.main(["measure", *SHORT, "--out", str(folder)]) == 2
    assert "--out FOLDER" in capsys.readouterr().err
    assert (folder / summary.FILE).read_bytes() == before


@pytest.mark.again
def test_a_part_that_fails_loses_nobody_else_and_stands_in_the_report(
    tmp_path, monkeypatch, capsys
):
    def broken(trial: Trial, taken: object) -> object:
        raise RuntimeError("the reading of collectives is broken")
        yield

    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    monkeypatch.setattr(trials, "PRIMITIVES", ("all_reduce",))
    monkeypatch.setitem(run.numbers.__globals__["_OF_PART"], "collectives", broken)
    out = tmp_path / "taken"
    only = ["--only", "collectives,data_parallel", "--minutes", "0.5"]
    assert __main__.main(["measure", *only, "--ranks", "2", "--out", str(out)]) == 1
    found = summary.load(out)
    assert {each.part for each in found.numbers} == {"data_parallel"}
    assert all(name.startswith("collectives") for name in found.errors)
    for file in ("report.html", "report.txt"):
        assert "the reading of collectives is broken" in (out / file).read_text()


@pytest.mark.again
def test_ctrl_c_ends_it_within_a_second_and_keeps_what_was_measured(tmp_path):
    out = tmp_path / "taken"
    process = measured("--only", "pipeline", "--ranks", "2", "--out", str(out))
    while "[2/" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.3)
    pressed = time.monotonic()
    process.send_signal(signal.SIGINT)
    while "stopped; what was measured is kept" not in process.stdout.readline():
        assert process.poll() is None
    took_s = time.monotonic() - pressed
    told, _ = process.communicate(timeout=10)
    assert process.returncode == 130, told
    found = summary.load(out)
    assert found.stopped and [each.name for each in found.taken] == ["pipeline-1f1b-4"]
    assert "It was stopped" in (out / "report.txt").read_text()
    assert took_s < 1.0, told
