"""Laws of saved runs: what goes in comes out, nothing is unpickled, what does not fit is named."""

import json
import sys

import numpy as np
import pytest
import torch

from labkit import footprint, shards
from labkit.launching import saved
from labkit.launching.run import Run, Unsaved
from labkit.timeline import from_rows


def a_run(*results, **fields):
    notes = ("gloo", "paced")
    return Run(
        results=results,
        logs=("hi",) * len(results),
        seconds=1.5,
        backend="gloo",
        notes=notes,
        **fields,
    )


@pytest.mark.parametrize(
    ("language", "title"),
    [
        ("en", "Run: 2 ranks, measured, gloo, paced, 1.50 s"),
        ("zh", "运行：2 个 rank，实测，gloo，"),
    ],
)
def test_the_title_of_a_table_is_in_the_language_of_the_table(language, title):
    assert a_run(1, 2).table(language=language).title.startswith(title)


def test_numbers_arrays_and_tensors_come_back_as_they_were(tmp_path):
    value = {"loss": [1.0, 2.5], "shape": (2, 3), 7: None, "w": torch.arange(6).reshape(2, 3).T}
    value["a"] = np.eye(2, dtype=np.float32)
    loaded = Run.load(a_run(value, "text").save(tmp_path / "run"))
    plain = {name: loaded[0][name] for name in ("loss", "shape", 7)}
    assert loaded[1] == "text" and plain == {"loss": [1.0, 2.5], "shape": (2, 3), 7: None}
    assert torch.equal(loaded[0]["w"], value["w"])
    assert loaded[0]["a"].dtype == np.float32 and (loaded[0]["a"] == np.eye(2)).all()
    assert (
        loaded.origin == "recorded"
        and loaded.notes == ("gloo", "paced")
        and loaded.logs == ("hi", "hi")
    )


def test_keys_that_look_alike_stay_apart(tmp_path):
    value = {1: torch.zeros(2), "1": torch.ones(2), "a.b": np.full(2, 7), "a": {"b": np.full(2, 8)}}
    loaded = Run.load(a_run(value, np.complex64(1j)).save(tmp_path / "run"))
    assert loaded[0][1].tolist() == [0, 0] and loaded[0]["1"].tolist() == [1, 1]
    assert loaded[0]["a.b"].tolist() == [7, 7] and loaded[0]["a"]["b"].tolist() == [8, 8]
    assert isinstance(loaded[1], Unsaved)


def test_what_fits_no_format_is_kept_as_its_repr_and_named(tmp_path):
    folder = a_run({"odd": {1, 2}}, 3).save(tmp_path / "run")
    assert json.loads((folder / "run.json").read_text())["kept_as_repr"] == ["rank0.odd#0"]
    loaded = Run.load(folder)
    assert isinstance(loaded[0]["odd"], Unsaved) and loaded[0]["odd"] == "{1, 2}"
    again = Run.load(loaded.save(tmp_path / "again"))
    assert isinstance(again[0]["odd"], Unsaved) and again[0]["odd"] == "{1, 2}"


def test_no_pickle_is_written_or_read(tmp_path):
    folder = a_run({"w": torch.ones(2), "a": np.ones(2), "o": object()}).save(tmp_path / "run")
    assert {file.suffix for file in folder.iterdir()} == {".json", ".npz", ".safetensors"}
    np.savez(folder / "arrays.npz", **{"rank0.a#1": np.array([object()], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        Run.load(folder)


def test_shards_and_footprints_come_back_and_then_say_recorded(tmp_path):
    held = shards.from_rows(
        [(0, "parameter", "w", 0, 6, "float32", "cpu")],
        num_ranks=2,
        origin="measured",
        notes=["gloo"],
    )
    step = footprint.from_moments(
        [("F0", {"parameters": 24, "temporary": 8})], "measured", ["gloo"]
    )
    folder = a_run({"shards": held, "footprint": step}).save(tmp_path / "run")
    assert not json.loads((folder / "run.json").read_text())["kept_as_repr"]
    again = Run.load(folder)[0]
    assert (
        not shards.differences(again["shards"], held) and again["shards"].badge == "recorded, gloo"
    )
    assert (
        again["footprint"].labels == ("F0",)
        and again["footprint"].num_bytes.tolist() == step.num_bytes.tolist()
    )
    assert again["footprint"].badge == "recorded, gloo"


def test_a_timeline_is_saved_and_then_says_recorded(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    row = (0, "compute", "F", "0F0", 0.0, 5.0, 0)
    from_rows([row], num_ranks=1, origin="measured", notes=("paced",)).save(
        source / "timeline.json"
    )
    run = a_run(1, folder=source)
    assert run.timeline().badge == "measured, paced"
    assert Run.load(run.save(tmp_path / "run")).timeline().badge == "recorded, paced"


def test_a_timeline_of_several_machines_knows_each_ranks_host(tmp_path):
    tl = from_rows([(1, "comm", "send", "", 0.0, 1.0, 4)], num_ranks=2, origin="measured")
    ranks = [{"host": "a"}, {"host": "b"}]
    for machine, nodes in (
        ({"ranks": ranks}, ("a", "b")),
        ({"ranks": ranks[:1]}, ()),
        ({"ranks": [{}, 3]}, ()),
        ({"ranks": "ab"}, ()),
        ({}, ()),
    ):
        run = a_run(1, 2, folder=tmp_path, machine=machine)
        tl.save(tmp_path / saved.TIMELINE)
        assert run.timeline().nodes == nodes


def test_errors_say_the_rule_and_the_way_out(tmp_path):
    run = a_run(1)
    run.save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"new or empty folder; .* holds run\.json"):
        run.save(tmp_path / "run")
    with pytest.raises(ValueError, match=r"a folder with a run\.json"):
        Run.load(tmp_path)
    with pytest.raises(ValueError, match=r"recorded none. Wrap the part"):
        run.timeline()


def test_a_run_that_was_saved_before_is_still_read(tmp_path):
    held = {"$shards": [[[0, "parameter", "w", 0, 6, "float32", "cpu"]], 2, ["gloo"]]}
    step = {"$footprint": [["F0"], [[24, 0, 0, 0, 0, 0, 8]], ["gloo"]]}
    about = {
        "logs": ["hi"],
        "seconds": 1.5,
        "backend": "gloo",
        "notes": ["gloo"],
        "peak_rss_bytes": [7],
        "machine": {},
        "started": "2026-11-01T00:00:00",
        "results": [{"$dict": [["held", held], ["step", step], [1, {"$tuple": [1, "a"]}]]}],
        "kept_as_repr": [],
    }
    (tmp_path / "run.json").write_text(json.dumps(about))
    found = Run.load(tmp_path)[0]
    assert found["held"].rows() == [(0, "parameter", "w", 0, 6, "float32", "cpu")]
    assert found["step"].totals.tolist() == [32] and found[1] == (1, "a")


def test_every_noun_of_a_result_brings_itself_to_json_and_back():
    held = shards.from_rows([], num_ranks=1, origin="measured")
    step = footprint.from_moments([("F0", {"parameters": 24})], "measured")
    assert {type(noun) for noun in (held, step)} == {*saved.nouns().values()}
    for noun in (held, step):
        content = json.loads(json.dumps(noun.to_json()))
        again = saved.nouns()[noun.JSON_TAG].from_json(content)
        assert again.origin == "recorded" and again.to_json() == noun.to_json()


@pytest.mark.parametrize("tag", ["doctor", "os", "labkit.machine.doctor", "Shards", "__main__"])
def test_a_strangers_word_is_no_noun_and_imports_nothing(tag, tmp_path):
    folder = a_run(1).save(tmp_path / "run")
    about = json.loads((folder / "run.json").read_text())
    about["results"] = [{f"${tag}": []}]
    (folder / "run.json").write_text(json.dumps(about))
    saved.nouns()
    before = set(sys.modules)
    with pytest.raises(ValueError, match="what stands for a value is one of"):
        Run.load(folder)
    assert set(sys.modules) == before
