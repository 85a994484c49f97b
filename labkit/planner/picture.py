"""``architectures()``: all-reduces side by side, each link as thick as the bytes that cross it."""

from collections import Counter
from collections.abc import Mapping
from math import cos, dist, pi, sin

from labkit.collectives.plans import Plan, sent_bytes
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Shape, Sketch, Words, legend, moved, said
from labkit.units import check_whole
from labkit.widgets.picture import spoken
from labkit.words import sentence, speaking

INSIDE, ACROSS, THICK_PX = "#4f9fe3", "#f2954b", 9.0
_WORDS = (
    ("title", "Who sends how much over which link", "谁在哪条链路上发多少"),
    ("simulated", "simulated", "模拟"),
    ("inside", "inside an island", "岛内"),
    ("across", "between islands", "岛间"),
    ("steps", "steps", "步数"),
    ("busiest", "busiest rank sends", "最忙的 rank 发送"),
    ("all", "all ranks together", "所有 rank 合计"),
    (
        "caption",
        "busiest sends {:.3g} S, between islands {:.3g} S",
        "最忙的发 {:.3g} S，岛间共 {:.3g} S",
    ),
)


def crossing_bytes(plan: Plan, island_size: int, num_bytes: float) -> float:
    """What goes from one island of neighbours to another in a plan, all messages together."""
    check_whole(island_size=island_size)
    return sum(
        size
        for (src, dst), size in _carried(plan, num_bytes).items()
        if src // island_size != dst // island_size
    )


def architectures(
    plans: Mapping[Said, Plan] | list[tuple[Said, Plan]], island_size: int, *, language: str = "en"
) -> Sketch:
    """Plans of as many ranks on the same islands, two beside each other; S is the size of the
    buffer."""
    rows = list(plans.items()) if isinstance(plans, Mapping) else list(plans)
    check_whole(island_size=island_size, **{"number of plans": len(rows)})
    most = max(_both_ways(plan)[pair] for _, plan in rows for pair in _both_ways(plan))

    def build(words: dict[str, str]) -> Sketch:
        say, shapes, table = spoken(_WORDS, words["code"]), [], []
        for number, (name, plan) in enumerate(rows):
            busiest, across = sent_bytes(plan, 1).max(), crossing_bytes(plan, island_size, 1)
            texts = [
                Words(0, 12, said(name, words["code"]), bold=True),
                Words(0, 172, say["caption"].format(busiest, across), size_px=11.5),
            ]
            x, y = (number % 2) * (WIDTH_PX / 2 + 8), 40 + 190 * (number // 2)
            shapes += [moved(shape, x, y) for shape in (*texts, *_panel(plan, island_size, most))]
            table.append(
                (
                    said(name, words["code"]),
                    str(len(plan.steps)),
                    f"{busiest:.3g} S",
                    f"{across:.3g} S",
                    f"{sent_bytes(plan, 1).sum():.3g} S",
                )
            )
        samples = [
            ((Line(((0, 0), (22, 0)), colour, width_px=4),), say[key])
            for colour, key in ((INSIDE, "inside"), (ACROSS, "across"))
        ]
        more, end_px = legend(samples, 0, 40 + 190 * (-(-len(rows) // 2)))
        sizes = sentence("", ((row[0], row[2]) for row in table), say["simulated"], words["code"])
        return Sketch(
            shapes=(*shapes, *more),
            height_px=end_px,
            heading=say["title"],
            badge=say["simulated"],
            table=(("", say["steps"], say["busiest"], say["across"], say["all"]), *table),
            summary=sizes,
            language=words["code"],
        )

    return speaking(language, build)


def _carried(plan: Plan, num_bytes: float) -> Counter:
    """(from, to) -> bytes."""
    found: Counter = Counter()
    for step in plan.steps:
        for move in step:
            found[move.src, move.dst] += len(move.chunks) * plan.chunk_bytes(num_bytes)
    return found


def _both_ways(plan: Plan) -> Counter:
    found: Counter = Counter()
    for pair, size in _carried(plan, 1).items():
        found[tuple(sorted(pair))] += size
    return found


def _panel(plan: Plan, island_size: int, most: float) -> list[Shape]:
    """Islands beside each other, the ranks of each in a circle, neighbours in a ring next to each
    other."""
    num_islands = -(-plan.num_ranks // island_size)
    wide, places = (WIDTH_PX / 2 - 20) / num_islands, {}
    for rank in range(plan.num_ranks):
        island, place = divmod(rank, island_size)
        angle = -pi / 4 + 0.25 + pi * island - 2 * pi * place / island_size
        places[rank] = (wide * (island + 0.5) + 0.33 * wide * cos(angle), 88 + 50 * sin(angle))
    shapes: list[Shape] = [
        Box(island * wide + 4, 22, wide - 8, 132) for island in range(num_islands)
    ]
    for (a, b), size in _both_ways(plan).items():
        colour = INSIDE if a // island_size == b // island_size else ACROSS
        ends = _short_of(places[a], places[b]), _short_of(places[b], places[a])
        shapes.append(Line(ends, colour, width_px=THICK_PX * size / most))
    return shapes + [
        Box(x - 12, y - 9, 24, 18, "#c9ced6", "", (str(rank),)) for rank, (x, y) in places.items()
    ]


def _short_of(here: tuple[float, float], there: tuple[float, float]) -> tuple[float, float]:
    """A point on the way there, outside of the box around ``here``."""
    share = 16 / dist(here, there)
    return here[0] + share * (there[0] - here[0]), here[1] + share * (there[1] - here[1])
