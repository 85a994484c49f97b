"""Every picture at a few settings, with its reading: ``benchmarks/truth.py`` paints and reads it.

A case is (what to paint, a reading of the painting). Data are computed here or random; no ranks
start.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from browser import byte_readings, readings
from browser.painted import Painted

from labkit import widgets
from labkit.collectives import algorithms, network, picture
from labkit.collectives.network import Link
from labkit.data_parallel import buckets
from labkit.data_parallel.buckets import Layer
from labkit.pictures import bytes_held, curves, scene
from labkit.pictures.curves import Series
from labkit.pictures.scene import Scene
from labkit.pictures.sketch import Sketch
from labkit.pipeline import schedules, simulation
from labkit.planner import models
from labkit.planner.picture import stacked
from labkit.sharding import moments, partition, states
from labkit.sharding import picture as sharding_picture
from labkit.shards import from_rows
from labkit.timeline import COMM, COMPUTE, Timeline
from labkit.timeline import from_rows as timeline_rows


class Case(NamedTuple):
    """One painting to be read."""

    drawn: "Scene | Sketch | Page"
    """what is painted"""
    read: Callable[[Painted], readings.Pairs]
    """(shown, true) of every length in it"""


class Page(NamedTuple):
    """HTML that no painter of ours makes; only a browser shows it."""

    html: str
    """what stands on the page"""
    selector: str
    """the elements to look at"""
    index: int = 0
    """which of them"""


LINK = Link(alpha_us=1e3, bandwidth_gb_per_s=0.1)


def random_trace(num_boxes: int, num_ranks: int = 8) -> Timeline:
    """Boxes of random lengths and kinds with gaps between them, and messages under them."""
    rng = np.random.default_rng(0)
    rows = []
    for rank in range(num_ranks):
        ends = np.cumsum(rng.random(2 * num_boxes // num_ranks) + 0.1)
        for i, (start, end) in enumerate(zip(ends[::2].tolist(), ends[1::2].tolist(), strict=True)):
            rows.append(
                (rank, COMPUTE, ("compute", "optimizer", "compute")[i % 3], "", start, end, 0)
            )
            if i % 4 == 1:
                rows.append((rank, COMM, "all_reduce", "", start + 0.3 * (end - start), end, 100))
    return timeline_rows(rows, num_ranks=num_ranks, origin="measured")


def stretched(tl: Timeline, factor: float = 1.3) -> Timeline:
    """A measurement of a prediction: longer, and each rank a little later."""
    late_us = 0.01 * tl.span_us * tl.rank
    return replace(
        tl,
        start_us=factor * tl.start_us + late_us,
        end_us=factor * tl.end_us + late_us,
        origin="measured",
    )


def pipelines() -> dict[str, Timeline]:
    """Simulated pipelines of all sorts, small and large."""
    sizes = {
        "gpipe": (4, 8),
        "1f1b": (4, 8),
        "interleaved_1f1b": (4, 8),
        "zbv": (4, 8),
        "naive": (2, 1),
    }
    found = {
        name: simulation.simulate(schedules.SCHEDULES[name](*size), simulation.Cost())
        for name, size in sizes.items()
    }
    found["large"] = simulation.simulate(schedules.SCHEDULES["1f1b"](16, 64), simulation.Cost())
    found["messages"] = simulation.simulate(
        schedules.SCHEDULES["gpipe"](4, 3), simulation.Cost(message_us=300.0)
    )
    return found


def ring(num_ranks: int = 4, primitive: str = "all_reduce", algorithm: str = "ring") -> Timeline:
    """Nothing but messages."""
    plan = algorithms.plan(primitive, algorithm, num_ranks)
    return network.simulate(plan, network.uniform(num_ranks, LINK), 1e6)


def ddp(num_layers: int = 6) -> Timeline:
    """Compute with all-reduces under it."""
    made = [
        Layer(name=str(i), num_bytes=4_000_000 * (1 + i), forward_us=1e4) for i in range(num_layers)
    ]
    return buckets.predict(made, 3, bucket_mb=8, link=Link(alpha_us=1e3, bandwidth_gb_per_s=0.3))


def _timelines() -> Iterator[Case]:
    for tl in (
        *pipelines().values(),
        ring(),
        ring(16, "broadcast", "tree"),
        ddp(),
        random_trace(8000),
        random_trace(60, 3),
    ):
        drawn = scene.timeline(tl)
        yield Case(drawn, partial(readings.timelines, drawn=drawn, panels=[tl]))
    tl = pipelines()["gpipe"]
    drawn = scene.timeline(tl, span_us=1.7 * tl.span_us)
    yield Case(
        drawn, partial(readings.timelines, drawn=drawn, panels=[tl], span_us=1.7 * tl.span_us)
    )


def _compares() -> Iterator[Case]:
    for first in (pipelines()["gpipe"], pipelines()["zbv"], ddp(), ring(), random_trace(9000, 4)):
        for factor in (1.3, 0.6):
            both = [first, stretched(first, factor)]
            drawn = scene.compare(*both)
            yield Case(drawn, partial(readings.timelines, drawn=drawn, panels=both))


def _bars() -> Iterator[Case]:
    groups = {
        "ring": {"measured": 31.0, "predicted": 24.0},
        "tree": {"measured": 7.5, "predicted": 16.0},
        "star": {"measured": 88.0, "predicted": 92.0},
    }
    many = []
    for rank in range(3):
        many.append((f"rank {rank}", {str(n): 1.0 + rank + n for n in range(8)}))
    for rows, marks in (
        ([("one", 3.0), ("two", 9.5), ("a longer name", 0.4)], [6.5]),
        (list(groups.items()), []),
        (many, []),
    ):
        bounds = [("bound", at) for at in marks]
        drawn = curves.bars(rows, title="Bars", badge="computed", marks=bounds)
        given = [(name, value if isinstance(value, dict) else {"": value}) for name, value in rows]
        yield Case(drawn, partial(readings.bars, drawn=drawn, rows=given, marks=marks))


def _curves() -> Iterator[Case]:
    x = np.logspace(3, 8, 6)
    race = [
        Series("ring", x, 140 + x / 600),
        Series("star", x, 9000 + x / 30),
        Series("tree", x[::2], 4 + x[::2] / 9000, points=True),
    ]
    steps = np.arange(1.0, 9.0)
    far = [
        Series("loss", steps, 900 + 30 / steps),
        Series("seen", steps, 950 + 2 * steps, points=True),
    ]
    lines = [Series(str(slope), steps, slope * steps) for slope in (1.0, 3.0, 7.0)]
    for series, log in ((race, (True, True)), (far, (False, False)), (lines, (False, False))):
        drawn = curves.curves(
            series,
            title="Curves",
            badge="measured, gloo / simulated",
            log_x=log[0],
            log_y=log[1],
            x_name="x",
            y_name="y",
            x_format=repr,
            y_format=repr,
        )
        yield Case(drawn, partial(readings.curves, drawn=drawn, series=series, log=log))


def _chunks() -> Iterator[Case]:
    for primitive, algorithm, num_ranks, step in (
        ("all_reduce", "ring", 4, 2),
        ("all_reduce", "ring", 16, 11),
        ("all_reduce", "parameter_server", 4, 3),
        ("broadcast", "tree", 8, 2),
        ("reduce_scatter", "ring", 3, 1),
        ("all_to_all", "pairwise", 4, 2),
        ("all_reduce", "double_tree", 6, 4),
        ("all_reduce", "ring", 2, 0),
    ):
        plan = algorithms.plan(primitive, algorithm, num_ranks)
        links = network.uniform(num_ranks, LINK)
        drawn = picture.collective(plan, step, num_bytes=4e6, network=links)
        yield Case(
            drawn,
            partial(
                byte_readings.chunks,
                drawn=drawn,
                plan=plan,
                step=step,
                num_bytes=4e6,
                network=links,
            ),
        )


def units(num_layers: int = 3, dim: int = 32) -> list[moments.Unit]:
    """A small transformer."""
    return moments.transformer(num_layers=num_layers, dim=dim, num_heads=2, batch=1, seq_len=16)


def _shards() -> Iterator[Case]:
    for engine, offload, num_ranks, num_layers in (
        ("ddp", "none", 2, 3),
        ("zero1", "none", 4, 3),
        ("zero2", "optimizer", 3, 3),
        ("zero3", "all", 2, 3),
        ("fsdp", "none", 4, 3),
        ("fsdp_hybrid", "none", 4, 3),
        ("fsdp1", "none", 8, 3),
        ("fsdp", "none", 16, 12),
        ("fsdp", "none", 7, 1),
    ):
        held = partition.predict(
            engine,
            moments.shapes(units(num_layers)),
            num_ranks,
            offload=offload,
            bucket_size=9000,
        )
        rows = [row for row in held.rows() if row[0] or row[1] != "exp_avg"]
        for both in ([held], [held, from_rows(rows, num_ranks=num_ranks, origin="measured")]):
            drawn = bytes_held.shards(*both)
            yield Case(drawn, partial(byte_readings.shards, drawn=drawn, both=both))


def _footprints() -> Iterator[Case]:
    for engine, num_ranks, num_layers in (
        ("ddp", 2, 3),
        ("fsdp", 4, 3),
        ("zero2", 3, 1),
        ("fsdp_grad_op", 2, 9),
    ):
        step = moments.predict(engine, units(num_layers), num_ranks, bucket_size=9000)
        more = np.random.default_rng(1).uniform(0.8, 1.3, step.num_bytes.shape)
        seen = replace(step, num_bytes=(step.num_bytes * more).astype(np.int64), origin="measured")
        for both in ([step], [step, seen]):
            drawn = bytes_held.footprint(*both, marked="B1")
            yield Case(drawn, partial(byte_readings.footprints, drawn=drawn, both=both))


def _layers() -> Iterator[Case]:
    sizes = {unit.name: 4 * unit.num_params for unit in units()}
    uneven = {"embed": 9_000_000, "block": 1_000_000, "norm": 2_000, "head": 5_000_000}
    names = list(sizes)
    for unit_bytes, num_ranks, moment, how, size, whole in (
        (sizes, 4, "F2", "fsdp", 4, names[2:3]),
        (sizes, 4, "B2", "fsdp", 4, names[1:3]),
        (sizes, 4, "loss", "fsdp_grad_op", 4, names),
        (sizes, 4, "F1", "fsdp_hybrid", 2, names[1:2]),
        (sizes, 2, "F0", "ddp", 1, []),
        (uneven, 3, "F0", "fsdp", 3, ["embed"]),
        (uneven, 16, "B3", "fsdp", 16, ["norm", "head"]),
    ):
        drawn = sharding_picture.layers(unit_bytes, num_ranks, moment, strategy=how)
        yield Case(
            drawn,
            partial(
                byte_readings.layers,
                drawn=drawn,
                unit_bytes=unit_bytes,
                num_ranks=num_ranks,
                size=size,
                whole=whole,
            ),
        )


def _flows() -> Iterator[Case]:
    for stage, offload, microbatches, marked in (
        (2, "optimizer", 1, ""),
        (3, "optimizer", 1, "backward"),
        (3, "all", 8, ""),
        (2, "optimizer", 3, "step"),
    ):
        moves = states.offload_moves(1e9, 1, stage, offload, microbatches)
        drawn = sharding_picture.flow(
            moves, {"parameters": 2e9}, {"optimizer": 12e9}, 25, marked=marked
        )
        yield Case(drawn, partial(byte_readings.flows, drawn=drawn, moves=moves, marked=marked))


def _stacked() -> Iterator[Case]:
    say = {part: part for part in (*models.PARTS, "table")}
    for sizes, mark in (
        ((3e9, 4e9, 9e9, 1e9), 8e9),
        ((1e6, 1e6, 8e6, 2e8), None),
        ((2.0, 2.0, 12.0, 0.1), 900.0),
    ):
        rows = [dict(zip(models.PARTS, np.array(sizes) / part, strict=True)) for part in (1, 2, 7)]
        drawn = stacked(
            [(f"row {n}", row) for n, row in enumerate(rows)],
            say,
            title="Bill",
            badge="computed",
            mark=("device", mark) if mark else None,
        )
        yield Case(drawn, partial(byte_readings.stacked, drawn=drawn, rows=rows, mark=mark))


def _links() -> Iterator[Case]:
    for num_ranks, island, names in (
        (8, 4, ("ring", "parameter_server", "tree", "hierarchical")),
        (4, 2, ("ring",)),
        (6, 3, ("double_tree", "ring")),
    ):
        plans = {name: algorithms.plan("all_reduce", name, num_ranks) for name in names}
        drawn = widgets.architectures(plans, island)
        yield Case(drawn, partial(byte_readings.links, drawn=drawn, plans=list(plans.values())))


PICTURES: dict[str, Callable[[], Iterator[Case]]] = {
    "pictures.timeline": _timelines,
    "pictures.compare": _compares,
    "pictures.bars": _bars,
    "pictures.curves": _curves,
    "collectives.collective": _chunks,
    "pictures.shards": _shards,
    "pictures.footprint": _footprints,
    "sharding.layers": _layers,
    "sharding.flow": _flows,
    "planner.stacked": _stacked,
    "planner.architectures": _links,
}
"""Cases by the function that makes the picture."""
