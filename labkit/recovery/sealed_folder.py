"""A folder that is there whole or not at all, and that tells what has been changed in it since.

It is written under a hidden name; when every file of every rank is on the disk, an index gets the
digest of each, and one rename gives the folder the name that counts. A save that is killed costs
nothing that was there before. Called by every rank, but for ``checkpoints``, ``about`` and
``fault``, which only read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

INDEX = "checkpoint.json"


def checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints below a folder, the last one saved first. Looks at no bytes:
    ``fault`` does."""
    files = Path(folder).glob(f"[0-9]*-step-*/{INDEX}")
    return sorted((file.parent for file in files), reverse=True)


def about(path: str | Path) -> dict[str, Any]:
    """Its index: step, kind, ranks, shapes, files (bytes and digest), written_bytes (no links).
    ValueError if none."""
    file = Path(path) / INDEX
    if not file.exists():
        raise ValueError(
            f"a checkpoint is a folder with a {INDEX}; {str(path)!r} has none: save one first"
        )
    return json.loads(file.read_text())


def fault(path: str | Path) -> str:
    """The first file of a checkpoint that is missing, cut short or changed, in words; "" if all are
    as written."""
    try:
        files = about(path)["files"]
    except ValueError as error:
        return f"{Path(path) / INDEX} is damaged: {error}"
    for name, (num_bytes, digest) in sorted(files.items()):
        file = Path(path) / name
        size = file.stat().st_size if file.exists() else "no"
        if size != num_bytes:
            return f"{file} has {size} bytes, {num_bytes} were written"
        if _digest(file) != digest:
            return f"{file} holds other bytes than were written"
    return ""


def choose(path: Path) -> tuple[Path, list[str]]:
    """The checkpoint to load, the same on every rank: the path, or below it the newest one whose
    bytes are as written; and why newer ones were not taken. Raises ValueError for none."""
    told: list = [None, []]
    if dist.get_rank() == 0:
        candidates = [path] if (path / INDEX).exists() else checkpoints(path)
        told = list(_first_whole(candidates))
    dist.broadcast_object_list(told, 0)
    choice, skipped = told
    if choice is None and skipped:
        raise ValueError(
            f"a checkpoint is loaded whole or not at all: {skipped[0]}. Take an older one, or give "
            "load the folder of all of them"
        )
    if choice is None:
        raise ValueError(f"there is no checkpoint in {str(path)!r}: save one first")
    return choice, skipped


def _first_whole(candidates: list[Path]) -> tuple[Path | None, list[str]]:
    """The first without a fault, and the faults of those before it."""
    skipped = []
    for candidate in candidates:
        found = fault(candidate)
        if not found:
            return candidate, skipped
        skipped.append(found)
    return None, skipped


def begin(folder: Path, step: int, group: Any) -> Path:
    """Rank 0 removes what a killed save left and makes a hidden folder to write into; every rank
    learns its name."""
    told = [None]
    if dist.get_rank() == 0:
        for left in folder.glob(".*-step-*"):
            shutil.rmtree(left)
        numbers = [int(path.name.split("-")[0]) for path in checkpoints(folder)]
        draft = folder / f".{max(numbers, default=0) + 1:06d}-step-{int(step)}"
        draft.mkdir(parents=True)
        told = [draft]
    dist.broadcast_object_list(told, 0, group)
    return told[0]


def seal(draft: Path, facts: Mapping[str, Any], keep: int, group: Any) -> Path:
    """When all ranks have written: digests, the index with ``facts``, the name that counts; then
    all but the newest ``keep`` checkpoints go. Returns the new path."""
    path = draft.with_name(draft.name[1:])
    dist.barrier(group)
    files = _sealed(draft, group)
    if dist.get_rank() == 0:
        index = {
            **facts,
            "step": int(draft.name.split("-")[-1]),
            "ranks": dist.get_world_size(),
            "written_bytes": sum(size for size, _, num_names in files.values() if num_names == 1),
            "files": {name: (size, digest) for name, (size, digest, _) in files.items()},
        }
        (draft / INDEX).write_text(json.dumps(index))
        sync(draft / INDEX)
        sync(draft)
        os.rename(draft, path)
        sync(path.parent)
        for old in checkpoints(path.parent)[keep:]:
            hidden = old.with_name(f".{old.name}")
            os.rename(old, hidden)
            shutil.rmtree(hidden)
    dist.barrier(group)
    return path


def _sealed(draft: Path, group: Any) -> dict[str, tuple[int, str, int]]:
    """Bytes, digest and number of names of every file; each rank reads a part of them."""
    num_ranks = dist.get_world_size()
    mine = {}
    for file in sorted(draft.iterdir())[dist.get_rank() :: num_ranks]:
        found = file.stat()
        mine[file.name] = (found.st_size, _digest(file), found.st_nlink)
    everybody: list = [None] * num_ranks
    dist.all_gather_object(everybody, mine, group)
    files = {}
    for part in everybody:
        files |= part
    return files


def write(file: Path, data: bytes) -> None:
    """Writes a file, and returns when it is on the disk."""
    file.write_bytes(data)
    sync(file)


def sync(path: Path) -> None:
    """Returns when a file's bytes, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
