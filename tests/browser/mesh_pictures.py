"""The picture of who holds what of a mesh at a few settings, with its reading:
``benchmarks/truth.py``."""

from collections.abc import Callable, Iterator
from functools import partial

from browser.exhibits import Case
from browser.painted import Painted
from browser.readings import Pairs

from labkit.mesh_3d import Step, held_picture
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Sketch, Words
from labkit.pictures.style import CYCLE

SIDE_PX = 64.0
"""left and right of the rows, where the ranks' names and shares stand"""


def held(painted: Painted, drawn: Sketch, step: Step) -> Pairs:
    """Parameters: the share of the model that each rank's coloured area takes, read in as many
    bands as tp cuts a layer into."""
    looks = {"held": [CYCLE[stage % 16][0] for stage in range(step.pp)]}
    rows = [words for words in drawn.only(Words) if words.text.startswith("rank ")]
    high = max(8.0, min(26.0, 360 / step.ranks))
    held_bytes = step.states().bytes_by()["parameter"]
    alone = step.but(pp=1, dp_replicate=1, dp_shard=1, tp=1)
    all_bytes = alone.states().bytes_by()["parameter"].sum()
    for rank, row in enumerate(rows[: step.ranks]):
        top = row.y_px - 4 - high / 2
        area = 0.0
        for band in range(step.tp):
            middle = top + (band + 0.5) * high / step.tp
            found = painted.shares(looks, SIDE_PX, WIDTH_PX - SIDE_PX, middle - 0.5, middle + 0.5)
            area += found["held"] / step.tp
        yield area, held_bytes[rank] / all_bytes


def _meshes() -> Iterator[Case]:
    for step in (
        Step(pp=2, dp_replicate=2, tp=1),
        Step(pp=1, dp_shard=4, tp=1),
        Step(pp=2, dp_shard=2, tp=2),
    ):
        drawn = held_picture.parts(step, language="en")
        yield Case(drawn, partial(held, drawn=drawn, step=step))


MESHES: dict[str, Callable[[], Iterator[Case]]] = {"mesh_3d.parts": _meshes}
"""Cases by the function that makes the picture."""
