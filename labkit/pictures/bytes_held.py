"""Bytes as sketches: which rank holds which slice, and how many bytes lie there at each moment of a
step.

An area is a number of bytes: in ``shards`` a column is as wide as the whole model in its type, and
full where a rank holds it. What was measured stands under (or beside) what was predicted, at one
scale.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from labkit.footprint import PARTS, Footprint
from labkit.pictures import slices
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
from labkit.pictures.slices import HOST_HATCH, LOOKS, SHARD_LOOKS, SPARE_LOOK
from labkit.pictures.style import KINDS, text_px
from labkit.shards import CATEGORIES, NO_TENSOR, Shards
from labkit.units import format_bytes
from labkit.words import catalogue, speaking, translated

_WORDS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("buffers", "buffers"),
    ("cache", "KV cache"),
    ("gathered", "gathered for a while"),
    ("activations", "activations"),
    ("temporary", "temporary"),
    ("parameter", "parameters"),
    ("gradient", "gradients"),
    ("main_grad", "fp32 gradients"),
    ("master", "fp32 copy"),
    ("exp_avg", "momentum"),
    ("exp_avg_sq", "variance"),
    ("momentum", "momentum"),
    ("buffer", "buffers"),
    ("per_rank", "per rank"),
    ("all", "all ranks"),
    ("off", "difference"),
    ("spare", "padding, or kept without need"),
    ("host", "on the host"),
    ("not_held", "not on this rank"),
    ("shards", "Who holds what"),
    ("steps", "Bytes over a step"),
    ("peak", "peak"),
    ("at", "{} at {}"),
    ("moment", "moment"),
    ("total", "together"),
    ("mean", "predicted left, measured right"),
    ("strips", "upper strip predicted, lower measured"),
)
WORDS = catalogue(_WORDS)
Key = tuple[tuple[Shape, ...], str]
"""a sample and its words"""
_TOP_PX = 84.0
_HIGH_PX = 250.0


def shards(
    predicted: Shards,
    measured: Shards | None = None,
    *,
    title: Said = "",
    language: str | None = None,
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
    columns = slices.columns(both)

    def build(words: dict[str, str]) -> Sketch:
        names = WORDS[words["code"]]
        strips, y = _strips(both, columns)
        keys, end_px = legend(_shard_keys(both, columns.widths, names), 0, y + 2)
        return Sketch(
            shapes=(*slices.heads(columns, names), *strips, *keys),
            height_px=end_px,
            heading=said(title, words["code"]) or names["shards"],
            badge=_badges(both, words),
            numbers=_numbers(both, names),
            table=_table(both, names, words),
            language=words["code"],
        )

    return speaking(language, build)


def _strips(both: Sequence[Shards], columns: slices.Columns) -> tuple[list[Shape], float]:
    """The strips of all ranks, and where they end: of each rank one strip per shards."""
    num_ranks = both[0].num_ranks
    num_strips = len(both)
    height = max(7.0, min(22.0 / num_strips**0.5, 300 / (num_ranks * num_strips)))
    held = [slices.by_rank_and_kind(each) for each in both]
    shapes: list[Shape] = []
    y = slices.TOP_PX
    for rank in range(num_ranks):
        middle = y + height * num_strips / 2
        shapes.append(Words(slices.LEFT_PX - 8, middle + 4, f"rank {rank}", "end", 11))
        for each, mine in zip(both, held, strict=True):
            for kind in columns.widths:
                rows = mine.get((rank, kind), [])
                shapes += slices.strip(rows, kind, columns, y, height - 1.5)
            right = WIDTH_PX - slices.RIGHT_PX + 8
            shapes.append(Words(right, y + height / 2 + 3, _total(each, both, rank), size_px=11))
            y += height
        y += 6
    return shapes, y


def _badges(both: Sequence[Shards | Footprint], words: Mapping[str, str]) -> str:
    """Where the pictures come from, the measured one first."""
    low = {**words, "predicted": words["predicted"].lower()}
    return " / ".join(dict.fromkeys(origin(each.badge, low) for each in reversed(both)))


def _total(each: Shards, both: Sequence[Shards], rank: int) -> str:
    """A rank's bytes; behind those of the second strip, whether they are the first one's."""
    mine = int(each.rank_bytes[rank])
    other = int(both[0].rank_bytes[rank])
    if each is both[0]:
        return format_bytes(mine)
    return f"{format_bytes(mine)} " + ("= ✓" if mine == other else f"{mine - other:+,} B")


def _numbers(both: Sequence[Shards], names: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    held = both[-1].rank_bytes
    low = format_bytes(min(held))
    high = format_bytes(max(held))
    numbers = [
        (names["per_rank"], low if low == high else f"{low} – {high}"),
        (names["all"], format_bytes(int(held.sum()))),
    ]
    if len(both) > 1:
        apart = int(abs(both[0].rank_bytes - held).sum())
        numbers.append((names["off"], f"{apart:,} B"))
    return tuple(numbers)


def _key(words: str, *look: str) -> Key:
    """What a box of this look means."""
    return (Box(0, -7, 22, 14, *look),), words


def _shard_keys(
    both: Sequence[Shards], kinds: Iterable[str], names: Mapping[str, str]
) -> list[Key]:
    parts = dict.fromkeys(CATEGORIES[kind] for kind in kinds)
    keys = [_key(names[part], *SHARD_LOOKS[part]) for part in parts]
    if any((each.device == "host").any() for each in both):
        keys.append(_key(names["host"], KINDS["wait"].colour, HOST_HATCH))
    if any(set(NO_TENSOR) & set(each.tensor.tolist()) for each in both):
        keys.append(_key(names["spare"], *SPARE_LOOK))
    keys.append(_key(names["not_held"]))
    if len(both) > 1:
        keys.append(((), names["strips"]))
    return keys


def _table(
    both: Sequence[Shards], names: Mapping[str, str], words: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """A row per rank and origin: bytes of each kind."""
    sums = [each.bytes_by() for each in both]
    held = set().union(*sums)
    kinds = [kind for kind in CATEGORIES if kind in held]
    rows = [("rank", "", *(names.get(kind, kind) for kind in kinds), names["total"])]
    for rank in range(both[0].num_ranks):
        for each, mine in zip(both, sums, strict=True):
            cells = [f"{int(mine[kind][rank]) if kind in mine else 0:,}" for kind in kinds]
            source = words.get(each.origin, each.origin)
            rows.append((str(rank), source, *cells, f"{int(each.rank_bytes[rank]):,}"))
    return tuple(rows)


def footprint(
    predicted: Footprint,
    measured: Footprint | None = None,
    *,
    title: Said = "",
    marked: str = "",
    named: Mapping[str, Said] | None = None,
    language: str | None = None,
) -> Sketch:
    """A step from left to right: at each moment the bytes of one rank, stacked by part of the bill.

    With ``measured`` two bars stand at each moment that both have: predicted left, measured right.
    ``marked``: the label of a moment to frame; ``named``: other words for parts.
    """
    both = [predicted] if measured is None else [predicted, measured]
    shared = set.intersection(*(set(each.labels) for each in both))
    labels = [label for label in predicted.labels if label in shared]
    if not labels:
        raise ValueError(
            f"two footprints of a step share a moment; got {predicted.labels} and {measured.labels}"
        )

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        names = _renamed(named or {}, code)
        badges = [_badges([each], words) for each in both]
        keys, end_px = legend(_footprint_keys(both, names), 0, _TOP_PX + _HIGH_PX + 22)
        numbers = tuple(
            (
                f"{names['peak']}{words['comma']}{badge}" if measured else names["peak"],
                names["at"].format(format_bytes(each.peak_bytes), translated(each.peak, code)),
            )
            for badge, each in zip(badges, both, strict=True)
        )
        return Sketch(
            shapes=(*_bars(both, labels, marked, code), *keys),
            height_px=end_px,
            heading=said(title, code) or names["steps"],
            badge=_badges(both, words),
            table=_bytes_table(both, labels, badges, names, code),
            numbers=numbers,
            language=code,
        )

    return speaking(language, build)


def _renamed(named: Mapping[str, Said], code: str) -> dict[str, str]:
    """The words of pictures, some parts by others. Raises ValueError for what is no mapping."""
    if not isinstance(named, Mapping):
        raise ValueError(f"named is {{part: its words}}; got {named!r:.80}")
    return {**WORDS[code], **{part: said(name, code) for part, name in named.items()}}


def _bytes_table(
    both: Sequence[Footprint],
    labels: Sequence[str],
    badges: Sequence[str],
    names: Mapping[str, str],
    code: str,
) -> tuple[tuple[str, ...], ...]:
    """A row for each moment: the bytes of each footprint then, and of one that stands alone its
    parts as well."""
    parts = []
    if len(both) == 1:
        parts = [number for number in range(len(PARTS)) if both[0].num_bytes[:, number].any()]
    rows = [(names["moment"], *badges, *(names[PARTS[number]] for number in parts))]
    for label in labels:
        found = [int(each.totals[each.labels.index(label)]) for each in both]
        found += [int(both[0].num_bytes[both[0].labels.index(label), number]) for number in parts]
        rows.append((translated(label, code), *(f"{num_bytes:,}" for num_bytes in found)))
    return tuple(rows)


def _footprint_keys(both: Sequence[Footprint], names: Mapping[str, str]) -> list[Key]:
    keys = []
    for number, part in enumerate(PARTS):
        if any(each.num_bytes[:, number].any() for each in both):
            keys.append(_key(names[part], *LOOKS[part]))
    if len(both) > 1:
        keys.append(((), names["mean"]))
    return keys


def _bars(both: Sequence[Footprint], labels: Sequence[str], marked: str, code: str) -> list[Shape]:
    """The axis, and at each moment as many bars as there are footprints."""
    most = max(each.peak_bytes for each in both) or 1
    bottom = _TOP_PX + _HIGH_PX
    scale = _HIGH_PX / (1.04 * most)
    marks = [(value, short(format_bytes(value))) for value in ticks(0, 1.04 * most, 5).tolist()]
    left = 14 + max(text_px(text, 11) for _, text in marks)
    pitch = (WIDTH_PX - left) / len(labels)
    shapes: list[Shape] = []
    for value, text in marks:
        at = bottom - value * scale
        shapes.append(Line(((left, at), (WIDTH_PX, at)), width_px=1, opacity=0.13))
        shapes.append(Words(left - 6, at + 4, text, "end", 11))
    thick = 0.8 * pitch / len(both)
    every = max(1, math.ceil(34 / pitch))
    for number, label in enumerate(labels):
        x = left + number * pitch + 0.1 * pitch
        for place, each in enumerate(both):
            shapes += _stack(each, label, x + place * thick, thick - 1, bottom, scale)
        if label == marked:
            frame = x - 0.06 * pitch, bottom - _HIGH_PX, 0.92 * pitch, _HIGH_PX + 20
            shapes.append(Box(*frame, marked=True))
        if number % every == 0:
            told = translated(label, code)
            shapes.append(Words(x + 0.4 * pitch, bottom + 15, told, "middle", 11))
    return [*shapes, Line(((left, bottom), (WIDTH_PX, bottom)), width_px=1, opacity=0.6)]


def _stack(
    step: Footprint, label: str, x: float, thick: float, bottom: float, scale: float
) -> list[Shape]:
    """The parts of one moment upon each other; what would be thinner than a hair is left out."""
    boxes: list[Shape] = []
    y = bottom
    held = step.num_bytes[step.labels.index(label)].tolist()
    for part, num_bytes in zip(PARTS, held, strict=True):
        height = num_bytes * scale
        if height >= 0.3:
            y -= height
            boxes.append(Box(x, y, thick, height, *LOOKS[part]))
    return boxes
