"""Bills as stacked bars; who holds what under a strategy; all-reduces side by side, each link as
thick as the bytes that cross it."""

from collections.abc import Mapping, Sequence
from math import cos, dist, pi, sin

from labkit.collectives.plans import Plan, sent_bytes
from labkit.pictures.bytes_held import LOOKS
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Shape, Sketch, Words, legend, moved, said
from labkit.pictures.style import clipped, text_px
from labkit.planner.links import both_ways_bytes, crossing_bytes
from labkit.planner.models import PARTS
from labkit.planner.strategies import Strategy
from labkit.units import check_whole, format_bytes, format_share
from labkit.words import catalogue, sentence, speaking

BILL_WORDS = (
    ("model", "model"),
    ("device", "device"),
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("activations", "activations"),
    ("computed", "computed"),
    ("both", "computed / measured, gloo"),
    ("apart", "largest difference"),
    ("table", "part"),
)
"""what is said around every bill"""
_WORDS = (
    ("title", "Who sends how much over which link"),
    ("simulated", "simulated"),
    ("inside", "inside an island"),
    ("across", "between islands"),
    ("steps", "steps"),
    ("busiest", "busiest rank sends"),
    (
        "caption",
        "busiest sends {:.3g} S, between islands {:.3g} S",
    ),
)

# --- bills ---

BAR_PX = 24
ROW_PX = 32
SUM_PX = 76.0
Bill = Mapping[str, float]
Plans = Mapping[Said, Plan] | list[tuple[Said, Plan]]


def stacked(
    rows: Sequence[tuple[str, Bill]],
    say: Mapping[str, str],
    *,
    title: str,
    badge: str,
    numbers: Sequence[tuple[str, str]] = (),
    mark: tuple[str, float] | None = None,
    code: str = "en",
) -> Sketch:
    """Bars of bytes by PARTS, one row after another, with their sums; ``mark`` is a line at (words,
    bytes)."""
    parts = _parts(rows)
    left = 10 + min(230.0, max(text_px(label) for label, _ in rows))
    most = max(sum(row.values()) for _, row in rows)
    if mark:
        most = max(most, mark[1])
    scale = (WIDTH_PX - left - SUM_PX) / most
    y = 84.0 if mark else 60.0
    shapes: list[Shape] = []
    for label, row in rows:
        shapes += _bar(label, row, parts, left, y, scale)
        y += ROW_PX
    if mark:
        shapes += _mark(mark[0], left + mark[1] * scale, shapes, len(rows))
    samples = [((Box(0, -7, 22, 14, *LOOKS[part]),), say[part]) for part in parts]
    keys, end_px = legend(samples, left, y)
    head = (say["table"], *(say[part] for part in parts), "Σ")
    table = [_figures(label, row, parts) for label, row in rows]
    spoken_rows = "; ".join(f"{row[0]} {row[-1]}" for row in table)
    return Sketch(
        shapes=(*shapes, *keys),
        height_px=end_px,
        heading=title,
        badge=badge,
        numbers=tuple(numbers),
        summary=sentence(title, [(spoken_rows,)], badge, code),
        language=code,
        table=(head, *table),
    )


def _parts(rows: Sequence[tuple[str, Bill]]) -> list[str]:
    """PARTS that some row has."""
    found = set()
    for _, row in rows:
        found |= {part for part in PARTS if row.get(part)}
    return [part for part in PARTS if part in found]


def _bar(
    label: str, row: Bill, parts: Sequence[str], left: float, y: float, scale: float
) -> list[Shape]:
    """One bill: its name, its parts in a row, their sum."""
    shapes: list[Shape] = [Words(left - 8, y + 16, clipped(label, left - 8), "end")]
    x = left
    for part in parts:
        if row.get(part):
            wide = row[part] * scale
            shapes.append(Box(x, y, wide, BAR_PX, *LOOKS[part], (format_bytes(row[part]),)))
            x += wide
    total = format_bytes(sum(row.values()))
    return [*shapes, Words(WIDTH_PX - 4, y + 16, total, "end", bold=True)]


def _mark(words: str, x: float, bars: Sequence[Shape], num_rows: int) -> list[Shape]:
    """A dashed line across all bars, but not across the words in them; its own words above."""
    boxes = [each for each in bars if isinstance(each, Box)]
    said = {box.y_px for box in boxes if box.says_at(x)}
    tops = [84.0 + ROW_PX * row for row in range(num_rows)]
    stretches = [(62.0, tops[0] + 4)]
    for top in tops:
        if top not in said:
            stretches.append((top + 4, top + ROW_PX - 12))
        stretches.append((top + ROW_PX - 12, top + ROW_PX + (4 if top < tops[-1] else -4)))
    strokes = [
        Line(((x, top), (x, end)), dash=(4, 3), width_px=1.6, opacity=0.9) for top, end in stretches
    ]
    if x > WIDTH_PX * 0.6:
        return [*strokes, Words(x - 4, 72, words, "end")]
    return [*strokes, Words(x + 4, 72, words, "start")]


def _figures(label: str, row: Bill, parts: Sequence[str]) -> tuple[str, ...]:
    """One bill as a row of the table."""
    figures = [format_bytes(row.get(part, 0)) for part in parts]
    return (label, *figures, format_bytes(sum(row.values())))


# --- strategies ---

LAYERS_PX = 64.0
LAYERS_WIDE_PX = 380.0
BATCH_PX = 500.0
RANK_PX = 26
HELD = "#4f9fe3"
SEQUENCES = "#f2954b"


def holders(step: Strategy, say: Mapping[str, str], code: str) -> Sketch:
    """A row per rank: which layers, or which slice of each, and which part of the batch."""
    shapes: list[Shape] = [
        Words(LAYERS_PX, 76, say["all_layers"], opacity=0.8),
        Words(BATCH_PX, 76, say["share"], opacity=0.8),
    ]
    table = [("rank", say["all_layers"], say["share"])]
    for rank in range(step.ranks):
        y = 84.0 + RANK_PX * rank
        replica = rank // step.num_stages % step.num_replicas
        stage = rank % step.num_stages
        shapes.append(Words(LAYERS_PX - 8, y + 15, f"rank {rank}", "end"))
        shapes += layers_of(step, rank, LAYERS_PX, y, LAYERS_WIDE_PX)
        shapes += sequences_of(step, replica, BATCH_PX, y, WIDTH_PX - BATCH_PX - 4)
        table.append(
            (
                str(rank),
                f"{stage + 1}/{step.num_stages}",
                f"{replica + 1}/{step.num_replicas}",
            )
        )
    heading = say["heading"].format(say[step.strategy], step.ranks, step.model)
    numbers = (
        (say["holds"], format_bytes(sum(step.bill().values()))),
        (say["sends"], format_bytes(step.sent_bytes())),
        (say["idle"], format_share(step.idle)),
    )
    return Sketch(
        shapes=tuple(shapes),
        height_px=88.0 + RANK_PX * step.ranks,
        heading=heading,
        numbers=numbers,
        badge=say["computed"],
        language=code,
        table=tuple(table),
    )


def layers_of(step: Strategy, rank: int, left: float, y: float, wide_px: float) -> list[Shape]:
    """All layers as boxes; coloured what of each the rank holds."""
    num_layers = max(8, step.num_stages)
    num_slices = step.num_slices
    layer_px = wide_px / num_layers
    slice_px = (layer_px - 3) / num_slices
    shapes: list[Shape] = []
    for index in range(num_layers):
        x = left + index * layer_px
        shapes.append(Box(x, y, layer_px - 3, 20))
        if index * step.num_stages // num_layers == rank % step.num_stages:
            shapes.append(Box(x + slice_px * (rank % num_slices), y, slice_px, 20, HELD))
    return shapes


def sequences_of(step: Strategy, replica: int, x: float, y: float, wide_px: float) -> list[Shape]:
    """The batch as a box; coloured which sequences of it a replica has."""
    part_px = wide_px / step.num_replicas
    first = replica * step.batch // step.num_replicas
    size = step.batch // step.num_replicas
    label = f"{first}" if size == 1 else f"{first}-{first + size - 1}"
    return [
        Box(x, y, part_px * step.num_replicas, 20),
        Box(x + replica * part_px, y, part_px, 20, SEQUENCES, "", (label,)),
    ]


# --- architectures ---

INSIDE = "#4f9fe3"
ACROSS = "#f2954b"
THICK_PX = 9.0
PANEL_PX = 190


def architectures(plans: Plans, island_size: int, *, language: str | None = None) -> Sketch:
    """Plans of as many ranks on the same islands, two or three beside each other; S is the size of
    the buffer."""
    rows = list(plans.items()) if isinstance(plans, Mapping) else list(plans)
    check_whole(island_size=island_size, **{"number of plans": len(rows)})
    most = max(max(both_ways_bytes(plan, 1).values(), default=0) for _, plan in rows)
    columns = 3 if len(rows) == 3 else 2

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        say = catalogue(_WORDS)[code]
        shapes: list[Shape] = []
        table = [("", say["steps"], say["busiest"], say["across"])]
        for number, (name, plan) in enumerate(rows):
            busiest = sent_bytes(plan, 1).max()
            across = crossing_bytes(plan, island_size, 1)
            title = said(name, code)
            panel = [
                Words(0, 12, title, bold=True),
                Words(0, 172, say["caption"].format(busiest, across), size_px=11.5),
                *_panel(plan, island_size, most, WIDTH_PX / columns - 20),
            ]
            x = (number % columns) * (WIDTH_PX / columns + 8)
            y = 40 + PANEL_PX * (number // columns)
            shapes += [moved(shape, x, y) for shape in panel]
            figures = [f"{size:.3g} S" for size in (busiest, across)]
            table.append((title, str(len(plan.steps)), *figures))
        samples = [_link_sample(INSIDE, say["inside"]), _link_sample(ACROSS, say["across"])]
        keys, end_px = legend(samples, 0, 40 + PANEL_PX * (-(-len(rows) // columns)))
        sizes = [(row[0], row[2]) for row in table[1:]]
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=say["title"],
            badge=say["simulated"],
            table=tuple(table),
            summary=sentence("", sizes, say["simulated"], code),
            language=code,
        )

    return speaking(language, build)


def _link_sample(colour: str, words: str) -> tuple[tuple[Line], str]:
    """A line of the legend."""
    return (Line(((0, 0), (22, 0)), colour, width_px=4),), words


def _panel(plan: Plan, island_size: int, most: float, panel_px: float) -> list[Shape]:
    """Islands beside each other, their ranks, and a line per link."""
    num_islands = -(-plan.num_ranks // island_size)
    wide = panel_px / num_islands
    across = [(a, b) for a, b in both_ways_bytes(plan, 1) if a // island_size != b // island_size]
    alike = len(across) > 1 and all((a - b) % island_size == 0 for a, b in across)
    places = _places(plan.num_ranks, island_size, wide, alike)
    islands = [Box(island * wide + 4, 22, wide - 8, 132) for island in range(num_islands)]
    links = []
    for (a, b), size in both_ways_bytes(plan, 1).items():
        colour = INSIDE if a // island_size == b // island_size else ACROSS
        ends = (_short_of(places[a], places[b]), _short_of(places[b], places[a]))
        links.append(Line(ends, colour, width_px=THICK_PX * size / most))
    ranks = [
        Box(x - 12, y - 9, 24, 18, "#c9ced6", "", (str(rank),)) for rank, (x, y) in places.items()
    ]
    return [*islands, *links, *ranks]


def _places(
    num_ranks: int, island_size: int, wide: float, alike: bool
) -> dict[int, tuple[float, float]]:
    """Where ranks stand: those of an island in a circle, neighbours in a ring next to each other;
    ``alike``: in the same places in each island, so that links between twins are parallel."""
    places = {}
    for rank in range(num_ranks):
        island, place = divmod(rank, island_size)
        angle = -pi / 4 + 0.25 + pi * island * (not alike) - 2 * pi * place / island_size
        x = wide * (island + 0.5) + 0.33 * wide * cos(angle)
        places[rank] = (x, 88 + 50 * sin(angle))
    return places


def _short_of(here: tuple[float, float], there: tuple[float, float]) -> tuple[float, float]:
    """A point on the way there, outside of the box around ``here``."""
    share = 16 / dist(here, there)
    return here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])
