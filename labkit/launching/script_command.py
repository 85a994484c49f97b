"""The command that starts a script: torchrun, accelerate launch, deepspeed; what its users type."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from labkit.devices import library, rung
from labkit.devices.rung import Pretend, Rung
from labkit.machine import resources
from labkit.units import check_whole, check_word

LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
ALONE = "python"
"""starts one process, as a script is run without any launcher"""
RECORDED = ("-m", "labkit.measure.traced")
"""what stands before a script that is recorded"""


def command(
    path: str | Path,
    *args: str,
    ranks: int,
    using: str,
    logs: Path | None = None,
    max_restarts: int = 0,
    nodes: tuple[int, int] = (1, 1),
    node: int = 0,
    port: int = 29400,
    config: str | Path | None = None,
    front: Sequence[str] = (),
) -> list[str]:
    """The command line that starts ``path`` on ``ranks`` ranks. With ``logs``, each rank's output
    goes to files there. ``front``: what each rank runs before the script.

    Of several nodes, the line for ``node``; they meet at ``port``, where node 0 listens. Raises
    ValueError for an unknown launcher, a script that does not exist, restarts and nodes that are
    none, or a ``config`` that its launcher has no use for.
    """
    check_word(using, (*LAUNCHERS, ALONE), "what a script is launched using")
    check_whole(1, 4096, ranks=ranks)
    if using == ALONE and ranks != 1:
        raise ValueError(
            f"{ALONE} starts one process; got {ranks} ranks. Take ranks=1, or using='torchrun'"
        )
    if not Path(path).is_file():
        raise ValueError(
            f"launch_script takes the path of a script; {str(path)!r} is no file (folder: "
            f"{os.getcwd()})"
        )
    _check_fits(using, max_restarts, nodes, config)
    if using == "torchrun":
        line = _torchrun(ranks, max_restarts, nodes, node, port)
        output = ["--log-dir", str(logs / f"node-{node}"), "--redirects", "3"] if logs else []
    elif using == ALONE:
        line = [ALONE]
        output = []
    elif using == "accelerate":
        line = _accelerate(ranks, config)
        output = ["--log_dir", str(logs), "--tee", "3"] if logs else []
    else:
        line = _deepspeed(ranks)
        output = ["--enable_each_rank_log", str(logs)] if logs else []
    return [*line, *output, *front, str(path), *args]


def num_nodes(nodes: tuple[int, int]) -> int:
    """The most nodes there may be. Raises ValueError for what is no (fewest, most)."""
    if not isinstance(nodes, tuple) or len(nodes) != 2:
        raise ValueError(f"nodes are (fewest, most); got {nodes!r}")
    fewest, most = nodes
    check_whole(1, 64, most_nodes=most)
    check_whole(1, most, fewest_nodes=fewest)
    return most


def stand(devices: str | Pretend | None, ranks: int, using: str) -> Rung:
    """What the ranks of a script stand on: what the machine has, or what is asked for. Raises
    ValueError for what a script can't be given, and where pretend devices are not built."""
    check_word(using, (*LAUNCHERS, ALONE), "what a script is launched using")
    if devices is None:
        name = "cuda" if resources.num_gpus() >= ranks else "cpu"
        return Rung(name=name, backend=rung.BACKENDS[name])
    if not isinstance(devices, Pretend):
        check_word(devices, ("cpu", "pretend"), "what a script's ranks compute on")
    chosen = rung.choose(ranks, resources.num_gpus(), devices=devices, backend=None)
    if chosen.name == "pretend":
        _check_can_pretend(using)
    return chosen


def _check_can_pretend(using: str) -> None:
    if using != "torchrun":
        raise ValueError(
            f"torchrun's scripts can have pretend devices; {using} looks for devices that it "
            'knows by name. Leave using out, or ask for devices="cpu".'
        )
    for name in rung.LIBRARIES["pretend"]:
        if reason := library.why_not(name):
            raise ValueError(f"pretend devices can't be had: {reason}")


def needs(
    chosen: Rung,
    using: str,
    *,
    restarts: bool = False,
    config: str | Path | dict | None = None,
) -> dict[str, str]:
    """What a launcher's environment must say: where its ranks have no GPU each, or shall not see
    one, and where they may be restarted.

    ``config`` is accelerate's. One that names DeepSpeed leaves the choice of a device to DeepSpeed:
    with ACCELERATE_USE_CPU, accelerate (1.15) trains by DDP and says nothing.

    torchrun (2.13) keeps one store for all its starts, and gloo then finds a dead rank's address in
    it: about every second restart hung. With sharing switched off each start has a store of its own
    (pytorch issue 135712).
    """
    needed = {}
    if restarts:
        needed["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if not chosen.has_gpu and resources.num_gpus():
        needed["CUDA_VISIBLE_DEVICES"] = ""
    by_deepspeed = using == "deepspeed" or _names_deepspeed(config)
    if by_deepspeed and chosen.name == "cpu":
        needed["DS_ACCELERATOR"] = "cpu"
    elif using == "accelerate" and chosen.name == "cpu":
        needed["ACCELERATE_USE_CPU"] = "true"
    return needed


def _names_deepspeed(config: str | Path | dict | None) -> bool:
    """Whether a configuration of accelerate's asks for DeepSpeed."""
    if isinstance(config, dict):
        return config.get("distributed_type") == "DEEPSPEED"
    if config is None or not Path(config).is_file():
        return False
    text = Path(config).read_text(encoding="utf-8", errors="replace")
    return any("distributed_type" in line and "DEEPSPEED" in line for line in text.splitlines())


def config_file(config: str | Path | dict | None, path: Path) -> str | Path | None:
    """The file of a configuration. A dict is written beside the script; JSON is YAML, too."""
    if not isinstance(config, dict):
        return config
    if not path.is_file():
        return None
    file = path.with_suffix(".json")
    file.write_text(json.dumps(config, indent=1))
    return file


def _check_fits(
    using: str, max_restarts: int, nodes: tuple[int, int], config: str | Path | None
) -> None:
    """Raises ValueError for what only another launcher can do."""
    if using != "torchrun" and (nodes != (1, 1) or max_restarts):
        raise ValueError(
            f"torchrun alone restarts ranks; got using={using!r}. Leave nodes and max_restarts out"
        )
    if using != "accelerate" and config is not None:
        raise ValueError(
            f"a configuration file is accelerate's; {using} takes none: give the script its path "
            "instead"
        )


def _torchrun(
    ranks: int, max_restarts: int, nodes: tuple[int, int], node: int, port: int
) -> list[str]:
    check_whole(0, 1000, max_restarts=max_restarts)
    most = num_nodes(nodes)
    if ranks % most:
        raise ValueError(
            f"every node has as many ranks; {ranks} ranks are not shared by {most} nodes: take a "
            "multiple"
        )
    line = ["torchrun"]
    if most == 1:
        line.append("--standalone")
    elif nodes[0] == most and not max_restarts:
        # nobody may be missing and nothing starts anew: fixed numbers, without a meeting
        line += ["--nnodes", str(most), "--node-rank", str(node)]
        line += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    else:
        meeting = (
            f"is_host={int(node == 0)},keep_alive_interval=1,keep_alive_max_attempt=3,"
            "last_call_timeout=1"
        )
        line += ["--nnodes", f"{nodes[0]}:{most}", "--rdzv-backend", "c10d"]
        line += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", meeting]
        line += ["--local-addr", "127.0.0.1"]
    line += ["--nproc-per-node", str(ranks // most)]
    if max_restarts:
        line += ["--max-restarts", str(max_restarts)]
    return line


def _accelerate(ranks: int, config: str | Path | None) -> list[str]:
    line = ["accelerate", "launch"]
    if config is not None:
        line += ["--config_file", str(config)]
    line += ["--num_processes", str(ranks), "--main_process_port", str(resources.free_port())]
    if config is None:
        line += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        if ranks > 1:
            # its only launcher of several processes; ACCELERATE_USE_CPU makes them CPU's
            line.append("--multi_gpu")
    return line


def _deepspeed(ranks: int) -> list[str]:
    line = ["deepspeed", "--num_gpus", str(ranks)]
    return [*line, "--master_addr", "127.0.0.1", "--master_port", str(resources.free_port())]
