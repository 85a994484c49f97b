"""Bytes as sketches: which rank holds which slice, and how many bytes lie there at each moment of a
step.

An area is a number of bytes: in ``shards`` a column is as wide as the whole model in its type, and
full where a rank holds it. What was measured stands under (or beside) what was predicted, at one
scale.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from labkit.footprint import PARTS, Footprint
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import (
    Box,
    Line,
    Said,
    Shape,
    Sketch,
    Words,
    legend,
    origin,
    said,
    short,
    ticks,
)
from labkit.pictures.style import KINDS, clipped, text_px
from labkit.shards import CATEGORIES, ITEMSIZE, NO_TENSOR, Shards
from labkit.units import format_bytes
from labkit.words import speaking

LOOKS = {
    "parameters": ("#4f9fe3", ""),
    "gradients": ("#f2954b", "\\"),
    "optimizer": ("#43b08a", "."),
    "buffers": ("#a3a8b0", "-"),
    "gathered": ("#9a8fdc", "|"),
    "activations": ("#f6cf65", "/"),
    "temporary": ("#cf8fc2", "x"),
}
"""Colour and hatch of each part of the bill."""
_SPARE, _HOST = ("#a3a8b0", "+"), "/"
_WORDS = (
    ("parameters", "parameters", "参数"),
    ("gradients", "gradients", "梯度"),
    ("optimizer", "optimizer", "优化器"),
    ("buffers", "buffers", "缓冲区"),
    ("gathered", "gathered for a while", "临时收齐的参数"),
    ("activations", "activations", "激活"),
    ("temporary", "temporary", "临时张量"),
    ("parameter", "parameters", "参数"),
    ("gradient", "gradients", "梯度"),
    ("main_grad", "fp32 gradients", "fp32 梯度"),
    ("master", "fp32 copy", "fp32 副本"),
    ("exp_avg", "momentum", "动量"),
    ("exp_avg_sq", "variance", "方差"),
    ("momentum", "momentum", "动量"),
    ("buffer", "buffers", "缓冲区"),
    ("per_rank", "per rank", "每个 rank"),
    ("all", "all ranks", "所有 rank 合计"),
    ("off", "difference", "相差"),
    ("spare", "padding, or kept without need", "填充，或多留的部分"),
    ("host", "on the host", "在主机内存"),
    ("not_held", "not on this rank", "不在该 rank"),
    ("shards", "Who holds what", "谁存哪一片"),
    ("steps", "Bytes over a step", "一步之内的字节"),
    ("peak", "peak", "峰值"),
    ("moment", "moment", "时刻"),
    ("total", "together", "合计"),
    ("mean", "predicted left, measured right", "左为预测，右为实测"),
    ("strips", "upper strip predicted, lower measured", "上条预测，下条实测"),
)
WORDS = {"en": {key: en for key, en, _ in _WORDS}, "zh": {key: zh for key, _, zh in _WORDS}}
_LEFT_PX, _RIGHT_PX, _TOP_PX, _HIGH_PX = 64.0, 108.0, 84.0, 250.0


def shards(
    predicted: Shards, measured: Shards | None = None, *, title: Said = "", language: str = "en"
) -> Sketch:
    """Ranks as rows, kinds of state as columns; a column is the model from its first parameter to
    its last.

    ``predicted`` may be of any origin where it is alone. Raises ValueError for two of different
    numbers of ranks.
    """
    both = [predicted] if measured is None else [predicted, measured]
    if len({each.num_ranks for each in both}) > 1:
        raise ValueError(
            f"two pictures of one run have as many ranks; got {[each.num_ranks for each in both]}"
        )
    offsets, columns = _offsets(both), _columns(both)
    slices = [_grouped(each) for each in both]

    def build(words: dict[str, str]) -> Sketch:
        names = WORDS[words["code"]]
        shapes, scale, places = _heads(columns, names)
        height = max(7.0, min(22.0 / len(both) ** 0.5, 300 / (predicted.num_ranks * len(both))))
        y = _TOP_PX
        for rank in range(predicted.num_ranks):
            shapes.append(
                Words(_LEFT_PX - 8, y + height * len(both) / 2 + 4, f"rank {rank}", "end", 11)
            )
            for each, mine in zip(both, slices, strict=True):
                for kind, x in places.items():
                    shapes += _strip(
                        mine.get((rank, kind), []), kind, offsets, x, y, height - 1.5, scale
                    )
                shapes.append(
                    Words(
                        WIDTH_PX - _RIGHT_PX + 8,
                        y + height / 2 + 3,
                        _total(each, both, rank),
                        size_px=11,
                    )
                )
                y += height
            y += 6
        more, end_px = legend(_keys(both, columns, names), 0, y + 2)
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=said(title, words["code"]) or names["shards"],
            badge=_badges(both, words),
            numbers=_numbers(both, names),
            table=_table(both, names, words),
            language=words["code"],
        )

    return speaking(language, build)


def _offsets(both: list[Shards]) -> dict[str, int]:
    """Where each tensor begins when all are laid behind each other, and under "" where the last one
    ends."""
    sizes: dict[str, int] = {}
    for each in both:
        for _, kind, tensor, _, stop, _, _ in each.rows():
            if tensor not in NO_TENSOR and kind in CATEGORIES and kind not in ("step", "buffer"):
                sizes[tensor] = max(sizes.get(tensor, 0), stop)
    offsets, end = {}, 0
    for tensor, size in sizes.items():
        offsets[tensor], end = end, end + size
    return offsets | {"": end}


def _columns(both: list[Shards]) -> dict[str, float]:
    """Kind of state -> width of its column in bytes: the whole model, and room for what belongs to
    no tensor."""
    model, widths = _offsets(both)[""], {}
    sized = [
        (row, num)
        for each in both
        for row, num in zip(each.rows(), each.num_bytes.tolist(), strict=True)
    ]
    for kind in CATEGORIES:
        rows = [(row, num) for row, num in sized if row[1] == kind != "step"]
        if rows and kind == "buffer":
            widths[kind] = float(
                max(each.bytes_by()[kind].max() for each in both if (each.kind == kind).any())
            )
        elif rows:
            spare = max((int(size) for row, size in rows if row[2] in NO_TENSOR), default=0)
            widths[kind] = float(model * max(ITEMSIZE[row[5]] for row, _ in rows) + spare)
    return {kind: width for kind, width in widths.items() if width}


def _heads(
    columns: Mapping[str, float], names: Mapping[str, str]
) -> tuple[list[Shape], float, dict[str, float]]:
    """The columns' names; pixels per byte; and where each column begins."""
    gaps = 5 * len(columns)
    scale = (WIDTH_PX - _LEFT_PX - _RIGHT_PX - gaps) / (sum(columns.values()) or 1.0)
    shapes, places, x = [], {}, _LEFT_PX
    for number, (kind, width) in enumerate(columns.items()):
        places[kind] = x
        room = width * scale
        level = 0 if text_px(names[kind], 11) < room else 1 + number % 2
        shapes += [
            Words(x, _TOP_PX - 6 - 12 * level, clipped(names[kind], max(room, 90), 11), size_px=11)
        ]
        x += room + 5
    return shapes, scale, places


def _grouped(held: Shards) -> dict[tuple[int, str], list[tuple]]:
    """The rows of each rank and kind."""
    found: dict[tuple[int, str], list[tuple]] = {}
    for row in held.rows():
        found.setdefault(row[:2], []).append(row)
    return found


def _strip(
    rows: Sequence[tuple],
    kind: str,
    offsets: Mapping[str, int],
    x: float,
    y: float,
    height: float,
    scale: float,
) -> list[Shape]:
    """One rank's column: a frame for the whole model, boxes for what it holds."""
    if not rows:
        return []
    size, look = ITEMSIZE[rows[0][5]], LOOKS[CATEGORIES[kind]]
    frame = [Box(x, y, offsets[""] * size * scale, height)] if kind != "buffer" else []
    spans, spare, at = [], 0, 0
    for _, _, tensor, start, stop, dtype, device in rows:
        if tensor in NO_TENSOR:
            spare += (stop - start) * ITEMSIZE[dtype]
        elif kind == "buffer":
            spans.append([at, at + (stop - start) * ITEMSIZE[dtype], device])
            at += (stop - start) * ITEMSIZE[dtype]
        else:
            spans.append(
                [(offsets[tensor] + start) * size, (offsets[tensor] + stop) * size, device]
            )
    drawn = _seen([(begin * scale, end * scale, device) for begin, end, device in sorted(spans)])
    text = format_bytes(sum(end - begin for begin, end, _ in spans))
    boxes = [
        Box(
            x + begin,
            y,
            end - begin,
            height,
            look[0],
            _HOST if device == "host" else look[1],
            (text,) if len(drawn) == 1 and height > 11 else (),
        )
        for begin, end, device in drawn
    ]
    if spare:
        boxes.append(Box(x + offsets[""] * size * scale, y, spare * scale, height, *_SPARE))
    return frame + boxes


def _seen(spans: Iterable[tuple[float, float, str]]) -> list[list]:
    """Slices in pixels, from left to right, as they can be seen: what is thinner than a pixel is
    drawn together with the next, and gaps thinner than that move on to the next gap. All together
    are as wide as they were."""
    drawn: list[list] = []
    owed = 0.0
    for begin, end, device in spans:
        owed += end - begin
        if drawn and drawn[-1][2] == device and begin - drawn[-1][1] < 0.6:
            drawn[-1][1], owed = drawn[-1][1] + owed, 0.0
        elif owed >= 1:
            drawn.append([max(end - owed, drawn[-1][1] if drawn else 0.0), end, device])
            owed = 0.0
    return drawn or [[begin, begin + max(0.8, owed), device] for begin, _, device in [*spans][:1]]


def _badges(both: Sequence[Shards | Footprint], words: Mapping[str, str]) -> str:
    """Where the pictures come from, the measured one first."""
    low = {**words, "predicted": words["predicted"].lower()}
    return " / ".join(dict.fromkeys(origin(each.badge, low) for each in reversed(both)))


def _total(each: Shards, both: list[Shards], rank: int) -> str:
    """A rank's bytes; behind those of the second strip, whether they are the first one's."""
    mine, other = int(each.rank_bytes[rank]), int(both[0].rank_bytes[rank])
    if each is both[0]:
        return format_bytes(mine)
    return f"{format_bytes(mine)} " + ("= ✓" if mine == other else f"{mine - other:+,} B")


def _numbers(both: list[Shards], names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    low, high = (format_bytes(pick(both[-1].rank_bytes)) for pick in (min, max))
    numbers = [
        (names["per_rank"], low if low == high else f"{low} – {high}"),
        (names["all"], format_bytes(int(both[-1].rank_bytes.sum()))),
    ]
    if len(both) > 1:
        numbers.append(
            (names["off"], f"{int(abs(both[0].rank_bytes - both[1].rank_bytes).sum()):,} B")
        )
    return tuple(numbers)


def _keys(
    both: list[Shards], columns: Iterable[str], names: Mapping[str, str]
) -> list[tuple[tuple[Shape, ...], str]]:
    kinds = dict.fromkeys(CATEGORIES[kind] for kind in columns)
    keys = [((Box(0, -7, 22, 14, *LOOKS[part]),), names[part]) for part in kinds]
    if any((each.device == "host").any() for each in both):
        keys.append(((Box(0, -7, 22, 14, KINDS["wait"].colour, _HOST),), names["host"]))
    if any(tensor in NO_TENSOR for each in both for tensor in each.tensor.tolist()):
        keys.append(((Box(0, -7, 22, 14, *_SPARE),), names["spare"]))
    keys.append(((Box(0, -7, 22, 14),), names["not_held"]))
    return [*keys, *([((), names["strips"])] if len(both) > 1 else [])]


def _table(
    both: list[Shards], names: Mapping[str, str], words: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """A row per rank and origin: bytes of each kind."""
    sums = [each.bytes_by() for each in both]
    kinds = [kind for kind in CATEGORIES if any(kind in each for each in sums)]
    rows = [
        (
            str(rank),
            words.get(each.origin, each.origin),
            *(f"{int(mine[kind][rank]) if kind in mine else 0:,}" for kind in kinds),
            f"{int(each.rank_bytes[rank]):,}",
        )
        for rank in range(both[0].num_ranks)
        for each, mine in zip(both, sums, strict=True)
    ]
    return (("rank", "", *(names.get(kind, kind) for kind in kinds), names["total"]), *rows)


def footprint(
    predicted: Footprint,
    measured: Footprint | None = None,
    *,
    title: Said = "",
    marked: str = "",
    language: str = "en",
) -> Sketch:
    """A step from left to right: at each moment the bytes of one rank, stacked by part of the bill.

    With ``measured`` two bars stand at each moment that both have: predicted left, measured right.
    ``marked``: the label of a moment to frame.
    """
    both = [predicted] if measured is None else [predicted, measured]
    labels = [label for label in predicted.labels if all(label in each.labels for each in both)]

    if not labels:
        raise ValueError(
            f"two footprints of a step share a moment; got {predicted.labels} and {measured.labels}"
        )

    def build(words: dict[str, str]) -> Sketch:
        names = WORDS[words["code"]]
        shapes = _bars(both, labels, marked)
        used = [
            part
            for number, part in enumerate(PARTS)
            if any(each.num_bytes[:, number].any() for each in both)
        ]
        keys = [((Box(0, -7, 22, 14, *LOOKS[part]),), names[part]) for part in used]
        more, end_px = legend(
            [*keys, *([((), names["mean"])] if len(both) > 1 else [])], 0, _TOP_PX + _HIGH_PX + 22
        )
        numbers = tuple(
            (
                f"{names['peak']}{words['comma']}{_badges([each], words)}",
                f"{format_bytes(each.peak_bytes)} ({each.peak})",
            )
            for each in both
        )
        heading = said(title, words["code"]) or names["steps"]
        rows = [
            (label, *(f"{int(each.totals[each.labels.index(label)]):,}" for each in both))
            for label in labels
        ]
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=heading,
            badge=_badges(both, words),
            table=((names["moment"], *(_badges([each], words) for each in both)), *rows),
            numbers=numbers,
            language=words["code"],
        )

    return speaking(language, build)


def _bars(both: Sequence[Footprint], labels: Sequence[str], marked: str) -> list[Shape]:
    """The axis, and at each moment as many bars as there are footprints."""
    most, bottom = max(each.peak_bytes for each in both) or 1, _TOP_PX + _HIGH_PX
    values = ticks(0, most, 5).tolist()
    left = 14 + max(text_px(short(format_bytes(value)), 11) for value in values)
    pitch, scale = (WIDTH_PX - left) / len(labels), _HIGH_PX / (1.04 * most)
    shapes: list[Shape] = []
    for value in values:
        at = bottom - value * scale
        shapes += [
            Line(((left, at), (WIDTH_PX, at)), width_px=1, opacity=0.13),
            Words(left - 6, at + 4, short(format_bytes(value)), "end", 11),
        ]
    for number, label in enumerate(labels):
        x, thick = left + number * pitch + 0.1 * pitch, 0.8 * pitch / len(both)
        for place, each in enumerate(both):
            shapes += _stack(each, label, x + place * thick, thick - 1, bottom, scale)
        if label == marked:
            shapes.append(
                Box(x - 0.06 * pitch, bottom - _HIGH_PX, 0.92 * pitch, _HIGH_PX + 20, marked=True)
            )
        if number % max(1, math.ceil(34 / pitch)) == 0:
            shapes.append(Words(x + 0.4 * pitch, bottom + 15, label, "middle", 11))
    return [*shapes, Line(((left, bottom), (WIDTH_PX, bottom)), width_px=1, opacity=0.6)]


def _stack(
    step: Footprint, label: str, x: float, thick: float, bottom: float, scale: float
) -> list[Shape]:
    boxes, y = [], bottom
    for part, num_bytes in zip(
        PARTS, step.num_bytes[step.labels.index(label)].tolist(), strict=True
    ):
        if num_bytes * scale >= 0.3:
            y -= num_bytes * scale
            boxes.append(Box(x, y, thick, num_bytes * scale, *LOOKS[part]))
    return boxes
