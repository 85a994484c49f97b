"""What a marked test needs. On a person's machine it skips and says why; in CI a test that needs a
browser must run."""

import os
from collections.abc import Iterator

import pytest
from browser.lab import chromium

from labkit import check
from labkit.check import exercises
from labkit.machine import resources


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test whose machine lacks what its mark names."""
    if item.get_closest_marker("browser") and chromium() is None:
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop("needs Chromium: apt-get install chromium fonts-noto-cjk")
    if item.get_closest_marker("gpu") and resources.num_gpus() == 0:
        pytest.skip("needs a GPU and torch's CUDA build")


@pytest.fixture
def a_fresh_learner(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Nobody has tried an exercise yet, and the file's own come first; verdicts speak English again
    afterwards."""
    names = (*request.module.EXERCISES, *exercises._history)
    monkeypatch.setattr(exercises, "_history", {name: [] for name in names})
    yield
    check.language("en")
