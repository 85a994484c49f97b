"""Save a training run, load it again: on the same ranks, on others, or in another engine.

    path = checkpoint.save(folder, step, model, optimizer, extra={"scheduler": scheduler.state_dict()})
    saving = checkpoint.save_async(folder, step, model, optimizer)      # training goes on; saving.wait() at the end
    found = checkpoint.load(folder, model, optimizer)                   # found["step"], found["extra"], ...

A checkpoint is one folder, written under another name and renamed when every file of every rank is on the disk: a save
that is killed costs nothing that was there before. ``torch.distributed.checkpoint`` decides who writes what, and names
every tensor as the bare model does, so that DDP and FSDP2 read each other's. Tensors lie in safetensors files, the rest
in one file for ``torch.load(weights_only=True)``, an index in JSON: nothing here unpickles an object. (torch's default
writer, FileSystemWriter, would: its ``.metadata`` is a pickle, and so is everything in it that is no tensor.)

What is drawn at random goes on as it was when the number of ranks is the same. With another number it is left alone:
there is no right answer. Draw from (seed, step) what must not change.
"""

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
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as names

KINDS = ("plain", "sharded", "incremental")
INDEX, REST, WHOLE = "checkpoint.json", "rest.pt", "whole.pt"
_under_way: "Saving | None" = None
_groups: list = []


class Saving:
    """A save that goes on in the background."""

    def __init__(self, future: "Future[Path]") -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether it has ended, well or badly."""
        return self._future.done()

    def wait(self) -> Path:
        """Blocks until the checkpoint is complete and returns its folder; raises what went wrong."""
        return self._future.result()


def save(folder: str | Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *,
         kind: str = "sharded", extra: Mapping[str, Any] | None = None, keep: int = 2) -> Path:
    """Writes a checkpoint below ``folder`` and returns its path. Called by every rank.

    ``kind``: "plain", rank 0 collects everything and writes one file; "sharded", each rank writes its part;
    "incremental", a file per tensor, and a tensor with the very bytes that a kept checkpoint has is a hard link to it.
    ``extra``: numbers, strings, tensors, lists and dicts of them, each rank its own. The newest ``keep`` checkpoints
    stay. Raises ValueError for an ``extra`` that could only be unpickled.
    """
    _settle()
    _check(kind, KINDS, keep)
    tensors, rest = _states(model, optimizer, full=kind == "plain")
    rest |= _own(extra)
    draft = _open(Path(folder), int(step), None)
    if kind != "plain":
        dcp.save(tensors, storage_writer=_writer(kind, draft))
    elif _rank() == 0:
        _write(draft / WHOLE, tensors)
    return _close(draft, kind, _shapes(tensors), rest, keep, None)


def save_async(folder: str | Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, *,
               kind: str = "sharded", extra: Mapping[str, Any] | None = None, keep: int = 2) -> Saving:
    """``save`` in the background: returns when the states have been copied, and training may go on.

    The copy needs the memory of what this rank holds (with DDP: of the whole model). One save at a time: the next one
    waits for it. A rank that ends before ``wait`` returned leaves no checkpoint.
    """
    global _under_way
    _settle()
    _check(kind, KINDS[1:], keep)
    group = _own_group()
    tensors, rest = _states(model, optimizer)
    rest |= _own(extra)
    draft, shapes = _open(Path(folder), int(step), group), _shapes(tensors)
    written = dcp.async_save(tensors, storage_writer=_writer(kind, draft), process_group=group)

    def finish() -> Path:
        written.result()
        return _close(draft, kind, shapes, rest, keep, group)

    pool = ThreadPoolExecutor(1, "labkit-save")
    _under_way = Saving(pool.submit(finish))
    pool.shutdown(wait=False)
    return _under_way


def checkpoints(folder: str | Path) -> list[Path]:
    """The complete checkpoints below a folder, the newest first: the last one saved, whatever its step."""
    found = Path(folder).glob("[0-9]*-step-*") if Path(folder).is_dir() else ()
    return sorted((path for path in found if (path / INDEX).exists()), key=lambda path: path.name, reverse=True)


def latest(folder: str | Path) -> Path | None:
    """The newest complete checkpoint, or None. Its bytes are not looked at: ``fault`` does."""
    return next(iter(checkpoints(folder)), None)


def about(path: str | Path) -> dict[str, Any]:
    """A checkpoint's index: step, kind, ranks, written_bytes (without what is linked), shapes, and for each file its
    bytes and digest. Raises ValueError where there is none."""
    file = Path(path) / INDEX
    if not file.exists():
        raise ValueError(f"a checkpoint is a folder with a {INDEX}; {str(path)!r} has none. checkpoints(folder) lists "
                         "what there is")
    return json.loads(file.read_text())


def fault(path: str | Path, part: slice = slice(None)) -> str:
    """The first file of a checkpoint that is missing, cut short or changed, in words; "" if all are as written."""
    for name, (num_bytes, digest) in sorted(about(path)["files"].items())[part]:
        file = Path(path) / name
        size = file.stat().st_size if file.exists() else None
        if size != num_bytes:
            return f"{file} has {'no' if size is None else size} bytes, {num_bytes} were written"
        if _digest(file) != digest:
            return f"{file} holds other bytes than were written"
    return ""


def load(path: str | Path, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Brings model and optimizer to where they were. Called by every rank; ``path``: a checkpoint, or a folder of them.

    Of a folder, the newest one whose bytes are as written is taken. Returns step, extra (this rank's; rank 0's when the
    number of ranks is another), path, ranks (that saved it), rng (whether the random generators go on), skipped (why
    newer ones were not taken). Raises ValueError for no checkpoint, a damaged one, or one of another model.
    """
    _settle()
    choice, skipped = _choose(Path(path))
    index, rest = about(choice), torch.load(choice / REST, weights_only=True)
    plain, same = index["kind"] == "plain", index["ranks"] == dist.get_world_size()
    tensors, _ = _states(model, optimizer, make=True)
    _compare(index["shapes"], _shapes(tensors), choice)
    tensors = {name: tensor for name, tensor in tensors.items() if name in index["shapes"]}
    if plain:
        tensors = torch.load(choice / WHOLE, weights_only=True) if _rank() == 0 else {}
    else:
        dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(choice)))
    _put(tensors, rest, model, optimizer, plain)
    mine = rest["ranks"][_rank() if same else 0]
    if same:
        _set_rng(mine["rng"])
    return {"step": index["step"], "extra": mine["extra"], "path": choice, "ranks": index["ranks"], "rng": same,
            "skipped": skipped}


# --- what there is to save ------------------------------------------------------------------------------------------


def _states(model: nn.Module, optimizer: torch.optim.Optimizer | None, *, full: bool = False, make: bool = False
            ) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of model and optimizer by their names in the bare model (live ones, or ``full`` copies on rank 0),
    and the optimizer's settings.

    torch makes an optimizer's states, where there are none, by a step of length nothing. That counts as a step, so they
    are dropped again, but for loading (``make``).
    """
    options = names.StateDictOptions(full_state_dict=full, cpu_offload=full)
    found = {f"model/{name}": each for name, each in names.get_model_state_dict(model, options=options).items()}
    rest: dict[str, Any] = {"groups": [], "stateful": optimizer is not None and bool(optimizer.state)}
    if optimizer is not None:
        if make and not optimizer.state:
            optimizer.zero_grad()
        told = names.get_optimizer_state_dict(model, optimizer, options=options)
        rest["groups"] = told.get("param_groups", [])
        if rest["stateful"] or make:
            found |= {f"optimizer/{name}/{key}": each for name, state in told.get("state", {}).items()
                      for key, each in state.items()}
        else:
            optimizer.state.clear()
    if odd := [name for name, each in found.items() if not isinstance(each, Tensor)]:
        raise ValueError(f"the states of a model and an optimizer are tensors; {odd[0]} is {found[odd[0]]!r:.60}. "
                         "Save it in extra")
    return _untied(found), rest


def _untied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights are one tensor under two names; a safetensors file takes it once, so the second is a copy."""
    seen: set[int] = set()
    for name, each in tensors.items():
        at = getattr(each, "_local_tensor", each).data_ptr()
        if at and at in seen:
            tensors[name] = each.detach().clone()
        seen.add(at)
    return tensors


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, list]:
    return {name: [list(each.shape), str(each.dtype)] for name, each in tensors.items()}


def _own(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What each rank has for itself: the states of its random generators, and what the caller adds."""
    kept, packed = dict(extra or {}), io.BytesIO()
    torch.save(kept, packed)
    packed.seek(0)
    if odd := torch.serialization.get_unsafe_globals_in_checkpoint(packed):
        raise ValueError(f"extra holds numbers, strings, tensors, and lists and dicts of them; {', '.join(odd)} could "
                         "only be unpickled, which runs whatever the file says. Take what is in it: vars(args), say")
    numpy = np.random.get_state()
    rng = {"torch": torch.get_rng_state(), "python": random.getstate(),
           "numpy": (numpy[0], numpy[1].tolist(), *numpy[2:])}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    return {"rank": {"rng": rng, "extra": kept}}


def _set_rng(rng: Mapping[str, Any]) -> None:
    torch.set_rng_state(rng["torch"])
    random.setstate(rng["python"])
    np.random.set_state(rng["numpy"])
    if "cuda" in rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(rng["cuda"])


def _put(tensors: Mapping[str, Tensor], rest: Mapping[str, Any], model: nn.Module,
         optimizer: torch.optim.Optimizer | None, full: bool) -> None:
    """Hands loaded tensors to model and optimizer; ``full``: rank 0 has them whole, the others nothing."""
    options = names.StateDictOptions(full_state_dict=full, broadcast_from_rank0=full)
    weights = {name.removeprefix("model/"): each for name, each in tensors.items() if name.startswith("model/")}
    names.set_model_state_dict(model, weights, options=options)
    if optimizer is None:
        return
    states: dict[str, dict] = {}
    for name in (name for name in tensors if name.startswith("optimizer/")):
        _, weight, key = name.split("/")
        states.setdefault(weight, {})[key] = tensors[name]
    told = {"state": states, "param_groups": rest["groups"]} if states or not full else {}
    names.set_optimizer_state_dict(model, optimizer, told, options=options)
    if not rest["stateful"]:
        optimizer.state.clear()


def _compare(saved: Mapping[str, list], mine: Mapping[str, list], path: Path) -> None:
    """Raises ValueError unless the checkpoint has this model's tensors. An optimizer may have made fewer states."""
    odd = [name for name in saved if mine.get(name) != saved[name]] if any(
        name.startswith("optimizer/") for name in mine) else [
        name for name in saved if name.startswith("model/") and mine.get(name) != saved[name]]
    odd += [name for name in mine if name.startswith("model/") and name not in saved]
    if odd:
        raise ValueError(f"a checkpoint is loaded into the model that it was saved from; {odd[0]} is "
                         f"{saved.get(odd[0], 'absent')} in {path} and {mine.get(odd[0], 'absent')} here"
                         f"{f', and {len(odd) - 1} others differ' if odd[1:] else ''}. Build the same model first")


# --- how it is written ----------------------------------------------------------------------------------------------


class _Chunks(dcp.HuggingFaceStorageWriter):
    """Writes each tensor into a file of its own, named after its bytes; links what a kept checkpoint has already."""

    def __init__(self, draft: Path) -> None:
        super().__init__(str(draft), save_distributed=True)
        self.known = {file.name: file for path in checkpoints(draft.parent) for file in path.glob("*.safetensors")}

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> "torch.futures.Future":
        """Called by dcp: everything of the plan that this rank shall write."""
        from safetensors.torch import save as packed

        for item in plan.items:
            name, offsets = item.index.fqn, list(item.tensor_data.chunk.offsets)
            tensor = planner.resolve_data(item).detach().cpu().contiguous()
            data = packed({name: tensor}, {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offsets}})})
            file = Path(self.path) / f"{hashlib.sha256(data).hexdigest()}.safetensors"
            if file.name in self.known:
                os.link(self.known[file.name], file)
            else:
                file.write_bytes(data)
                _sync(file)
        done: torch.futures.Future = torch.futures.Future()
        done.set_result([])
        return done


def _writer(kind: str, draft: Path) -> dcp.HuggingFaceStorageWriter:
    return _Chunks(draft) if kind == "incremental" else dcp.HuggingFaceStorageWriter(str(draft), save_distributed=True)


def _open(folder: Path, step: int, group: Any) -> Path:
    """Rank 0 removes what a killed save left and makes a folder to write into; every rank learns its name."""
    told = [None]
    if _rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".*-step-*"):
            shutil.rmtree(left)
        number = max((int(path.name.split("-")[0]) for path in folder.glob("[0-9]*-step-*")), default=0) + 1
        told = [folder / f".{number:06d}-step-{step}"]
        told[0].mkdir()
    dist.broadcast_object_list(told, 0, group)
    return told[0]


def _close(draft: Path, kind: str, shapes: Mapping[str, list], rest: dict[str, Any], keep: int, group: Any) -> Path:
    """When all have written: digests, the rest, the index, the name that counts; then older checkpoints go."""
    rank, size, path = _rank(), dist.get_world_size(), draft.with_name(draft.name[1:])
    everybody: list = [None] * size
    dist.all_gather_object(everybody, rest.pop("rank"), group)
    if rank == 0:
        _write(draft / REST, rest | {"ranks": everybody})
    dist.barrier(group)
    files = sorted(draft.iterdir())[rank::size]
    sealed = {file.name: [file.stat().st_size, _digest(file), file.stat().st_nlink] for file in files}
    dist.all_gather_object(everybody, sealed, group)
    if rank == 0:
        found = {name: seal for part in everybody for name, seal in part.items()}
        index = {"step": int(draft.name.split("-")[-1]), "kind": kind, "ranks": size, "shapes": shapes,
                 "written_bytes": sum(seal[0] for seal in found.values() if seal[2] == 1),
                 "files": {name: seal[:2] for name, seal in found.items()}}
        (draft / INDEX).write_text(json.dumps(index))
        _sync(draft / INDEX), _sync(draft)
        os.rename(draft, path)
        _sync(path.parent)
        for old in checkpoints(path.parent)[keep:]:
            os.rename(old, old.with_name(f".{old.name}"))
            shutil.rmtree(old.with_name(f".{old.name}"))
    dist.barrier(group)
    return path


def _choose(path: Path) -> tuple[Path, list[str]]:
    """The checkpoint to load, the same on every rank, and why newer ones were not taken."""
    told = [[path] if (path / INDEX).exists() else checkpoints(path)]
    dist.broadcast_object_list(told, 0)
    skipped: list[str] = []
    for each in told[0]:
        faults: list = [None] * dist.get_world_size()
        dist.all_gather_object(faults, fault(each, slice(_rank(), None, len(faults))))
        if not any(faults):
            return each, skipped
        skipped.append(next(filter(None, faults)))
    raise ValueError(f"a checkpoint is loaded whole or not at all: {skipped[0]}. Take an older one, or give load the "
                     "folder of all of them" if skipped else f"there is no checkpoint in {str(path)!r}: save one first")


def _settle() -> None:
    """An asynchronous save ends before the next begins."""
    if not dist.is_initialized():
        raise ValueError("checkpoints are saved and loaded by ranks; here is no process group. Call it inside a "
                         "launched function, or after init_process_group")
    if _under_way is not None:
        _under_way.wait()


def _own_group() -> Any:
    """A process group for the background: two threads must not send through one."""
    if not _groups:
        _groups.append(dist.new_group(backend="gloo"))
    return _groups[0]


def _check(kind: str, kinds: tuple[str, ...], keep: int) -> None:
    if kind not in kinds or keep < 1:
        raise ValueError(f"a checkpoint is {' or '.join(kinds)}, and 1 or more are kept; got {kind!r} and keep={keep}")


def _rank() -> int:
    return dist.get_rank()


def _write(file: Path, value: object) -> None:
    torch.save(value, file)
    _sync(file)


def _sync(path: Path) -> None:
    """Returns when a file's bytes, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _digest(file: Path) -> str:
    with open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
