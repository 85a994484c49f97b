"""The picture of gradients that fill buckets, at a few settings, with its reading:
``benchmarks/truth.py``."""

from collections.abc import Callable, Iterator
from functools import partial

from browser.exhibits import Case
from browser.painted import Painted
from browser.readings import Pairs

from labkit.data_parallel import Step, filling, shaped
from labkit.pictures.sketch import Box, Sketch


def buckets(painted: Painted, drawn: Sketch, step: Step) -> Pairs:
    """Bytes: the share of all gradients that each bucket's box takes of its row."""
    lowest_px = max(box.y_px for box in drawn.only(Box))
    row = [box for box in drawn.only(Box) if box.y_px == lowest_px]
    left = row[0].x_px
    right = row[-1].x_px + row[-1].width_px
    layers = step.model()
    sizes = []
    for bucket in step.buckets():
        sizes.append(sum(layers[layer].num_bytes for layer in bucket))
    looks = {str(number): [box.colour] for number, box in enumerate(row)}
    found = painted.shares(looks, left, right, row[0].y_px + 2, row[0].y_px + 5)
    for number, num_bytes in enumerate(sizes):
        yield found[str(number)], num_bytes / sum(sizes)


def _fillings() -> Iterator[Case]:
    for step in (
        Step(layers=12, layer_mb=0.5, bucket_mb=1.5),
        Step(layers=7, layer_mb=1, bucket_mb=3),
        Step(layers=shaped((4, 1, 1, 2), 8.0, 10.0), bucket_mb=2),
    ):
        drawn = filling(step, language="en")
        yield Case(drawn, partial(buckets, drawn=drawn, step=step))


BUCKETS: dict[str, Callable[[], Iterator[Case]]] = {"data_parallel.filling": _fillings}
"""Cases by the function that makes the picture."""
