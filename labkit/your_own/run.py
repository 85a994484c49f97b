"""A module of the reader's own on real ranks: built on the host by each, then copied (DDP), sharded
(FSDP2) or cut (``cut_run``), trained for three steps, its bytes read out in the third."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_iter, tree_map_only

from labkit.devices.place import synchronize
from labkit.launching import launcher
from labkit.launching.fork import imports, zygote_client
from labkit.launching.verdicts.verdict import RankFailed
from labkit.measure import memory, trace, trace_rows
from labkit.measure.labels import replaced
from labkit.planner.real.counted import Counted
from labkit.planner.real.module_run import measured, repeated
from labkit.sharding import engines
from labkit.your_own.step import LEARNING_RATES, Step

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 180.0
TURNS_S = 40.0
"""so long steps take turns at most, so that a busy machine makes fewer rounds and not a timeout"""
WARM_STEPS = 3
"""before steps are timed and nothing else"""
HOST = torch.device("cpu")
"""where each rank builds a module"""


def start(step: Step) -> "Job":
    """Trains three steps, in the background. ``step.run()`` starts it and waits."""
    step.rows()  # or it raises here, and not in the ranks
    tracing = imports.TRACING if step.engine == "pipeline" else ()
    # it may be another zygote by now
    zygote_client.expect(*looked(step.make).imported, *tracing)
    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S, devices=step.devices)


def in_turns(steps: Sequence[Step]) -> list[float]:
    """Rank 0's fastest of ``timed`` steps of each, of copies or shards, with nothing read out; all
    are of as many ranks, and take their turns."""
    for step in steps:
        step.rows()  # or it raises in the ranks
        zygote_client.expect(*looked(step.make).imported)
    first = steps[0]
    where = {"ranks": first.ranks, "timeout_s": TIMEOUT_S, "devices": first.devices}
    return launcher.launch(_clocked, tuple(steps), **where)[0]


def is_too_large(step: Step) -> bool:
    """Whether it runs out of its devices' memory. Raises what else goes wrong in its ranks."""
    try:
        step.run()
    except RankFailed as failed:
        if "OutOfMemory" not in str(failed):
            raise
        return True
    return False


def built(make: Callable[[], Any]) -> tuple[nn.Module, Any]:
    """What the reader's function gives. Raises ValueError where that is no module and a batch."""
    found = make()
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], nn.Module)):
        raise ValueError(
            f"make gives a torch.nn.Module and a batch for it, return net, batch; got {found!r:.80}"
        )
    rows = {each.shape[0] for each in tree_iter(found[1]) if isinstance(each, Tensor)}
    if len(rows) != 1:
        raise ValueError(
            "the tensors of a batch have as many rows, samples first, and there is one or more; "
            f"got rows {sorted(rows)}"
        )
    return found


class Looked(NamedTuple):
    """What was learned of a module without running it."""

    shape: Counted
    """as the planner takes it"""
    num_rows: int
    """samples of the batch"""
    output_bytes: int
    """of the first tensor of floats in its output"""
    imported: tuple[str, ...]
    """the modules of transformers that it is made of, which take long to import"""


@functools.lru_cache(maxsize=32)
def looked(make: Callable[[], Any]) -> Looked:
    """The module measured under fake tensors, on the meta device where it can be built there.
    Raises ValueError where it can't be measured."""
    try:
        with torch.device("meta"):
            module, batch = built(make)
    except (RuntimeError, NotImplementedError):  # it reads values while it is built
        module, batch = built(make)
    sizes: list[int] = []
    hook = module.register_forward_hook(lambda _, args, output: sizes.append(first(output).nbytes))
    try:
        shape = measured(module, batch)
    finally:
        hook.remove()
    names = {type(each).__module__ for each in module.modules()}
    imported = sorted(name for name in names if name.split(".")[0] == "transformers")
    zygote_client.expect(*imported)
    return Looked(shape, num_rows(batch), sizes[-1], tuple(imported))


def num_rows(batch: Any) -> int:
    """Samples of a batch."""
    return next(each for each in tree_iter(batch) if isinstance(each, Tensor)).shape[0]


# --- in the ranks ---


def first(output: Any) -> Tensor:
    """The first tensor of floats in an output: the logits of most models, or a loss. Raises
    ValueError where there is none."""
    for each in tree_iter(output):
        if isinstance(each, Tensor) and each.is_floating_point():
            return each
    raise ValueError(f"the output has no tensor of floats to train on; it is a {type(output)}")


def loss_of(step: Step, output: Any, batch: Any) -> Tensor:
    """By the reader's function, or the stand-in."""
    found = first(output)
    if step.loss:
        return step.loss(found, batch)
    return found if not found.dim() else found.float().square().mean()


def called(module: nn.Module, batch: Any) -> Any:
    """A forward."""
    args, kwargs = given(batch)
    return module(*args, **kwargs)


def given(batch: Any) -> tuple[tuple, dict]:
    """A batch as what a forward is called with."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return batch if isinstance(batch, tuple) else (batch,), {}


def _train(step: Step) -> dict:
    torch.manual_seed(0)
    with HOST:
        module, batch = built(step.make)
        with torch.no_grad():
            alone = loss_of(step, called(module, batch), batch).item()
    device = torch.get_default_device()
    batch = tree_map_only(Tensor, lambda each: each.to(device), batch)
    if step.engine == "pipeline":
        from labkit.your_own import cut_run

        found = cut_run.train(step, module, batch)
    else:
        found = _data_parallel(step, module, _part(step, batch))
    return {"loss_alone": alone, **found}


def _clocked(steps: Sequence[Step]) -> list[float]:
    """In each round every step takes its turn, so that a busy moment slows all alike. One that is
    given twice is made once."""
    each_once = {id(step): step for step in steps}
    made = {key: _ready(step) for key, step in each_once.items()}
    ready = [made[id(step)] for step in steps]
    fastest_us = [float("inf")] * len(steps)
    ends_s = time.perf_counter() + TURNS_S
    for done in range(steps[0].timed):
        if done and not _agreed(time.perf_counter() < ends_s):
            break
        for number, each in enumerate(ready):
            took_us = by_the_clock(1, *each)["step_us"][0]
            fastest_us[number] = min(fastest_us[number], took_us)
    return fastest_us


def _agreed(mine: bool) -> bool:
    """What rank 0 says."""
    said = torch.tensor([int(mine)])
    dist.broadcast(said, src=0)
    return bool(said.item())


def _ready(step: Step) -> tuple[torch.optim.Optimizer, Callable[[], object]]:
    """The optimizer and a step, after the first few."""
    torch.manual_seed(0)
    with HOST:
        module, batch = built(step.make)
    device = torch.get_default_device()
    batch = tree_map_only(Tensor, lambda each: each.to(device), _part(step, batch))
    engine = _wrapped(step, module)
    optimizer = optimizer_of(step, engine)
    once = functools.partial(_one_step, step, engine, optimizer, batch)
    for _ in range(WARM_STEPS):
        once()
    return optimizer, once


def _part(step: Step, batch: Any) -> Any:
    """What this rank takes of the batch."""
    if not step.split:
        return batch
    rows = num_rows(batch) // step.ranks
    begin = dist.get_rank() * rows
    return tree_map_only(Tensor, lambda each: each[begin : begin + rows], batch)


def _data_parallel(step: Step, module: nn.Module, batch: Any) -> dict:
    """Copies or shards."""
    with memory.watch() as watched:
        engine = _wrapped(step, module)
        optimizer = optimizer_of(step, engine)
        values = [_one_step(step, engine, optimizer, batch) for _ in range(2)]
        engines.claim(watched, engine, optimizer)
        memory.reset_allocated_peak()
        watched.mark("before")
        values.append(_one_step(step, engine, optimizer, batch, watched))
        engines.claim(watched, engine, optimizer)
    allocated = memory.allocated_peak_bytes()
    with trace.record(operators=True):
        _one_step(step, engine, optimizer, batch)
    losses = _means(values) if step.split else values
    found = {"losses": losses, **told(engine, optimizer, watched), "allocated_bytes": allocated}
    once = functools.partial(_one_step, step, engine, optimizer, batch)
    return found | by_the_clock(step.timed, optimizer, once)


def _means(values: list[float]) -> list[float]:
    """Each over all ranks."""
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found)
    return (found / dist.get_world_size()).tolist()


def by_the_clock(
    count: int, optimizer: torch.optim.Optimizer, once: Callable[[], object]
) -> dict[str, list[float]]:
    """So many steps by this rank's clock, and the update of each; all ranks begin each together."""
    found: dict[str, list[float]] = {"step_us": [], "update_us": []}
    update = optimizer.step

    def clocked() -> None:
        found["update_us"].append(_took_us(update))

    with replaced(optimizer, step=clocked):
        for _ in range(count):
            dist.barrier()
            found["step_us"].append(_took_us(once))
    return found


def _took_us(work: Callable[[], object]) -> float:
    """How long it took, with all that it asked of a device."""
    synchronize()
    began_s = time.perf_counter()
    work()
    synchronize()
    return 1e6 * (time.perf_counter() - began_s)


def optimizer_of(step: Step, module: nn.Module) -> torch.optim.Optimizer:
    """The step's optimizer, of all that the module holds on this rank."""
    rate = LEARNING_RATES[step.optimizer]
    kind = torch.optim.SGD if step.optimizer == "sgd" else torch.optim.AdamW
    return kind(module.parameters(), lr=rate, foreach=False)


def _wrapped(step: Step, module: nn.Module) -> nn.Module:
    """The engine around the module, on the rank's device."""
    device = torch.get_default_device()
    if step.engine == "ddp":
        return DistributedDataParallel(module.to(device), gradient_as_bucket_view=True)
    mesh = dist.init_device_mesh(device.type, (step.ranks,))
    for unit in (*repeated(module)[1], module):
        fully_shard(unit, mesh=mesh)
    for buffer in module.buffers():
        buffer.data = buffer.data.to(device)
    return module


def _one_step(
    step: Step,
    engine: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    watched: memory.Watch | None = None,
) -> float:
    """Forward, backward, update; DDP keeps its gradients, which lie in its buckets."""
    if watched:
        watched.mark("forward")
    loss = loss_of(step, called(engine, batch), batch)
    if watched:
        dist.barrier()  # or gloo's thread may still hold what it has gathered
        watched.kept()
        watched.mark("backward")
    value = loss.item()
    loss.backward()
    del loss
    if watched:
        engines.claim(watched, engine, optimizer)
        watched.mark("update")
    with torch.profiler.record_function(trace_rows.UPDATE):
        optimizer.step()
    optimizer.zero_grad(set_to_none=step.engine != "ddp")
    return value


def told(module: nn.Module, optimizer: Any, watched: memory.Watch) -> dict:
    """What a rank held."""
    held = engines.shards(module, optimizer).bytes_by()["parameter"]
    return {"parameters_bytes": int(held.sum()), "footprint": watched.footprint()}
