"""What the zygote imports, so that its ranks need not: torch first, what some ranks need later."""

import fcntl
import gc
import importlib
import json
import os
import sys
import traceback

FIRST = ("torch", "torch.distributed", "numpy.random", "cloudpickle")
"""What every rank needs."""
WRAPPING = (
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
)
"""What the first optimizer, DDP(), fully_shard() or DTensor imports: one or two seconds."""
LATER = (
    *WRAPPING,
    "torch.distributed.pipelining",
    "torch.distributed.checkpoint",
    "labkit.devices.preload",
    "labkit.experiment",
    "labkit.measure.trace",
)
"""What some ranks need. A launch may have to wait for one of them: so the large ones (torch._dynamo
is one of pipelining's own) stand there by themselves, none longer than half a second."""
LATER_ON_CPU = ("accelerate",)
"""What some ranks need where there is no GPU."""
DEEPSPEED = (
    "deepspeed",
    "deepspeed.pipe",
    "torch._functorch.aot_autograd",
    "torch._inductor.lowering",
    "deepspeed.runtime.zero.muon.original_muon",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.ops.op_builder.all_ops",
    "deepspeed.comm.mori",
    "torch.utils.cpp_extension",
    "torch.utils.file_baton",
    "setuptools",
)
"""What DeepSpeed's ranks need where there is no GPU; it imports torch._inductor."""
TRACING = ("torch._functorch.partitioners", "torch._inductor.triton_bundler")
"""What torch.export imports at its first trace, networkx among it: half a second of a core."""


def load(*names: str) -> None:
    """Imports modules, to be shared by all ranks that are forked from now on. What can't be
    imported is left out: a rank that needs it will say why."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:
            traceback.print_exc()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    assert threads == 1, (
        f"the zygote must be single-threaded to fork safely; it has {threads} threads"
    )


def remember_cpu(folder: str) -> None:
    """DeepSpeed asks cpuinfo twice for every engine and waits a second each time: the first answer
    is kept, and who asks meanwhile waits for it."""
    try:
        cpuinfo = importlib.import_module("cpuinfo")
    except ImportError:
        return
    ask = cpuinfo.get_cpu_info
    kept = os.path.join(folder, "cpuinfo.json")

    def told() -> dict:
        if not os.path.exists(kept):
            with open(f"{kept}.lock", "w", encoding="utf-8") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not os.path.exists(kept):
                    _write(kept, ask())
        with open(kept, encoding="utf-8") as file:
            return json.load(file)

    cpuinfo.get_cpu_info = told


def _write(path: str, answer: dict) -> None:
    """Leaves the answer in its file, whole or not at all."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        json.dump(answer, file)
    os.replace(file.name, path)


def ask_cpu() -> None:
    """Has ``remember_cpu`` have its answer."""
    cpuinfo = sys.modules.get("cpuinfo")
    if cpuinfo is not None:
        cpuinfo.get_cpu_info()
