"""What torchrun forks on every node: ``torchrun --start-method=fork --run-path worker.py FOLDER``.

It calls the function that lies in the folder, tells there how it gets on (``told-<rank>.jsonl``,
``report-<rank>.json``), and leaves what any rank leaves. A file ``stop`` ends it, and so does the
end of who launched it: ``alive`` is then touched no more.
"""

import faulthandler
import json
import os
import pickle
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from labkit import words
from labkit.devices import place
from labkit.launching.fork import messages
from labkit.launching.fork import worker as local
from labkit.launching.fork.messages import Failed, RankMessage, Returned, Started
from labkit.launching.fork.pickling import pack_result
from labkit.launching.fork.request import Request
from labkit.launching.nodes import clocks
from labkit.launching.nodes.places import host_name
from labkit.launching.rank import Rank, become
from labkit.launching.rank_state import RankFiles
from labkit.launching.verdicts import introspect
from labkit.launching.verdicts.outcome import is_of_a_peer
from labkit.words import say

TICK_S = 0.2
ORPHANED_S = 30.0
"""how long ``alive`` may stay untouched; longer than shared folders take to show a change"""
STAYS_S = 0.5
"""how long a rank stays that failed, so that others that fail alike can tell it too"""
ECHO_STAYS_S = 2.0
"""how long one stays that only noticed that a peer was gone: torchrun looks ten times a second, or
less on a busy machine, and tells of the first that it finds ended, which should be one killed"""


class Teller:
    """Where a rank's messages go: a line each, at the end of a file."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.file = folder / f"told-{rank}.jsonl"
        self.report = folder / f"report-{rank}.json"

    def tell(self, message: RankMessage) -> None:
        """Adds a message."""
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(messages.encode(message)) + "\n")

    def put(self, report: RankMessage) -> None:
        """Says where the rank is now, in place of what was said before."""
        draft = self.report.with_suffix(".draft")
        draft.write_text(json.dumps(messages.encode(report)), encoding="utf-8")
        draft.replace(self.report)


def main(folder: Path) -> None:
    """One rank. Returns once all ranks have their results, for torchrun counts who returned; leaves
    by _exit where its function fails."""
    request = Request.from_json(json.loads((folder / "request.json").read_text()))
    rank = int(os.environ["RANK"])
    files = RankFiles(folder=folder, rank=rank)
    teller = Teller(folder, rank)
    _settle(files, request)
    over = threading.Event()
    threading.Thread(target=_report, args=(files, request, teller, over), daemon=True).start()
    here = Rank(rank, request.num_ranks, folder, teller.tell)
    become(here)
    try:
        _call(here, request, teller)
    except BaseException as error:
        local.flush()
        failed = Failed(**introspect.describe(error, request.sources))
        teller.tell(failed)
        time.sleep(ECHO_STAYS_S if is_of_a_peer(failed.message) else STAYS_S)
        os._exit(1)
    _wait_for_others(folder, request.num_ranks)
    over.set()
    local.flush()


def _settle(files: RankFiles, request: Request) -> None:
    """The surroundings of the run."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # torchrun's own handler came with the fork
    local.redirect_output(files)
    files.stack.touch(mode=0o600)
    os.environ["LABKIT_RUN_DIR"] = str(files.folder)
    os.chdir(request.cwd)
    sys.path[:] = [*request.sys_path, *(each for each in sys.path if each not in request.sys_path)]
    words.use(request.language)
    place.take(request.rung, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))
    local.seed_all(request.seed + files.rank, request.num_threads)
    local.stand_in_for_the_notebook(request)


def _call(here: Rank, request: Request, teller: Teller) -> None:
    """Brings the group up, measures the clocks, calls the function, leaves its result."""
    for note in request.rung.notes:
        here.note(note)
    fn, args, kwargs = pickle.loads(request.call_file.read_bytes())
    local.adopt_main()
    local.init_process_group(request)
    ranks_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    clock = clocks.measure(here.rank, here.world_size, ranks_per_node)
    here.note("slurm" if "SLURM_JOB_ID" in os.environ else "torchrun")
    here.note(say("{nodes} nodes", nodes=here.world_size // ranks_per_node))
    here.note(clock.told())
    about = {"host": host_name(), "node": here.rank // ranks_per_node, **vars(clock)}
    (here.folder / f"about-{here.rank}.json").write_text(json.dumps(about))
    teller.tell(Started())
    result = pack_result(fn(*args, **kwargs), here.rank)
    files = RankFiles(folder=here.folder, rank=here.rank)
    _onto_the_first_clock(here.folder / f"trace-{here.rank}.json", clock)
    local.write_calls(files, request)
    _whole(files.result, result)
    last = introspect.collectives()["last"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    teller.tell(Returned(notes=tuple(here.notes), peak_rss_bytes=peak, last=last))


def _onto_the_first_clock(trace: Path, clock: clocks.Clock) -> None:
    """A recording, as the first node's clock would have timed it."""
    if trace.exists() and clock.offset_ns:
        content = json.loads(trace.read_bytes())
        content["baseTimeNanoseconds"] -= clock.offset_ns
        _whole(trace, json.dumps(content).encode())


def _whole(file: Path, content: bytes) -> None:
    """Writes a file that others find whole or not at all."""
    draft = file.with_suffix(".draft")
    draft.write_bytes(content)
    draft.replace(file)


def _wait_for_others(folder: Path, num_ranks: int) -> None:
    """Until all have their results: who leaves early closes connections that others still make."""
    files = RankFiles.of_run(folder, num_ranks)
    while not all(each.result.exists() for each in files):
        time.sleep(0.02)


def _report(files: RankFiles, request: Request, teller: Teller, over: threading.Event) -> None:
    """A thread: says where the rank is, dumps its stacks when asked, and ends it when told to.
    Until the rank's work is over."""
    asked = files.folder / "stacks-asked"
    answered_ns = 0
    before = None
    wanted = Wanted(files.folder)
    while wanted():
        report = local.look(request)
        if report.pending and report.last == before:
            local.write_calls(files, request)  # it waits where it waited before
        before = report.last
        teller.put(report)
        if asked.exists() and asked.stat().st_mtime_ns != answered_ns:
            answered_ns = asked.stat().st_mtime_ns
            with open(files.stack, "a") as file:
                faulthandler.dump_traceback(file=file, all_threads=True)
        if over.wait(TICK_S):
            return
    local.flush()
    os._exit(1)


class Wanted:
    """Whether somebody still wants a run. Clocks of two machines are not compared: it counts for
    how long ``alive`` has not changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen_ns = 0
        self.seen_at = time.monotonic()

    def __call__(self) -> bool:
        """Looks once more."""
        try:
            if (self.folder / "stop").exists() or not self.folder.exists():
                return False
            touched_ns = (self.folder / "alive").stat().st_mtime_ns
        except FileNotFoundError:  # sent by hand: nobody watches
            return self.folder.exists()
        if touched_ns != self.seen_ns:
            self.seen_ns = touched_ns
            self.seen_at = time.monotonic()
        return time.monotonic() - self.seen_at < ORPHANED_S


if __name__ == "__main__":
    main(Path(sys.argv[1]))
