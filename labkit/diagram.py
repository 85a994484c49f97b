"""Who holds what, who sends what to whom, and who is linked with whom: collectives and networks as sketches."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from labkit.collectives import TITLES, Plan, holdings, lower_bound_bytes, sent_bytes
from labkit.network import Network, time_us
from labkit.scene import WIDTH_PX, speaking
from labkit.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.style import CYCLE, KINDS
from labkit.units import format_bytes, format_us

_LEFT_PX, _TOP_PX, _GAP_PX = 82.0, 162.0, 8.0  # a collective's first column, its upper end, and between two
_ADDED, _COPIED = (), (5.0, 3.0)
_METER_PX, _ROOM_PX = 190.0, 430.0
_LOOKS = ((4.0, ()), (2.0, (7.0, 4.0)), (1.5, (2.0, 3.0)), (1.2, (1.0, 5.0)))  # of links, the fastest first


def collective(plan: Plan, step: int, *, num_bytes: float | None = None, network: Network | None = None,
               language: str = "en") -> Sketch:
    """The buffers of all ranks after ``step`` steps, and above them that step's messages; step 0 is before the first.

    A column is a rank, a box a chunk: full where it holds all contributions, "3/4" where three of four. An all-to-all
    has two columns per rank: what goes to each rank, and what came from it. With ``num_bytes`` (read as by
    ``Plan.chunk_bytes``) volumes are bytes, else parts of the size S; with a ``network`` too there is the time so far.
    Raises ValueError for a step that the plan does not have.
    """
    if not 0 <= step <= len(plan.steps):
        raise ValueError(f"this plan has {len(plan.steps)} steps, and 0 is before the first; got {step}")

    def build(words: dict[str, str]) -> Sketch:
        num_rows, _, height = _grid(plan)
        shapes = [*_names(plan, words), *_buffers(plan, step), *_messages(plan, step)]
        bottom = _TOP_PX + num_rows * height + 14 * (plan.primitive == "all_to_all")
        numbers = [(words["step"], words["of_steps"].format(step, len(plan.steps)))]
        for name, so_far, total, bound, form in _meters(plan, step, num_bytes, network, words):
            numbers.append((name, f"{form(so_far)} / {form(total)}"))
            text = numbers[-1][1] + (f", {words['bound']} {form(bound)}" if bound else "")
            shapes += [Words(0, bottom + 25, name), *_meter(so_far, total, bound, bottom + 12),
                       Words(_METER_PX + _ROOM_PX + 12, bottom + 25, text)]
            bottom += 28
        more, end_px = legend(_keys(plan, words), 0, bottom + 22)
        heading = words["plan"].format(*(TITLES.get(word, word) for word in (plan.primitive, plan.algorithm)),
                                       plan.num_ranks)
        return Sketch(shapes=(*shapes, *more), height_px=end_px, heading=heading, numbers=tuple(numbers),
                      badge=words["simulated"], table=_state(plan, step, words), language=words["code"],
                      summary=f"{heading}: {', '.join(' '.join(number) for number in numbers)}.")

    return speaking(language, build)


def _chunk(plan: Plan, chunk: int) -> tuple[str, tuple[str, str]]:
    """A chunk's name, and its colour and hatch: an all-to-all's are those of the rank it comes from."""
    src, dst = divmod(chunk, plan.num_ranks)
    return (f"{src}>{dst}", CYCLE[src % 16]) if plan.primitive == "all_to_all" else (str(chunk), CYCLE[chunk % 16])


def _carried(plan: Plan, chunks: Sequence[int]) -> str:
    names = [_chunk(plan, chunk)[0] for chunk in chunks]
    if len(chunks) < 3:
        return ", ".join(names)
    return f"{names[0]}–{names[-1]}" if chunks[-1] - chunks[0] == len(chunks) - 1 else f"{names[0]}, …"


def _grid(plan: Plan) -> tuple[int, float, float]:
    """How many rows there are, and pixels from one column to the next and from one row to the next."""
    num_rows = plan.num_ranks if plan.primitive == "all_to_all" else plan.num_chunks
    return num_rows, min(204.0, (WIDTH_PX + _GAP_PX - _LEFT_PX) / plan.num_ranks), min(22.0, 288 / num_rows)


def _names(plan: Plan, words: dict[str, str]) -> list[Shape]:
    (num_rows, pitch, height), peers = _grid(plan), plan.primitive == "all_to_all"
    shapes = [Words(_LEFT_PX - 8, _TOP_PX + (row + 0.5) * height + 3, words["peer" if peers else "chunk_n"].format(row),
                    "end", 11) for row in range(0, num_rows, int(np.ceil(13 / height)))]
    shapes += [Words(_LEFT_PX - 8, 66, "rank", "end", bold=True)] if pitch <= 60 else []
    for rank in range(plan.num_ranks):
        x, width = _LEFT_PX + pitch * rank, pitch - _GAP_PX
        shapes.append(Words(x + width / 2, 66, f"rank {rank}" if pitch > 60 else str(rank), "middle", bold=True))
        for share, text in zip((0.25, 0.75), words["out_in"].split() if peers else (), strict=False):
            shapes.append(Words(x + share * width, _TOP_PX + num_rows * height + 12, text, "middle", 11))
    return shapes


def _buffers(plan: Plan, step: int) -> list[Box]:
    (_, pitch, height), held, num_parts = _grid(plan), holdings(plan, step), _num_parts(plan)
    moved = {(dst, chunk) for _, dst, chunks, _ in (plan.steps[step - 1] if step else ()) for chunk in chunks}
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
                boxes.append(Box(float(x), _TOP_PX + row * height, width - len(columns) + 1, height - 2,
                                 *(look if count else ("", "")), texts if count else (), count / num_parts,
                                 (rank, chunk) in moved))
    return boxes


def _messages(plan: Plan, step: int) -> list[Shape]:
    pitch, shapes = _grid(plan)[1], []
    for src, dst, chunks, op in plan.steps[step - 1] if step else ():
        x0, x1 = (_LEFT_PX + pitch * rank + (pitch - _GAP_PX) / 2 for rank in (src, dst))
        look = _chunk(plan, chunks[0])[1] if len(chunks) == 1 else ("", "")
        text, width = _carried(plan, chunks), min(pitch - _GAP_PX, 64.0)
        shapes += [Box(x0 - width / 2, 74, width, 17, *look, (f"+ {text}" if op == "add" else text, text)),
                   Line(((x0, 92), (x1, _TOP_PX - 5)), look[0], 2.0, _ADDED if op == "add" else _COPIED, arrow=True)]
    return shapes


def _num_parts(plan: Plan) -> int:
    """How many contributions a finished chunk holds."""
    return max(len(held) for rank in holdings(plan) for held in rank)


def _meters(plan: Plan, step: int, num_bytes: float | None, network: Network | None, words: dict[str, str]) -> list:
    """(name, so far, in all, bound, format) of volume and time."""
    begun, size = replace(plan, steps=plan.steps[:step]), num_bytes or 1.0
    form: Callable = format_bytes if num_bytes else lambda part: f"{part:.3g} S"
    meters = [(words["sent_most"], *(float(sent_bytes(each, size).max()) for each in (begun, plan)),
               lower_bound_bytes(plan.primitive, plan.num_ranks, size), form)]
    if network and num_bytes:
        meters.append((words["time"], *(time_us(each, network, num_bytes) for each in (begun, plan)), 0.0, format_us))
    return meters


def _meter(so_far: float, total: float, bound: float, y: float) -> list[Shape]:
    most = max(total, bound) or 1.0
    bar = Box(_METER_PX, y, _ROOM_PX * total / most, 16, KINDS["wait"].colour, fill=so_far / (total or 1.0))
    at = _METER_PX + _ROOM_PX * bound / most
    return [bar, *([Line(((at, y - 4), (at, y + 20)), dash=(3, 2), width_px=1.4)] if bound else [])]


def _keys(plan: Plan, words: dict[str, str]) -> list[tuple[tuple[Shape, ...], str]]:
    """The legend: what occurs in the plan."""
    ops, num_parts, colour = {move.op for step in plan.steps for move in step}, _num_parts(plan), CYCLE[0][0]
    arrows = [((Line(((0, 0), (22, 0)), dash=dash, arrow=True),), words[op])
              for op, dash in (("add", _ADDED), ("copy", _COPIED)) if op in ops]
    partly = (Box(0, -8, 22, 16, colour, fill=1 - 1 / num_parts),), words["parts"].format(num_parts - 1, num_parts)
    return [*arrows, *([partly] if num_parts > 1 else []), ((Box(0, -8, 22, 16, marked=True),), words["changed"])]


def _state(plan: Plan, step: int, words: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Per rank, what it sends and receives in this step, and how many chunks it holds whole."""
    held, num_parts, moves = holdings(plan, step), _num_parts(plan), plan.steps[step - 1] if step else ()
    lines = [("rank", KINDS["send"].words[words["code"]], KINDS["recv"].words[words["code"]], words["whole"])]
    for rank in range(plan.num_ranks):
        sent = (f"{_carried(plan, move.chunks)} → {move.dst}" for move in moves if move.src == rank)
        came = (f"{_carried(plan, move.chunks)} ← {move.src}" for move in moves if move.dst == rank)
        whole = sum(len(chunk) == num_parts for chunk in held[rank])
        lines.append((str(rank), ", ".join(sent), ", ".join(came), str(whole)))
    return tuple(lines)
