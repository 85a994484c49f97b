"""Laws of the one verb set: what every experiment can do, and what it refuses in words."""

import base64
import dataclasses
import importlib
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest

import labkit as lab
from labkit import data_parallel, experiment, pipeline, words
from labkit.accelerate.update import Update
from labkit.experiment import Experiment
from labkit.planner.need import Need
from labkit.planner.strategies import Strategy
from labkit.timeline import bubble, step_us
from labkit.widgets import gallery
from labkit.widgets.trial import Trial
from labkit.zero.stages import Offload

STEP = pipeline.Step(schedule="gpipe", ranks=2, microbatches=2, forward_ms=4.0)


@pytest.fixture
def no_runs_kept():
    experiment._runs.clear()
    yield
    experiment._runs.clear()


def experiments() -> list[type]:
    """The experiments of all subjects: those that their boards stand on."""
    for home in set(gallery.homes().values()):
        importlib.import_module(home)
    ours = [each for each in Experiment.__subclasses__() if each.__module__.startswith("labkit.")]
    return sorted(ours, key=lambda each: (each.__module__, each.__name__))


@pytest.mark.parametrize("kind", experiments(), ids=lambda kind: kind.__name__)
def test_every_experiment_is_a_value_with_defaults_that_predicts_and_has_a_title(kind):
    step = kind()
    assert dataclasses.is_dataclass(step) and step == kind() and hash(step) == hash(kind())
    assert pickle.loads(pickle.dumps(step)) == step
    assert step.predict() is not None
    assert step.title("en") and step.title("zh") and "{" not in step.title("zh")
    starts_nothing = kind.__name__ == "Plan"  # of a cluster: its toy runs here
    assert (step.refusal() is None) != starts_nothing
    assert step.as_run().as_run() == step.as_run()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", experiments(), ids=lambda kind: kind.__name__)
def test_every_experiment_has_a_board_that_stands_at_its_values(kind, language):
    board = kind().board(language)
    assert isinstance(board, Trial) and board.step == kind() and board.language == language


@pytest.mark.real
def test_the_lines_of_the_readme_run_as_written(no_runs_kept, capsys):
    step = pipeline.Step(schedule="1f1b", ranks=4, microbatches=8, forward_ms=4.0)
    assert bubble(step.predict()) == pytest.approx(3 / 11)
    run = step.run()
    compared = step.compare()
    assert compared.run is run, "a run is not repeated to be compared"
    assert sum(compared.difference().causes.values()) == pytest.approx(
        pipeline.residual(compared.predicted, compared.measured)["total"], abs=1.0
    )
    swept = lab.sweep(step, microbatches=[2, 4, 8, 16], run=[4, 8])
    assert swept.line == dict(zip((2, 4, 8, 16), swept.predicted, strict=True))
    assert [row["microbatches"] for row in swept.rows()] == [2, 4, 8, 16]
    assert [row["measured"] is not None for row in swept.rows()] == [False, True, True, False]
    assert swept.measured[8] == bubble(compared.measured)
    assert step.board().step == step


@pytest.mark.real
def test_a_comparison_shows_itself_and_says_what_its_difference_is_made_of(no_runs_kept):
    compared = STEP.compare()
    found = compared.difference()
    for language, start in (("en", "Idle time of all ranks together"), ("zh", "所有 rank 的空闲")):
        assert found.told(language).startswith(start)
        assert compared.picture(language=language).notes == (found.told(language),)
    data = compared._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert found.told("en") in data["text/plain"] and "Idle time" in data["text/html"]
    assert found.told("en") in repr(compared)


@pytest.mark.a_few(2)
@pytest.mark.real
@pytest.mark.parametrize("kind", [Update, Offload, Need, Strategy])
def test_what_is_no_noun_is_compared_as_its_board_shows_it(no_runs_kept, kind):
    compared = kind().compare()
    assert compared.difference() is None
    data = compared.bundle(language="zh")
    board = kind().board("zh")
    predicted_alone = board.page(board.step, board.at)
    assert "<svg" in data["text/html"]
    if kind is Need:  # the bill of the small model by itself
        assert "预测" in data["text/html"] and predicted_alone not in data["text/html"]
    else:
        assert len(data["text/html"]) > len(predicted_alone)
    assert data["text/plain"] == f"Comparison of {kind().title('en')}"


@pytest.mark.real
def test_a_steps_time_is_explained_by_three_causes_that_sum_to_it(no_runs_kept):
    step = data_parallel.Step(layers=3, layer_mb=0.1, forward_ms=5.0, ranks=2, bucket_mb=0.1)
    compared = step.compare()
    found = compared.difference()
    assert set(found.causes) == {"compute", "exposed", "idle"}
    longer_us = step_us(compared.measured) - step_us(compared.predicted)
    assert found.total == pytest.approx(longer_us, abs=1.0)


def test_what_only_a_prediction_knows_makes_no_other_run():
    assert STEP.but(message_ms=3.0).as_run() == STEP and STEP.but(ranks=3).as_run() != STEP


def test_equal_timelines_differ_by_nothing_and_say_so():
    same = STEP.difference(STEP.predict(), STEP.predict())
    assert same.total == 0 and set(same.causes) == set(pipeline.CAUSES)
    assert same.told("en").endswith("as predicted.") and same.told("zh").endswith("相同。")


def test_a_sweep_may_be_told_for_each_of_what_its_values_count():
    step = data_parallel.Step(layers=2)
    whole = lab.sweep(step, accumulate=[1, 2, 4])
    each = lab.sweep(step, accumulate=[1, 2, 4], each="microbatch")
    assert each.predicted == tuple(
        us / count for us, count in zip(whole.predicted, (1, 2, 4), strict=True)
    )
    assert each.predicted[2] < each.predicted[0]
    assert each.picture().heading == "Step per microbatch by accumulate"
    titled = lab.sweep(step, accumulate=[1, 2], title="Time", x="microbatches")
    assert titled.picture().heading == "Time" and "microbatches" in str(titled.picture())


@pytest.mark.real
def test_a_comparison_is_a_row_of_two_readings(no_runs_kept):
    compared = data_parallel.Step(layers=1, ranks=2, forward_ms=1, layer_mb=0.1).compare()
    assert compared.readings == {
        "predicted": step_us(compared.predicted),
        "measured": step_us(compared.measured),
    }


def test_a_sweep_says_what_its_runs_are_once(no_runs_kept):
    for microbatches, notes in ((2, ("gloo", "paced")), (8, ("gloo", "paced", "overran"))):
        step = STEP.but(microbatches=microbatches)
        measured = replace(step.predict(), origin="measured", notes=notes)
        experiment.keep(step, SimpleNamespace(timeline=lambda measured=measured: measured))
    swept = lab.sweep(STEP, microbatches=[2, 4, 8], run=[2, 8])
    assert swept.badge == "simulated / measured, gloo, paced, overran"
    assert swept.readings["8"] == {"predicted": swept.line[8], "measured": swept.measured[8]}
    assert swept.readings["4"] == {"predicted": swept.line[4]}


def test_a_sweep_over_names_and_over_what_is_not_predicted_has_gaps():
    swept = lab.sweep(
        STEP.but(ranks=4, microbatches=9), schedule=["naive", "interleaved_1f1b", "gpipe"]
    )
    assert [row["predicted"] is None for row in swept.rows()] == [False, True, False]
    assert swept.readings["interleaved_1f1b"] == {} and set(swept.readings["naive"]) == {
        "predicted"
    }
    picture = swept.picture(language="zh")
    assert picture.in_english and "气泡" in picture.heading and picture.badge == "模拟"
    assert repr(swept).startswith("schedule = naive, predicted 75.0 %")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "varies one field.*got none"),
        ({"ranks": [1], "microbatches": [2]}, "got ranks, microbatches"),
        ({"ranks": []}, "ranks has none"),
        ({"rank": [2]}, "has the fields schedule, ranks.*got rank"),
        ({"ranks": [0]}, "ranks is a whole number from 1.*got 0"),
        ({"ranks": [2, 3], "run": [4]}, "run names values of the sweep, 2, 3; got 4"),
    ],
)
def test_a_sweep_that_can_not_be_is_refused_in_words(given, says):
    with pytest.raises(ValueError, match=says):
        lab.sweep(STEP, **given)


def test_a_refused_run_is_told_before_anything_starts():
    step = pipeline.Step(schedule="1f1b", ranks=4)
    with pytest.raises(ValueError, match=r"microbatches = 2: .*fewer than 4 stages"):
        lab.sweep(step, microbatches=[2, 8], run=[8, 2])
    with pytest.raises(ValueError, match="fewer than 4 stages"):
        step.but(microbatches=2).run()
    assert experiment.kept(step) is None


def test_a_language_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="a language is one of en, zh; got 'fr'"):
        words.use("fr")
    with pytest.raises(ValueError, match="a language is one of en, zh; got 'fr'"):
        STEP.board("fr")
