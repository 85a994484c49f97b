"""The boards of ``labkit.widgets`` at a few settings, drawn, and as if they had been run; with
readings."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from browser import byte_readings, readings
from browser.exhibits import Case, Page, ddp, pipelines, random_trace, ring, stretched

from labkit import widgets
from labkit.pictures.painters import svg
from labkit.pictures.scene import Scene
from labkit.pictures.sketch import Sketch
from labkit.planner import need_board, strategies_board
from labkit.sharding import run
from labkit.widgets import viewer
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


def shown_by(board: object, **moved: object) -> list[Scene | Sketch]:
    """The pictures on a board's page, its controls moved so."""
    with _recorded() as seen:
        board.page(replace(board.setting, **moved))
    return seen


def _steps(make: Callable, *settings: dict) -> Iterator[Case]:
    """A board whose one picture is a timeline; then as if it had been run."""
    for given in settings:
        board = make(**given)
        for panels in ([board.predicted], [board.predicted, stretched(board.predicted, 1.2)]):
            if panels[1:]:
                board._timelines[board.key(board.setting)] = panels[1]
                board.runs[board.key(board.setting)] = [{}]
            (drawn,) = shown_by(board)
            yield Case(drawn, partial(readings.timelines, drawn=drawn, panels=panels))


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


def _collectives() -> Iterator[Case]:
    for given, step in (
        ({}, 3),
        ({"primitive": "broadcast", "algorithm": "tree", "num_ranks": 8}, 2),
        ({"num_ranks": 16}, 20),
    ):
        board = widgets.collectives(**given)
        setting = replace(board.setting, step=step)
        predicted = widgets.primitives.simulate(setting.plan(), setting.links(), setting.num_bytes)
        board._timelines[board.key(setting)] = stretched(predicted)
        board.runs[board.key(setting)] = [{"sent_bytes": 0}]
        both, chunks = shown_by(board, step=step)
        yield Case(
            chunks,
            partial(
                byte_readings.chunks,
                drawn=chunks,
                plan=setting.plan(),
                step=step,
                num_bytes=setting.num_bytes,
                network=setting.links(),
            ),
        )
        yield Case(
            both, partial(readings.timelines, drawn=both, panels=[predicted, stretched(predicted)])
        )


def _fsdp() -> Iterator[Case]:
    for given, moment, whole in (
        ({}, 2, [2]),
        ({"strategy": "fsdp_grad_op", "num_ranks": 2}, 4, range(5)),
        ({"strategy": "fsdp_hybrid", "num_layers": 6}, 1, [1]),
    ):
        board = widgets.fsdp_sharding(**given)
        setting = replace(board.setting, moment=moment)
        above, below = shown_by(board, moment=moment)
        names = ["embed", *(f"block {index + 1}" for index in range(setting.num_layers)), "head"]
        sizes = dict(
            zip(names, (4 * unit.num_params for unit in setting.real.units()), strict=True)
        )
        size = setting.num_ranks // (2 if setting.strategy == "fsdp_hybrid" else 1)
        yield Case(
            above,
            partial(
                byte_readings.layers,
                drawn=above,
                unit_bytes=sizes,
                num_ranks=setting.num_ranks,
                size=size,
                whole=[names[index] for index in whole],
            ),
        )
        yield Case(
            below,
            partial(
                byte_readings.footprints, drawn=below, both=[run.predicted_footprint(setting.real)]
            ),
        )


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
        yield Case(
            drawn, partial(byte_readings.shards, drawn=drawn, both=[board.predicted(board.setting)])
        )


def _offload() -> Iterator[Case]:
    for given, phase in (
        ({}, "all"),
        ({"mode": "zero3", "model": "70B"}, "backward"),
        ({"mode": "zero3 all", "num_ranks": 8, "model": "7B"}, "forward"),
    ):
        board = widgets.offload_flow(**given)
        setting = replace(board.setting, phase=phase)
        (drawn,) = shown_by(board, phase=phase)
        size = widgets.zero.MODELS[setting.model] or sum(
            unit.num_params for unit in setting.real.units()
        )
        moves = widgets.zero.memory.offload_moves(
            size, setting.ranks, int(setting.mode[4]), setting.real.offload
        )
        marked = phase if phase != "all" else ""
        yield Case(drawn, partial(byte_readings.flows, drawn=drawn, moves=moves, marked=marked))


def _strategies() -> Iterator[Case]:
    for given in (
        {},
        {"strategy": "sharded"},
        {"strategy": "layers", "num_ranks": 8, "batch": 64},
        {"strategy": "hybrid", "num_ranks": 8, "batch": 256},
    ):
        board = widgets.strategies(**given)
        who, bills = shown_by(board)
        setting = board.setting
        stages = {"layers": setting.num_ranks, "hybrid": 2}.get(setting.strategy, 1)
        slices = setting.num_ranks if setting.strategy == "sharded" else 1
        yield Case(
            who,
            partial(
                byte_readings.holders,
                drawn=who,
                num_ranks=setting.num_ranks,
                held=[1 / stages / slices] * setting.num_ranks,
                batch=[stages / setting.num_ranks] * setting.num_ranks,
            ),
        )
        rows = [
            strategies_board._like(setting, name).bill() for name in strategies_board.STRATEGIES
        ]
        yield Case(
            bills,
            partial(
                byte_readings.stacked,
                drawn=bills,
                rows=rows,
                mark=strategies_board.DEVICES[setting.device],
            ),
        )


def _need() -> Iterator[Case]:
    for given in (
        {},
        {
            "model": next(iter(need_board.MODELS)),
            "recipe": "fp32",
            "batch": 32,
            "attention": "stored",
        },
        {"model": list(need_board.MODELS)[-1], "recipe": "sgd"},
    ):
        board = widgets.training_need(**given)
        setting = board.setting
        (drawn,) = shown_by(board)
        rows = [setting.bill()]
        if setting.needed(0) != 1:
            rows += [setting.bill(setting.needed(stage) or 1 << 20, stage) for stage in (1, 2, 3)]
        yield Case(
            drawn, partial(byte_readings.stacked, drawn=drawn, rows=rows, mark=setting.device_bytes)
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
    "widgets.offload_flow": _offload,
    "widgets.strategies": _strategies,
    "widgets.training_need": _need,
    "widgets.timeline": _usage,
    "widgets.trace": _traces,
}
"""Cases by the function that makes the board."""
