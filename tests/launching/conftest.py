"""What tests that launch real ranks need before and after."""

import time

import pytest
from rank_processes import ranks_alive

from labkit.launching.fork import zygote_client


@pytest.fixture(scope="module")
def zygote():
    """It has imported everything, so that no test waits for that."""
    zygote_client.seconds_to_complete()


@pytest.fixture
def nothing_left():
    """No rank outlives its test."""
    yield
    deadline = time.monotonic() + 5
    while ranks_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ranks_alive() == []
