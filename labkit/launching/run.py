"""What a run brought back: each rank's result, what it printed, and what it recorded."""

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from labkit import tables
from labkit.launching import saved
from labkit.launching.rank_state import RankFiles, last_lines
from labkit.launching.saved import UNREADABLE, Unsaved
from labkit.shown import Said
from labkit.words import WORDS, spoken_in, to_say, translated

if TYPE_CHECKING:
    from labkit.timeline import Timeline

__all__ = ["UNREADABLE", "Run", "Unsaved", "remove"]
_TITLE = to_say("Run: {ranks} ranks, {badge}, {seconds:.2f} s")


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What came of one launch. ``run[r]`` is what rank r returned. In a notebook it shows its
    timeline, or its results where nothing was recorded."""

    results: tuple
    """one result per rank"""
    logs: tuple[str, ...]
    """what each rank printed, standard output and errors together"""
    seconds: float
    """from the call to the last result, in seconds"""
    backend: str
    """what carried the messages: "gloo" or "nccl\""""
    notes: tuple[str, ...]
    """what must be said with every number of it: the backend, "paced", ..."""
    devices: str = "cpu"
    """what the ranks computed on: "cuda", "shared", "pretend" or "cpu\""""
    peak_rss_bytes: tuple[int, ...] = ()
    """the largest resident memory of each rank's process, in bytes"""
    machine: dict = field(default_factory=dict)
    """the machine it ran on, as ``resources.summary`` tells it"""
    waited_s: float = 0.0
    """how long it waited at the gate of a shared machine before it started, in seconds; ``seconds``
    is without it"""
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S"))
    """when, local time"""
    folder: Path | None = None
    """where its traces lie, for as long as the Run lives"""
    origin: str = "measured"
    """"measured", or "recorded" once it was loaded from disk"""

    def __getitem__(self, rank: int) -> object:
        return self.results[rank]

    def __len__(self) -> int:
        return len(self.results)

    @property
    def badge(self) -> str:
        """Where its numbers come from, in words: "measured, gloo, paced"."""
        return ", ".join((self.origin, *self.notes))

    def __repr__(self) -> str:
        return f"Run({len(self)} ranks, {self.badge}, {self.seconds:.2f} s)"

    def bundle(self, *, title: Said = "", language: str | None = None) -> dict[str, str]:
        """What it shows, by mime type."""
        if self._recorded():
            return self.timeline().bundle(title=title, language=language)
        table = self.table(title=title, language=language)
        return {"text/html": table._repr_html_(), "text/plain": f"{self!r}\n{table}"}

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return self.bundle()

    def table(self, *, title: Said = "", language: str | None = None) -> tables.Table:
        """What every rank returned, a row each: the parts of a dict in columns; and the last line
        that it printed."""
        parts = [result for result in self.results if isinstance(result, dict)]
        keys = {tuple(part) for part in parts}
        apart = len(parts) == len(self) and len(keys) == 1 and _are_words(*keys)
        rows = []
        for rank, (result, log) in enumerate(zip(self.results, self.logs, strict=True)):
            row = {"rank": rank, **(result if apart else {"returned": result})}
            if any(self.logs):
                row.setdefault("printed", last_lines(log, 1))
            rows.append(row)
        return tables.table(rows, title=title or self._title(language), language=language)

    def _title(self, language: str | None) -> str:
        """How many ranks, where the numbers come from, and how long it took."""
        words = WORDS[spoken_in(language)]
        notes = words["comma"].join(words.get(note, note) for note in (self.origin, *self.notes))
        text = translated(_TITLE, spoken_in(language))
        return text.format(ranks=len(self), badge=notes, seconds=self.seconds)

    def timeline(self) -> "Timeline":
        """Everything the ranks recorded with ``trace.record``, on one clock. Raises ValueError when
        they recorded nothing."""
        nodes = self._hosts()
        if self.folder and (self.folder / saved.TIMELINE).exists():
            from labkit.timeline import Timeline

            timeline = Timeline.load(self.folder / saved.TIMELINE)
            return replace(timeline, origin=self.origin, nodes=nodes)
        traces = self._traces()
        if not traces:
            raise ValueError(
                "a timeline needs a recording; these ranks recorded none. Wrap the part to be "
                "seen in `with trace.record():` inside the launched function, or launch "
                "it with record=True."
            )
        # measure stands right of launching: only when called, and only here
        from labkit.measure import trace

        return replace(trace.read(traces), nodes=nodes)

    def _hosts(self) -> tuple[str, ...]:
        """Each rank's host, where the machine tells of several."""
        told = self.machine.get("ranks")
        if not isinstance(told, list) or len(told) != len(self.results):
            return ()
        hosts = [about.get("host") if isinstance(about, dict) else None for about in told]
        return tuple(hosts) if all(isinstance(host, str) for host in hosts) else ()

    def _recorded(self) -> bool:
        return bool(self._traces() or (self.folder and (self.folder / saved.TIMELINE).exists()))

    def _traces(self) -> list[Path]:
        """What the ranks have recorded, a file each."""
        if self.folder is None or self.origin != "measured":
            return []
        return sorted(self.folder.glob("trace-*"))

    def calls(self) -> list[list[dict]]:
        """The collectives that each rank called, in order, point-to-point messages left out: one
        list per rank.

        Each is a dict of group, seq (its number in the group), op, shapes, dtypes, and file, line,
        function, text of the line that called it. torch's flight recorder keeps the last 2,000.
        Empty for a script's ranks.
        """
        if self.folder is None:
            return [[] for _ in self.results]
        return [files.read_calls() for files in RankFiles.of_run(self.folder, len(self))]

    def memory(self) -> list[dict]:
        """One row per rank: rank, peak_rss_bytes (largest resident memory of its process)."""
        return [
            {"rank": rank, "peak_rss_bytes": num_bytes}
            for rank, num_bytes in enumerate(self.peak_rss_bytes)
        ]

    def save(self, folder: str | Path) -> Path:
        """Writes the run as JSON, npz and safetensors, with its timeline. Returns the folder, which
        must be new or empty.

        A result that fits none of these formats is kept as its repr, and ``run.json`` names it
        under ``kept_as_repr``.
        """
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise ValueError(
                f"a run is saved into a new or empty folder; {folder} holds "
                f"{next(folder.iterdir()).name}. Choose another name or delete it first."
            )
        folder.mkdir(parents=True, exist_ok=True)
        saved.write(folder, self.results, {name: getattr(self, name) for name in saved.ABOUT})
        if self._recorded():
            self.timeline().save(folder / saved.TIMELINE)
        for rank, calls in enumerate(self.calls()):
            if calls:
                RankFiles(folder=folder, rank=rank).write_calls(calls)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> "Run":
        """Reads what ``save`` wrote; unpickles nothing. Its origin is "recorded". Raises ValueError
        for any other folder."""
        folder = Path(folder)
        results, about = saved.read(folder)
        return cls(results=results, folder=folder, origin="recorded", **about)


def _are_words(keys: tuple) -> bool:
    return bool(keys) and all(isinstance(key, str) for key in keys) and "rank" not in keys


def remove(folder: Path) -> None:
    """Deletes a run's temporary folder."""
    shutil.rmtree(folder, ignore_errors=True)
