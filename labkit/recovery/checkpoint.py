"""Save a training run, load it again: on the same ranks, on others, or in another engine.

    path = checkpoint.save(folder, step, model, optimizer, extra={"scheduler": scheduler.state_dict()})
    path = checkpoint.save_async(folder, step, model, optimizer)    # training goes on; path.result() at the end
    found = checkpoint.load(folder, model, optimizer)               # found["step"], found["extra"], ...

A checkpoint is one folder, written under another name and renamed when every file of every rank is
on the disk: a save that is killed costs nothing that was there before.
``torch.distributed.checkpoint`` decides who writes what, and names every tensor as the bare model
does, so that DDP and FSDP2 read each other's. Tensors lie in safetensors files, the rest in a file
for ``torch.load(weights_only=True)``, the index in JSON: nothing here unpickles an object. (torch's
default writer, FileSystemWriter, would: its ``.metadata`` is a pickle, and so is everything in it
that is no tensor.) Random generators go on where the number of ranks is the same; with another they
are left alone, for nothing would be right. Draw from (seed, step) what must not change.
"""

import dataclasses
import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save as packed
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as names
from torch.optim import Optimizer

KINDS = ("plain", "sharded", "incremental")
INDEX, REST, WHOLE = "checkpoint.json", "rest.pt", "whole.pt"
_background: list = []  # the process group of saves under way, and the last of these


def save(
    folder: str | Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    kind: str = "sharded",
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Writes a checkpoint below ``folder`` and returns its path. Called by every rank.

    ``kind``: "plain", rank 0 collects all and writes one file; "sharded", each rank writes its
    part; "incremental", a file per tensor, a hard link where a kept checkpoint has the same bytes.
    ``extra``: numbers, strings, tensors, lists and dicts of them, each rank its own; ValueError for
    what could only be unpickled. The newest ``keep`` stay.
    """
    _settle(kind, keep)
    tensors, rest = _states(model, optimizer, full=kind == "plain")
    draft, rest = _open(Path(folder), step, None), rest | {"rank": _own(extra)}
    if kind != "plain":
        dcp.save(tensors, storage_writer=_writer(kind, draft))
    elif dist.get_rank() == 0:
        torch.save(tensors, draft / WHOLE)
    return _close(draft, kind, _shapes(tensors), rest, keep, None)


def save_async(
    folder: str | Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    *,
    kind: str = "sharded",
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> "Future[Path]":
    """``save`` in the background: returns when the states have been copied, and training may go on.

    The copy takes the memory of what this rank holds (with DDP: of the whole model). The next save
    waits for this one. A rank that ends before ``result()`` came leaves no checkpoint.
    """
    _settle(kind, keep, KINDS[1:])
    if not _background:  # two threads must not send through one group
        _background[:] = dist.new_group(backend="gloo"), None
    group, (tensors, rest) = _background[0], _states(model, optimizer)
    draft, rest, shapes = (
        _open(Path(folder), step, group),
        rest | {"rank": _own(extra)},
        _shapes(tensors),
    )
    written = dcp.async_save(tensors, storage_writer=_writer(kind, draft), process_group=group)
    pool = ThreadPoolExecutor(1, "labkit-save")
    _background[1] = pool.submit(
        lambda: [written.result(), _close(draft, kind, shapes, rest, keep, group)][1]
    )
    pool.shutdown(wait=False)
    return _background[1]


def checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints below a folder, the last one saved first. Looks at no bytes:
    ``fault`` does."""
    return sorted(
        (file.parent for file in Path(folder).glob(f"[0-9]*-step-*/{INDEX}")), reverse=True
    )


def about(path: str | Path) -> dict[str, Any]:
    """Its index: step, kind, ranks, shapes, files (bytes and digest), written_bytes (no links).
    ValueError if none."""
    if not (file := Path(path) / INDEX).exists():
        raise ValueError(
            f"a checkpoint is a folder with a {INDEX}; {str(path)!r} has none: save one first"
        )
    return json.loads(file.read_text())


def fault(path: str | Path, part: slice = slice(None)) -> str:
    """The first file of a checkpoint that is missing, cut short or changed, in words; "" if all are
    as written."""
    try:
        files = about(path)["files"]
    except ValueError as error:
        return f"{Path(path) / INDEX} is damaged: {error}"
    for name, (num_bytes, digest) in sorted(files.items())[part]:
        file = Path(path) / name
        size = file.stat().st_size if file.exists() else "no"
        if size != num_bytes:
            return f"{file} has {size} bytes, {num_bytes} were written"
        if _digest(file) != digest:
            return f"{file} holds other bytes than were written"
    return ""


def load(path: str | Path, model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any]:
    """Brings model and optimizer to where they were. Called by every rank; ``path``: a checkpoint,
    or a folder of them.

    Of a folder, the newest one whose bytes are as written is taken. Returns step, extra (this
    rank's; rank 0's when the number of ranks is another), path, ranks (that saved it), rng (whether
    the random generators go on), skipped (why newer ones were not taken). Raises ValueError for no
    checkpoint, a damaged one, or one of another model.
    """
    _settle()
    choice, skipped = _choose(Path(path))
    index, rest = about(choice), torch.load(choice / REST, weights_only=True)
    plain, same = index["kind"] == "plain", index["ranks"] == dist.get_world_size()
    live, _ = _states(model, optimizer, make=True)
    _compare(index["shapes"], _shapes(live), optimizer is not None, choice)
    tensors = {name: live[name] for name in index["shapes"] if name in live}
    if not plain:
        dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(choice)))
    else:
        tensors = torch.load(choice / WHOLE, weights_only=True) if dist.get_rank() == 0 else {}
    _put(tensors, rest, model, optimizer, plain)
    mine = rest["ranks"][dist.get_rank() if same else 0]
    if same:
        (
            torch.set_rng_state(mine["torch"]),
            random.setstate(mine["python"]),
            np.random.set_state(mine["numpy"]),
        )
        torch.cuda.set_rng_state_all(mine["cuda"])
    return {
        "step": index["step"],
        "extra": mine["extra"],
        "path": choice,
        "ranks": index["ranks"],
        "rng": same,
        "skipped": skipped,
    }


def _states(
    model: nn.Module, optimizer: Optimizer | None, *, full: bool = False, make: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by their names in the bare model, live ones or ``full`` copies on rank 0; and the
    optimizer's settings.

    torch makes states that are not there yet by a step of length nothing, which counts as a step:
    so they are dropped again, but for loading (``make``).
    """
    options = names.StateDictOptions(full_state_dict=full, cpu_offload=full)
    found = {
        f"model/{name}": each
        for name, each in names.get_model_state_dict(model, options=options).items()
    }
    rest: dict[str, Any] = {
        "groups": [],
        "stateful": optimizer is not None and bool(optimizer.state),
    }
    if optimizer is not None:
        if make and not optimizer.state:
            optimizer.zero_grad()
        told = names.get_optimizer_state_dict(model, optimizer, options=options)
        rest["groups"] = told.get("param_groups", [])
        if rest["stateful"] or make:
            found |= {
                f"optimizer/{name}/{key}": each
                for name, state in told.get("state", {}).items()
                for key, each in state.items()
                if isinstance(each, Tensor)
            }
        else:
            optimizer.state.clear()
    seen: set[int] = set()
    for (
        name,
        each,
    ) in (
        found.items()
    ):  # tied weights are one tensor of two names; a safetensors file takes it once
        at = getattr(each, "_local_tensor", each).data_ptr()
        found[name] = each.detach().clone() if at in seen - {0} and not make else each
        seen.add(at)
    return found, rest


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list]:
    return {name: [list(each.shape), str(each.dtype)] for name, each in tensors.items()}


def _own(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each rank has for itself: what the caller adds, and the states of its random
    generators."""
    torch.save(dict(extra or {}), packed := io.BytesIO())
    packed.seek(0)
    if odd := torch.serialization.get_unsafe_globals_in_checkpoint(packed):
        raise ValueError(
            "extra holds numbers, strings, tensors, and lists and dicts of them; "
            f"{', '.join(odd)} could "
            "only be unpickled, which runs whatever the file says. Take what is in it: "
            "vars(args), say"
        )
    name, keys, *others = np.random.get_state()
    return {
        "extra": dict(extra or {}),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *others),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def _put(
    tensors: Mapping[str, Tensor],
    rest: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer | None,
    full: bool,
) -> None:
    """Hands loaded tensors to model and optimizer; ``full``: rank 0 has them whole, the others
    nothing."""
    options = names.StateDictOptions(full_state_dict=full, broadcast_from_rank0=full)
    weights = {
        name.removeprefix("model/"): each
        for name, each in tensors.items()
        if name.startswith("model/")
    }
    names.set_model_state_dict(model, weights, options=options)
    if optimizer is not None:
        states: dict[str, dict] = {}
        for parts in (name.split("/") for name in tensors if name.startswith("optimizer/")):
            states.setdefault(parts[1], {})[parts[2]] = tensors["/".join(parts)]
        told = {"state": states, "param_groups": rest["groups"]} if tensors else {}
        names.set_optimizer_state_dict(model, optimizer, told, options=options)
        if not rest["stateful"]:
            optimizer.state.clear()


def _compare(saved: Mapping[str, list], mine: Mapping[str, list], whole: bool, path: Path) -> None:
    """Raises ValueError unless the checkpoint is of this model. An optimizer may have had fewer
    states when saved."""
    wanted = {name for name in saved if whole or name.startswith("model/")}
    wanted |= {name for name in mine if name.startswith("model/")}
    if odd := sorted(name for name in wanted if saved.get(name) != mine.get(name)):
        raise ValueError(
            f"a checkpoint is loaded into the same model and optimizer; {odd[0]} is "
            f"{saved.get(odd[0])} "
            f"in {path}, and {mine.get(odd[0])} here ({len(odd)} differ). Build what was saved"
        )


class _Chunks(dcp.HuggingFaceStorageWriter):
    """Writes each tensor into a file of its own, named after its bytes; links what a kept
    checkpoint has already."""

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> "torch.futures.Future":
        """Called by dcp: everything of the plan that this rank shall write."""
        kept = (
            file
            for path in checkpoints(Path(self.path).parent)
            for file in path.glob("*.safetensors")
        )
        known = {file.name: file for file in kept}
        for item in plan.items:
            name, offsets = item.index.fqn, list(item.tensor_data.chunk.offsets)
            tensor = planner.resolve_data(item).detach().cpu().contiguous()
            data = packed(
                {name: tensor},
                {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offsets}})},
            )
            file = Path(self.path) / f"{hashlib.sha256(data).hexdigest()}.safetensors"
            if file.name in known:
                os.link(known[file.name], file)
            else:
                file.write_bytes(data)
                _sync(file)
        return super().write_data(dataclasses.replace(plan, items=[]), planner)


def _writer(kind: str, draft: Path) -> dcp.HuggingFaceStorageWriter:
    return (_Chunks if kind == "incremental" else dcp.HuggingFaceStorageWriter)(
        str(draft), save_distributed=True
    )


def _open(folder: Path, step: int, group: Any) -> Path:
    """Rank 0 removes what a killed save left and makes a folder to write into; every rank learns
    its name."""
    told = [None]
    if dist.get_rank() == 0:
        for left in folder.glob(".*-step-*"):
            shutil.rmtree(left)
        number = max((int(path.name.split("-")[0]) for path in checkpoints(folder)), default=0) + 1
        told = [folder / f".{number:06d}-step-{int(step)}"]
        told[0].mkdir(parents=True)
    dist.broadcast_object_list(told, 0, group)
    return told[0]


def _close(
    draft: Path, kind: str, shapes: Mapping[str, list], rest: dict[str, Any], keep: int, group: Any
) -> Path:
    """When all have written: digests, the rest, the index, the name that counts; then older
    checkpoints go."""
    rank, size, path = dist.get_rank(), dist.get_world_size(), draft.with_name(draft.name[1:])
    everybody: list = [None] * size
    dist.all_gather_object(everybody, rest.pop("rank"), group)
    if rank == 0:
        torch.save(rest | {"ranks": everybody}, draft / REST)
        for file in draft.glob("*.pt"):
            _sync(file)
    dist.barrier(group)
    files = sorted(draft.iterdir())[rank::size]
    sealed = {
        file.name: [file.stat().st_size, _digest(file), file.stat().st_nlink] for file in files
    }
    dist.all_gather_object(everybody, sealed, group)
    if rank == 0:
        found = {name: seal for part in everybody for name, seal in part.items()}
        index = {
            "step": int(draft.name.split("-")[-1]),
            "kind": kind,
            "ranks": size,
            "shapes": shapes,
            "written_bytes": sum(seal[0] for seal in found.values() if seal[2] == 1),
            "files": {name: seal[:2] for name, seal in found.items()},
        }
        (draft / INDEX).write_text(json.dumps(index))
        _sync(draft / INDEX), _sync(draft)
        os.rename(draft, path)
        _sync(path.parent)
        for old in checkpoints(path.parent)[keep:]:
            os.rename(old, hidden := old.with_name(f".{old.name}"))
            shutil.rmtree(hidden)
    dist.barrier(group)
    return path


def _choose(path: Path) -> tuple[Path, list[str]]:
    """The checkpoint to load, the same on every rank, and why newer ones were not taken."""
    told, skipped, faults = (
        [[path] if (path / INDEX).exists() else checkpoints(path)],
        [],
        [""] * dist.get_world_size(),
    )
    dist.broadcast_object_list(told, 0)
    for each in told[0]:
        dist.all_gather_object(faults, fault(each, slice(dist.get_rank(), None, len(faults))))
        if not any(faults):
            return each, skipped
        skipped.append(next(filter(None, faults)))
    raise ValueError(
        f"a checkpoint is loaded whole or not at all: {skipped[0]}. Take an older one, or give "
        "load the "
        "folder of all of them"
        if skipped
        else f"there is no checkpoint in {str(path)!r}: save one first"
    )


def _settle(kind: str = "sharded", keep: int = 1, kinds: tuple[str, ...] = KINDS) -> None:
    """Raises ValueError for what is no save. An asynchronous save ends before the next begins."""
    if not dist.is_initialized():
        raise ValueError(
            "ranks save and load, and here is no process group: call it in a launched function"
        )
    if kind not in kinds or keep < 1:
        raise ValueError(
            f"a checkpoint is {' or '.join(kinds)}, and 1 or more are kept; got {kind!r} and "
            f"keep={keep}"
        )
    if any(_background):
        _background[1].result()


def _sync(path: Path) -> None:
    """Returns when a file's bytes, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number), os.close(number)


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
