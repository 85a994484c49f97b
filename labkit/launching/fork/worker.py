"""The life of a rank's process, from the fork to its exit.

The function that a learner launches finds an ordinary torch program around it: RANK, WORLD_SIZE and
the like are set and the default process group is up.
"""

import contextlib
import ctypes
import faulthandler
import linecache
import os
import pickle
import random
import resource
import signal
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

from labkit import words
from labkit.devices import place
from labkit.launching.fork import messages
from labkit.launching.fork.messages import Bye, Failed, RankMessage, Report, Returned, Started
from labkit.launching.fork.pickling import pack_result
from labkit.launching.fork.request import Request
from labkit.launching.rank import Rank, become
from labkit.launching.rank_state import RankFiles
from labkit.launching.verdicts import introspect

_RENAMED = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
"""What torch.distributed called otherwise before torch 2.13."""
Tell = Callable[[RankMessage], None]


def main(sock: socket.socket, rank: int, request: Request) -> NoReturn:
    """Runs one rank to its end. Never returns: torch's own teardown aborts now and then after
    success, so it leaves by _exit."""
    files = RankFiles(folder=request.folder, rank=rank)
    tell = _teller(sock)
    try:
        _settle(files, request)
        answering = threading.Thread(
            target=_answer, args=(sock, tell, files, request), daemon=True, name="labkit"
        )
        answering.start()
        here = Rank(rank, request.num_ranks, request.folder, tell)
        become(here)
        result = _call(here, request, tell)
        _hand_over(result, here, files, request, tell)
        answering.join()  # it ends the process when the notebook says bye
    except BaseException as error:
        flush()
        with contextlib.suppress(Exception):
            write_calls(files, request)
        tell(Failed(**introspect.describe(error, request.sources)))
    os._exit(1)


def _teller(sock: socket.socket) -> Tell:
    """A function that tells the notebook something. Several threads may call it; nobody may
    listen."""
    lock = threading.Lock()

    def tell(message: RankMessage) -> None:
        with lock, contextlib.suppress(OSError):
            messages.send(sock, message)

    return tell


def _settle(files: RankFiles, request: Request) -> None:
    """Makes the fork a process of its own, in the surroundings of the run."""
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the zygote
    redirect_output(files)
    os.environ.clear()
    os.environ.update(request.environ, RANK=str(files.rank), LOCAL_RANK=str(files.rank))
    os.chdir(request.cwd)
    sys.path[:] = request.sys_path
    sys.argv[:] = ["labkit-rank"]
    words.use(request.language)
    _dump_stack_when_asked(files)
    place.take(request.rung, files.rank, request.num_ranks)
    seed_all(request.seed + files.rank, request.num_threads)
    stand_in_for_the_notebook(request)


def redirect_output(files: RankFiles) -> None:
    """What the rank and its children print goes to its log; there is nothing to read."""
    for number, path in ((0, os.devnull), (1, files.log), (2, files.log)):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout.reconfigure(line_buffering=True)


def _dump_stack_when_asked(files: RankFiles) -> None:
    """SIGUSR1 writes the Python stack to a file, also while native code runs."""
    faulthandler.enable()
    fd = os.open(files.stack, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    faulthandler.register(signal.SIGUSR1, file=fd, all_threads=False)


def seed_all(seed: int, num_threads: int) -> None:
    """Sets every source of random numbers, and torch's threads."""
    import numpy as np
    import torch

    torch.set_num_threads(num_threads)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _call(here: Rank, request: Request, tell: Tell) -> bytes:
    """Unpickles the function, brings the process group up, calls it and pickles what it returns."""
    for note in request.rung.notes:
        here.note(note)
    fn, args, kwargs = pickle.loads(request.call_file.read_bytes())
    adopt_main()
    _meet(here, request)
    tell(Started())
    return pack_result(fn(*args, **kwargs), here.rank)


def _meet(here: Rank, request: Request) -> None:
    """The ranks of one machine find each other by a file. None leaves before all are connected:
    one that raises at once would leave another in the midst of it."""
    from torch.distributed import FileStore

    store = FileStore(str(request.folder / "store"), request.num_ranks)
    init_process_group(request, store=store, rank=here.rank, world_size=request.num_ranks)
    if store.add("labkit/connected", 1) == request.num_ranks:
        store.set("labkit/all", "1")
    store.wait(["labkit/all"])


def init_process_group(request: Request, **meeting: object) -> None:
    """Brings the default group up. ``meeting``: how its ranks find each other, where their
    environment does not say it."""
    import torch.distributed as dist

    for name, before in _RENAMED.items():
        if not hasattr(dist, name):
            setattr(dist, name, getattr(dist, before))
    # the zygote imported torch before the notebook set TORCH_DISTRIBUTED_DEBUG
    dist.set_debug_level_from_env()
    # the current device is the rank's own, so that a barrier need not tell which one it takes
    warnings.filterwarnings(
        "ignore", message=r"barrier\(\): using the device under current context"
    )
    with _patient_threads():
        dist.init_process_group(request.rung.backend, **meeting)


@contextlib.contextmanager
def _patient_threads() -> Iterator[None]:
    """Threads begun inside, gloo's, do not interrupt a running one when they wake up (SCHED_BATCH).

    gloo's event loop spins while another thread holds its lock; if it has taken that thread's core,
    both lose the rest of a time slice, 3 to 4 ms. Measured with 4 ranks on 2 cores: an all-reduce
    of 1 kB takes 0.9 ms instead of 5.
    """
    if sys.platform != "linux":
        yield
        return
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    yield
    os.sched_setscheduler(0, before, os.sched_param(0))


def stand_in_for_the_notebook(request: Request) -> None:
    """Tracebacks find the notebook's cells, and ``__main__`` is a module of the rank's own."""
    for file, source in request.sources.items():
        num_chars = sum(map(len, source.lines))
        linecache.cache[file] = (num_chars, None, list(source.lines), source.name)
    sys.modules["__main__"] = types.ModuleType("__main__")


def adopt_main() -> None:
    """Classes defined in a cell live in this process's ``__main__`` too, where torch.save and
    all_gather_object look for them."""
    from cloudpickle import cloudpickle

    for cls in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if cls.__module__ == "__main__":
            setattr(sys.modules["__main__"], cls.__name__, cls)


def _hand_over(result: bytes, here: Rank, files: RankFiles, request: Request, tell: Tell) -> None:
    """Leaves the result and the calls in their files, and says so."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    files.result.write_bytes(result)
    write_calls(files, request)
    flush()
    tell(
        Returned(
            notes=tuple(here.notes),
            peak_rss_bytes=usage.ru_maxrss * unit_bytes,
            last=introspect.collectives()["last"],
        )
    )


def write_calls(files: RankFiles, request: Request) -> None:
    """Leaves the collectives that this rank has called in their file."""
    calls = introspect.calls(request.sources)
    if calls is not None:
        files.write_calls(calls)


def _answer(sock: socket.socket, tell: Tell, files: RankFiles, request: Request) -> None:
    """A thread: answers "where are you?" while the rank works or waits, and ends the process on bye
    or when the notebook is gone."""
    last = written = None
    while True:
        question, _ = messages.receive(sock)
        if question is None or isinstance(question, Bye):
            flush()
            os._exit(0 if question else 1)
        report = look(request)
        if report.pending and report.last == last != written:
            # it waits where it waited before: time to say what came before
            with contextlib.suppress(Exception):
                write_calls(files, request)
                written = last
        last = report.last
        tell(report)


def look(request: Request) -> Report:
    """Where the main thread is. It moves on while we look: what then can't be read is left out."""
    told = {"where": {}, "pending": (), "groups": {}, "last": None}
    with contextlib.suppress(Exception):
        told["where"] = introspect.where(threading.main_thread().ident, request.sources)
        told |= introspect.collectives()
    return Report(**told)


def flush() -> None:
    """Has all that was printed written."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
