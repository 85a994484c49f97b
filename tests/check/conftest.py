"""A board's folder, for the tests of what a learner shares."""

import pytest

from labkit.check.shared import content, opting


@pytest.fixture
def patient(monkeypatch):
    """However busy the machine is, a change is in the folder before a test looks."""
    monkeypatch.setattr(opting, "PATIENCE_S", 60.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A board's folder, and the environment that names it."""
    folder = tmp_path / "board"
    folder.mkdir()
    folder.chmod(content.FOLDER_MODE)
    monkeypatch.setenv(content.VARIABLE, str(folder))
    return folder
