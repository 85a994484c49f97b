"""Ranks, as the system sees them, and how long a launch takes to fail."""

import os
import time

import psutil
import pytest

import labkit as lab
from labkit.launching.fork import zygote_client


def ranks_alive():
    """Whatever the zygote started, but for the spares: these have not begun, and are still in its
    session."""
    zygote = zygote_client.running().process.pid
    below = psutil.Process(zygote).children(recursive=True)
    return [child for child in below if session_of(child.pid) not in (zygote, None)]


def session_of(pid):
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def seconds_of(fn, error, **options):
    began = time.monotonic()
    with pytest.raises(error) as caught:
        lab.launch(fn, **options)
    return time.monotonic() - began, caught.value
