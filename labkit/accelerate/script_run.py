"""A script of Accelerate's on the ranks of a launch: with the environment that the command
``accelerate launch`` would give it, and what came of it."""

import json
import math
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from reprlib import repr as brief
from typing import TYPE_CHECKING

from labkit.accelerate.engines import FOR_DEEPSPEED, find_device

if TYPE_CHECKING:
    from torch import Tensor

ALONE = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""What tells a process of its ranks."""
_ALIKE = ("DYNAMO", "DEBUG_MODE", "USE_CPU_", "CONFIG_DS")
"""Parts of the names of variables that say nothing of the configuration."""


def environment(config: dict, *flags: str) -> dict[str, str]:
    """The variables that ``accelerate launch`` sets in each rank for a configuration (the content
    of its YAML file) and flags of its command line, told by the launcher's own code.

    Those of torch's compiler and of debugging are left out. Raises ValueError for what is no
    configuration, or none that the launcher reads, and for flags that it does not have.
    """
    if not isinstance(config, dict) or not all(isinstance(flag, str) for flag in flags):
        raise ValueError(
            "a configuration is a dict and flags are words, as in environment({...}, "
            f'"--mixed_precision", "no"); got {brief(config)} and {brief(flags)}'
        )
    try:
        return _told_by_launcher(config, flags)
    except (SystemExit, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"accelerate launch can't read this configuration ({type(error).__name__}: {error}); "
            f"got {brief(config)} and {brief(flags)}. accelerate config writes one"
        ) from error


def _told_by_launcher(config: dict, flags: tuple[str, ...]) -> dict[str, str]:
    """The same, told by the launcher's own code."""
    from accelerate.commands import launch
    from accelerate.utils import launch as environments

    from labkit.launching.fork import imports, zygote_client

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(json.dumps(config))
        line = ["--config_file", str(file), "--main_process_port", "0", *flags, "train.py"]
        asked = launch.launch_command_parser().parse_args(line)
        told, defaults, _ = launch._validate_launch_command(asked)
    told.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
    if told.use_deepspeed:
        # Accelerate has ranks of any engine import it, to ask whether a model is DeepSpeed's
        zygote_client.expect(*imports.DEEPSPEED, *FOR_DEEPSPEED)
        found = environments.prepare_deepspeed_cmd_env(told)[1]
    else:
        found = environments.prepare_multi_gpu_env(told)
    return {name: value for name, value in found.items() if _is_told(name)}


def _is_told(name: str) -> bool:
    """Whether a variable is Accelerate's and says what was configured."""
    return name.startswith(("ACCELERATE_", "FSDP_")) and not any(each in name for each in _ALIKE)


def start_script(
    path: str | Path,
    ranks: int,
    *arguments: str,
    config: dict | None = None,
    variables: dict[str, str] | None = None,
    gpus: bool = True,
) -> dict:
    """What rank 0 says of a script that ``run_script`` runs on so many ranks.

    They are told what ``accelerate launch`` would tell of ``config``, and ``variables`` beside.
    Without ``gpus`` it is as on a machine that has none: no device is lent or told.
    """
    from labkit.launching.launcher import launch

    told = environment(config) if config is not None else {}
    options = {"variables": told | (variables or {}), "told": gpus, "ranks": ranks}
    if gpus:
        return launch(run_script, path, *arguments, **options)[0]
    return launch(run_script, path, *arguments, devices="cpu", **options)[0]


def beside(runs: dict[str, dict], one: dict, loss: Callable | None = None) -> list[dict]:
    """A row for each of several runs of a script: its name as ``start``, what it said, and as
    ``apart`` the largest difference of a weight from that of ``one``; with ``loss``, a function of
    weights, what it says of the run's. Raises ValueError for what is no answer of
    ``start_script``, and for a loss that can't be called."""
    from labkit.measure.apart import difference

    said = [one, *runs.values()] if isinstance(runs, dict) else [runs]
    if not all(isinstance(each, dict) and "weights" in each for each in said):
        raise ValueError(
            f"runs are named answers of start_script, which have weights; got {brief(runs)} "
            f"beside {brief(one)}"
        )
    if loss is not None and not callable(loss):
        raise ValueError(f"loss is a function of a run's weights, or None; got {brief(loss)}")
    rows = []
    for name, run in runs.items():
        row = {"start": name, **run, "apart": difference(run["weights"], one["weights"])}
        rows.append(row if loss is None else {**row, "loss": loss(run["weights"])})
    return rows


def numel(weights: dict) -> int:
    """How many numbers of these named weights lie on this rank: of a DTensor its own shard. Raises
    ValueError for what is no dict of tensors."""
    import torch

    parts = weights.values() if isinstance(weights, dict) else [weights]
    if not all(isinstance(part, torch.Tensor) for part in parts):
        raise ValueError(f"weights are tensors by name, as in a state_dict; got {brief(weights)}")
    return sum(getattr(part, "_local_tensor", part).numel() for part in parts)


def moved(before: dict, runs: dict[str, dict]) -> list[dict]:
    """A row for each of several runs, whose weights (tensors by name) ended as given: its name as
    ``run``, the ``length`` of the way from the weights ``before``, and as ``degrees`` the angle
    between this way and that of the first run.

    Raises ValueError where a run has not the names and shapes of ``before``, or has not moved.
    """
    ways = {}
    for name, weights in runs.items() if isinstance(runs, dict) else [("", runs)]:
        way = _way(before, weights)
        if way is None or not way.norm() > 0:
            raise ValueError(
                "moved takes weights and named runs that moved them; got "
                f"{brief(before)} and {brief(runs)}, of which {brief(name)} is no such run"
            )
        ways[name] = way
    rows = []
    for name, way in ways.items():
        degrees = _degrees(way, next(iter(ways.values())))
        rows.append({"run": name, "length": way.norm().item(), "degrees": degrees})
    return rows


def _way(before: object, weights: object) -> "Tensor | None":
    """From some weights to others of the same names and shapes, as one vector."""
    import torch

    from labkit.measure.apart import difference

    try:
        difference(weights, before)
        names = sorted(before)
        parts = [weights[name].detach().to("cpu", torch.float64) for name in names]
        others = [before[name].detach().to("cpu", torch.float64) for name in names]
    except (ValueError, TypeError, AttributeError):
        return None
    pairs = zip(parts, others, strict=True)
    return torch.cat([(part - other).flatten() for part, other in pairs])


def _degrees(way: "Tensor", other: "Tensor") -> float:
    """The angle between two vectors, to a tenth of a degree; from a chord, which is exact for small
    angles, too."""
    chord = (way / way.norm() - other / other.norm()).norm().item()
    return round(math.degrees(2 * math.asin(min(1.0, chord / 2))), 1)


def run_script(
    path: str | Path,
    *arguments: str,
    variables: dict[str, str] | None = None,
    alone: bool = False,
    told: bool = True,
) -> dict:
    """One rank: runs a script that names its ``accelerator``, ``net``, ``optimizer`` and ``loss``,
    and says what became of them: ``type`` of distribution, class of the ``model``, ``processes``,
    ``updates``, ``loss``, whole ``weights`` (on rank 0), the first two lines of Accelerate's
    ``state``, and what the script calls its ``report``, if it has one.

    ``alone``: as ``python train.py`` starts it, which is told nothing of ranks; one rank always is,
    since the command starts a single process like that, too. ``told``: whether
    Accelerate is told of ranks and devices that it does not find by itself (``find_device``).
    ``end_training`` does nothing there, since the weights are asked for afterwards.
    """
    import torch

    torch.set_num_threads(1)  # what the command asks for, by OMP_NUM_THREADS
    sys.argv = [str(path), *map(str, arguments)]
    os.environ.update(variables or {})
    if alone or os.environ.get("WORLD_SIZE") == "1":
        for name in ALONE:
            os.environ.pop(name, None)
    if told:
        find_device()
    names = _names(path)
    accelerator = names["accelerator"]
    net = names["net"]
    optimizer = names["optimizer"]
    weights = accelerator.get_state_dict(net)
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return {
        "type": accelerator.distributed_type.value,
        "model": type(net).__name__,
        "processes": accelerator.num_processes,
        "updates": max(int(state["step"]) for state in optimizer.state.values()),
        "loss": names["loss"].item(),
        "state": "\n".join(str(accelerator.state).splitlines()[:2]),
        "weights": weights,
        "report": names.get("report"),
    }


def _names(path: str | Path) -> dict:
    """The names of a script that has run, and has not ended what Accelerate opened."""
    from accelerate import Accelerator

    end_training = Accelerator.end_training
    Accelerator.end_training = lambda self: None
    try:
        return runpy.run_path(str(path))
    finally:
        Accelerator.end_training = end_training
