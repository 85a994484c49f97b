"""What tests of the reader's record share: a home of their own, and nothing left behind."""

import pytest

from labkit import words
from labkit.check import chapters, record
from labkit.launching import settings


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty folder for the record; chapter, language and defaults are as before afterwards."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LABKIT_BOOK", raising=False)
    monkeypatch.setattr(record, "_kept", {kind: {} for kind in record.KINDS})
    monkeypatch.setattr(record, "_told", set())
    before = chapters.current()
    yield tmp_path / "home"
    chapters.open_chapter(before)
    words.use("en")
    settings.reset()
