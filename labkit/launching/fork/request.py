"""What a run's ranks are asked to do, and in what surroundings: sent to the zygote, read by every
rank."""

import linecache
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from labkit import words
from labkit.devices.rung import Rung


@dataclass(frozen=True, kw_only=True)
class Source:
    """Code that lies in no file, such as a notebook's cell."""

    name: str
    """as the notebook shows it: "In[3]\""""
    lines: tuple[str, ...]
    """its lines, each with its line end"""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run, as its ranks need to know it."""

    num_ranks: int
    """how many processes"""
    rung: Rung
    """what they compute on, and communicate with"""
    seed: int
    """rank r's random numbers start from ``seed + r``"""
    folder: Path
    """where the run keeps its files: the call, and each rank's log and result"""
    num_threads: int
    """threads per rank"""
    cwd: str
    """the folder that the ranks work in"""
    sys_path: tuple[str, ...]
    """where they look for modules"""
    environ: dict[str, str]
    """their environment, but for what differs by rank"""
    sources: dict[str, Source]
    """cells by the file names that Python has given them"""
    language: str
    """what they speak: "en" or "zh\""""
    deepspeed: bool = False
    """whether they may train with DeepSpeed"""

    @property
    def call_file(self) -> Path:
        """The pickled function with its arguments."""
        return self.folder / "call.pkl"

    def to_json(self) -> dict:
        """As it is sent."""
        sources = {file: [source.name, source.lines] for file, source in self.sources.items()}
        parts = {"rung": self.rung.to_json(), "folder": str(self.folder), "sources": sources}
        return {**vars(self), **parts}

    @classmethod
    def from_json(cls, content: dict) -> "Request":
        """The request that ``to_json`` wrote. Raises TypeError where a part is missing or
        strange."""
        sources = {
            file: Source(name=name, lines=tuple(lines))
            for file, (name, lines) in content["sources"].items()
        }
        parts = {
            "rung": Rung.from_json(content["rung"]),
            "folder": Path(content["folder"]),
            "sys_path": tuple(content["sys_path"]),
            "sources": sources,
        }
        return cls(**{**content, **parts})


def surroundings(**parts: object) -> Request:
    """The request of a run that finds everything as it is here: its folder, where modules are
    looked for, the cells, the language. ``parts``: what else a request has."""
    return Request(
        cwd=os.getcwd(),
        sys_path=tuple(entry or os.getcwd() for entry in sys.path if isinstance(entry, str)),
        sources=cell_sources(),
        language=words.language(),
        **parts,
    )


def cell_sources() -> dict[str, Source]:
    """What Python keeps of code that lies in no file, by file name."""
    found = {}
    for file, entry in list(linecache.cache.items()):
        if len(entry) != 4:  # a promise to read the file when it is needed
            continue
        _, modified, lines, _ = entry
        if modified is None or not os.path.exists(file):
            found[file] = Source(name=_shown_name(file), lines=tuple(lines))
    return found


def _shown_name(file: str) -> str:
    """A cell's name as the notebook shows it: "In[3]" of "Cell In[3]"."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is None:
        return os.path.basename(file)
    try:
        return " ".join(shell.compile.format_code_name(file))
    except (AttributeError, TypeError, KeyError):
        return os.path.basename(file)
