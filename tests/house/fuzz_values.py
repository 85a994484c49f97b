"""What is drawn for an argument: plain data wild, nouns of ours valid, by the annotation."""

import collections.abc as abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
from fuzz_nouns import TOPO, WRITTEN, nouns
from fuzz_walk import PUBLIC
from hypothesis import strategies as st

from labkit import words
from labkit.collectives import algorithms, plans
from labkit.pictures import sketch
from labkit.pipeline import schedules
from labkit.sharding import partition, states

WILD_INTS = (0, -1, -7, 1000, 10**9, 2**31, 2**63, -(2**63), 10**30, 10**400)
WILD_FLOATS = (
    0.0,
    -0.0,
    -1.0,
    5e-324,
    1e-300,
    1e300,
    float("inf"),
    -float("inf"),
    float("nan"),
    0,
    3,
    10**9,
    10**30,
)
WILD_WORDS = (
    "",
    " ",
    "x",
    "中文",
    "💥",
    "\x00\n",
    "{}{0}{x}",
    "%s",
    "<b>&",
    "-1",
    "nan",
    "y" * 3000,
)
WRONG = (None, object(), "x", b"x", 3, 2.5, float("nan"), [], {}, (1, 2), [None], len, int, 1j)
INTS = st.integers(1, 9) | st.sampled_from(WILD_INTS)
FLOATS = st.floats(0.1, 1e6) | st.sampled_from(WILD_FLOATS)
TEXT = st.sampled_from(WILD_WORDS) | st.text(max_size=8)
KNOWN = {
    "language": ("en", "zh"),
    "over": ("total", "ideal"),
    "primitive": (*algorithms.ALGORITHMS,),
    "algorithm": (*words.TITLES,),
    "long": ("ring",),
    "short": ("tree",),
    "engine": (*partition.STAGES,),
    "recipe_name": (*states.RECIPES,),
    "recipe": (*states.RECIPES,),
    "recompute": states.RECOMPUTE,
    "offload": partition.OFFLOADS,
    "strategy": ("ddp", "fsdp", "fsdp_grad_op", "fsdp_hybrid", "data"),
    "moment": ("F0", "F2", "loss", "B0", "B1", "step", "F99", "B²"),
    "origin": ("simulated", "measured", "predicted"),
    "name": (*schedules.SCHEDULES, "mixed"),
    "schedule": (*schedules.SCHEDULES,),
    "using": ("torchrun", "deepspeed"),
    "backend": ("gloo", "nccl"),
    "devices": ("cpu", "pretend"),
    "kind": ("F", "B", "I", "W", "parameter"),
    "lane": ("compute", "comm"),
    "text": (
        "2F0",
        TOPO,
        "rank 0: 0F0 0B0",
        "rank 0: 0F0 99999999999F0",
        "x: 1 ranks, 9999999999 stages, 1 microbatches\nrank 0: 0F0",
        "rank 0: ٣F0 0B0",
        str(schedules.gpipe(2, 2)),
    ),
    "model": ("LLaMA 7B", "small"),
    "device": ("A100 80 GB",),
    "attention": ("flash", "plain"),
    "layers": ("even",),
    "mode": ("zero2", "zero3"),
    "dtype": ("float32",),
    "colour": ("#4f9fe3", ""),
    "column": ("category", "device"),
}


ROWS = {
    "timeline.from_rows": st.tuples(INTS, TEXT, TEXT, TEXT, FLOATS, FLOATS, INTS),
    "shards.from_rows": st.tuples(
        INTS, TEXT, TEXT, INTS, INTS, st.sampled_from(["float32", "x"]), TEXT
    ),
}
PATHS = ("path", "folder", "source", "logs")
CALLS = [lambda *_: 1.0, lambda *_: float("nan"), lambda *_: -1.0, lambda *_: float("inf")]
SAYS = [lambda *_: "x", lambda *_: ""]


def arguments(label: str, name: str, kind: Any) -> st.SearchStrategy:
    """What an argument may be, by its annotation."""
    origin = typing.get_origin(kind)
    parts = typing.get_args(kind)
    if name == "rows" and label in ROWS:
        return st.lists(ROWS[label], max_size=3)
    if label == "timeline.from_columns" and name == "columns":
        return st.lists(
            st.lists(INTS | FLOATS | TEXT, min_size=2, max_size=2), min_size=7, max_size=7
        )
    if name == "mask":
        return st.lists(st.booleans(), max_size=20).map(lambda values: np.array(values, dtype=bool))
    if name in PATHS and str in (kind, *parts):
        return st.sampled_from([*WRITTEN, "", ".", "y" * 300])
    if name == "plans" and origin in (dict, abc.Mapping):
        return st.dictionaries(TEXT, st.sampled_from(nouns()[plans.Plan]), max_size=3)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(arguments(label, name, part) for part in parts))
    if kind in (None, type(None)):
        return st.none()
    if kind is type:
        return st.sampled_from(
            [int, float, str] if name == "kind" and label == "timeline.column" else [sketch.Box]
        )
    if kind is bool:
        return st.booleans()
    if kind is int:
        return INTS
    if kind is float:
        return FLOATS
    if kind is str:
        return st.sampled_from(KNOWN[name]) | TEXT if name in KNOWN else TEXT
    if kind in (Any, object):
        return st.sampled_from(WRONG)
    if kind is np.ndarray:
        if not inspect.isclass(PUBLIC[label]):
            return st.lists(FLOATS, max_size=3).map(lambda values: np.array(values, dtype=float))
        items = st.sampled_from([INTS, FLOATS, TEXT]).flatmap(
            lambda item: st.lists(item, max_size=3)
        )
        return items.map(
            lambda values: np.array(
                values if len({*map(type, values)}) < 2 else [*map(str, values)]
            )
        )
    if (origin or kind) in (Callable, abc.Callable):
        if label == "words.speaking":
            return st.sampled_from([lambda *_: nouns()[sketch.Sketch][0]])
        return st.sampled_from(SAYS if parts and parts[-1] is str else CALLS)
    if origin is tuple and parts[-1] is not Ellipsis:
        return st.tuples(*(arguments(label, name, part) for part in parts))
    if (origin or kind) in (tuple, list, abc.Sequence, abc.Iterable):
        items = st.lists(arguments(label, name, parts[0]) if parts else INTS | TEXT, max_size=3)
        return items.map(tuple) if (origin or kind) is tuple else items
    if (origin or kind) in (dict, abc.Mapping):
        key, value = parts or (str, object)
        values = st.dictionaries(
            arguments(label, name, key), arguments(label, name, value), max_size=3
        )
        return (
            values | st.sampled_from([*words.WORDS.values()])
            if (key, value) == (str, str)
            else values
        )
    if kind in nouns():
        return st.sampled_from(nouns()[kind])
    raise LookupError(
        f"{label}: {name} is a {kind}: give nouns() valid ones, or excuse {label} with a reason"
    )


OPTIONS = {
    "collectives.algorithms.plan": {
        "root": int,
        "order": abc.Sequence[int],
        "num_segments": int,
        "island_size": int,
    },
    "launching.launcher.launch": {"seed": int, "timeout_s": float, "hang_s": float, "backend": str},
}


def call(label: str, draw: Callable) -> tuple[Callable, dict, bool]:
    """One call: a thunk, what it is given, and whether every argument is of the right type."""
    thing = PUBLIC[label]
    owner = PUBLIC.get(label.rpartition(".")[0])
    signature = inspect.signature(thing)
    where = names_seen_by(getattr(thing, "func", thing))
    args = []
    kwargs = {}
    strict = True
    swapped = draw(st.sampled_from([None, None, None, *signature.parameters]))
    for name, parameter in signature.parameters.items():
        kind = (
            eval(parameter.annotation, where)
            if isinstance(parameter.annotation, str)
            else parameter.annotation
        )
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= {
                key: draw(arguments(label, key, kind))
                for key, kind in OPTIONS.get(label, {}).items()
                if draw(st.booleans())
            }
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            args += draw(st.lists(arguments(label, name, kind), max_size=3))
            continue
        if name == "self":
            value = draw(st.sampled_from(nouns()[owner]))
        elif parameter.default is not parameter.empty and draw(st.integers(0, 2)) == 0:
            continue
        elif name == swapped and plain(kind):
            value = draw(st.sampled_from(WRONG))
            strict = False
        else:
            value = draw(arguments(label, name, kind))
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            kwargs[name] = value
        else:
            args.append(value)
    return functools.partial(thing, *args, **kwargs), {"args": args, **kwargs}, strict


def names_seen_by(thing: Any) -> dict[str, Any]:
    """What an annotation of a function or class may name; fields may come from a class above."""
    names: dict[str, Any] = {}
    for each in reversed(getattr(thing, "__mro__", (thing,))):
        names |= vars(sys.modules[each.__module__])
    return names


def plain(kind: Any) -> bool:
    """Whether an annotation names no noun of ours."""
    parts = typing.get_args(kind)
    return (
        all(map(plain, parts))
        if parts
        else not (
            isinstance(kind, type)
            and (kind in nouns() or kind is type or kind.__module__.startswith("labkit"))
        )
    )
