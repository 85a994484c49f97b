"""Cases under one another, each against its card; and placements of the perception net."""

from collections.abc import Mapping, Sequence

from labkit.case_studies.llama import FREE, Case
from labkit.case_studies.perception import LABELS, Perception
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Shape, Sketch, Words, legend, moved
from labkit.planner.picture import HELD
from labkit.planner.plan.picture import memory_bars
from labkit.units import check_whole, format_bytes
from labkit.words import both, sentence, speaking

_WORDS = (
    ("trained by", "trained by"),
    ("type", "type"),
    ("placement", "placement"),
    ("cards", "cards"),
    ("over", "over"),
    ("lightest", "lightest"),
    ("token rate", "token rate"),
    ("program", "program"),
    ("room", "room"),
)
"""Heads of this subject's tables: (head, what it says)"""


def drawn(cases: Sequence[Case], language: str | None = None) -> Sketch:
    """What the fullest card of each case holds, by part; a dashed line where ``FREE`` of it is
    left. Raises ValueError for what is no case."""
    if not cases or not all(isinstance(case, Case) for case in cases):
        raise ValueError(f"cases are a list of Case, as small.cases() gives it; got {cases!r:.80}")
    plans = [(case.name, case.plan) for case in cases]
    return memory_bars(plans, spare=FREE, language=language)


# --- placements ---

ROW_PX, PART_PX, RANK_PX = 26.0, 78.0, 52.0
"""a rank's row; a part of the net in it, and the gap behind; the rank's name"""


def net_on(steps: Mapping[str, Perception], *, language: str | None = None) -> Sketch:
    """Placements of the perception net by name, up to three beside each other: which parts each of
    at most 8 ranks has, coloured as much of one as it has, with the scenes that it computes there;
    and the messages of a step. Raises ValueError for none, for more, or for other things."""
    if not isinstance(steps, Mapping) or not all(
        isinstance(step, Perception) for step in steps.values()
    ):
        raise ValueError(f"placements are {{name: Perception}}; got {steps!r:.80}")
    check_whole(1, 3, **{"number of placements": len(steps)})
    most = max(step.ranks for step in steps.values())
    check_whole(1, 8, ranks=most)

    def build(words: dict[str, str]) -> Sketch:
        code = words["code"]
        shapes: list[Shape] = []
        table = [("", "rank", *LABELS.values())]
        for number, (name, step) in enumerate(steps.items()):
            x = number * WIDTH_PX / 3
            shapes += [moved(shape, x, 62) for shape in _net_on(name, step, code)]
            table += [(name, f"{rank}", *_scenes(step, rank)) for rank in range(step.ranks)]
        sample = [Box(0, -7, 22, 14, HELD, fill=0.25)]
        meant = both("coloured: how much of the part a rank has; in it: scenes of the batch")[code]
        keys, end_px = legend([(sample, meant)], 0, 126 + ROW_PX * most)
        heading = both("Who has what: E encoders → F fusion → H heads")[code]
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=heading,
            badge=both("computed")[code],
            table=tuple(table),
            summary=sentence(heading, [tuple(steps)], both("computed")[code], code),
            language=code,
        )

    return speaking(language, build)


def _net_on(name: str, step: Perception, code: str) -> list[Shape]:
    """One placement: its name, a row for each rank, arrows of the net, what is sent."""
    shapes: list[Shape] = [Words(0, 0, name, bold=True)]
    at = {part: RANK_PX + PART_PX * number for number, part in enumerate(LABELS)}
    for part, x in at.items():
        shapes.append(Words(x + (PART_PX - 12) / 2, 22, LABELS[part], "middle"))
        if part != "encoders":
            shapes.append(Line(((x - 31, 18), (x + 19, 18)), arrow=True))
    for rank in range(step.ranks):
        y = 30 + ROW_PX * rank
        shapes.append(Words(RANK_PX - 8, y + 15, f"rank {rank}", "end"))
        for (part, x), scenes in zip(at.items(), _scenes(step, rank), strict=True):
            cut = part == "fusion" and step.placement != "copied"
            share = 1 / len(step.group(part)) if cut else 1.0
            look = (HELD, "", (scenes, scenes.split()[0]), share) if scenes else ()
            shapes.append(Box(x, y, PART_PX - 12, ROW_PX - 6, *look))
    sizes = step.message_bytes()
    told = both("messages a step: {n}, {size}", n=len(sizes), size=format_bytes(sum(sizes)))
    return [*shapes, Words(RANK_PX, 50 + ROW_PX * step.ranks, told[code])]


def _scenes(step: Perception, rank: int) -> list[str]:
    """Of each part, the scenes that a rank computes; "" where it hasn't the part."""
    found = [step.scenes(part).get(rank, ()) for part in LABELS]
    return [f"{len(scenes)} / {step.batch}" if scenes else "" for scenes in found]
