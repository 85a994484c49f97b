"""A collective as a drawing, step by step: who holds what, and who sends what to whom."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from labkit.collectives.algorithms import lower_bound_bytes
from labkit.collectives.network import Network, time_us
from labkit.collectives.plans import Holdings, Message, Plan, holdings, sent_bytes
from labkit.pictures.bar_groups import Meter
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE, KINDS
from labkit.units import format_bytes, format_us
from labkit.words import called, speaking

_LEFT_PX = 88.0  # where the first rank's column begins
_TOP_PX = 162.0  # where the chunks begin
_GAP_PX = 15.0  # between two columns: room for an arrow
_FIRST = 4  # the colour of chunk 0: those before it are of ranks, in other pictures
_DASHES = {"add": (), "copy": (5.0, 3.0)}  # of arrows


def collective(
    plan: Plan,
    step: int,
    *,
    num_bytes: float | None = None,
    network: Network | None = None,
    total_us: float | None = None,
    plain: bool = False,
    language: str | None = None,
) -> Sketch:
    """The buffers of all ranks after ``step`` steps, and above them that step's messages; step 0 is
    before the first.

    A column is a rank, a box a chunk: full where it holds all contributions, "3/4" where three of
    four. An all-to-all has two columns per rank: what goes to each rank, and what came from it.
    With ``num_bytes`` (read as by ``Plan.chunk_bytes``) volumes are bytes, else parts of the size
    S; with a ``network`` too there is the time so far, beside that of the whole plan (``total_us``,
    where somebody has simulated it). ``plain`` has neither. Raises ValueError for an unknown step.
    """
    seen = _seen(plan, step)

    def build(words: dict[str, str]) -> Sketch:
        meters = [] if plain else [_volume(plan, step, num_bytes, words)]
        if meters and network and num_bytes:
            meters.append(_time(plan, step, num_bytes, network, total_us, words))
        meters_px = _grid(plan).end_px + (14 if _is_exchange(plan) else 0)
        keys = _keys(seen, words)
        key_shapes, end_px = legend(keys, 0, meters_px + 28 * len(meters) + 22)
        shapes = [*_names(plan, words), *_buffers(seen), *_arrows(seen, words)]
        for number, meter in enumerate(meters):
            shapes += meter.shapes(meters_px + 28 * number + 12, words)
        return Sketch(
            shapes=(*shapes, *key_shapes),
            height_px=end_px,
            heading=_heading(plan, words),
            numbers=(
                (words["step"], words["of_steps"].format(step, len(plan.steps))),
                *((meter.name, meter.reading()) for meter in meters),
            ),
            badge=words["simulated"],
            table=_state(seen, words),
            language=words["code"],
        )

    return speaking(language, build)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """A plan, looked at after some of its steps."""

    plan: Plan
    """the whole of it"""
    step: int
    """how many steps are done"""
    held: Holdings
    """what stands where"""
    messages: Sequence[Message]
    """those of the last step"""
    num_parts: int
    """how many contributions a finished chunk holds"""


def _seen(plan: Plan, step: int) -> _Seen:
    """Raises ValueError for a step that the plan does not have."""
    if not 0 <= step <= len(plan.steps):
        raise ValueError(
            f"this plan has {len(plan.steps)} steps, and 0 is before the first; got {step}"
        )
    return _Seen(
        plan=plan,
        step=step,
        held=holdings(plan, step),
        messages=plan.steps[step - 1] if step else (),
        num_parts=max(len(parts) for parts in itertools.chain(*holdings(plan))),
    )


def _heading(plan: Plan, words: dict[str, str]) -> str:
    size = words["num_ranks"].format(plan.num_ranks)
    return called((plan.primitive, plan.algorithm), words["code"], size)


def _is_exchange(plan: Plan) -> bool:
    """Whether a rank has two columns: what it sends, and what it receives."""
    return plan.primitive == "all_to_all"


# --- the grid of buffers ---


class _Grid(NamedTuple):
    """Where ranks and chunks stand."""

    num_rows: int
    """how many chunks one below the other"""
    pitch_px: float
    """from one rank to the next"""
    row_px: float
    """from one chunk to the next"""

    @property
    def width_px(self) -> float:
        """How wide a rank's column is."""
        return self.pitch_px - _GAP_PX

    @property
    def end_px(self) -> float:
        """Where the chunks end."""
        return _TOP_PX + self.num_rows * self.row_px

    def left_px(self, rank: int) -> float:
        """Where a rank's column begins."""
        return _LEFT_PX + self.pitch_px * rank

    def middle_px(self, rank: int) -> float:
        """The middle of a rank's column."""
        return self.left_px(rank) + self.width_px / 2


def _grid(plan: Plan) -> _Grid:
    num_rows = plan.num_ranks if _is_exchange(plan) else plan.num_chunks
    pitch_px = min(204.0, (WIDTH_PX + _GAP_PX - _LEFT_PX) / plan.num_ranks)
    return _Grid(num_rows, pitch_px, min(22.0, 288 / num_rows))


def _names(plan: Plan, words: dict[str, str]) -> list[Shape]:
    """What rows and columns are called."""
    grid = _grid(plan)
    name = words["peer" if _is_exchange(plan) else "chunk_n"]
    shapes = []
    for row in range(0, grid.num_rows, int(np.ceil(13 / grid.row_px))):
        y = _TOP_PX + (row + 0.5) * grid.row_px + 3
        shapes.append(Words(_LEFT_PX - _GAP_PX - 3, y, name.format(row), "end", 11))
    is_wide = grid.pitch_px > 60
    if not is_wide:
        shapes.append(Words(_LEFT_PX - _GAP_PX - 3, 66, "rank", "end", bold=True))
    for rank in range(plan.num_ranks):
        text = f"rank {rank}" if is_wide else str(rank)
        shapes.append(Words(grid.middle_px(rank), 66, text, "middle", bold=True))
        if _is_exchange(plan):
            for share, way in zip((0.25, 0.75), words["out_in"].split(), strict=True):
                x = grid.left_px(rank) + share * grid.width_px
                shapes.append(Words(x, grid.end_px + 12, way, "middle", 11))
    return shapes


def _buffers(seen: _Seen) -> list[Box]:
    """A box for each chunk of each rank."""
    grid = _grid(seen.plan)
    changed = set()
    for message in seen.messages:
        changed |= {(message.dst, chunk) for chunk in message.chunks}
    boxes = []
    for rank in range(seen.plan.num_ranks):
        columns = _columns(seen.plan, rank)
        width = grid.width_px / len(columns)
        for number, column in enumerate(columns):
            for row, chunk in enumerate(column):
                box = Box(
                    grid.left_px(rank) + width * number,
                    _TOP_PX + row * grid.row_px,
                    width - len(columns) + 1,
                    grid.row_px - 2,
                    marked=(rank, chunk) in changed,
                )
                boxes.append(_filled(box, seen, rank, chunk))
    return boxes


def _columns(plan: Plan, rank: int) -> list[range]:
    """The chunks in each of a rank's columns."""
    if not _is_exchange(plan):
        return [range(plan.num_chunks)]
    size = plan.num_ranks
    return [range(rank * size, rank * size + size), range(rank, plan.num_chunks, size)]


def _filled(box: Box, seen: _Seen, rank: int, chunk: int) -> Box:
    """A chunk's box with the colour and the number of the contributions that stand in it."""
    count = len(seen.held[rank][chunk])
    if count == 0:
        return box._replace(fill=0.0)
    text = _chunk_name(seen.plan, chunk)
    texts = (text,)
    if seen.num_parts > 1:
        text = f"{count}/{seen.num_parts}"
        texts = (f"{text} ✓", "✓") if count == seen.num_parts else (text,)
    colour, hatch = _chunk_look(seen.plan, chunk)
    return box._replace(colour=colour, hatch=hatch, texts=texts, fill=count / seen.num_parts)


def _chunk_name(plan: Plan, chunk: int) -> str:
    if not _is_exchange(plan):
        return str(chunk)
    src, dst = divmod(chunk, plan.num_ranks)
    return f"{src}>{dst}"


def _chunk_look(plan: Plan, chunk: int) -> tuple[str, str]:
    """A chunk's colour and hatch: an all-to-all's are those of the rank it comes from."""
    number = chunk // plan.num_ranks if _is_exchange(plan) else chunk
    return CYCLE[(_FIRST + number) % 16]


# --- messages ---


def _arrows(seen: _Seen, words: dict[str, str]) -> list[Shape]:
    """The messages of the last step, each with what it carries, and the boxes it goes into."""
    if not seen.step:
        return [Words(WIDTH_PX / 2, 116, words["nothing_sent"], "middle", opacity=0.8)]
    grid = _grid(seen.plan)
    width = min(grid.width_px, 64.0)
    shapes = []
    for src, dst, chunks, op in seen.messages:
        start_px = grid.middle_px(src)
        look = _chunk_look(seen.plan, chunks[0]) if len(chunks) == 1 else ("", "")
        text = _carried(seen.plan, chunks)
        is_one = len(chunks) == 1 and not _is_exchange(seen.plan)
        named = words["chunk_n"].format(text) if is_one else text
        sign = "+ " if op == "add" else ""
        texts = (sign + named, sign + text, text)
        shapes.append(Box(start_px - width / 2, 74, width, 17, *look, texts))
        for points in _ways_in(seen.plan, (start_px, 92), dst, chunks):
            shapes.append(Line(points, look[0], 2.0, _DASHES[op], arrow=True))
    return shapes


def _ways_in(
    plan: Plan, start_px: tuple[float, float], dst: int, chunks: Sequence[int]
) -> list[tuple[tuple[float, float], ...]]:
    """The points of its arrows: down the gap before the receiver, into each box it changes."""
    grid = _grid(plan)
    if _is_exchange(plan):
        return [(start_px, (grid.middle_px(dst), _TOP_PX - 5))]
    gap_px, end_px = (grid.left_px(dst) - share * _GAP_PX for share in (0.8, 0.05))
    rows_px = [_TOP_PX + (chunk + 0.5) * grid.row_px - 1 for chunk in sorted(chunks)]
    *others, lowest = [((gap_px, y_px), (end_px, y_px)) for y_px in rows_px]
    return [(start_px, (gap_px, _TOP_PX - 5), *lowest), *others]


def _carried(plan: Plan, chunks: Sequence[int]) -> str:
    """The chunks of a message in few letters."""
    names = [_chunk_name(plan, chunk) for chunk in chunks]
    if len(chunks) < 3:
        return ", ".join(names)
    is_a_run = chunks[-1] - chunks[0] == len(chunks) - 1
    return f"{names[0]}–{names[-1]}" if is_a_run else f"{names[0]}, …"


# --- meters, legend and table ---


def _volume(plan: Plan, step: int, num_bytes: float | None, words: dict[str, str]) -> Meter:
    """What the busiest rank has sent, in bytes or in parts of the size S."""
    size = num_bytes or 1.0
    return Meter(
        name=words["busiest"],
        so_far=float(sent_bytes(_begun(plan, step), size).max()),
        total=float(sent_bytes(plan, size).max()),
        bound=lower_bound_bytes(plan.primitive, plan.num_ranks, size),
        form=format_bytes if num_bytes else _format_part,
    )


def _time(
    plan: Plan,
    step: int,
    num_bytes: float,
    network: Network,
    total_us: float | None,
    words: dict[str, str],
) -> Meter:
    """How long it has taken."""
    return Meter(
        name=words["time"],
        so_far=time_us(_begun(plan, step), network, num_bytes),
        total=time_us(plan, network, num_bytes) if total_us is None else total_us,
        bound=0.0,
        form=format_us,
    )


def _begun(plan: Plan, step: int) -> Plan:
    """Its first steps."""
    return replace(plan, steps=plan.steps[:step])


def _format_part(part: float) -> str:
    return f"{part:.3g} S"


def _keys(seen: _Seen, words: dict[str, str]) -> list[tuple[tuple[Shape, ...], str]]:
    """The legend: what occurs in the plan."""
    present = {message.op for message in seen.plan.messages()}
    keys = []
    for op, dash in _DASHES.items():
        if op in present:
            keys.append(((Line(((0, 0), (22, 0)), dash=dash, arrow=True),), words[op]))
    if seen.num_parts > 1:
        partly = Box(0, -8, 22, 16, CYCLE[_FIRST][0], fill=1 - 1 / seen.num_parts)
        keys.append(((partly,), words["parts"].format(seen.num_parts - 1, seen.num_parts)))
    keys.append(((Box(0, -8, 22, 16, marked=True),), words["changed"]))
    return keys


def _state(seen: _Seen, words: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Per rank, what it sends and receives in this step, and how many chunks it holds whole."""
    sends = KINDS["send"].words[words["code"]]
    receives = KINDS["recv"].words[words["code"]]
    lines = [("rank", sends, receives, words["whole"])]
    for rank, chunks in enumerate(seen.held):
        sent = []
        came = []
        for message in seen.messages:
            carried = _carried(seen.plan, message.chunks)
            if message.src == rank:
                sent.append(f"{carried} → {message.dst}")
            if message.dst == rank:
                came.append(f"{carried} ← {message.src}")
        num_whole = sum(len(parts) == seen.num_parts for parts in chunks)
        lines.append((str(rank), ", ".join(sent), ", ".join(came), str(num_whole)))
    return tuple(lines)
