"""Labels around what computes, so that a recording shows each of a pipeline's actions exactly:
"2F0" is stage 2, forward, microbatch 0.

torch's own label "Forward 2" contains the wait for its input, and Schedule1F1B has no labels: so
the methods that compute, ``forward_one_chunk`` and the two backward ones, are labelled here.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(thing: Any, **attributes: Any) -> Iterator[None]:
    """Gives one object other attributes (wrapped methods, say) inside the block, and takes them off
    again."""
    before = {name: vars(thing)[name] for name in attributes if name in vars(thing)}
    vars(thing).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(thing)[name]
        vars(thing).update(before)


def labelled(stage: Any) -> dict[str, Any]:
    """The methods of a stage (or engine) that compute, each with its label around it."""
    if hasattr(stage, "_INSTRUCTION_MAP"):
        return {"_INSTRUCTION_MAP": _instructions(stage)}
    if not hasattr(stage, "forward_one_chunk"):
        raise ValueError(
            "record(...) labels PipelineStage or DeepSpeed PipelineEngine; got "
            f"{type(stage).__name__}"
        )
    names = {
        "forward_one_chunk": lambda mb, *args, **kwargs: f"{stage.stage_index}F{mb}",
        "backward_one_chunk": functools.partial(_backward, stage.stage_index),
        "backward_weight_one_chunk": lambda mb, *args, **kwargs: f"{stage.stage_index}W{mb}",
    }
    return {method: _around(getattr(stage, method), name) for method, name in names.items()}


def _backward(
    index: int, mb: int, loss: Any = None, full_backward: bool = True, **kwargs: Any
) -> str:
    return f"{index}{'B' if full_backward else 'I'}{mb}"


def _instructions(engine: Any) -> dict:
    """DeepSpeed's instructions, the two that compute labelled; it names buffers, so microbatches
    are counted here."""
    kinds = {"ForwardPass": "F", "BackwardPass": "B"}

    def counted(method: Callable, kind: str) -> Callable:
        counts = itertools.count()
        return _around(method, lambda *args, **kwargs: f"{engine.stage_id}{kind}{next(counts)}")

    return {
        cmd: counted(method, kinds[cmd.__name__]) if cmd.__name__ in kinds else method
        for cmd, method in engine._INSTRUCTION_MAP.items()
    }


def _around(method: Callable, name: Callable[..., str]) -> Callable:
    from torch.profiler import record_function

    @functools.wraps(method)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        with record_function(name(*args, **kwargs)):
            return method(*args, **kwargs)

    return labelled
