"""What a checkpoint must hold: model, optimizer, what the caller adds, and the random generators of
every rank; taken from a run and given back to it.

Tensors have the names of the bare model ("model/0.weight", "optimizer/0.weight/exp_avg"), so that
DDP and FSDP2 read each other's; what is no tensor is numbers, strings, lists and dicts, so that
nothing has to be unpickled. Called in ranks.
"""

import io
import random
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as names
from torch.optim import Optimizer


def collect(
    model: nn.Module, optimizer: Optimizer | None, *, whole: bool = False
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Live tensors by name, or ``whole`` copies on rank 0 alone; and the optimizer's settings.

    torch makes states that are not there yet by a step of length nothing, which counts as a step:
    so they are dropped again.
    """
    options = names.StateDictOptions(full_state_dict=whole, cpu_offload=whole)
    found = _of_model(model, options)
    settings: dict[str, Any] = {"groups": [], "stateful": False}
    if optimizer is not None:
        settings["stateful"] = bool(optimizer.state)
        states, settings["groups"] = _of_optimizer(model, optimizer, options)
        if settings["stateful"]:
            found |= states
        else:
            optimizer.state.clear()
    return _apart(found), settings


def places(model: nn.Module, optimizer: Optimizer | None) -> dict[str, Tensor]:
    """Live tensors by name, to load into: an optimizer that has no states yet gets them."""
    options = names.StateDictOptions()
    found = _of_model(model, options)
    if optimizer is not None:
        if not optimizer.state:
            optimizer.zero_grad()
        found |= _of_optimizer(model, optimizer, options)[0]
    return found


def _of_model(model: nn.Module, options: names.StateDictOptions) -> dict[str, Tensor]:
    found = names.get_model_state_dict(model, options=options)
    return {f"model/{name}": tensor for name, tensor in found.items()}


def _of_optimizer(
    model: nn.Module, optimizer: Optimizer, options: names.StateDictOptions
) -> tuple[dict[str, Tensor], list]:
    """Its tensors by name, and the settings of its groups."""
    told = names.get_optimizer_state_dict(model, optimizer, options=options)
    found = {}
    for name, state in told.get("state", {}).items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                found[f"optimizer/{name}/{key}"] = value
    return found, told.get("param_groups", [])


def _apart(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights are one tensor of two names, and a safetensors file takes it once: the second
    becomes a copy."""
    apart = {}
    seen = set()
    for name, tensor in found.items():
        address = getattr(tensor, "_local_tensor", tensor).data_ptr()
        is_tied = address in seen and address != 0  # empty tensors all have 0
        apart[name] = tensor.detach().clone() if is_tied else tensor
        seen.add(address)
    return apart


def put(
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer | None,
) -> None:
    """Hands loaded tensors to model and optimizer."""
    weights: dict[str, Tensor] = {}
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        if kind == "model":
            weights[rest] = tensor
        else:
            parameter, _, key = rest.rpartition("/")
            states.setdefault(parameter, {})[key] = tensor
    names.set_model_state_dict(model, weights)
    if optimizer is not None:
        told = {"state": states, "param_groups": settings["groups"]}
        names.set_optimizer_state_dict(model, optimizer, told)
        if not settings["stateful"]:
            optimizer.state.clear()


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, list]:
    """Shape and dtype of each, as they stand in the index."""
    return {name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors.items()}


def compare(
    saved: Mapping[str, list], mine: Mapping[str, list], has_optimizer: bool, path: Path
) -> None:
    """Raises ValueError unless the checkpoint is of this model, and of this optimizer if there is
    one, told by ``shapes``. An optimizer may have had fewer states when saved."""
    wanted = {name for name in mine if name.startswith("model/")}
    wanted |= {name for name in saved if has_optimizer or name.startswith("model/")}
    odd = sorted(name for name in wanted if saved.get(name) != mine.get(name))
    if odd:
        raise ValueError(
            f"a checkpoint is loaded into the same model and optimizer; {odd[0]} is "
            f"{saved.get(odd[0])} in {path}, and {mine.get(odd[0])} here ({len(odd)} differ). "
            "Build what was saved"
        )


def own(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a rank has for itself: what the caller adds, and the states of its random generators.
    Raises ValueError for what could only be unpickled."""
    extra = dict(extra or {})
    packed = io.BytesIO()
    torch.save(extra, packed)
    packed.seek(0)
    odd = torch.serialization.get_unsafe_globals_in_checkpoint(packed)
    if odd:
        raise ValueError(
            "extra holds numbers, strings, tensors, and lists and dicts of them; "
            f"{', '.join(odd)} could only be unpickled, which runs whatever the file says. Take "
            "what is in it: vars(args), say"
        )
    name, keys, *others = np.random.get_state()
    device = _device_module()
    return {
        "extra": extra,
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *others),
        "device": device.get_rng_state() if device else None,
    }


def set_generators(mine: Mapping[str, Any]) -> None:
    """Lets this rank's random generators go on where they were."""
    torch.set_rng_state(mine["torch"])
    random.setstate(mine["python"])
    np.random.set_state(mine["numpy"])
    device = _device_module()
    if device and mine["device"] is not None:
        device.set_rng_state(mine["device"])


def _device_module() -> ModuleType | None:
    """torch.cuda or what else speaks for the accelerator that this process has used; None where it
    used none. The default device does not tell: a script may say ``.to("cuda")``."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    module = torch.get_device_module(accelerator)
    is_used = getattr(module, "is_initialized", lambda: True)()
    return module if is_used else None
