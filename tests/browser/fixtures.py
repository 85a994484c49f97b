"""What the tests in JupyterLab share: one server, one run of the gallery per language."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from browser import gallery
from browser.lab import Page, browse
from browser.server import Server, serve

BUSY_COMMS = {"@jupyterlab/apputils-extension/kernels-settings": {"commsOverSubshells": "disabled"}}
"""A JupyterLab that sends widgets' messages to the one thread that runs cells, as older ones do."""


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The notebook of every widget, run in JupyterLab."""

    lab: Page
    """where it was run, still open, its kernel alive"""
    saved: str
    """the notebook as it was saved right after its run"""


@pytest.fixture(scope="session")
def jupyterlab() -> Iterator[Server]:
    """A running JupyterLab: the only one of all these tests."""
    with serve() as server:
        yield server


@pytest.fixture(scope="session")
def opened(chrome: object, jupyterlab: Server) -> Callable:
    """``with opened(path) as lab``: a copy of a notebook in a page of its own; on leaving, its
    kernel ends."""

    @contextmanager
    def opened(path: Path, settings: dict | None = None, trusted: bool = False) -> Iterator[Page]:
        name = jupyterlab.add(path)
        if trusted:
            jupyterlab.trust(name)
        with browse(chrome, jupyterlab, name, settings) as lab:
            try:
                yield lab
            finally:
                jupyterlab.end_kernel(name)

    return opened


def saved_whole(lab: Page) -> str:
    """The notebook as it is saved once every widget of it is in the file.

    ipywidgets writes those widgets that the page has finished making, and leaves out the others
    without a word; an autosave that is just under way passes for the save that was asked for.
    """
    saved = ""

    def whole() -> bool:
        nonlocal saved
        lab.save()
        saved = (lab.server.root / lab.name).read_text(encoding="utf-8")
        with suppress(json.JSONDecodeError):  # it is just being written
            return not gallery.missing(saved)
        return False

    lab.until(whole)
    return saved


@pytest.fixture(scope="session")
def galleries(opened: Callable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """``galleries(language)``: the gallery in a language, run when it is first asked for.

    So that both ways of sending widgets' messages are seen, the English one opens with BUSY_COMMS.
    """
    made: dict[str, Gallery] = {}
    with ExitStack() as until_the_end:

        def run(language: str) -> Gallery:
            if language not in made:
                path = gallery.write(tmp_path_factory.mktemp("gallery"), language)
                settings = BUSY_COMMS if language == "en" else None
                lab = until_the_end.enter_context(opened(path, settings))
                lab.run_all()
                gallery.output(lab.page, "zero_stages").locator("svg").first.wait_for()
                made[language] = Gallery(lab=lab, saved=saved_whole(lab))
            return made[language]

        yield run
