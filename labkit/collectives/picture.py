"""Collectives, networks and machines as sketches: who holds what, who sends what to whom, who is
linked with whom."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from labkit.collectives.algorithms import Plan, holdings, lower_bound_bytes, sent_bytes
from labkit.collectives.network import Network, time_us
from labkit.machine.topology import WAYS, Devices, Topology
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE, KINDS
from labkit.units import format_bytes, format_us
from labkit.words import called, speaking

_LEFT_PX, _TOP_PX, _GAP_PX = (
    82.0,
    162.0,
    8.0,
)  # a collective's first column, its upper end, and between two
_ADDED, _COPIED = (), (5.0, 3.0)
_METER_PX, _ROOM_PX = 190.0, 430.0
_LOOKS = (
    (4.0, ()),
    (2.0, (7.0, 4.0)),
    (1.5, (2.0, 3.0)),
    (1.2, (1.0, 5.0)),
)  # of links, the fastest first


def collective(
    plan: Plan,
    step: int,
    *,
    num_bytes: float | None = None,
    network: Network | None = None,
    language: str = "en",
) -> Sketch:
    """The buffers of all ranks after ``step`` steps, and above them that step's messages; step 0 is
    before the first.

    A column is a rank, a box a chunk: full where it holds all contributions, "3/4" where three of
    four. An all-to-all has two columns per rank: what goes to each rank, and what came from it.
    With ``num_bytes`` (read as by ``Plan.chunk_bytes``) volumes are bytes, else parts of the size
    S; with a ``network`` too there is the time so far. Raises ValueError for a step that the plan
    does not have.
    """
    if not 0 <= step <= len(plan.steps):
        raise ValueError(
            f"this plan has {len(plan.steps)} steps, and 0 is before the first; got {step}"
        )

    def build(words: dict[str, str]) -> Sketch:
        num_rows, _, height = _grid(plan)
        shapes = [*_names(plan, words), *_buffers(plan, step), *_messages(plan, step, words)]
        bottom = _TOP_PX + num_rows * height + 14 * (plan.primitive == "all_to_all")
        numbers = [(words["step"], words["of_steps"].format(step, len(plan.steps)))]
        for name, so_far, total, bound, form in _meters(plan, step, num_bytes, network, words):
            numbers.append((name, f"{form(so_far)} / {form(total)}"))
            text = numbers[-1][1] + (
                f"{words['comma']}{words['bound']} {form(bound)}" if bound else ""
            )
            shapes += [
                Words(0, bottom + 25, name),
                *_meter(so_far, total, bound, bottom + 12),
                Words(_METER_PX + _ROOM_PX + 12, bottom + 25, text),
            ]
            bottom += 28
        more, end_px = legend(_keys(plan, words), 0, bottom + 22)
        heading = words["plan"].format(
            *called((plan.primitive, plan.algorithm), words["code"]), plan.num_ranks
        )
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=heading,
            numbers=tuple(numbers),
            badge=words["simulated"],
            table=_state(plan, step, words),
            language=words["code"],
        )

    return speaking(language, build)


def _chunk(plan: Plan, chunk: int) -> tuple[str, tuple[str, str]]:
    """A chunk's name, and its colour and hatch: an all-to-all's are those of the rank it comes
    from."""
    src, dst = divmod(chunk, plan.num_ranks)
    return (
        (f"{src}>{dst}", CYCLE[src % 16])
        if plan.primitive == "all_to_all"
        else (str(chunk), CYCLE[chunk % 16])
    )


def _carried(plan: Plan, chunks: Sequence[int]) -> str:
    names = [_chunk(plan, chunk)[0] for chunk in chunks]
    if len(chunks) < 3:
        return ", ".join(names)
    return (
        f"{names[0]}–{names[-1]}" if chunks[-1] - chunks[0] == len(chunks) - 1 else f"{names[0]}, …"
    )


def _grid(plan: Plan) -> tuple[int, float, float]:
    """How many rows there are, and pixels from one column to the next and from one row to the
    next."""
    num_rows = plan.num_ranks if plan.primitive == "all_to_all" else plan.num_chunks
    return (
        num_rows,
        min(204.0, (WIDTH_PX + _GAP_PX - _LEFT_PX) / plan.num_ranks),
        min(22.0, 288 / num_rows),
    )


def _names(plan: Plan, words: dict[str, str]) -> list[Shape]:
    (num_rows, pitch, height), peers = _grid(plan), plan.primitive == "all_to_all"
    shapes = [
        Words(
            _LEFT_PX - 8,
            _TOP_PX + (row + 0.5) * height + 3,
            words["peer" if peers else "chunk_n"].format(row),
            "end",
            11,
        )
        for row in range(0, num_rows, int(np.ceil(13 / height)))
    ]
    shapes += [Words(_LEFT_PX - 8, 66, "rank", "end", bold=True)] if pitch <= 60 else []
    for rank in range(plan.num_ranks):
        x, width = _LEFT_PX + pitch * rank, pitch - _GAP_PX
        shapes.append(
            Words(
                x + width / 2, 66, f"rank {rank}" if pitch > 60 else str(rank), "middle", bold=True
            )
        )
        for share, text in zip(
            (0.25, 0.75), words["out_in"].split() if peers else (), strict=False
        ):
            shapes.append(
                Words(x + share * width, _TOP_PX + num_rows * height + 12, text, "middle", 11)
            )
    return shapes


def _buffers(plan: Plan, step: int) -> list[Box]:
    (_, pitch, height), held, num_parts = _grid(plan), holdings(plan, step), _num_parts(plan)
    moved = {
        (dst, chunk)
        for _, dst, chunks, _ in (plan.steps[step - 1] if step else ())
        for chunk in chunks
    }
    boxes, size = [], plan.num_ranks
    for rank in range(size):
        columns = [range(plan.num_chunks)]
        if plan.primitive == "all_to_all":
            columns = [range(rank * size, rank * size + size), range(rank, plan.num_chunks, size)]
        width = (pitch - _GAP_PX) / len(columns)
        for x, column in zip(_LEFT_PX + pitch * rank + width * np.arange(2), columns, strict=False):
            for row, chunk in enumerate(column):
                (name, look), count = _chunk(plan, chunk), len(held[rank][chunk])
                text = name if num_parts == 1 else f"{count}/{num_parts}"
                texts = (f"{text} ✓", "✓") if count == num_parts > 1 else (text,)
                boxes.append(
                    Box(
                        float(x),
                        _TOP_PX + row * height,
                        width - len(columns) + 1,
                        height - 2,
                        *(look if count else ("", "")),
                        texts if count else (),
                        count / num_parts,
                        (rank, chunk) in moved,
                    )
                )
    return boxes


def _messages(plan: Plan, step: int, words: dict[str, str]) -> list[Shape]:
    pitch = _grid(plan)[1]
    shapes = (
        [] if step else [Words(WIDTH_PX / 2, 116, words["nothing_sent"], "middle", opacity=0.8)]
    )
    for src, dst, chunks, op in plan.steps[step - 1] if step else ():
        x0, x1 = (_LEFT_PX + pitch * rank + (pitch - _GAP_PX) / 2 for rank in (src, dst))
        look = _chunk(plan, chunks[0])[1] if len(chunks) == 1 else ("", "")
        text, width = _carried(plan, chunks), min(pitch - _GAP_PX, 64.0)
        shapes += [
            Box(x0 - width / 2, 74, width, 17, *look, (f"+ {text}" if op == "add" else text, text)),
            Line(
                ((x0, 92), (x1, _TOP_PX - 5)),
                look[0],
                2.0,
                _ADDED if op == "add" else _COPIED,
                arrow=True,
            ),
        ]
    return shapes


def _num_parts(plan: Plan) -> int:
    """How many contributions a finished chunk holds."""
    return max(len(held) for rank in holdings(plan) for held in rank)


def _meters(
    plan: Plan, step: int, num_bytes: float | None, network: Network | None, words: dict[str, str]
) -> list:
    """(name, so far, in all, bound, format) of volume and time."""
    begun, size = replace(plan, steps=plan.steps[:step]), num_bytes or 1.0
    form: Callable = format_bytes if num_bytes else lambda part: f"{part:.3g} S"
    meters = [
        (
            words["busiest"],
            *(float(sent_bytes(each, size).max()) for each in (begun, plan)),
            lower_bound_bytes(plan.primitive, plan.num_ranks, size),
            form,
        )
    ]
    if network and num_bytes:
        meters.append(
            (
                words["time"],
                *(time_us(each, network, num_bytes) for each in (begun, plan)),
                0.0,
                format_us,
            )
        )
    return meters


def _meter(so_far: float, total: float, bound: float, y: float) -> list[Shape]:
    most = max(total, bound) or 1.0
    bar = Box(
        _METER_PX,
        y,
        _ROOM_PX * total / most,
        16,
        KINDS["wait"].colour,
        fill=so_far / (total or 1.0),
    )
    at = _METER_PX + _ROOM_PX * bound / most
    return [bar, *([Line(((at, y - 4), (at, y + 20)), dash=(3, 2), width_px=1.4)] if bound else [])]


def _keys(plan: Plan, words: dict[str, str]) -> list[tuple[tuple[Shape, ...], str]]:
    """The legend: what occurs in the plan."""
    ops, num_parts, colour = (
        {move.op for step in plan.steps for move in step},
        _num_parts(plan),
        CYCLE[0][0],
    )
    arrows = [
        ((Line(((0, 0), (22, 0)), dash=dash, arrow=True),), words[op])
        for op, dash in (("add", _ADDED), ("copy", _COPIED))
        if op in ops
    ]
    partly = (
        (Box(0, -8, 22, 16, colour, fill=1 - 1 / num_parts),),
        words["parts"].format(num_parts - 1, num_parts),
    )
    return [
        *arrows,
        *([partly] if num_parts > 1 else []),
        ((Box(0, -8, 22, 16, marked=True),), words["changed"]),
    ]


def _state(plan: Plan, step: int, words: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Per rank, what it sends and receives in this step, and how many chunks it holds whole."""
    held, num_parts, moves = (
        holdings(plan, step),
        _num_parts(plan),
        plan.steps[step - 1] if step else (),
    )
    lines = [
        (
            "rank",
            KINDS["send"].words[words["code"]],
            KINDS["recv"].words[words["code"]],
            words["whole"],
        )
    ]
    for rank in range(plan.num_ranks):
        sent = (f"{_carried(plan, move.chunks)} → {move.dst}" for move in moves if move.src == rank)
        came = (f"{_carried(plan, move.chunks)} ← {move.src}" for move in moves if move.dst == rank)
        whole = sum(len(chunk) == num_parts for chunk in held[rank])
        lines.append((str(rank), ", ".join(sent), ", ".join(came), str(whole)))
    return tuple(lines)


def network(links: Network, *, order: Sequence[int] = (), language: str = "en") -> Sketch:
    """Who is linked with whom, and how fast: thick lines are fast, thin and broken ones slow.

    Ranks that the fastest links join stand in one island; a line between two islands stands for all
    of its kind between them. ``order`` draws a ring's way, with arrows. Raises ValueError for one
    that does not name every rank once.
    """
    if order and sorted(order) != [*range(links.num_ranks)]:
        raise ValueError(f"order names each of {links.num_ranks} ranks once; got {order}")
    found = {
        (a, b): (-link.bandwidth_gb_per_s, link.alpha_us, bool(link.wire))
        for a, row in enumerate(links.links)
        for b, link in enumerate(row)
        if link
    }
    kinds = sorted(set(found.values()))
    home = _islands(
        links.num_ranks, [pair for pair, kind in sorted(found.items()) if kind == kinds[0]]
    )
    boxes = _placed(home)
    joined = {
        (*sorted((a, b) if home[a] == home[b] else (home[a], home[b]), key=str), kind)
        for (a, b), kind in found.items()
    }
    scale = max(0.35, min(1.0, 30 / max(1, len(joined))))
    looks = [
        {"width_px": scale * width, "dash": dash, "colour": CYCLE[number][0]}
        for number, (width, dash) in enumerate(_LOOKS)
    ]
    lines = [
        _between(boxes[a], boxes[b])._replace(**looks[min(3, kinds.index(kind))])
        for a, b, kind in sorted(joined, key=str)
    ]
    lines += [
        _between(boxes[a], boxes[b])._replace(width_px=2.2, arrow=True)
        for a, b in zip(order, [*order[1:], *order[:1]], strict=True)
    ]
    shapes = [
        *(box for key, box in boxes.items() if key not in home),
        *lines,
        *(boxes[rank] for rank in home),
    ]

    def build(words: dict[str, str]) -> Sketch:
        speeds = [
            f"{-bandwidth:g} GB/s{words['comma']}{format_us(alpha)}{wire * words['shared']}"
            for bandwidth, alpha, wire in kinds
        ]
        samples = [
            ((Line(((0, 0), (22, 0)), **looks[min(3, number)]),), text)
            for number, text in enumerate(speeds)
        ]
        samples += [
            ((Line(((0, 0), (22, 0)), width_px=2.2, arrow=True),), words["ring_order"])
        ] * bool(order)
        more, end_px = legend(
            samples, 0, max(box.y_px + box.height_px for box in boxes.values()) + 12
        )
        way = ((words["ring_order"], " → ".join(map(str, order))),) if order else ()
        table = [
            (str(a), *(speeds[kinds.index(found[a, b])] if (a, b) in found else "" for b in home))
            for a in home
        ]
        heading = words["network"].format(links.num_ranks)
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=heading,
            badge=words["stated"],
            numbers=((words["islands"], str(len(set(home.values())))),) * (len(kinds) > 1) + way,
            summary=words["stop"].format(words["colon"].join((heading, "; ".join(speeds)))),
            table=(("rank", *map(str, home)), *table),
            language=words["code"],
        )

    return speaking(language, build)


def _islands(num_ranks: int, pairs: Sequence[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Per rank, all those that pairs join it with, directly or through others."""
    label = list(range(num_ranks))
    for a, b in pairs:
        label = [label[a] if each == label[b] else each for each in label]
    return {
        rank: tuple(np.flatnonzero(np.array(label) == label[rank]).tolist())
        for rank in range(num_ranks)
    }


def _placed(home: dict[int, tuple[int, ...]]) -> dict[int | tuple[int, ...], Box]:
    """The frame of each island, then the box of each rank: islands on an ellipse, ranks on a
    smaller one."""
    islands = list(dict.fromkeys(home.values()))
    wide, high = (
        (min(150, 340 / len(islands)), min(85, 150 / len(islands)))
        if len(islands) > 1
        else (390, 118)
    )
    frames, boxes = {}, {}
    for island, (x, y) in zip(
        islands, _around(len(islands), WIDTH_PX / 2, 206, 424 - wide, 136 - high), strict=True
    ):
        if len(islands) > 1:
            frames[island] = Box(x - wide - 24, y - high - 14, 2 * wide + 48, 2 * high + 28)
        for rank, (at_x, at_y) in zip(
            island, _around(len(island), x, y, wide, high, 0.15 * bool(frames)), strict=True
        ):
            boxes[rank] = Box(
                at_x - 16, at_y - 10, 32, 20, KINDS["wait"].colour, texts=(str(rank),)
            )
    up = min(box.y_px for box in (frames | boxes).values()) - 62
    return {key: box._replace(y_px=box.y_px - up) for key, box in (frames | boxes).items()}


def _around(
    count: int, x: float, y: float, wide: float, high: float, tilt: float = 0.0
) -> list[tuple[float, float]]:
    """Places on an ellipse, clockwise from the left (tilted: a little above); one alone is in the
    middle."""
    turns = np.pi + tilt + 2 * np.pi * np.arange(count) / count
    return (
        [(x + wide * np.cos(turn), y + high * np.sin(turn)) for turn in turns.tolist()]
        if count > 1
        else [(x, y)]
    )


def _between(a: Box, b: Box) -> Line:
    """A line from the edge of one box to the edge of another."""
    ax, ay, bx, by = (
        value
        for box in (a, b)
        for value in (box.x_px + box.width_px / 2, box.y_px + box.height_px / 2)
    )
    dx, dy = (bx - ax) or 1e-9, (by - ay) or 1e-9
    out = [min(box.width_px / 2 / abs(dx), box.height_px / 2 / abs(dy)) for box in (a, b)]
    return Line(((ax + dx * out[0], ay + dy * out[0]), (bx - dx * out[1], by - dy * out[1])))


def topology(machine: Topology, *, language: str = "en") -> Sketch:
    """One machine: per NUMA node its memory, its hardware threads and its GPUs; below, the way
    between any two devices.

    Threads that touch are of one core; threads of one colour share a third-level cache.
    """
    devices, threads, cores = (
        machine.devices,
        len(machine.cpus),
        len({cpu.core for cpu in machine.cpus}),
    )
    sizes = (
        str(cores),
        str(threads),
        format_bytes(sum(machine.node_bytes.values())),
        str(machine.num_usable),
        str(machine.num_gpus),
    )

    def build(words: dict[str, str]) -> Sketch:
        shapes, end_px = _nodes(machine, words)
        half = Box(0, -8, 11, 16, CYCLE[0][0])
        keys = [((half, half._replace(x_px=11)), words["one_core"])] * (cores < threads)
        keys.append(((half._replace(width_px=22),), words["one_cache"]))
        more, end_px = legend(keys, 0, end_px)
        ways, end_px = _ways(devices, end_px + 6, words) if devices.names else ([], end_px)
        heads = (*(words[key] for key in ("cores", "threads", "memory", "usable")), "GPU")
        numbers, matrix = (
            tuple(zip(heads, sizes, strict=True)),
            zip(devices.names, devices.links, strict=True),
        )
        table = (
            (("", *devices.names), *((name, *row) for name, row in matrix))
            if devices.names
            else (heads, sizes)
        )
        return Sketch(
            shapes=(*shapes, *more, *ways),
            height_px=end_px,
            heading=words["machine"],
            numbers=numbers,
            badge=words["reported"],
            table=table,
            language=words["code"],
        )

    return speaking(language, build)


def _nodes(machine: Topology, words: dict[str, str]) -> tuple[list[Shape], float]:
    """A frame per NUMA node; and where they end."""
    shapes, y = [], 60.0
    for node in sorted({*machine.node_bytes, *(cpu.node for cpu in machine.cpus)}):
        cpus = sorted(
            (cpu.cache, cpu.core, cpu.number, cpu.package)
            for cpu in machine.cpus
            if cpu.node == node
        )
        thick, x, before, top = max(24.0, min(60.0, 870 / max(1, len(cpus)) - 3)), 10.0, cpus[:1], y
        y, label = y + 28, words["node"].format(node, format_bytes(machine.node_bytes.get(node, 0)))
        for each in cpus:
            x += 9 if each[0] != before[0][0] else 3 if each[1] != before[0][1] else 0
            x, y = (10.0, y + 27) if x + thick > WIDTH_PX - 8 else (x, y)
            shapes.append(Box(x, y, thick, 22, *CYCLE[each[0] % 16], (str(each[2]),)))
            x, before = x + thick, [each]
        near = [
            name
            for name, home in zip(machine.devices.names, machine.devices.nodes, strict=True)
            if home == node
        ]
        y += 28 * bool(cpus)
        shapes += [
            Box(10 + 64 * place, y, 60, 22, KINDS["wait"].colour, texts=(name,))
            for place, name in enumerate(near)
        ]
        y += 28 * bool(near)
        shapes += [Box(1, top, WIDTH_PX - 2, y - top), Words(10, top + 19, label)]
        y += 8
    return shapes, y


def _ways(devices: Devices, top: float, words: dict[str, str]) -> tuple[list[Shape], float]:
    """The matrix of ways between devices, a colour per kind of way, and what the words mean."""
    shapes, width = [], min(64.0, (WIDTH_PX - 70) / len(devices.names))
    looks = {kind: CYCLE[number] for number, kind in enumerate(WAYS) if kind != "X"}
    for row, (name, ways) in enumerate(zip(devices.names, devices.links, strict=True)):
        y = top + 20 + 21 * row
        shapes += [
            Words(62, y + 14, name, "end", 11),
            Words(70 + width * (row + 0.5), top + 14, name, "middle", 11),
        ]
        shapes += [
            Box(
                70 + width * column,
                y,
                width - 2,
                19,
                *looks.get(way.rstrip("0123456789"), ("", "")),
                (way,),
            )
            for column, way in enumerate(ways)
        ]
    present = {way.rstrip("0123456789") for row in devices.links for way in row}
    keys = [
        ((Box(0, -8, 22, 16, *look),), f"{kind}: {words[kind]}")
        for kind, look in looks.items()
        if kind in present
    ]
    more, end_px = legend(keys, 0, top + 26 + 21 * len(devices.names))
    return shapes + more, end_px
