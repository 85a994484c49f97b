"""What travels from the notebook to the ranks: the function with all it uses, and the source of the
cells it came from."""

import inspect
import linecache
import os
import sys
from collections.abc import Callable, Iterator

from labkit.launching.verdict import Refused


def pack(fn: Callable, args: tuple, kwargs: dict) -> bytes:
    """Pickles a call. Functions, closures and classes of a notebook travel by value.

    Raises Refused, naming the variable, when something in it can't be sent.
    """
    import cloudpickle

    if not callable(fn):
        raise Refused(
            f"launch takes a function and its arguments; got a {type(fn).__name__}. Write "
            "lab.launch(train, 20), "
            "not lab.launch(train(20))."
        )
    try:
        return cloudpickle.dumps((fn, args, kwargs), protocol=5)
    except Exception as error:
        culprit = next(
            (
                f"{name} (a {type(value).__name__})"
                for name, value in _parts(fn, args, kwargs)
                if not _travels(value)
            ),
            "something inside it",
        )
        raise Refused(
            f"everything a launched function uses is sent to the ranks; {culprit} can't be: "
            f"{error}. "
            "Create it inside the function, or pass plain data."
        ) from None


def cell_sources() -> dict[str, tuple[str, list[str]]]:
    """Source lines of code that lies in no file, such as notebook cells: {file name: (name to show,
    lines)}."""
    return {
        file: (_shown_name(file), entry[2])
        for file, entry in list(linecache.cache.items())
        if (len(entry) == 4 and entry[1] is None) or (not os.path.exists(file) and len(entry) == 4)
    }


def _shown_name(file: str) -> str:
    """A cell's name as the notebook shows it: "In[3]" of "Cell In[3]"."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    try:
        return " ".join(shell.compile.format_code_name(file)) if shell else os.path.basename(file)
    except (AttributeError, TypeError, KeyError):
        return os.path.basename(file)


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
