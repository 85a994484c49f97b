"""A run on disk: JSON, npz and safetensors. No pickle is written, and nothing that a folder holds
is run or imported.

JSON knows numbers, words, lists and None. Anything else stands in ``run.json`` as an object of one
entry, its tag and its content: {"$tuple": [...]}, {"$npz": name}, ... A noun of labkit brings its
own: a class with a ``JSON_TAG``, ``to_json`` and ``from_json``, in one of NOUNS.
"""

import functools
import importlib
import inspect
import json
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as brief
from typing import ClassVar, Protocol

from labkit.units import check_real, check_whole, check_word

ABOUT = (
    "logs",
    "seconds",
    "backend",
    "devices",
    "notes",
    "peak_rss_bytes",
    "machine",
    "started",
    "waited_s",
)
"""What is kept of a Run beside its results."""
TIMELINE = "timeline.json"
"""The file of its timeline, if there is one."""
NOUNS = ("footprint", "shards")
"""The root modules whose nouns can stand in a result."""
TAGS = ("$npz", "$safetensors", "$tuple", "$dict", "$repr")
"""What stands for a value that is no noun."""
UNREADABLE = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What readers of JSON, npz and safetensors raise for files that are none."""


class Unsaved(str):
    """The repr of a result that fits none of JSON, npz and safetensors: all that a saved run keeps
    of it."""


class Noun(Protocol):
    """What can bring itself to JSON and back."""

    JSON_TAG: ClassVar[str]
    """what stands for it, with a dollar in front"""

    def to_json(self) -> object:
        """Its content."""

    @classmethod
    def from_json(cls, content: object) -> "Noun":
        """The noun whose content this was; its origin is then "recorded". Raises ValueError or
        TypeError for any other content."""


@functools.cache
def nouns() -> dict[str, type[Noun]]:
    """The classes that can stand in a result, by tag. NOUNS alone says where they are looked
    for."""
    found = {}
    for name in NOUNS:
        module = importlib.import_module(f"labkit.{name}")
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if hasattr(cls, "JSON_TAG"):
                found[cls.JSON_TAG] = cls
    return found


def write(folder: Path, results: tuple, about: dict) -> None:
    """Writes results, and what is known about their run, into an empty folder."""
    encoder = _Encoder()
    encoded = [encoder.encode(result, f"rank{rank}") for rank, result in enumerate(results)]
    if encoder.arrays:
        import numpy as np

        np.savez_compressed(folder / "arrays.npz", **encoder.arrays)
    if encoder.tensors:
        from safetensors.torch import save_file

        save_file(encoder.tensors, folder / "tensors.safetensors")
    content = {**about, "results": encoded, "kept_as_repr": encoder.reprs}
    text = json.dumps(content, indent=1, ensure_ascii=False)
    (folder / "run.json").write_text(text, encoding="utf-8")


def read(folder: Path) -> tuple[tuple, dict]:
    """What ``write`` wrote: (results, about). Raises ValueError for any other folder."""
    if not (folder / "run.json").is_file():
        raise ValueError(f"a saved run is a folder with a run.json; {str(folder)!r} has none")
    try:
        content = json.loads((folder / "run.json").read_bytes())
        decoder = _Decoder(arrays=_read_arrays(folder), tensors=_read_tensors(folder))
        results = tuple(decoder.decode(result) for result in content["results"])
        # the first runs that were saved did not say; all of them were on the CPU
        content.setdefault("devices", "cpu")
        content.setdefault("waited_s", 0.0)  # nor was there a gate
        about = {name: content[name] for name in ABOUT}
        about |= {name: tuple(about[name]) for name in ("logs", "notes", "peak_rss_bytes")}
        _check(len(results), **about)
    except UNREADABLE as error:
        raise ValueError(
            f"a saved run holds what Run.save wrote; {str(folder)!r} does not "
            f"({type(error).__name__}: {str(error)[:500]}). Save it once more."
        ) from error
    return results, about


@dataclass(frozen=True, kw_only=True)
class _Encoder:
    """Brings values to JSON. Arrays and tensors go into files of their own, named by where they
    stand in the result."""

    arrays: dict = field(default_factory=dict)
    """name -> array"""
    tensors: dict = field(default_factory=dict)
    """name -> tensor"""
    reprs: list[str] = field(default_factory=list)
    """names of what fits no format"""

    def encode(self, value: object, name: str) -> object:
        """JSON for a value that stands at ``name``."""
        import numpy as np

        if _is_plain(value):
            return value
        if isinstance(value, np.generic) and _is_plain(value.item()):
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype != object:
            self.arrays[name] = value
            return {"$npz": name}
        if type(value).__module__.startswith("torch") and hasattr(value, "is_contiguous"):
            self.tensors[name] = value.detach().contiguous().clone()
            return {"$safetensors": name}
        if type(value) is list:
            return self._items(value, name)
        if type(value) is tuple:
            return {"$tuple": self._items(value, name)}
        if isinstance(value, dict) and type(value).__name__ in ("dict", "OrderedDict"):
            return {"$dict": self._pairs(value, name)}
        if type(value) in nouns().values():
            return {f"${value.JSON_TAG}": value.to_json()}
        self.reprs.append(name)
        return {"$repr": str(value) if isinstance(value, Unsaved) else repr(value)}

    def _items(self, values: list | tuple, name: str) -> list:
        return [self.encode(item, f"{name}.{index}") for index, item in enumerate(values)]

    def _pairs(self, values: dict, name: str) -> list[list]:
        """Keys and values. A key may hold a dot, and 1 is not "1": the number keeps names apart."""
        pairs = []
        for index, (key, value) in enumerate(values.items()):
            encoded_key = self.encode(key, f"{name}.key{index}")
            pairs.append([encoded_key, self.encode(value, f"{name}.{key}#{index}")])
        return pairs


@dataclass(frozen=True, kw_only=True)
class _Decoder:
    """Brings JSON back to values."""

    arrays: dict
    """name -> array"""
    tensors: dict
    """name -> tensor"""

    def decode(self, value: object) -> object:
        """The value that was encoded. Raises ValueError, LookupError or TypeError for JSON that
        ``encode`` did not write."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((tag, content),) = value.items()
        own = {f"${name}": noun for name, noun in nouns().items()}
        check_word(tag, (*TAGS, *own), "what stands for a value")
        if tag == "$npz":
            return self.arrays[content]
        if tag == "$safetensors":
            return self.tensors[content]
        if tag == "$tuple":
            return tuple(self.decode(item) for item in content)
        if tag == "$dict":
            return {self.decode(key): self.decode(item) for key, item in content}
        if tag == "$repr":
            return Unsaved(str(content))
        return own[tag].from_json(content)


def _is_plain(value: object) -> bool:
    """Whether JSON has it as it is."""
    if isinstance(value, Unsaved):
        return False
    return value is None or isinstance(value, (bool, int, float, str))


def _read_arrays(folder: Path) -> dict:
    if not (folder / "arrays.npz").exists():
        return {}
    import numpy as np

    with np.load(folder / "arrays.npz", allow_pickle=False) as file:
        arrays = dict(file)
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"arrays.npz holds arrays only; got {name!r}")
    return arrays


def _read_tensors(folder: Path) -> dict:
    if not (folder / "tensors.safetensors").exists():
        return {}
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(folder / "tensors.safetensors")
    except SafetensorError as error:
        raise ValueError(f"tensors.safetensors holds tensors only: {error}") from error


def _check(
    num_ranks: int,
    *,
    logs: tuple,
    notes: tuple,
    peak_rss_bytes: tuple,
    seconds: float,
    backend: str,
    devices: str,
    machine: dict,
    started: str,
    waited_s: float,
) -> None:
    """Raises ValueError where a part of a saved run is not of its kind."""
    check_real(seconds=seconds, waited_s=waited_s)
    for rank, num_bytes in enumerate(peak_rss_bytes):
        check_whole(0, **{f"peak_rss_bytes of rank {rank}": num_bytes})
    words = [*logs, *notes, backend, devices, started]
    if not all(isinstance(word, str) for word in words) or not isinstance(machine, dict):
        raise ValueError(
            "logs, notes, backend, devices and started are words, and a machine is a dict; got "
            f"{brief([logs, notes, backend, devices, started, machine])}"
        )
    if len(logs) != num_ranks or len(peak_rss_bytes) not in (0, num_ranks):
        raise ValueError(
            f"a run has a result, a log and a peak for each rank; got {num_ranks} results and "
            f"{len(logs)} logs"
        )
