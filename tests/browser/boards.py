"""The boards of ``labkit.widgets`` at a few settings, drawn, and as if they had been run; with
readings."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from browser import byte_readings, readings
from browser.exhibits import Case, Page, ddp, pipelines, random_trace, ring, stretched

from labkit import widgets
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene
from labkit.pictures.sketch import Sketch
from labkit.planner.models import DEVICES, MODELS
from labkit.planner.strategies import STRATEGIES
from labkit.widgets import viewer
from labkit.widgets.trial import Trial
from labkit.widgets.usage import usage

FLEX = "div[style*='display:flex']"


@contextmanager
def _recorded() -> Iterator[list]:
    """Every picture that is made into HTML meanwhile."""
    seen = []
    plain = svg.html
    svg.html = lambda drawn: seen.append(drawn) or plain(drawn)
    try:
        yield seen
    finally:
        svg.html = plain


def shown_by(board: Trial, at: object = None) -> list[Scene | Sketch]:
    """The pictures on a board's page, its view moved so."""
    with _recorded() as seen:
        board.page(board.step, board.at if at is None else at)
    return seen


def as_if_run(board: Trial, result: dict) -> object:
    """Gives a board a measurement of what it predicts, and its run a result; returns the
    measurement."""
    measured = stretched(board.predicted, 1.2)
    board._found[board.step.as_run()] = measured
    board.runs[board.step.as_run()] = [result]
    return measured


def _steps(make: Callable, *settings: dict, result: dict | None = None) -> Iterator[Case]:
    """A board whose one picture is a timeline; then as if it had been run, each rank with this
    result."""
    for given in settings:
        board = make(**given)
        axis_us = board._axis_us(board.step) or 0.0
        panels = [board.predicted]
        for _ in range(2):
            (drawn,) = shown_by(board)
            yield Case(
                drawn,
                partial(readings.timelines, drawn=drawn, panels=panels, span_us=axis_us),
            )
            panels = [board.predicted, as_if_run(board, result or {})]


def _pipelines() -> Iterator[Case]:
    yield from _steps(
        widgets.pipeline_parallelism,
        {},
        {"schedule": "zbv", "num_ranks": 8, "num_microbatches": 32},
        {"schedule": "1f1b", "num_ranks": 2, "num_microbatches": 1},
    )


def _ddp() -> Iterator[Case]:
    yield from _steps(
        widgets.ddp_communication,
        {},
        {"layers": "many", "bucket_mb": 0.5, "num_ranks": 2},
        {"layers": "embedding", "overlap": False},
    )


def _unequal() -> Iterator[Case]:
    yield from _steps(
        widgets.unequal_machines,
        {},
        {"speeds": (1.0, 2.0, 4.0), "split": "fastest", "batch": 128},
        result={"weight_difference": 1e-8},
    )


def _collectives() -> Iterator[Case]:
    for given, step in (
        ({}, 3),
        ({"primitive": "broadcast", "algorithm": "tree", "num_ranks": 8}, 2),
        ({"num_ranks": 16}, 20),
    ):
        board = widgets.collectives(**given)
        call = board.step
        panels = [board.predicted, as_if_run(board, {"sent_bytes": 0})]
        both, chunks = shown_by(board, at=step)
        yield Case(
            chunks,
            partial(
                byte_readings.chunks,
                drawn=chunks,
                plan=call.plan(),
                step=step,
                num_bytes=call.num_bytes,
                network=call.links(),
            ),
        )
        yield Case(both, partial(readings.timelines, drawn=both, panels=panels))


def _fsdp() -> Iterator[Case]:
    for given, moment, whole in (
        ({}, 2, [2]),
        ({"strategy": "fsdp_grad_op", "num_ranks": 2}, 4, range(5)),
        ({"strategy": "fsdp_hybrid", "num_layers": 6}, 1, [1]),
    ):
        board = widgets.fsdp_sharding(**given)
        step = board.step
        above, below = shown_by(board, at=moment)
        names = ["embed", *(f"block {index + 1}" for index in range(step.layers)), "head"]
        sizes = dict(zip(names, (4 * unit.num_params for unit in step.units()), strict=True))
        size = step.ranks // (2 if step.engine == "fsdp_hybrid" else 1)
        yield Case(
            above,
            partial(
                byte_readings.layers,
                drawn=above,
                unit_bytes=sizes,
                num_ranks=step.ranks,
                size=size,
                whole=[names[index] for index in whole],
            ),
        )
        yield Case(below, partial(byte_readings.footprints, drawn=below, both=[step.footprint()]))


def _tensor() -> Iterator[Case]:
    for given, moment in (
        ({}, 1),
        ({"num_ranks": 2, "size": "small grouped"}, 1),
        ({"num_ranks": 8, "size": "12288", "sequence_parallel": True}, 4),
    ):
        board = widgets.tensor_parallelism(**given)
        above, below = shown_by(board, at=moment)
        yield Case(
            above,
            partial(byte_readings.columns, drawn=above, layer=board.step, moment=moment),
        )
        line = board.step.timeline()
        yield Case(below, partial(readings.timelines, drawn=below, panels=[line]))


def _zero() -> Iterator[Case]:
    for given in (
        {},
        {"stage": 3, "num_ranks": 16, "model": "7B", "recipe": "fp32"},
        {"stage": 1, "num_ranks": 3},
        {"stage": 0, "num_ranks": 1, "model": "175B"},
        {"stage": 3, "num_ranks": 16},
    ):
        board = widgets.zero_stages(**given)
        (drawn,) = shown_by(board)
        yield Case(drawn, partial(byte_readings.shards, drawn=drawn, both=[board.predicted]))


def _offload() -> Iterator[Case]:
    for given, phase in (
        ({}, "all"),
        ({"mode": "zero3", "model": "70B"}, "backward"),
        ({"mode": "zero3 all", "num_ranks": 8, "model": "7B"}, "forward"),
    ):
        board = widgets.offload_flow(**given)
        drawn, _ = shown_by(board, at=phase)
        moves = board.predicted.moves
        marked = phase if phase != "all" else ""
        yield Case(drawn, partial(byte_readings.flows, drawn=drawn, moves=moves, marked=marked))


def _strategies() -> Iterator[Case]:
    for given in (
        {},
        {"strategy": "sharded"},
        {"strategy": "layers", "num_ranks": 8, "batch": 64},
        {"strategy": "hybrid", "num_ranks": 8, "batch": 256},
        {"strategy": "tensor"},
    ):
        board = widgets.strategies(**given)
        who, bills = shown_by(board)
        step = board.step
        stages = {"layers": step.ranks, "hybrid": 2}.get(step.strategy, 1)
        yield Case(
            who,
            partial(
                byte_readings.holders,
                drawn=who,
                num_ranks=step.ranks,
                held=[1 / stages / step.num_slices] * step.ranks,
                batch=[1 / step.num_replicas] * step.ranks,
            ),
        )
        rows = [step.but(strategy=name).bill() for name in STRATEGIES]
        yield Case(
            bills,
            partial(byte_readings.stacked, drawn=bills, rows=rows, mark=DEVICES[step.device]),
        )


def _need() -> Iterator[Case]:
    for given in (
        {},
        {
            "model": next(iter(MODELS)),
            "recipe": "fp32",
            "batch": 32,
            "attention": "stored",
        },
        {"model": list(MODELS)[-1], "recipe": "sgd"},
    ):
        board = widgets.training_need(**given)
        step = board.step
        (drawn,) = shown_by(board)
        rows = [step.bill()]
        if step.needed(0) != 1:
            rows += [step.bill(step.needed(stage) or 1 << 20, stage) for stage in (1, 2, 3)]
        yield Case(
            drawn, partial(byte_readings.stacked, drawn=drawn, rows=rows, mark=step.device_bytes)
        )


def _usage() -> Iterator[Case]:
    """The picture, and the bars of the table under it."""
    for tl in (pipelines()["1f1b"], ddp(), random_trace(60, 3)):
        board = widgets.timeline(tl)
        drawn = board.scene()
        yield Case(drawn, partial(readings.timelines, drawn=drawn, panels=[tl]))
        for rank, used in enumerate(usage(tl)):
            times = {"compute": used.compute_us, "exposed": used.exposed_us, "idle": used.idle_us}
            yield Case(Page(board.page.value, FLEX, rank), partial(readings.usage, times=times))


def _traces() -> Iterator[Case]:
    """The viewer on its canvas, in a page without a kernel; and the PNG beside it."""
    for panels in (
        [pipelines()["interleaved_1f1b"]],
        [random_trace(20_000)],
        [ring(), stretched(ring())],
    ):
        board = widgets.trace(*panels)
        drawn = board.scene()
        yield Case(drawn, partial(readings.timelines, drawn=drawn, panels=panels))
        about = viewer.about(drawn)
        yield Case(
            Page(_page(about, viewer.columns(drawn)), "canvas[data-ms]"),
            partial(readings.traces, rows=about["rows"], panels=panels),
        )


def _page(about: dict, columns: dict[str, bytes]) -> str:
    packed = json.dumps(
        {name: base64.b64encode(column).decode() for name, column in columns.items()}
    )
    told = json.dumps(about).replace("<", "\\u003c")
    return (
        '<div id="here" style="width:900px"></div><script '
        f'type="module">{viewer.SOURCE}\n'
        f"const packed = {packed}, unpack = text => Uint8Array.from(atob(text), each => "
        "each.charCodeAt(0));\n"
        "const columns = Object.fromEntries(Object.entries(packed).map(([name, text]) => [name, "
        "unpack(text)]));\n"
        f'show(document.getElementById("here"), {told}, columns);</script>'
    )


BOARDS: dict[str, Callable[[], Iterator[Case]]] = {
    "widgets.pipeline_parallelism": _pipelines,
    "widgets.ddp_communication": _ddp,
    "widgets.collectives": _collectives,
    "widgets.fsdp_sharding": _fsdp,
    "widgets.zero_stages": _zero,
    "widgets.tensor_parallelism": _tensor,
    "widgets.unequal_machines": _unequal,
    "widgets.offload_flow": _offload,
    "widgets.strategies": _strategies,
    "widgets.training_need": _need,
    "widgets.timeline": _usage,
    "widgets.trace": _traces,
}
"""Cases by the function that makes the board."""
