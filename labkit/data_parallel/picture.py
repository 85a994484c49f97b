"""Data parallelism in two pictures: what every rank holds and does in a step, and how gradients
fill buckets."""

from labkit.data_parallel.step import Step
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Shape, Sketch, Words, origin
from labkit.pictures.style import CYCLE, style
from labkit.units import check_whole, format_bytes
from labkit.words import catalogue, speaking

_WORDS = catalogue(
    [
        ("scheme", "One step on {} ranks"),
        ("rank", "rank {}"),
        ("batch", "one batch"),
        ("weights", "weights"),
        ("same", "the same"),
        ("gradients", "gradients"),
        ("own", "of its part"),
        ("mean", "one mean, the same on every rank"),
        ("update", "update"),
        ("filling", "Gradients fill buckets, from the output to the input"),
        ("gradient", "gradient of layer"),
        ("bucket", "bucket {}"),
        ("message", "one message"),
        ("order", "left to right: in the order of the backward"),
    ]
)
_LEFT_PX = 116.0
_TOP_PX = 78.0
_ROW_PX = 38.0
_BOX_PX = 28.0


def scheme(num_ranks: int = 4, samples: int = 8, *, language: str | None = None) -> Sketch:
    """A step of 2 to 8 ranks that share a batch of ``samples``: who holds what, row by row. Raises
    ValueError for shares that are not equal."""
    check_whole(2, 8, num_ranks=num_ranks)
    check_whole(1, 64, samples=samples)
    if samples % num_ranks:
        raise ValueError(f"the ranks have equal shares; got {samples} samples, {num_ranks} ranks")
    return speaking(language, lambda words: _scheme(num_ranks, samples // num_ranks, words))


def filling(step: Step, *, language: str | None = None) -> Sketch:
    """Which gradients of a step share a bucket, each as wide as its bytes."""
    step.buckets()
    return speaking(language, lambda words: _filling(step, words))


def _scheme(num_ranks: int, share: int, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    wide_px = (WIDTH_PX - _LEFT_PX) / num_ranks
    shapes = _names([names[row] for row in ("batch", "weights", "gradients")])
    shapes += _names(["all-reduce", names["update"]], 3)
    model = style("forward")
    mean = style("all_reduce")
    for rank in range(num_ranks):
        x_px = _LEFT_PX + rank * wide_px
        colour, _ = CYCLE[1 + rank % 7]
        name = names["rank"].format(rank)
        shapes.append(Words(x_px + wide_px / 2, _TOP_PX - 8, name, anchor="middle", bold=True))
        shapes += _samples(range(rank * share, (rank + 1) * share), x_px, wide_px - 8, colour)
        for row, look, text in (
            (1, model.colour, "same"),
            (2, colour, "own"),
            (4, model.colour, "same"),
        ):
            box = (x_px, _TOP_PX + row * _ROW_PX, wide_px - 9, _BOX_PX)
            shapes.append(Box(*box, look, "", (names[text],)))
    whole = (_LEFT_PX, _TOP_PX + 3 * _ROW_PX, WIDTH_PX - _LEFT_PX - 9, _BOX_PX)
    shapes.append(Box(*whole, mean.colour, mean.hatch, (names["mean"],)))
    rows = [(names["rank"].format(""), names["batch"])]
    for rank in range(num_ranks):
        mine = range(rank * share, (rank + 1) * share)
        rows.append((str(rank), ", ".join(map(str, mine))))
    return Sketch(
        shapes=tuple(shapes),
        height_px=_TOP_PX + 5 * _ROW_PX,
        heading=names["scheme"].format(num_ranks),
        badge=origin("computed", words),
        table=tuple(rows),
        language=words["code"],
    )


def _samples(numbers: range, x_px: float, width_px: float, colour: str) -> list[Shape]:
    """A rank's samples, side by side."""
    part_px = width_px / len(numbers)
    found: list[Shape] = []
    for place, number in enumerate(numbers):
        box = (x_px + place * part_px, _TOP_PX, part_px - 1, _BOX_PX)
        found.append(Box(*box, colour, "", (str(number),)))
    return found


def _filling(step: Step, words: dict[str, str]) -> Sketch:
    """The picture in one language."""
    names = _WORDS[words["code"]]
    layers = step.model()
    scale = (WIDTH_PX - _LEFT_PX) / sum(layer.num_bytes for layer in layers)
    shapes = _names([names["gradient"], names["message"]])
    rows = [(names["message"], names["gradient"])]
    x_px = _LEFT_PX
    for number, bucket in enumerate(step.buckets()):
        colour, hatch = CYCLE[(1 + number) % 7]
        start_px = x_px
        for layer in bucket:
            width_px = scale * layers[layer].num_bytes
            shapes.append(Box(x_px, _TOP_PX, width_px - 1, _BOX_PX, colour, hatch, (str(layer),)))
            x_px += width_px
        name = names["bucket"].format(number)
        size = format_bytes(sum(layers[layer].num_bytes for layer in bucket))
        box = (start_px, _TOP_PX + _ROW_PX, x_px - start_px - 1, _BOX_PX)
        shapes.append(Box(*box, colour, hatch, (f"{name}: {size}", name, str(number))))
        rows.append((f"{name}: {size}", ", ".join(map(str, bucket))))
    shapes.append(Words(_LEFT_PX, _TOP_PX - 8, names["order"]))
    return Sketch(
        shapes=tuple(shapes),
        height_px=_TOP_PX + 2 * _ROW_PX,
        heading=names["filling"],
        badge=origin("computed", words),
        table=tuple(rows),
        language=words["code"],
    )


def _names(names: list[str], row: int = 0) -> list[Shape]:
    """The names of rows, from number ``row`` on."""
    top_px = _TOP_PX + row * _ROW_PX + 19
    return [Words(0, top_px + number * _ROW_PX, name) for number, name in enumerate(names)]
