"""What travels as a pickle: the launched function with its arguments, and what a rank returns."""

import inspect
import io
from collections.abc import Callable, Iterator

from labkit.launching.verdicts.verdict import Refused


def pack_call(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    """Pickles a call. Functions, closures and classes of a notebook travel by value.

    Raises Refused, naming the variable, when something in it can't be sent.
    """
    import cloudpickle

    if not callable(fn):
        raise Refused(
            f"launch takes a function and its arguments; got a {type(fn).__name__}. Write "
            "lab.launch(train, 20), not lab.launch(train(20))."
        )
    try:
        return cloudpickle.dumps((fn, args, kwargs), protocol=5)
    except Exception as error:
        raise Refused(
            "everything a launched function uses is sent to the ranks; "
            f"{_culprit(fn, args, kwargs)} can't be: {error}. "
            "Create it inside the function, or pass plain data."
        ) from None


def pack_result(result: object, rank: int) -> bytes:
    """Pickles a rank's result, its tensors on the host. Raises TypeError that names the type
    which can't be sent."""
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: object) -> object:
            if isinstance(thing, torch.Tensor) and thing.device.type not in ("cpu", "meta"):
                return thing.detach().cpu().__reduce_ex__(4)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    try:
        Pickler(buffer, protocol=5).dump(result)
    except Exception as error:
        raise TypeError(
            f"a rank's result must be picklable; rank {rank} returned a {type(result).__name__}, "
            f"which is not ({error}). Return numbers, tensors, or a state_dict instead."
        ) from None
    return buffer.getvalue()


def _culprit(fn: Callable, args: tuple, kwargs: dict) -> str:
    """What of a call can't be pickled, in words."""
    for name, value in _parts(fn, args, kwargs):
        if not _travels(value):
            return f"{name} (a {type(value).__name__})"
    return "something inside it"


def _parts(fn: Callable, args: tuple, kwargs: dict) -> Iterator[tuple[str, object]]:
    for index, value in enumerate(args):
        yield f"argument {index + 1}", value
    yield from kwargs.items()
    if inspect.isfunction(fn):
        used = inspect.getclosurevars(fn)
        yield from {**used.nonlocals, **used.globals}.items()


def _travels(value: object) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
