"""Laws of the thread that says where its rank is: it changes nothing of what the rank does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from labkit.launching.fork import worker

SOON_S = 10


class Local:
    """A function's local that tells which thread ended it."""

    def __init__(self, ended_in):
        self.ended_in = ended_in

    def __del__(self):
        self.ended_in.append(threading.current_thread())


class Sources(dict):
    """The files that are cells: who looks into them has begun to look at the stack, and goes on
    only when the function that it found there has returned."""

    def __init__(self):
        self.asked = threading.Event()
        self.returned = threading.Event()

    def __contains__(self, file):
        self.asked.set()
        assert self.returned.wait(SOON_S)
        return super().__contains__(file)


def test_who_asks_where_a_rank_is_ends_none_of_its_locals():
    """One of them may be a guard of torch's, which undoes what it did to the state of its own
    thread: while another thread did that, prints of a tensor failed."""
    sources = Sources()
    ended_in = []

    def work():
        local = Local(ended_in)  # noqa: F841
        asking.start()
        assert sources.asked.wait(SOON_S)

    asking = threading.Thread(target=worker.look, args=(SimpleNamespace(sources=sources),))
    work()
    sources.returned.set()
    asking.join()
    assert ended_in == [threading.main_thread()]


def test_a_rank_is_where_its_own_innermost_line_is():
    request = SimpleNamespace(sources={})

    def work(pool):
        return pool.submit(worker.look, request).result().where

    with ThreadPoolExecutor(1) as pool:
        told = work(pool)
    assert told["file"] == "test_where.py"
    assert told["function"] == "work"
    assert told["text"] == "return pool.submit(worker.look, request).result().where"
    assert told["call"] is None
