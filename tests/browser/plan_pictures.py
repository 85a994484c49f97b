"""The planner's pictures at a few settings, with readings: ``benchmarks/truth.py`` paints and reads
them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from browser.boards import shown_by
from browser.exhibits import Case
from browser.painted import Painted
from browser.readings import Pairs

from labkit import widgets
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Sketch
from labkit.planner.plan import picture
from labkit.planner.plan.plan import Plan

SMALL = Plan(gpus=8, zero=1, batch=512)
PAIRS = (
    (SMALL,),
    (Plan(gpus=8, batch=512), SMALL),
    (Plan(gpus=64, tp=8, zero=3, batch=512), Plan(gpus=64, gpu="H100", pp=4, batch=512)),
)
"""Plans beside each other: one that fits, one that does not, two GPUs and a pipeline."""


def bars(
    painted: Painted,
    drawn: Sketch,
    rows: Sequence[Mapping[str, float]],
    looks: Mapping[str, tuple[str, str]],
    limits: Sequence[float] = (),
) -> Pairs:
    """How long each colour of each bar is, and where the line of the limit lies, against the
    longest."""
    thick = [box for box in drawn.only(Box) if box.height_px == picture.BAR_PX and box.colour]
    left = thick[0].x_px
    tops = sorted({box.y_px for box in thick})
    assert len(tops) == len(rows)
    right = WIDTH_PX - 133
    colours = {colour for colour, _ in looks.values() if colour}
    shown = []
    for y, row in zip(tops, rows, strict=True):
        found = painted.length({each: [each] for each in colours}, left, right, y + 3, y + 7)
        for colour in colours:
            true = sum(row.get(part, 0.0) for part, look in looks.items() if look[0] == colour)
            shown.append((found[colour], true))
    for y, limit in zip(tops, limits, strict=len(limits) > 0):
        shown.append((painted.upright_line(left + 1, right + 4, y - 5, y - 2) - left, limit))
    most = max([sum(row.values()) for row in rows] + list(limits))
    for length, true in shown:
        yield length / (right + 1 - left), true / most


def _named(plans: Sequence[Plan]) -> list[tuple[str, Plan]]:
    return [(f"plan {number}", plan) for number, plan in enumerate(plans)]


def _memory(plans: Sequence[Plan], drawn: Sketch) -> Case:
    rows = [plan.memory().parts for plan in plans]
    limits = [plan.cluster.device_bytes for plan in plans]
    looks = picture.MEMORY_LOOKS
    return Case(drawn, partial(bars, drawn=drawn, rows=rows, looks=looks, limits=limits))


def _time(plans: Sequence[Plan], drawn: Sketch) -> Case:
    rows = [plan.time().parts() for plan in plans]
    return Case(drawn, partial(bars, drawn=drawn, rows=rows, looks=picture.TIME_LOOKS))


def _memory_bars() -> Iterator[Case]:
    for plans in PAIRS:
        yield _memory(plans, picture.memory_bars(_named(plans)))


def _time_bars() -> Iterator[Case]:
    for plans in PAIRS:
        yield _time(plans, picture.time_bars(_named(plans)))


def _training_plan() -> Iterator[Case]:
    board = widgets.training_plan()
    board.controls["zero"].value = 0
    drawn = shown_by(board)
    plans = (board.step, board.at)
    yield _memory(plans, drawn[0])
    yield _time(plans, drawn[1])


PLANS: dict[str, Callable[[], Iterator[Case]]] = {
    "plan.memory_bars": _memory_bars,
    "plan.time_bars": _time_bars,
    "widgets.training_plan": _training_plan,
}
"""Cases by the function that makes the picture."""
