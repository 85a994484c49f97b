"""The public API under rubbish. The law: a call returns, or raises a ValueError (or TypeError) that
says the rule, the value given and the way out; it neither hangs, nor eats the memory, nor leaves a
process, a thread or a file.

The callables come from the package itself: every public function, and the data classes with their
methods and properties; a new one is fuzzed at once, or stands in EXCUSED with its reason. Whatever
would start ranks meets a server that refuses to: what comes before is held to the law as well.

Arguments are drawn from the annotations. Plain data (numbers, words, sequences, mappings) is drawn
wild; in a part of the calls one argument is of a wrong type, and then any ValueError or TypeError
will do, Python's own included. A noun of ours (Timeline, Plan, ...) is always a valid one: a wrong
noun is the type checker's affair, and an AttributeError that names what it lacks says enough. A
path may also meet OSError, which names the path.
"""

import contextlib
import itertools
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from fuzz_law import Started, fault
from fuzz_values import WRITTEN, call
from fuzz_walk import EXCUSED, FUZZED, PACKAGE, PUBLIC, on_screen, reason
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import labkit
from labkit import words
from labkit.heterogeneous import edge_run
from labkit.launching.fork import zygote_client
from labkit.zero import opt_run

MEMORY_BYTES = 1 << 30
EXAMPLES, AGAIN, FEW = 2, 40, 3
SLOW = (
    "collectives.calibrate_run",
    "pictures.mime.",
    "pictures.painters.mpl.",
    "planner.plan.search.",
    "sharding.run.",
)


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A bound on memory, no ranks, a folder of its own; and afterwards nothing is there that was
    not before."""

    def refuse() -> None:
        raise Started

    edge_run.trained()  # these two once a process: seconds that belong to no call
    opt_run.net_and_data()
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("here")
    temporary = tmp_path_factory.mktemp("tmp")
    patch.chdir(folder)
    patch.setattr("tempfile.tempdir", str(temporary))
    patch.setattr(zygote_client, "running", refuse)
    patch.setattr(words, "_language", "en")  # begin sets it; the tests after these speak English
    me = psutil.Process()
    limit = resource.getrlimit(resource.RLIMIT_AS)
    threads = set(threading.enumerate())
    children = set(me.children())  # an earlier test's zygote may fork spares
    resource.setrlimit(resource.RLIMIT_AS, (me.memory_info().vms + MEMORY_BYTES, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limit)
    patch.undo()
    assert set(threading.enumerate()) <= threads and set(me.children()) <= children
    assert list(temporary.iterdir()) == []
    assert {file.stem for file in folder.rglob("*")} <= {
        Path(name).stem for name in (*WRITTEN, ".png")
    }


def bounded(label: str, examples: int) -> settings:
    place = label.rpartition(".")[0]
    return settings(
        max_examples=min(FEW, examples) if label.startswith(SLOW) or on_screen(place) else examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(AGAIN, marks=pytest.mark.again)])
@pytest.mark.parametrize("label", sorted(FUZZED))
def test_rubbish_is_answered_or_refused_in_words(label, examples):
    @bounded(label, examples)
    @given(st.data())
    def law(data):
        thunk, told, strict = call(label, data.draw)
        assert not (found := fault(thunk, told, strict)), f"{label}({str(told)[:600]}): {found}"

    with contextlib.redirect_stdout(open(os.devnull, "w")):
        law()


# --- the tests of the test, and of what it can not draw ---


def test_what_is_not_fuzzed_has_a_reason_and_every_reason_a_thing():
    assert len(FUZZED) > 150
    meant = {name for name in SLOW for label in FUZZED if label.startswith(name)}
    assert meant == {*SLOW}
    places = tuple(f"{label}." for label in PUBLIC)
    idle = [name for name in EXCUSED if not any(map(places_below(name), places))]
    assert idle == []
    assert {label for label in PUBLIC if label not in FUZZED and not reason(label)} == set()
    assert {
        "pipeline.schedules.gpipe",
        "timeline.Timeline.load",
        "launching.launcher.launch",
        "data_parallel.board.ddp_communication",
    } <= {*FUZZED}


def places_below(name: str) -> Callable[[str], bool]:
    """Whether a label with its dot lies in what is excused."""
    return lambda label: label.startswith(f"{name}.")


def ours(text: str) -> None:
    """Raises from the package, as a check of it does."""
    exec(compile(f"raise ValueError({text!r})", str(PACKAGE / "units.py"), "exec"))


def forever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("thunk", "words"),
    [
        (lambda: {}["x"], "KeyError"),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: None.x, "AttributeError"),
        (lambda: [][0], "IndexError"),
        (lambda: float(10**400), "OverflowError"),
        (lambda: int("x"), "not our words"),
        (lambda: [0] * 10**12, "MemoryError"),
        (forever, "takes longer"),
        (lambda: ours("bad value"), "too little"),
        (lambda: Path("nothing-here").read_text(), "FileNotFoundError"),
        (lambda: sys.exit(1), "SystemExit"),
        (lambda: ours("a rank is a whole number of 1 or more"), "names no value"),
        (lambda: itertools.repeat(1), None),
        (lambda: ours("a rank is a whole number of 1 or more; got -77"), None),
    ],
)
def test_a_broken_law_is_named(thunk, words):
    found = fault(thunk, {"args": [-77]}, strict=True)
    assert found is None if words is None else words in found


@pytest.mark.parametrize(
    "given",
    [
        {"ranks": 0},
        {"ranks": True},
        {"ranks": 2.5},
        {"ranks": "2"},
        {"ranks": 10**400},
        {"ranks": float("nan")},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"hang_s": -5},
        {"hang_s": "soon"},
        {"seed": -1},
        {"seed": 2.5},
        {"seed": 2**70},
        {"backend": "mpi"},
        {"backend": ""},
        {"devices": "tpu"},
        {"devices": 3},
    ],
    ids=str,
)
def test_a_launch_with_a_bad_argument_is_refused_before_anything_starts(given):
    name = next(iter(given))
    for start in (labkit.launch, labkit.start):
        with pytest.raises(ValueError, match=rf"{name} is "):
            start(print, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"using": "mpirun"}, "launched using is one of torchrun, .*; got 'mpirun'"),
        ({"ranks": 0}, "ranks is .*; got 0"),
        ({"path": "nothing-here"}, "'nothing-here' is no file"),
        ({"timeout_s": float("nan")}, "timeout_s is .*; got nan"),
    ],
)
def test_a_script_with_a_bad_argument_is_refused_before_anything_starts(given, words):
    with pytest.raises(ValueError, match=words):
        labkit.launch_script(**{"path": __file__, **given})
