"""The benchmark of the widgets measures all that there are, by a control that each has."""

import importlib.util
import sys
from pathlib import Path

import pytest

from labkit import widgets

SOURCE = Path(__file__).parents[2] / "benchmarks" / "widget.py"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(SOURCE.parent))
    try:
        spec = importlib.util.spec_from_file_location("widget", SOURCE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(SOURCE.parent))


@pytest.mark.again
def test_every_widget_is_measured_by_a_control_that_it_has(benchmark):
    boards = {*widgets.__all__} - benchmark.STILL
    assert boards <= {name for name, *_ in benchmark.CASES}
    for name, how, _, label in benchmark.CASES:
        if name in boards and how in ("flipped", "drawn") and name != "timeline":
            described = [each.description for each in getattr(widgets, name)().controls.values()]
            assert label in described, (name, label, described)
