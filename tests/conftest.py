"""What a marked test needs. On a person's machine it skips and says why; in CI a test that needs a
browser must run."""

import os
from collections.abc import Iterator

import pytest
from browser.lab import browser, chromium

from labkit import check
from labkit.machine import resources

pytest_plugins = ["browser.fixtures"]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test whose machine lacks what its mark names."""
    if item.get_closest_marker("browser") and chromium() is None:
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop("needs Chromium: apt-get install chromium fonts-noto-cjk")
    if item.get_closest_marker("gpu") and resources.num_gpus() == 0:
        pytest.skip("needs a GPU and torch's CUDA build")


@pytest.fixture(scope="session")
def chrome() -> Iterator[object]:
    """A running Chromium, Playwright's, for all tests: each opens a context of its own in it."""
    with browser() as running:
        yield running


@pytest.fixture
def a_fresh_learner(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Nobody has tried an exercise yet, and the file's own come first; verdicts speak English again
    afterwards."""
    monkeypatch.setattr(
        check, "_history", {name: [] for name in (*request.module.EXERCISES, *check._history)}
    )
    yield
    check.language("en")
