"""What tests of pretend devices need: our two libraries, built."""

import os

import pytest

from labkit.devices import library


@pytest.fixture(scope="session")
def built() -> None:
    """Both libraries, built now if they are not: 40 s, once. Without a compiler these tests skip,
    and fail in CI."""
    stop = pytest.fail if os.environ.get("CI") else pytest.skip
    for name in library.missing():
        if reason := library.obstacle() or library.build(name):
            stop(f"the library {name} is not built: {reason}")
