"""What all tests share: what a mark needs and means, what runs side by side, one Chromium.

Where a mark's need is not met, the test skips on a person's machine and says why; in CI a test that
needs a browser must run.
"""

import collections
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import cloudpickle
import pytest
from browser.lab import browser, chromium
from xdist.scheduler import LoadScopeScheduling

from labkit import words
from labkit.check import chapters, exercises, grading, record
from labkit.launching import settings
from labkit.launching.fork import zygote_client
from labkit.machine import resources

os.environ.setdefault("LABKIT_DEVICE", "cpu")  # the chapters are executed on pretend devices
os.environ |= {**resources.WAITING, **os.environ}  # before torch: its threads, too, share cores
HAS_WIDGETS = importlib.util.find_spec("ipywidgets") is not None
pytest_plugins = ["browser.fixtures"] if HAS_WIDGETS else []  # a GPU machine need not have them
STAGE = ("launching", "measure", "machine", "devices", "check", "widgets")
LONG = (
    *("benchmarks", "browser", "notebooks", "recovery", "debugging"),
    *("test_fuzz", "test_sockets", "test_new_subject", "test_rehearsal"),
)
REAL = ("_run", "_check", "_board", "_boards")
SLOW = {"browser", "notebooks", "alone", "real", "again"}
"""Folders, files, endings of files, and marks, whose tests start ranks, a browser or a notebook, or
take long."""
WITHOUT_DEEPSPEED = ("No module named 'deepspeed", "DeepSpeed is not installed")
"""What is said where a test needs DeepSpeed and it is not there."""
TOGETHER = ("browser", "notebooks", "cluster")
"""Folders whose tests share a JupyterLab and a Chromium, the book, or the practice cluster: one
worker has each."""
LENGTHY = (*TOGETHER, "test_script", "test_recovery_check", "test_sockets", "test_crowd")
"""What takes longest for few tests, side by side begun first: at the end no worker waits for it."""


class BySharing(LoadScopeScheduling):
    """What shares something costly runs in one worker: each folder in TOGETHER, and each other file
    by itself. Marks of xdist can't say it: xdist 3.8.0 writes groups where pytest 9 reads none."""

    def schedule(self) -> None:
        """As the tests are sorted here, not the files with the most tests first, as else."""
        self.config.option.loadscopereorder = False
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.partition("::")[0])
        return path.parent.name if path.parent.name in TOGETHER else str(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> BySharing:
    """Which tests go to which worker."""
    return BySharing(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under ``-m quick`` a file with no quick test is not even imported (None: as pytest says)."""
    unread = config.option.markexpr == "quick" and collection_path.suffix == ".py"
    return True if unread and _is_slow(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the quick ones, by their folder, file and marks; in a worker, the lengthy come first,
    then the folders and files with the most tests."""
    if hasattr(config, "workerinput"):
        num_tests = collections.Counter(item.path for item in items)
        items.sort(key=lambda item: (_place(item), -num_tests[item.path]))
    _leave_most_for_later(items)
    for item in items:
        marked = {mark.name for mark in item.iter_markers()}
        if not _is_slow(item.path) and not marked & SLOW:
            item.add_marker(pytest.mark.quick)


def _is_slow(path: Path) -> bool:
    """Whether no test of this file is quick: by its folder and its name."""
    names = {path.parent.name, path.stem}
    return bool(names & {*STAGE, *LONG}) or path.stem.endswith(REAL)


def _leave_most_for_later(items: list[pytest.Item]) -> None:
    """Of a test marked ``a_few(n)``, n of its cases stay, spread evenly from the first to the last;
    the others are marked again."""
    cases = collections.defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("a_few")
        if mark and not item.get_closest_marker("again"):
            name = item.nodeid.partition("[")[0]
            cases[name, *mark.args].append(item)
    for (_, wanted), each in cases.items():
        last = max(wanted - 1, 1)
        kept = {round(place * (len(each) - 1) / last) for place in range(wanted)}
        for place, item in enumerate(each):
            if place not in kept:
                item.add_marker(pytest.mark.again)


def _place(item: pytest.Item) -> int:
    """Where in LENGTHY a test's folder or file stands, else behind all of it."""
    places = [
        LENGTHY.index(name) for name in (item.path.parent.name, item.path.stem) if name in LENGTHY
    ]
    return min(places, default=len(LENGTHY))


@pytest.fixture(scope="session", autouse=True)
def no_ranks_among_quick_tests(pytestconfig: pytest.Config) -> Iterator[None]:
    """Under ``-m quick`` whoever would start ranks fails."""
    with pytest.MonkeyPatch.context() as patch:
        if pytestconfig.option.markexpr == "quick":
            patch.setattr(zygote_client, "running", _refused)
        yield


def _refused() -> None:
    raise AssertionError("this test starts ranks: mark it real, so that it is not among the quick")


@pytest.fixture(scope="module", autouse=True)
def as_from_a_notebook(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test file defines travels to ranks by value, as a notebook's functions do. Otherwise
    every rank would import the file, and pytest with it: four fifths of a short launch's CPU."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test whose machine lacks what its mark names."""
    if item.get_closest_marker("browser") and chromium() is None:
        stop = pytest.fail if os.environ.get("CI") else pytest.skip
        stop("needs Chromium: apt-get install chromium fonts-noto-cjk")
    if item.get_closest_marker("gpu") and resources.num_gpus() == 0:
        pytest.skip("needs a GPU and torch's CUDA build")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[object]:
    """Skips a test that failed for want of DeepSpeed, on a machine that does not have it, or of a
    newer torch."""
    try:
        return (yield)
    except Exception as error:
        missing = _missing(str(error))
        if missing is None or os.environ.get("CI"):
            raise
    pytest.skip(missing)


def _missing(said: str) -> str | None:
    """What an error says is not here: DeepSpeed, or a newer torch; None if neither."""
    if any(words in said for words in WITHOUT_DEEPSPEED):
        return None if importlib.util.find_spec("deepspeed") else "needs DeepSpeed"
    newer = re.search(r"needs torch \d\S* or newer", said)
    return newer and newer.group()


@pytest.fixture(scope="session")
def chrome() -> Iterator[object]:
    """A running Chromium, Playwright's, for all tests: each opens a context of its own in it."""
    with browser() as running:
        yield running


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    """The language in use is Chinese."""
    monkeypatch.setattr(words, "_language", "zh")


@pytest.fixture
def sent(monkeypatch):
    """Every message that a widget sends, as (widget, names of the traits it carries)."""
    import ipywidgets

    messages = []

    def send(self, message, buffers=None):
        if message.get("method") == "update":
            messages.append((self, frozenset(message["state"])))

    monkeypatch.setattr(ipywidgets.Widget, "_send", send)
    return messages


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder for the reader's record; chapter, language and the defaults of launches are
    as before afterwards."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LABKIT_BOOK", raising=False)
    monkeypatch.setattr(record, "_kept", {kind: {} for kind in record.KINDS})
    monkeypatch.setattr(record, "_told", set())
    before = chapters.current()
    yield tmp_path / "home"
    chapters.open_chapter(before)
    words.use("en")
    settings.reset()


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For answers that hang for ever: a right one would need the whole time on a busy machine."""
    monkeypatch.setattr(grading, "HANG_S", 4.0)


@pytest.fixture
def a_fresh_learner(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Nobody has tried an exercise yet, and the file's own come first; verdicts speak English again
    afterwards."""
    names = (*request.module.EXERCISES, *exercises._history)
    monkeypatch.setattr(exercises, "_history", {name: [] for name in names})
    yield
    words.use("en")
