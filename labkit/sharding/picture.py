"""What moves while states are sharded or offloaded, as sketches: layers gathered and freed, bytes
between device and host."""

from collections.abc import Mapping, Sequence

from labkit.pictures.bytes_held import LOOKS
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Sketch, Words, legend, said
from labkit.pictures.style import clipped
from labkit.sharding.partition import STAGES, group_size
from labkit.sharding.states import Transfer
from labkit.units import check_real, check_whole, check_word, format_bytes, format_us
from labkit.words import speaking

_WORDS = (
    ("parameters", "parameters", "参数"),
    ("gradients", "gradients", "梯度"),
    ("optimizer", "optimizer", "优化器"),
    ("buffers", "buffers", "缓冲区"),
    ("activations", "activations", "激活"),
    ("not_held", "not on this rank", "不在该 rank"),
    ("own", "this rank's part", "该 rank 自己的一片"),
    ("whole", "whole for a while", "暂时完整"),
    ("layers", "{}: {}", "{}：{}"),
    ("gather", "all-gather {}", "all-gather {}"),
    ("ahead", "all-gather {} ahead", "提前 all-gather {}"),
    ("scatter", "reduce-scatter {}", "reduce-scatter {}"),
    ("reduce", "all-reduce", "all-reduce"),
    ("quiet", "no communication", "无通信"),
    ("device", "device", "设备"),
    ("memory", "host memory", "主机内存"),
    ("link", "link", "链路"),
    ("down", "down", "下行"),
    ("up", "up", "上行"),
    ("forward", "forward", "前向"),
    ("backward", "backward", "反向"),
    ("step", "update", "更新"),
    ("flow", "A step with offload", "一步中的卸载"),
    ("both", "both ways", "双向合计"),
)
WORDS = {"en": {key: en for key, en, _ in _WORDS}, "zh": {key: zh for key, _, zh in _WORDS}}
_LEFT_PX = 64.0


def layers(
    unit_bytes: Mapping[str, int],
    num_ranks: int,
    moment: str,
    *,
    strategy: str = "fsdp",
    shard_size: int = 0,
    language: str = "en",
) -> Sketch:
    """The layers of a model on all ranks at one moment of a step ("F2", "loss", "B2", "step"): what
    of each is there.

    ``unit_bytes``: layer -> bytes of its parameters. ``strategy``: "ddp", "fsdp", "fsdp_grad_op" or
    "fsdp_hybrid", that shards in groups of ``shard_size`` ranks (half of them by default).
    """
    check_word(strategy, STAGES, "a strategy")
    check_whole(1, 1024, num_ranks=num_ranks, **{"number of layers": len(unit_bytes)})
    check_whole(
        **{f"bytes of layer {name}": num_bytes for name, num_bytes in dict(unit_bytes).items()}
    )
    names, size = list(unit_bytes), group_size(strategy, num_ranks, shard_size)
    check_whole(1, num_ranks, **{"shard_size, by default half of the ranks,": size})
    there, events = _at(moment, len(names), strategy)

    def build(words: dict[str, str]) -> Sketch:
        said_, total = WORDS[words["code"]], sum(unit_bytes.values())
        scale, height = (WIDTH_PX - _LEFT_PX - 6 * len(names)) / total, min(24.0, 150 / num_ranks)
        happens = (
            words["comma"].join(
                said_[key].format(names[index]) if key != "reduce" else said_[key]
                for key, index in events
            )
            or said_["quiet"]
        )
        shapes, x = [], _LEFT_PX
        for index, (name, num_bytes) in enumerate(unit_bytes.items()):
            wide, marked = num_bytes * scale, index in {each for _, each in events}
            shapes.append(Words(x + wide / 2, 70, clipped(name, wide + 5, 11), "middle", 11))
            for rank in range(num_ranks):
                slot, place = (wide, 0) if strategy == "ddp" else (wide / size, rank % size)
                shapes += _layer(
                    x,
                    78 + rank * (height + 4),
                    wide,
                    height,
                    place * slot,
                    slot,
                    index in there,
                    marked,
                )
            x += wide + 6
        shapes += [
            Words(
                _LEFT_PX - 8, 78 + rank * (height + 4) + height / 2 + 4, f"rank {rank}", "end", 11
            )
            for rank in range(num_ranks)
        ]
        keys = [
            ((Box(0, -7, 22, 14, *look),), said_[key])
            for key, look in (
                ("own", LOOKS["parameters"]),
                ("whole", LOOKS["gathered"]),
                ("not_held", ()),
            )
        ]
        more, end_px = legend(keys, 0, 80 + num_ranks * (height + 4))
        heading = said_["layers"].format(moment, happens)
        rows = [
            (name, said_["whole"] if index in there or strategy == "ddp" else said_["own"])
            for index, name in enumerate(names)
        ]
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=heading,
            badge=words["predicted"].lower(),
            table=(("", moment), *rows),
            language=words["code"],
            summary=words["plan"].format(heading, strategy, num_ranks) + ".",
        )

    return speaking(language, build)


def _layer(
    x: float,
    y: float,
    wide: float,
    height: float,
    before: float,
    slot: float,
    whole: bool,
    marked: bool,
) -> list[Box]:
    """A layer on a rank: its own part, the others' left and right of it while the layer is whole, a
    frame."""
    mine = x + before
    others = [(x, mine), (mine + slot, x + wide)] if whole else []
    return [
        *(
            Box(begin, y, end - begin, height, *LOOKS["gathered"])
            for begin, end in others
            if end - begin > 0.5
        ),
        Box(mine, y, slot, height, *LOOKS["parameters"]),
        Box(x, y, wide, height, marked=marked),
    ]


def _at(moment: str, num_units: int, strategy: str) -> tuple[set[int], list[tuple[str, int]]]:
    """Which units are whole on every rank at a moment, and the collectives that belong to it."""
    check_word(
        moment,
        ("loss", "step", *(f"{way}{unit}" for way in "FB" for unit in range(num_units))),
        "a moment",
    )
    index = int(moment[1:]) if moment[1:].isdecimal() else -1
    if strategy == "ddp":
        return set(), [("reduce", 0)] if moment == "B0" else []
    keeps, forward = strategy == "fsdp_grad_op", moment.startswith("F")
    if index < 0:
        return set(range(num_units)) if moment == "loss" and keeps else set(), []
    there = set(range(index + 1)) if keeps else {index} if forward else {index, max(0, index - 1)}
    if forward:
        return there, [("gather", index)]
    first = [("gather", index)] * (index == num_units - 1 and not keeps)
    ahead = [("ahead", index - 1)] * (index > 0 and not keeps)
    return there, [*first, *ahead, ("scatter", index)]


def flow(
    moves: Sequence[Transfer],
    device: Mapping[str, float],
    host: Mapping[str, float],
    gb_per_s: float,
    *,
    title: Said = "",
    marked: str = "",
    note: Said = "",
    language: str = "en",
) -> Sketch:
    """Device and host with the parts of the bill that lie there, and between them what a step
    moves, over a stated link, each arrow as thick as its bytes. ``marked``: the phase ("forward",
    "backward", "step") that stands out."""
    check_real(1e-9, gb_per_s=gb_per_s)
    for part in (*device, *host):
        check_word(part, LOOKS, "a part of the bill")
    most = max((move.num_bytes for move in moves), default=1.0)

    def build(words: dict[str, str]) -> Sketch:
        names, shapes, y, comma, colon = (
            WORDS[words["code"]],
            [],
            84.0,
            words["comma"],
            words["colon"],
        )
        for move in moves:
            at = (640.0, 260.0) if not move.to_host else (260.0, 640.0)
            seconds = format_us(move.num_bytes / gb_per_s / 1e3)
            text = f"{names[move.phase]}{colon}{names[move.what]} {format_bytes(move.num_bytes)}{comma}{seconds}"
            on = move.phase == marked or not marked
            shapes += [
                Line(
                    ((at[0], y + 20), (at[1], y + 20)),
                    LOOKS[move.what][0],
                    10 * move.num_bytes / most,
                    arrow=True,
                    opacity=1.0 if on else 0.3,
                ),
                Words(
                    450, y + 6, text, "middle", bold=on and bool(marked), opacity=1.0 if on else 0.6
                ),
            ]
            y += 48
        bottom = max(y, 84.0 + 26 * max(len(device), len(host)) + 40)
        for x, name, parts in ((0.0, names["device"], device), (650.0, names["memory"], host)):
            shapes += [
                Box(x, 62, 249, bottom - 62),
                Words(x + 10, 80, f"{name}{colon}{format_bytes(sum(parts.values()))}", bold=True),
            ]
            for number, (part, num_bytes) in enumerate(parts.items()):
                shapes.append(
                    Box(
                        x + 10,
                        90 + 26 * number,
                        229,
                        22,
                        *LOOKS[part],
                        (f"{names[part]} {format_bytes(num_bytes)}",),
                    )
                )
        down, up = (
            sum(move.num_bytes for move in moves if move.to_host is way) for way in (True, False)
        )
        numbers = (
            (names["down"], format_bytes(down)),
            (names["up"], format_bytes(up)),
            (names["link"], f"{gb_per_s:g} GB/s"),
            (names["both"], format_us((down + up) / gb_per_s / 1e3)),
        )
        heading, notes = said(title, words["code"]) or names["flow"], said(note, words["code"])
        shapes += [Words(0, bottom + 20, notes, opacity=0.85)] if notes else []
        rows = [
            (
                names[move.phase],
                names[move.what],
                names["down" if move.to_host else "up"],
                f"{move.num_bytes:,.0f}",
            )
            for move in moves
        ]
        return Sketch(
            shapes=tuple(shapes),
            height_px=bottom + (32 if notes else 10),
            heading=heading,
            badge=words["computed"],
            numbers=numbers,
            table=(("", "", "", "B"), *rows),
            language=words["code"],
        )

    return speaking(language, build)
