"""``python -m labkit``: exit codes and words."""

import pytest

from labkit import __main__
from labkit.devices import library
from labkit.launching.run import Run
from labkit.machine import doctor, ops

GOOD = doctor.Row(name="gloo", value="in this torch", ok=True, fix="make env")
BAD = doctor.Row(name="torch", value="not installed", ok=False, fix="make env")


@pytest.mark.parametrize(("rows", "code"), [((GOOD,), 0), ((GOOD, BAD), 1)])
def test_doctor_exits_1_when_something_required_is_missing(monkeypatch, capsys, rows, code):
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report(rows=rows))
    assert __main__.main(["doctor"]) == code
    assert ("-> make env" in capsys.readouterr().out) == bool(code)


def test_ops_says_that_they_stand_or_why_they_can_not_be_built(monkeypatch, capsys, tmp_path):
    for part in (ops, library):
        monkeypatch.setattr(part, "missing", list)
    assert __main__.main(["ops"]) == 0
    assert capsys.readouterr().out == (
        "DeepSpeed's ops are built\nthe devices' libraries are built\n"
    )
    monkeypatch.setattr(ops, "missing", lambda: ["cpu_adam"])
    monkeypatch.setattr(library, "missing", lambda: ["pretend"])
    for part in (ops, library):
        monkeypatch.setattr(part, "obstacle", lambda: "no compiler. Install one")
    assert __main__.main(["ops"]) == 0
    assert capsys.readouterr().out == (
        "DeepSpeed's ops are not built: no compiler. Install one\n"
        "the devices' libraries are not built: no compiler. Install one\n"
        "The course opens without them, and a cell that needs one says so. To build them later: "
        "make env (conda: python -m labkit ops)\n"
    )


def test_it_speaks_the_language_that_is_asked_for(monkeypatch, capsys, chinese):
    monkeypatch.setattr(doctor, "examine", lambda: doctor.Report(rows=(GOOD, BAD)))
    assert __main__.main(["--language", "zh", "doctor"]) == 1
    assert capsys.readouterr().out.startswith("正常      gloo")
    assert __main__.main(["doctor"]) == 1
    assert capsys.readouterr().out.startswith("ok        gloo")


@pytest.mark.parametrize(("part", "name"), [(ops, "cpu_adam"), (library, "pretend")])
def test_ops_exits_1_when_a_build_fails(monkeypatch, capsys, tmp_path, part, name):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    for each in (ops, library):
        monkeypatch.setattr(each, "missing", list)
    monkeypatch.setattr(part, "missing", lambda: [name])
    monkeypatch.setattr(part, "obstacle", lambda: None)
    monkeypatch.setattr(part, "jobs", lambda: {name: lambda: "no such thing"})
    assert __main__.main(["ops"]) == 1
    assert f"{name}: failed\nno such thing" in capsys.readouterr().out


def test_runs_lists_what_was_saved(capsys, tmp_path):
    assert __main__.main(["runs", str(tmp_path)]) == 0
    assert "no saved run" in capsys.readouterr().out
    run = Run(results=(1, 2), logs=("", ""), seconds=1.5, backend="gloo", notes=("gloo", "paced"))
    run.save(tmp_path / "first")
    assert __main__.main(["runs", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "first  Run(2 ranks, recorded, gloo, paced" in listed


def test_a_wrong_folder_or_command_is_refused_with_the_way_out(capsys, tmp_path):
    assert __main__.main(["runs", str(tmp_path / "none")]) == 2
    assert "python -m labkit runs data/runs" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        __main__.main(["dance"])
    assert ended.value.code == 2 and "doctor" in capsys.readouterr().err
