"""Small courses, built and executed once, and the run of the real chapters that several tests
read."""

import book
import checked
import pytest
from small import COURSE, ROOT, TINY, TINY_CHINESE, make


@pytest.fixture
def tiny(tmp_path):
    """A project with one small chapter, its translations stamped and everything built."""
    readme = "head\n<!-- chapters -->\nold\n<!-- /chapters -->\ntail\n"
    return make(tmp_path, readme, {"03_tiny": (TINY, TINY_CHINESE)})


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A course of two chapters, built, executed and written as a book."""
    root = tmp_path_factory.mktemp("course")
    make(root, "<!-- chapters --><!-- /chapters -->", COURSE)
    assert book.main([], root) == 0
    return root


@pytest.fixture(scope="session")
def copies():
    """The executed copies in out/checked, made now where they are absent or stale. Whether all of
    them ran to their end is for the tests to say."""
    checked.execute(ROOT, checked.standard(ROOT))
