"""A rank's side of a run: what happens between the fork and the exit of one real process.

The function that a learner launches finds an ordinary torch program around it: RANK, WORLD_SIZE and
the like are set and the default process group is up. ``current()`` tells a rank about its run.
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
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from labkit.launching import introspect, messages

_current: "Rank | None" = None


class Rank:
    """What a rank knows about its run, and its way to tell the notebook something."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        folder: Path | None,
        tell: Callable[[dict], None] | None = None,
    ) -> None:
        self.rank, self.world_size, self.folder = rank, world_size, folder
        self.notes: list[str] = []
        self._tell = tell or (lambda message: None)

    def note(self, text: str) -> None:
        """Adds a word that must stand beside every number of this run, such as "paced"."""
        if text not in self.notes:
            self.notes.append(text)

    def give(self, value: object) -> None:
        """Hands over a script's result, where there is no return value: ``run[r]`` of
        ``launch_script``."""
        if self.folder is not None:
            (self.folder / f"result-{self.rank}.pkl").write_bytes(_pack(value, self.rank))

    def progress(self, *, step: int | None = None, loss: float | None = None) -> None:
        """Shows how far this rank is, in the live line of the notebook. Costs some microseconds."""
        numbers = {
            "step": None if step is None else int(step),
            "loss": None if loss is None else float(loss),
        }
        self._tell({"event": "progress", **numbers})


def current() -> Rank:
    """This process's Rank. In a process that labkit did not fork (torchrun, say) it is read from
    the environment."""
    global _current
    if _current is None:
        folder = os.environ.get("LABKIT_RUN_DIR")
        _current = Rank(
            int(os.environ.get("RANK", 0)),
            int(os.environ.get("WORLD_SIZE", 1)),
            Path(folder) if folder else None,
        )
    return _current


def main(sock: socket.socket, index: int, request: dict) -> None:
    """Runs one rank to its end. Never returns: torch's own teardown aborts now and then after
    success, so it leaves by _exit."""
    started = time.monotonic()
    lock = threading.Lock()

    def tell(message: dict) -> None:
        with lock, contextlib.suppress(OSError):
            messages.send(sock, {**message, "at": time.monotonic()})

    try:
        _settle(index, request)
        bye = threading.Event()
        threading.Thread(
            target=_answer, args=(sock, tell, request["sources"]), daemon=True, name="labkit"
        ).start()
        result = _run(index, request, tell)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        peak_rss_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        Path(request["folder"], f"result-{index}.pkl").write_bytes(result)
        introspect.tell_calls(Path(request["folder"]), index, request["sources"])
        _flush()
        tell(
            {
                "event": "returned",
                "notes": current().notes,
                "peak_rss_bytes": peak_rss_bytes,
                "seconds": time.monotonic() - started,
                **introspect.collectives(),
            }
        )
        bye.wait()  # the answering thread ends the process when the notebook says bye
    except BaseException as error:
        _flush()
        with contextlib.suppress(Exception):
            introspect.tell_calls(Path(request["folder"]), index, request["sources"])
        tell({"event": "failed", **introspect.describe(error, request["sources"])})
    os._exit(1)


def _settle(index: int, request: dict) -> None:
    """Makes the fork a process of its own: session, death with its parent, output files,
    environment, threads, seeds."""
    import numpy as np
    import torch

    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: die with the zygote
    folder = Path(request["folder"])
    for number, name in (
        (0, os.devnull),
        (1, folder / f"log-{index}.txt"),
        (2, folder / f"log-{index}.txt"),
    ):
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(request["environ"], RANK=str(index), LOCAL_RANK=str(index))
    os.chdir(request["cwd"])
    sys.path[:], sys.argv[:] = request["sys_path"], ["labkit-rank"]
    faulthandler.enable()
    faulthandler.register(
        signal.SIGUSR1, file=open(folder / f"stack-{index}.txt", "w"), all_threads=False
    )
    torch.set_num_threads(request["threads"])
    seed = request["seed"] + index
    random.seed(seed), np.random.seed(seed % 2**32), torch.manual_seed(seed)
    for file, (name, lines) in request["sources"].items():
        linecache.cache[file] = (sum(map(len, lines)), None, lines, name)
    sys.modules["__main__"] = types.ModuleType("__main__")


def _run(index: int, request: dict, tell: Callable[[dict], None]) -> bytes:
    """Unpickles the function, brings the process group up, calls it and pickles what it returns."""
    global _current
    import torch
    import torch.distributed as dist

    folder = Path(request["folder"])
    _current = Rank(index, request["ranks"], folder, tell)
    _current.note(request["backend"])
    fn, args, kwargs = pickle.loads(Path(request["payload"]).read_bytes())
    _adopt_main()
    if request["backend"] == "nccl":
        torch.cuda.set_device(index)
        torch.set_default_device(
            torch.device("cuda", index)
        )  # the same cell then runs on CPU and GPU
    # the zygote imported torch before the notebook set TORCH_DISTRIBUTED_DEBUG
    dist.set_debug_level_from_env()
    store = dist.FileStore(str(folder / "store"), request["ranks"])
    with _patient_threads():
        dist.init_process_group(
            request["backend"], store=store, rank=index, world_size=request["ranks"]
        )
    tell({"event": "started"})
    return _pack(fn(*args, **kwargs), index)


@contextlib.contextmanager
def _patient_threads() -> Iterator[None]:
    """Threads begun inside, gloo's, do not interrupt a running one when they wake up (SCHED_BATCH).

    gloo's event loop spins while another thread holds its lock; if it has taken that thread's core,
    both lose the rest of a time slice, 3 to 4 ms. Measured with 4 ranks on 2 cores: an all-reduce
    of 1 kB takes 0.9 ms instead of 5.
    """
    if sys.platform == "linux":
        before = os.sched_getscheduler(0)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    yield
    if sys.platform == "linux":
        os.sched_setscheduler(0, before, os.sched_param(0))


def _adopt_main() -> None:
    """Classes defined in a cell live in this process's ``__main__`` too, where torch.save and
    all_gather_object look for them."""
    from cloudpickle import cloudpickle

    for cls in list(cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS):
        if cls.__module__ == "__main__":
            setattr(sys.modules["__main__"], cls.__name__, cls)


def _pack(result: object, index: int) -> bytes:
    """Pickles a result, GPU tensors moved to the host. Raises TypeError that names the type which
    can't be sent."""
    import io

    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: object) -> object:
            if isinstance(thing, torch.Tensor) and thing.device.type == "cuda":
                return thing.detach().cpu().__reduce_ex__(4)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    try:
        Pickler(buffer, protocol=5).dump(result)
    except Exception as error:
        raise TypeError(
            f"a rank's result must be picklable; rank {index} returned a {type(result).__name__}, "
            "which is not "
            f"({error}). Return numbers, tensors, or a state_dict instead."
        ) from None
    return buffer.getvalue()


def _answer(sock: socket.socket, tell: Callable[[dict], None], sources: dict) -> None:
    """A thread: answers "where are you?" while the rank works or waits, and ends the process on bye
    or when the notebook is gone."""
    main_thread, last, told = threading.main_thread().ident, None, None
    while True:
        message, _ = messages.receive(sock)
        if message is None or message.get("bye"):
            _flush()
            os._exit(0 if message else 1)
        report = {"where": {}, "pending": [], "groups": {}, "last": None}
        with contextlib.suppress(Exception):  # the main thread moves on while we look
            report["where"] = introspect.where(sys._current_frames().get(main_thread), sources)
            report |= introspect.collectives()
            if (
                report["pending"] and report["last"] == last != told
            ):  # it waits: time to say what came before
                introspect.tell_calls(current().folder, current().rank, sources)
                told = last
            last = report["last"]
        tell({"event": "report", **report})


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
