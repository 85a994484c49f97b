"""A module of the reader's own cut in stages: traced by ``torch.distributed.pipelining``, which
finds by itself what each stage needs, and cut before the layers that the planner would cut
before."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx, nn
from torch.distributed.pipelining import Pipe, ScheduleGPipe, SplitPoint, pipeline
from torch.utils._pytree import tree_map_only

from labkit.measure import memory, trace
from labkit.measure.labels import replaced
from labkit.planner.real.module_run import repeated
from labkit.sharding import engines
from labkit.your_own.run import by_the_clock, given, loss_of, num_rows, optimizer_of, told
from labkit.your_own.step import Step


def train(step: Step, module: nn.Module, batch: Any) -> dict:
    """One rank: its stage, trained for three steps by GPipe, then one recorded."""
    pipe = cut(step, module, batch)
    with memory.watch() as watched:
        stage = pipe.build_stage(dist.get_rank(), torch.get_default_device())
        shared = _tied(module, stage.submod)
        losses: list[Tensor] = []
        forward_backward = _runtime(step, stage, batch, losses)
        optimizer = optimizer_of(step, stage.submod)

        def update() -> float | None:
            if step.add_tied:
                _sum_copies(shared)
            optimizer.step()
            optimizer.zero_grad()
            return sum(each.item() for each in losses) / step.microbatches if losses else None

        values = []
        for _ in range(2):
            forward_backward()
            values.append(update())
        engines.claim(watched, stage.submod, optimizer)
        memory.reset_allocated_peak()
        watched.mark("before")
        dist.barrier()
        watched.mark("forward")
        with _marked(stage, watched):
            forward_backward()
        engines.claim(watched, stage.submod, optimizer)
        watched.mark("update")
        values.append(update())
    allocated = memory.allocated_peak_bytes()
    with trace.record(stage):
        forward_backward()
    found = told(stage.submod, optimizer, watched)

    def once() -> None:
        forward_backward()
        update()

    found |= {**by_the_clock(step.timed, optimizer, once), "allocated_bytes": allocated}
    return {"losses": values if losses else None, **found}


@contextlib.contextmanager
def _marked(stage: Any, watched: memory.Watch) -> Iterator[None]:
    """The first backward is where all forwards have ended."""
    backward = stage.backward_one_chunk
    begun: list[bool] = []

    def marked(*args: Any, **kwargs: Any) -> Any:
        if not begun:
            watched.kept()
            watched.mark("backward")
            begun.append(True)
        return backward(*args, **kwargs)

    with replaced(stage, backward_one_chunk=marked):
        yield


def cut(step: Step, module: nn.Module, batch: Any) -> Pipe:
    """The module as a pipeline: traced with one microbatch, cut before a layer for each stage.
    Raises ValueError where it can't be traced, or where a later stage needs the batch itself."""
    rows = num_rows(batch)
    if rows % step.microbatches:
        raise ValueError(
            f"a batch divides into equal microbatches; got {rows} rows for {step.microbatches}. "
            "Make a larger batch, or say microbatches="
        )
    one = rows // step.microbatches
    args, kwargs = given(tree_map_only(Tensor, lambda each: each[:one].cpu(), batch))
    names = {id(each): name for name, each in module.named_modules()}
    layers = repeated(module)[1]
    plan = step.plan()
    points = {}
    begin = 0
    for count in plan.layout.stage_layers(plan.shape)[:-1]:
        begin += count
        points[names[id(layers[begin])]] = SplitPoint.BEGINNING
    try:
        with warnings.catch_warnings(), next(module.parameters()).device:
            warnings.simplefilter("ignore")
            pipe = pipeline(module, args, kwargs, split_spec=points)
    except RuntimeError as error:
        raise ValueError(
            f"torch cuts what torch.export traces as one graph; {type(module).__name__} is none "
            f"({str(error.__cause__ or error).splitlines()[0]}). Cut it by hand, in modules that "
            "each take what the one before gives (chapter 08), or keep to ddp and fsdp"
        ) from error
    _check_inputs(pipe)
    for index in range(pipe.num_stages):
        _make_contiguous(pipe.get_stage_module(index), is_first=index == 0)
    return pipe


def _check_inputs(pipe: Pipe) -> None:
    """Only the first stage is given the batch."""
    stages = [node for node in pipe.split_gm.graph.nodes if node.op == "call_module"]
    for index, node in enumerate(stages[1:], 1):
        late = [each.name for each in node.args if each.op == "placeholder"]
        if late:
            raise ValueError(
                f"only the first stage is given the batch, and stage {index} needs {late} of it: "
                "leave targets out of the batch and give a loss=, which is computed behind the "
                "last stage"
            )


def _make_contiguous(stage: fx.GraphModule, *, is_first: bool) -> None:
    """What is sent between stages is packed, since a message is; transformers' masks are views
    whose rows are one."""
    for node in stage.graph.nodes:
        if node.op == "placeholder" and not is_first:
            node.meta["val"] = node.meta["val"].contiguous()
    output = next(node for node in stage.graph.nodes if node.op == "output")

    def packed(each: fx.Node) -> fx.Node:
        value = each.meta["val"]
        if value.is_contiguous():
            return each
        with stage.graph.inserting_before(output):
            made = stage.graph.call_method("contiguous", (each,))
        made.meta["val"] = value.contiguous()
        return made

    output.args = fx.map_arg(output.args, packed)
    stage.recompile()


def _runtime(step: Step, stage: Any, batch: Any, losses: list[Tensor]) -> Callable[[], None]:
    """All forwards, then all backwards: torch's GPipe, the loss behind the last stage. It is told
    by number which rows of the batch it is about."""
    is_first, is_last = stage.is_first, stage.is_last

    def loss(output: Any, rows: Tensor) -> Tensor:
        return loss_of(step, output, tree_map_only(Tensor, lambda each: each[rows], batch))

    runtime = ScheduleGPipe(stage, step.microbatches, loss_fn=loss)

    def forward_backward() -> None:
        losses.clear()
        args, kwargs = given(batch) if is_first else ((), {})
        rows = torch.arange(num_rows(batch)) if is_last else None
        runtime.step(*args, **kwargs, target=rows, losses=losses, return_outputs=False)

    return forward_backward


def _tied(module: nn.Module, stage: nn.Module) -> list[tuple[nn.Parameter | None, torch.Size]]:
    """Ties what was tied in the module (torch gives a stage a copy for each name), and tells the
    weights that several stages use: this stage's, or None, and how large it is; in the same order
    on all ranks."""
    whole = dict(module.named_parameters(remove_duplicate=False))
    name_of: dict[int, str] = {}
    for name, weight in whole.items():
        name_of.setdefault(id(weight), name)
    mine: dict[str, nn.Parameter] = {}
    for path, inner in stage.named_modules():
        for name, weight in list(inner.named_parameters(recurse=False)):
            origin = name_of[id(whole[f"{path}.{name}".lstrip(".")])]
            setattr(inner, name, mine.setdefault(origin, weight))
    of_all: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(of_all, list(mine))
    found = []
    for name in dict.fromkeys(name_of.values()):
        if sum(name in names for names in of_all) > 1:
            found.append((mine.get(name), whole[name].shape))
    return found


def _sum_copies(shared: list[tuple[nn.Parameter | None, torch.Size]]) -> None:
    """Every copy of a weight gets the gradients of all."""
    for weight, size in shared:
        gradient = torch.zeros(size) if weight is None else weight.grad
        dist.all_reduce(gradient)
