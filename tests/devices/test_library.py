"""Our C++ libraries: where they stand, that a build is whole or not there, and who is told what."""

from pathlib import Path

import pytest

from labkit.devices import library
from labkit.machine import ops

SMALL = """
#include <Python.h>
#define INIT_OF(name) PyInit_##name
#define INIT(name) INIT_OF(name)
int answer();
static PyObject* call(PyObject*, PyObject*) { return PyLong_FromLong(answer()); }
static PyMethodDef methods[] = {{"answer", call, METH_NOARGS, nullptr}, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "small", nullptr, -1, methods};
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
"""
"""Without torch's or pybind11's headers: they take a compiler ten seconds."""


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A library of two files, alone in a tree of its own."""
    folder = tmp_path / "native" / "small"
    folder.mkdir(parents=True)
    (folder / "module.cpp").write_text(SMALL)
    (folder / "answer.cpp").write_text("int answer() { return 42; }")
    monkeypatch.setattr(library, "SOURCES", folder.parent)
    monkeypatch.setattr(library, "NAMES", ("small",))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "built"))
    return folder


def test_a_library_is_built_once_for_its_sources_and_loaded(small):
    if library.obstacle():
        pytest.skip(library.obstacle())
    with pytest.raises(ValueError, match="python -m labkit ops"):
        library.load("small")
    assert library.missing() == ["small"]
    told = []
    assert ops.build(library.jobs(), told.append)
    assert told[1].startswith("[1/1] small: ") and told[1].endswith(" s\n")
    assert library.missing() == [] and library.row().ok
    assert library.load("small").answer() == 42
    assert [file.name for file in library.path("small").parent.iterdir()] == [
        library.path("small").name
    ]
    (small / "answer.cpp").write_text("int answer() { return 43; }")
    assert library.missing() == ["small"]
    assert "python -m labkit ops" in library.row().fix


def test_a_build_that_fails_shows_its_last_words_and_leaves_nothing(small):
    if library.obstacle():
        pytest.skip(library.obstacle())
    (small / "module.cpp").write_text("no such thing;")
    told = []
    assert not ops.build(library.jobs(), told.append)
    assert "error" in told[-1]
    assert list(library.path("small").parent.iterdir()) == []


def test_without_a_compiler_the_reason_has_the_way_out(small, monkeypatch):
    monkeypatch.setattr(ops, "compiler", lambda: None)
    assert "apt-get install g++" in library.obstacle()
    assert "apt-get install g++" in library.row().fix
    assert not library.row().required


def test_a_torch_that_is_too_old_is_said_with_the_version_that_is_needed(small, monkeypatch):
    monkeypatch.setattr(library, "OLDEST_TORCH", {"small": (2, 12)})
    monkeypatch.setattr(library.resources, "version", lambda package: "2.11.0+cu130")
    said = "small needs torch 2.12 or newer; this is 2.11.0+cu130"
    assert library.why_not("small") == library.row().value == said
    assert not library.row().ok and not library.is_ready("small")
    monkeypatch.setattr(library.resources, "version", lambda package: "2.12.0")
    assert said not in library.why_not("small")


def test_sources_are_read_again_only_where_they_changed(small, monkeypatch):
    before = library.path("small")
    with monkeypatch.context() as unreadable:
        unreadable.setattr(Path, "read_bytes", lambda self: pytest.fail(f"{self} was read"))
        assert library.path("small") == before
    (small / "answer.cpp").write_text("int answer() { return 4242; }")
    assert library.path("small").name != before.name
