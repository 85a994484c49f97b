"""The public API under rubbish. The law: a call returns, or raises a ValueError (or TypeError) that
says the rule, the value given and the way out; it neither hangs, nor eats the memory, nor leaves a
process, a thread or a file.

The callables come from the package itself: every public function, and the data classes with their
methods and properties; a new one is fuzzed at once, or stands in EXCUSED with its reason. Whatever
would start ranks meets a server that refuses to: what comes before is held to the law as well.

Arguments are drawn from the annotations. Plain data (numbers, words, sequences, mappings) is drawn
wild; in a part of the calls one argument is of a wrong type, and then any ValueError or TypeError
will do, Python's own included. A noun of ours (Timeline, Plan, ...) is always a valid one: a wrong
noun is the type checker's affair, and an AttributeError that names what it lacks says enough. A
path may also meet OSError, which names the path.
"""

import collections.abc as abc
import contextlib
import dataclasses
import dis
import functools
import importlib
import inspect
import itertools
import os
import re
import resource
import signal
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import house
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import labkit
from labkit import footprint, shards, timeline, words
from labkit.collectives import algorithms, calibrate, network
from labkit.data_parallel import buckets
from labkit.launching import outcome, run, zygote_client
from labkit.machine import doctor, topology
from labkit.pictures import curves, scene, sketch, style
from labkit.pipeline import schedules, simulation
from labkit.sharding import partition, states
from labkit.sharding import run as sharding_run
from labkit.sharding import step as sharding_step

PACKAGE = Path(labkit.__file__).parent
SECONDS, MEMORY_BYTES, MOST_ITEMS = 2.0, 1 << 30, 1000
EXAMPLES, FEW = 40, 5

# --- what is fuzzed ---

MACHINE = "lives among processes and sockets: test_launcher holds it under injected faults"
WATCH = "reads what the watch over ranks wrote: test_launcher makes each ending happen"
LIVE = "takes live torch objects, or what ranks returned: its own test runs it there"
ASKS = "takes nothing and asks this machine: its own test"
GRADES = "takes a learner's function and runs it on ranks: its own test passes stubs, hangs and wrong answers"
BUILDER = "an entry of ALGORITHMS: ``plan`` calls it, and checks for it"
PART = "a part of a board, made by it: the board's function is fuzzed"
EXCUSED = {
    **dict.fromkeys(
        (
            "wire",
            "zygote",
            "server",
            "peer",
            "job",
            "rank",
            "health",
            "witness",
            "machine.is_stopped",
        ),
        MACHINE,
    ),
    **dict.fromkeys(("verdict", "ending", "diagnosis"), WATCH),
    **dict.fromkeys(
        (
            "engines",
            "meter",
            "model",
            "pace",
            "traffic",
            "payload",
            "faults",
            "checkpoint",
            "trace.record",
            "trace.span",
            "labels",
            "exchange.execute",
            "exchange.library",
            "sharded.measured",
            "sharded.timeline",
            "sharded.Trainer",
            "sharded.wrap",
            "accelerated",
            "widgets.split",
            "widgets.need.train",
            "widgets.need.measured_bills",
        ),
        LIVE,
    ),
    "ops.free_shared_memory": "deletes files of /dev/shm: test_security",
    **dict.fromkeys(
        (
            "ops",
            "hardware",
            "machine.doctor",
            "machine.summary",
            "machine.cores",
            "machine.total_bytes",
            "machine.available_bytes",
            "machine.num_gpus",
            "machine.free_port",
            "machine.loopback",
            "launcher.warm",
        ),
        ASKS,
    ),
    **dict.fromkeys(
        (
            "widgets.flipbook",
            "widgets.live",
            "widgets.trial",
            "widgets.models",
            "widgets.picture",
            "widgets.need.small_bill",
            "widgets.ddp.DdpBoard",
            "widgets.fsdp.FsdpBoard",
            "widgets.need.NeedBoard",
            "widgets.pipeline.PipelineBoard",
            "widgets.primitives.CollectivesBoard",
            "widgets.strategy.StrategiesBoard",
            "widgets.usage.TimelineBoard",
            "widgets.zero.ZeroBoard",
            "widgets.zero.OffloadBoard",
            "widgets.accelerate.AccelerateBoard",
            "widgets.accelerate.differing",
            "widgets.accelerate.predicted",
        ),
        PART,
    ),
    "export": "takes a board: test_book has each of them",
    "check": GRADES,
    "demo": "the main job from end to end: test_demo",
    "__main__": "the command line: test_main",
    "run.remove": "deletes a folder",
    "run.Run": "test_security and test_run: what a stranger's folder holds",
    "run.Unsaved": "a str",
    **dict.fromkeys(
        (
            "collectives.ring",
            "collectives.hierarchical",
            "collectives.pairwise",
            "collectives.direct",
            "collectives.star",
            "collectives.tree",
            "collectives.chain",
            "collectives.double_tree",
        ),
        BUILDER,
    ),
}
SLOW = ("mpl.", "widgets.", "calibrate.", "sharded.")


def modules() -> Iterator[types.ModuleType]:
    """Every module of the rooms that are there."""
    for room in itertools.chain(*house.FLOORS.values()):
        names = [f"labkit.{room}"]
        if (PACKAGE / room).is_dir():
            names += [
                f"labkit.{room}.{file.stem}" for file in sorted((PACKAGE / room).glob("[a-z]*.py"))
            ]
        yield from (
            importlib.import_module(name)
            for name in names
            if (PACKAGE / room).is_dir() or (PACKAGE / f"{room}.py").exists()
        )


def is_data(thing: Any) -> bool:
    """A data class or a named tuple."""
    return dataclasses.is_dataclass(thing) or (
        isinstance(thing, type) and hasattr(thing, "_fields")
    )


def public() -> Iterator[tuple[str, Any]]:
    """(name, callable) of all that the package offers: functions, classes, and of data classes
    their members."""
    for module in modules():
        for name, thing in vars(module).items():
            here = getattr(thing, "__module__", None) == module.__name__
            if (
                name.startswith("_")
                or not here
                or not (inspect.isclass(thing) or inspect.isfunction(thing))
            ):
                continue
            label = f"{module.__name__.removeprefix('labkit.')}.{name}"
            yield label, thing
            for member, what in vars(thing).items() if is_data(thing) else ():
                fn = getattr(what, "fget", None) or getattr(what, "__func__", None) or what
                if (
                    not member.startswith("_")
                    and not label.startswith("widgets.")
                    and inspect.isfunction(fn)
                ):
                    yield (
                        f"{label}.{member}",
                        functools.partial(fn, thing) if isinstance(what, classmethod) else fn,
                    )


def reason(label: str) -> str | None:
    """Why a callable is not fuzzed: an excuse for it, or for what it stands in."""
    parts = label.split(".")
    return next(
        (
            EXCUSED[name]
            for end in range(len(parts), 0, -1)
            if (name := ".".join(parts[:end])) in EXCUSED
        ),
        None,
    )


PUBLIC = dict(public())
FUZZED = {label: thing for label, thing in PUBLIC.items() if not reason(label)}

# --- what is drawn ---

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
TOPO = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-3\nGPU1\tNV12\t X \t0-3\n"
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


def tasks() -> list[timeline.Timeline]:
    """Valid timelines: simulated, measured, empty, of messages only, with labels that are no
    actions."""
    four = schedules.zbv(2, 4)
    row = (0, "compute", "compute", "?", 0.0, 0.0, 0)
    return [
        simulation.simulate(schedules.gpipe(2, 3), simulation.Cost(message_us=50.0, gap_us=3.0)),
        simulation.simulate(four),
        timeline.from_rows([], num_ranks=2, origin="simulated"),
        timeline.from_rows([row], num_ranks=1, origin="recorded"),
        timeline.from_rows(
            [(1, "compute", "F", "?", -5.0, 7.0, 0)], num_ranks=3, origin="measured"
        ),
        timeline.from_rows(
            [(0, "comm", "all_reduce", "中文", 1.0, 1e12, 2**62)], num_ranks=1, origin="measured"
        ),
        network.simulate(
            algorithms.plan("all_reduce", "ring", 4), network.uniform(4, LINKS[0]), 1e6
        ),
        buckets.simulate(LAYERS, ((2, 1), (0,)), lambda num_bytes: num_bytes / 1e3, num_ranks=2),
    ]


LINKS = [
    network.Link(alpha_us=5.0, bandwidth_gb_per_s=10.0),
    network.Link(alpha_us=0.0, bandwidth_gb_per_s=float("inf"), wire="w"),
]
LAYERS = [
    buckets.Layer(name=f"layer {size}", num_bytes=size, forward_us=float(size))
    for size in (1, 40, 4000)
]
UNITS = sharding_step.transformer(num_layers=2, dim=8, num_heads=2, batch=1, seq_len=4)
CPU = topology.Cpu(number=0, core=0, cache=0, node=0, package=0)
SERIES = [
    curves.Series("a", (1.0, 2.0), (3.0, 4.0)),
    curves.Series({"en": "b", "zh": "乙"}, (1,), (2,), True),
    curves.Series("none", (), ()),
    curves.Series("wild", (0.0, 1e300), (float("nan"), -1e300)),
    curves.Series("odd", (1.0,), ()),
    curves.Series("large", (1e-300, 1e300), (-1e300, 1e300)),
]


@functools.cache
def nouns() -> dict[type, list]:
    """Valid ones of every noun that an argument may be."""
    timelines, calls = (
        tasks(),
        (
            ("all_reduce", "ring", 4),
            ("reduce", "tree", 3),
            ("all_to_all", "pairwise", 3),
            ("send_recv", "direct", 1),
        ),
    )
    plans = [algorithms.plan(*call) for call in calls]
    empty, step = (
        shards.from_rows([], num_ranks=1, origin="measured"),
        sharding_step.predict("ddp", UNITS, 2),
    )
    pictures = [scene.timeline(each, language=code) for each in timelines for code in ("en", "zh")]
    drawings = [
        curves.curves(SERIES[:2], title="t", badge="measured"),
        curves.bars([("a", 3.0)], title="b", badge=""),
    ]
    actions = schedules.one_f_one_b(2, 3).orders[0]
    return {
        timeline.Timeline: timelines,
        algorithms.Plan: plans,
        algorithms.Move: [plans[0].steps[0][0]],
        schedules.Schedule: [
            schedules.gpipe(2, 3),
            schedules.interleaved_zero_bubble(2, 4),
            schedules.naive(1),
            schedules.parse("rank 0: 0B0 0F0"),
            schedules.parse("rank 0: 1F0\nrank 1: 0F0 0B0"),
        ],
        schedules.Action: [*actions],
        simulation.Cost: [simulation.Cost(), simulation.Cost(forward_us=0.0, message_us=9.0)],
        network.Link: LINKS,
        buckets.Layer: LAYERS,
        sharding_step.Unit: UNITS,
        sharding_step.Gradient: [*UNITS[1].gradients],
        network.Network: [
            network.uniform(4, LINKS[0]),
            network.uniform(1, LINKS[1]),
            network.Network(name="none", links=((None, None), (None, None))),
            network.islands(4, 2, inside=LINKS[0], between=LINKS[1]),
        ],
        network.Fit: [network.fit("all_reduce", 2, np.array([1, 9]), np.array([1, 3]))],
        shards.Shards: [
            empty,
            partition.predict("zero2", sharding_step.shapes(UNITS), 2),
            partition.stage_shards(10, 3, 3),
        ],
        footprint.Footprint: [
            step,
            sharding_step.predict("fsdp", UNITS, 4),
            footprint.from_moments([("F0", {"temporary": 0.0})], "measured"),
        ],
        states.Recipe: [*states.RECIPES.values()],
        states.Move: states.offload_moves(10, 2, 3, "all", 2),
        topology.Cpu: [CPU],
        topology.Devices: [topology.Devices(), topology.parse_topo(TOPO)],
        topology.Topology: [
            topology.Topology(cpus=(CPU,), num_usable=1, node_bytes={0: 10**9}, devices=devices)
            for devices in (topology.Devices(), topology.parse_topo(TOPO))
        ],
        scene.Scene: pictures,
        scene.Row: [*pictures[0].rows],
        sketch.Sketch: drawings,
        scene.Heading: [scene.Heading(text="t", detail="", bottom_px=9.0)],
        sketch.Box: [sketch.Box(0, 60, 9, 9, "#4f9fe3", texts=("a",))],
        sketch.Words: [sketch.Words(1, 2, "中文")],
        sketch.Line: [sketch.Line(((0, 0), (9, 9)), arrow=True), sketch.Line((), mark="o")],
        curves.Series: SERIES,
        style.Kind: [style.style("F")],
        sharding_run.Setting: [sharding_run.Setting(), sharding_run.Setting(engine="fsdp1")],
        calibrate.Point: [
            calibrate.Point(primitive="all_reduce", num_ranks=2, num_bytes=size, time_us=9.0 + size)
            for size in (4, 1000)
        ],
        doctor.Row: [doctor.Row(name="gloo", value="", ok=False, fix="make env")],
        doctor.Report: [doctor.Report(rows=())],
        run.Run: [run.Run(results=(1,), logs=("",), seconds=1.0, backend="gloo", notes=("gloo",))],
        outcome.Finding: [outcome.Finding(fault="sigkill", ranks=(1,), text="rank 1 was killed")],
        outcome.Outcome: [
            outcome.Outcome(rank=rank, how=how)
            for rank, how in enumerate(("returned", "died", "stuck"))
        ],
        Path: [Path(name) for name in (*WRITTEN, ".")],
    }


ROWS = {
    "timeline.from_rows": st.tuples(INTS, TEXT, TEXT, TEXT, FLOATS, FLOATS, INTS),
    "shards.from_rows": st.tuples(
        INTS, TEXT, TEXT, INTS, INTS, st.sampled_from(["float32", "x"]), TEXT
    ),
}
WRITTEN = ("no-such-file", "中文", "file.png")
PATHS = ("path", "folder", "source", "logs")
CALLS = [lambda *_: 1.0, lambda *_: float("nan"), lambda *_: -1.0, lambda *_: float("inf")]
SAYS = [lambda *_: "x", lambda *_: ""]


def arguments(label: str, name: str, kind: Any) -> st.SearchStrategy:
    """What an argument may be, by its annotation."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
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
        return st.dictionaries(TEXT, st.sampled_from(nouns()[algorithms.Plan]), max_size=3)
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
    "collectives.plan": {
        "root": int,
        "order": abc.Sequence[int],
        "num_segments": int,
        "island_size": int,
    },
    "launcher.launch": {"seed": int, "timeout_s": float, "hang_s": float, "backend": str},
}


def call(label: str, draw: Callable) -> tuple[Callable, dict, bool]:
    """One call: a thunk, what it is given, and whether every argument is of the right type."""
    thing = PUBLIC[label]
    owner = PUBLIC.get(label.rpartition(".")[0])
    signature, where = (
        inspect.signature(thing),
        vars(sys.modules[getattr(thing, "func", thing).__module__]),
    )
    args, kwargs, strict = [], {}, True
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
            value, strict = draw(st.sampled_from(WRONG)), False
        else:
            value = draw(arguments(label, name, kind))
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            kwargs[name] = value
        else:
            args.append(value)
    return functools.partial(thing, *args, **kwargs), {"args": args, **kwargs}, strict


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


# --- the law ---


NOTHING = r"none|\b0\b|\[\]|\(\)|\{\}"
"""How a message says that there was nothing."""


class TooSlow(BaseException):
    """A call ran longer than SECONDS."""


class Started(BaseException):
    """A call got as far as starting ranks."""


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The numbers and words inside a value."""
    if isinstance(value, np.ndarray):
        yield from value.ravel().tolist() or [()]
    elif isinstance(value, dict):
        yield from itertools.chain(
            *(leaves(part, depth + 1) for part in itertools.chain(*value.items()))
        )
        yield value
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain(*(leaves(part, depth + 1) for part in value))
        yield value
    elif dataclasses.is_dataclass(value) and depth < 4:
        yield from itertools.chain(
            *(leaves(getattr(value, field.name), depth + 1) for field in dataclasses.fields(value))
        )
    else:
        yield value


def names_a_value(text: str, given: dict) -> bool:
    """Whether a message shows a part of what was given (or, where that was empty, says so)."""
    parts = [*leaves([*given.values()])]
    shown = (
        form
        for leaf in parts
        for form in (f"{leaf!r}"[:12], str(leaf)[:12], short(leaf), size(leaf))
        if form.strip()
    )
    words = (
        form
        for leaf in parts
        if isinstance(leaf, str)
        for word in leaf.split()
        if len(form := repr(word)[1:-1]) > 2
    )
    nothing = any(size(leaf) == "got 0" for leaf in parts) and re.search(NOTHING, text)
    silent = any(callable(leaf) for leaf in parts)  # what it answered is not seen here
    return silent or bool(nothing) or any(form in text for form in (*shown, *words))


def short(leaf: Any) -> str:
    """A number as "g" writes it."""
    return f"{leaf:g}" if isinstance(leaf, float) else ""


def size(leaf: Any) -> str:
    """How a message tells how many parts, or words, there were."""
    parts = leaf.split() if isinstance(leaf, str) else leaf
    return f"got {len(parts)}" if isinstance(parts, (list, tuple, dict)) else ""


def is_ours(error: BaseException) -> bool:
    """Whether a ``raise`` of labkit's raised it, and not something that labkit called."""
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    code = last.tb_frame.f_code
    return (
        PACKAGE in Path(code.co_filename).parents
        and dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
    )


def fault(thunk: Callable, given: dict, strict: bool) -> str | None:
    """What is wrong with a call; None where it keeps the law."""

    def stop(*_: object) -> None:
        raise TooSlow

    timers = {
        signal.ITIMER_PROF: (signal.SIGPROF, SECONDS),
        signal.ITIMER_REAL: (signal.SIGALRM, 10 * SECONDS),
    }
    before = {number: signal.signal(number, stop) for number, _ in timers.values()}
    for timer, (
        _,
        seconds,
    ) in timers.items():  # of its own work; and on the clock, for one that waits
        signal.setitimer(timer, seconds)
    try:
        result = thunk()
        if isinstance(result, Iterator):
            list(itertools.islice(result, MOST_ITEMS))
    except Started:
        return None
    except (ValueError, TypeError) as error:
        text = str(error)
        if len(text.split()) < (5 if strict else 3):
            return f"{type(error).__name__} says too little: {text!r}"
        if strict and not is_ours(error):
            return f"not our words: {type(error).__name__}: {text[:200]}"
        if strict and not names_a_value(text, given):
            return f"names no value given: {text[:200]}"
    except OSError as error:
        if not any(isinstance(leaf, (str, Path)) for leaf in leaves([*given.values()])):
            return repr(error)
    except TooSlow:
        return f"takes longer than {SECONDS:g} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:300]
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    return None


@pytest.fixture(scope="module", autouse=True)
def _nothing_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A bound on memory, no ranks, a folder of its own; and afterwards nothing is there that was
    not before."""

    def refuse() -> None:
        raise Started

    patch, folder, temporary = (
        pytest.MonkeyPatch(),
        tmp_path_factory.mktemp("here"),
        tmp_path_factory.mktemp("tmp"),
    )
    patch.chdir(folder)
    patch.setattr("tempfile.tempdir", str(temporary))
    patch.setattr(zygote_client, "running", refuse)
    me, limit = psutil.Process(), resource.getrlimit(resource.RLIMIT_AS)
    threads, children = (
        set(threading.enumerate()),
        set(me.children()),
    )  # an earlier test's zygote may fork spares
    resource.setrlimit(resource.RLIMIT_AS, (me.memory_info().vms + MEMORY_BYTES, limit[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limit)
    patch.undo()
    assert set(threading.enumerate()) <= threads and set(me.children()) <= children
    assert list(temporary.iterdir()) == []
    assert {file.stem for file in folder.rglob("*")} <= {
        Path(name).stem for name in (*WRITTEN, ".png")
    }


def bounded(label: str) -> settings:
    return settings(
        max_examples=FEW if label.startswith(SLOW) else EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("label", sorted(FUZZED))
def test_rubbish_is_answered_or_refused_in_words(label):
    @bounded(label)
    @given(st.data())
    def law(data):
        thunk, told, strict = call(label, data.draw)
        assert not (found := fault(thunk, told, strict)), f"{label}({str(told)[:600]}): {found}"

    with contextlib.redirect_stdout(open(os.devnull, "w")):
        law()


# --- the tests of the test, and of what it can not draw ---


def test_what_is_not_fuzzed_has_a_reason_and_every_reason_a_thing():
    assert len(FUZZED) > 150
    rooms = {name for names in house.FLOORS.values() for name in names}
    assert [
        name
        for name in EXCUSED
        if name not in rooms and not any(f"{label}.".startswith(f"{name}.") for label in PUBLIC)
    ] == []
    assert {label for label in PUBLIC if label not in FUZZED and not reason(label)} == set()
    assert {
        "schedule.gpipe",
        "timeline.Timeline.load",
        "launcher.launch",
        "widgets.ddp.ddp_communication",
    } <= {*FUZZED}


def ours(text: str) -> None:
    """Raises from the package, as a check of it does."""
    exec(compile(f"raise ValueError({text!r})", str(PACKAGE / "units.py"), "exec"))


def forever() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("thunk", "words"),
    [
        (lambda: {}["x"], "KeyError"),
        (lambda: 1 // 0, "ZeroDivisionError"),
        (lambda: None.x, "AttributeError"),
        (lambda: [][0], "IndexError"),
        (lambda: float(10**400), "OverflowError"),
        (lambda: int("x"), "not our words"),
        (lambda: [0] * 10**12, "MemoryError"),
        (forever, "takes longer"),
        (lambda: ours("bad value"), "too little"),
        (lambda: Path("nothing-here").read_text(), "FileNotFoundError"),
        (lambda: sys.exit(1), "SystemExit"),
        (lambda: ours("a rank is a whole number of 1 or more"), "names no value"),
        (lambda: itertools.repeat(1), None),
        (lambda: ours("a rank is a whole number of 1 or more; got -77"), None),
    ],
)
def test_a_broken_law_is_named(thunk, words):
    found = fault(thunk, {"args": [-77]}, strict=True)
    assert found is None if words is None else words in found


@pytest.mark.parametrize(
    "given",
    [
        {"ranks": 0},
        {"ranks": True},
        {"ranks": 2.5},
        {"ranks": "2"},
        {"ranks": 10**400},
        {"ranks": float("nan")},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"timeout_s": float("inf")},
        {"hang_s": -5},
        {"hang_s": "soon"},
        {"seed": -1},
        {"seed": 2.5},
        {"seed": 2**70},
        {"backend": "mpi"},
        {"backend": ""},
    ],
    ids=str,
)
def test_a_launch_with_a_bad_argument_is_refused_before_anything_starts(given):
    name = next(iter(given))
    for start in (labkit.launch, labkit.start):
        with pytest.raises(ValueError, match=rf"{name} is "):
            start(print, **given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"using": "mpirun"}, "launched using is one of torchrun, .*; got 'mpirun'"),
        ({"ranks": 0}, "ranks is .*; got 0"),
        ({"path": "nothing-here"}, "'nothing-here' is no file"),
        ({"timeout_s": float("nan")}, "timeout_s is .*; got nan"),
    ],
)
def test_a_script_with_a_bad_argument_is_refused_before_anything_starts(given, words):
    with pytest.raises(ValueError, match=words):
        labkit.launch_script(**{"path": __file__, **given})
