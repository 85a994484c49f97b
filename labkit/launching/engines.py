"""Which engine a function trains with, as far as its code or its arguments name it: a cell that
says ``deepspeed`` is launched where DeepSpeed can run (not on a shared GPU), and one that says
``Trainer`` on devices that the Trainer of transformers knows, without being told."""

import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

_NAMED = re.compile(r"zero[0-3]|zero_optimization|\w*deepspeed\w*", re.IGNORECASE)
"""an engine of DeepSpeed's, as this package calls them, or DeepSpeed itself"""

WRAPPERS = frozenset(
    {
        "DistributedDataParallel",
        "DDP",
        "FullyShardedDataParallel",
        "FSDP",
        "fully_shard",
        "DTensor",
        "distribute_tensor",
        "parallelize_module",
        "optim",
        "Adam",
        "AdamW",
        "SGD",
    }
)
"""what imports torch._dynamo and most of torch.distributed at its first call"""


def names_a_wrapper(fn: Callable) -> bool:
    """Whether a function, or one of the same module that it calls, wraps a model for several ranks,
    or makes an optimizer: the first to do so imports a good part of torch, which the zygote can do
    once for all of them."""
    return not WRAPPERS.isdisjoint(_words(_inner(fn), set()))


def names_deepspeed(fn: Callable) -> bool:
    """Whether a function, or one of the same module that it calls, names DeepSpeed: as a module, in
    a word of its own such as "deepspeed_plugin", or in a text that is one word. Launches of labkit
    itself say what they need."""
    return any("deepspeed" in word.lower() for word in _said(fn))


def imports_deepspeed(fn: Callable) -> bool:
    """Whether a function has Accelerate import DeepSpeed, without naming it: ``unwrap_model`` does,
    to ask whether a model is DeepSpeed's."""
    return "unwrap_model" in _said(fn)


def names_trainer(fn: Callable) -> bool:
    """Whether a function, or one of the same module that it calls, names a ``Trainer``, which moves
    its model to a GPU or the CPU by itself. Launches of labkit itself say what they need."""
    return "Trainer" in _said(fn)


def _said(fn: Callable) -> Iterator[str]:
    """The names and one-word texts of a function that is none of labkit's."""
    fn = _inner(fn)
    if not (getattr(fn, "__module__", None) or "").startswith("labkit."):
        yield from _words(fn, set())


def _inner(fn: Callable) -> Callable:
    """The function in a partial one, if it is one."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def given_deepspeed(args: Iterable[object]) -> bool:
    """Whether an argument names DeepSpeed: a text that is one word ("zero2", "deepspeed"), or the
    name of an entry in a dict."""
    entries = (names for names in args if isinstance(names, dict))
    words = [*args, *chain.from_iterable(entries)]
    return any(isinstance(word, str) and _NAMED.fullmatch(word) for word in words)


def _words(fn: object, seen: set[int]) -> Iterator[str]:
    """The names and one-word texts in a function's code, and in what it calls beside itself."""
    if not isinstance(fn, types.FunctionType) or id(fn) in seen:
        return
    seen.add(id(fn))
    names: set[str] = set()
    for code in _codes(fn.__code__):
        names.update(code.co_names)
        for constant in code.co_consts:
            texts = constant if isinstance(constant, tuple) else (constant,)  # keywords' names
            yield from (text for text in texts if isinstance(text, str) and " " not in text)
    yield from names
    for name in names:
        other = fn.__globals__.get(name)
        if getattr(other, "__module__", None) == fn.__module__:
            yield from _words(other, seen)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code, and that of the functions inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _codes(part)
