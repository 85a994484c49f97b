"""The ranks of a step in space: stages from left to right, the parts of a layer from top to bottom,
replicas behind one another; the groups of one axis lit, and on which links they speak. ``beside``
draws two steps in time, on one axis.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from labkit.mesh_3d import held, times
from labkit.mesh_3d.step import AXES, Step
from labkit.pictures import curves, scene
from labkit.pictures.drawing import WIDTH_PX, Scene
from labkit.pictures.sketch import Box, Line, Said, Shape, Sketch, Words, legend
from labkit.pictures.style import CYCLE
from labkit.planner.plan.memory import PARTS
from labkit.units import check_word, format_bytes, format_us
from labkit.words import LANGUAGES, WORDS, catalogue, in_every, speaking, spoken_in

VIEWS = ("layers", *AXES[::-1], "node")
"""What is lit: which layers a rank holds, the groups of one axis, or the nodes."""
MOST_STAGES = 8
MOST_PARTS = 8
MOST_ROWS = 12
"""that are drawn: stages, parts of a layer, and rows of boxes in all"""
ASIDE = 0.5
"""of links along axes that aren't looked at"""
_WORDS = catalogue(
    [
        ("heading", "{} ranks: {}"),
        ("layers", "which layers each holds"),
        ("tp", "groups along tp, the slices of a layer"),
        ("dp_shard", "groups along dp_shard, the replicas that share out states"),
        ("dp_replicate", "groups along dp_replicate, the replicas that hold the same"),
        ("pp", "groups along pp, the stages"),
        ("node", "the nodes that they lie on"),
        ("computed", "computed"),
        ("stage", "stage {}"),
        ("dp", "dp {}"),
        ("has", "rank {}: layers {} to {}, slice {} of {}"),
        ("has all", "rank {}: layers {} to {}"),
        ("on", "rank {}, node {}"),
        ("rank", "rank {}"),
        ("inside", "a link inside a node"),
        ("across", "a link from node to node"),
        ("more", "{} of {} ranks are drawn."),
        ("head rank", "rank"),
        ("head stage", "stage"),
        ("head dp", "dp"),
        ("head part", "slice"),
        ("head node", "node"),
        ("head group", "group along {}"),
        ("head params", "parameters of its slice of the stage"),
        ("ranks", "ranks"),
        ("nodes", "nodes"),
        ("groups", "groups"),
        ("in each", "ranks in each"),
        ("memory", "What a rank of each stage holds at its highest point"),
        ("memory of", "What a rank of each stage holds at its highest point, on a GPU of {}"),
        ("limit", "memory of the GPU"),
        ("parameters", "parameters"),
        ("gradients", "gradients"),
        ("optimizer", "optimizer"),
        ("gathered", "gathered"),
        ("activations", "activations"),
        ("logits", "logits"),
        ("fixed", "held beside tensors"),
        ("in time", "Two steps on one axis of time"),
        ("messages", "{}: in a step, a rank's messages take {}."),
        ("along", "{us} along {axis}"),
    ]
)
_LEFT_PX = 96.0
_TOP_PX = 84.0
_ROW_PX = 34.0
_HIGH_PX = 24.0
_SHEET_PX = 18.0
_SLANT_PX = 14.0
_GAP_PX = 46.0
_ASIDE_PX = {"pp": 0.0, "tp": 20.0, "dp_shard": 16.0, "dp_replicate": 24.0}
"""How far from a box's left edge the links of an axis begin."""


def grid(step: Step, view: str = "layers", *, language: str | None = None) -> Sketch:
    """The ranks, with what ``view`` lights. Raises ValueError for a view that there is not, and
    where there is no such step."""
    check_word(view, VIEWS, "a view")
    step.messages()  # or there is no such step
    return speaking(language, _Drawing(step=step, view=view).sketch)


def memory(step: Step, *, language: str | None = None) -> Sketch:
    """The planner's bytes of each stage, by part, beside what the GPU has: as a line, or of a small
    step in the title. What would be no pixel is left out. Raises ValueError where there is no such
    step."""
    say = _WORDS[spoken_in(language)]
    bills = step.memory().stages
    most_bytes = max(sum(map(bill.get, PARTS)) for bill in bills)
    seen_bytes = most_bytes / WIDTH_PX
    rows = []
    for stage, bill in enumerate(bills):
        held_bytes = {say[part]: bill[part] for part in PARTS if bill[part] > seen_bytes}
        rows.append((say["stage"].format(stage), held_bytes))
    device_bytes = step.times().cluster.device_bytes
    is_near = step.memory().peak_bytes > device_bytes / 8
    has = format_bytes(device_bytes)
    title = {code: _WORDS[code]["memory of"].format(has) for code in LANGUAGES}
    return curves.bars(
        rows,
        title=in_every("memory", _WORDS) if is_near else title,
        badge="computed",
        unit_format=format_bytes,
        marks=[(in_every("limit", _WORDS), device_bytes)] if is_near else [],
        stacked=True,
        language=language,
    )


def beside(steps: Mapping[str, Step], *, title: Said = "", language: str | None = None) -> Scene:
    """The predictions of two steps, {name: step}, on one axis of time; below, what the messages of
    a rank of the first stage take, axis by axis. Raises ValueError for other than two, and where
    there is no such step."""
    if len(steps) != 2:
        raise ValueError(f"two steps stand beside one another; got {len(steps)}: name two")
    names = tuple(steps)
    return scene.compare(
        *(times.by_axis(step.predict()) for step in steps.values()),
        names=names,
        title=title or in_every("in time", _WORDS),
        notes=[_messages_told(name, step) for name, step in steps.items()],
        messages=True,
        language=language,
    )


def _messages_told(name: str, step: Step) -> dict[str, str]:
    """How long a rank's messages take along each axis, in every language."""
    told = {}
    for code in LANGUAGES:
        say = _WORDS[code]
        took = step.times().axis_us(0).items()
        parts = [say["along"].format(axis=axis, us=format_us(each)) for axis, each in took]
        told[code] = say["messages"].format(name, WORDS[code]["comma"].join(parts))
    return told


def drawn_ranks(step: Step) -> list[int]:
    """The ranks that have room: the first of each axis."""
    return list(_Drawing(step=step, view="layers").ranks)


class _Drawing(NamedTuple):
    """What ``grid`` draws."""

    step: Step
    """whose ranks"""
    view: str
    """one of VIEWS"""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Stages, replicas and parts that are drawn."""
        step = self.step
        parts = min(step.tp, MOST_PARTS)
        sheets = min(step.dp, max(1, MOST_ROWS // parts))
        return min(step.pp, MOST_STAGES), sheets, parts

    @property
    def ranks(self) -> Iterator[int]:
        """Those that are drawn."""
        stages, sheets, parts = self.sizes
        for rank in range(self.step.ranks):
            stage, sheet, part = self.at(rank)
            if stage < stages and sheet < sheets and part < parts:
                yield rank

    def at(self, rank: int) -> tuple[int, int, int]:
        """A rank's stage, replica and part."""
        place = self.step.mesh.coordinates(rank)
        replica = place["dp_replicate"] * self.step.dp_shard + place["dp_shard"]
        return place["pp"], replica, place["tp"]

    @property
    def wide_px(self) -> float:
        """A box."""
        stages, sheets, _ = self.sizes
        room = WIDTH_PX - _LEFT_PX - _SLANT_PX * (sheets - 1)
        return min(260.0, room / stages - _GAP_PX)

    def corner(self, rank: int) -> tuple[float, float]:
        """The left upper corner of a rank's box."""
        stage, sheet, part = self.at(rank)
        _, _, parts = self.sizes
        x = _LEFT_PX + stage * (self.wide_px + _GAP_PX) + sheet * _SLANT_PX
        return x, _TOP_PX + sheet * (parts * _ROW_PX + _SHEET_PX) + part * _ROW_PX

    # --- the picture ---

    def sketch(self, words: dict[str, str]) -> Sketch:
        """In one language."""
        say = _WORDS[words["code"]]
        ranks = list(self.ranks)
        groups = [self._group(rank) for rank in ranks]
        colours = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        shapes: list[Shape] = []
        for rank, group in zip(ranks, groups, strict=True):
            shapes.append(self._box(rank, CYCLE[colours[group] % len(CYCLE)], say))
        shapes += self._links(ranks)
        shapes += self._names(say)
        bottom = max(self.corner(rank)[1] for rank in ranks) + _HIGH_PX
        keys, end_px = legend(self._keys(say), 0, bottom + 16)
        step = self.step
        left_out = (say["more"].format(len(ranks), step.ranks),)
        return Sketch(
            shapes=(*shapes, *keys),
            height_px=end_px,
            heading=say["heading"].format(step.ranks, say[self.view]),
            badge=say["computed"],
            numbers=tuple(self._numbers(say)),
            notes=left_out if len(ranks) < step.ranks else (),
            table=tuple(self._table(ranks, say)),
            language=words["code"],
        )

    def _box(self, rank: int, look: tuple[str, str], say: dict[str, str]) -> Box:
        """A rank, in the colour of its group."""
        x, y = self.corner(rank)
        return Box(x, y, self.wide_px, _HIGH_PX, *look, (*self._told(rank, say), str(rank)))

    def _group(self, rank: int) -> int:
        """Which ranks have its colour."""
        if self.view == "node":
            return self.step.node(rank)
        if self.view == "layers":
            return self.at(rank)[0]
        return self.step.mesh.groups(self.view).number(rank)

    def _told(self, rank: int, say: dict[str, str]) -> Iterator[str]:
        """What may stand in a box, the longest first."""
        stage, _, part = self.at(rank)
        each = self.step.layers // self.step.pp
        layers = (1 + stage * each, (stage + 1) * each)
        if self.view == "node":
            yield say["on"].format(rank, self.step.node(rank))
        elif self.view == "layers" and self.step.tp > 1:
            yield say["has"].format(rank, *layers, part, self.step.tp)
        elif self.view == "layers":
            yield say["has all"].format(rank, *layers)
        yield say["rank"].format(rank)

    def _links(self, ranks: list[int]) -> Iterator[Line]:
        """Between neighbours along every axis; those of the lit one stand out."""
        shown = set(ranks)
        for axis in AXES:
            if getattr(self.step, axis) == 1:
                continue
            groups = self.step.mesh.groups(axis)
            for rank in ranks:
                group = groups.of(rank)
                if group[0] != rank:
                    continue
                for here, there in pairwise(group):
                    if here in shown and there in shown:
                        yield self._link(axis, here, there)

    def _link(self, axis: str, here: int, there: int) -> Line:
        """From a rank to the next along an axis."""
        x, y = self.corner(here)
        next_x, next_y = self.corner(there)
        middle = y + _HIGH_PX / 2
        next_middle = next_y + _HIGH_PX / 2
        aside = _ASIDE_PX[axis]
        if axis == "pp":
            points = [(x + self.wide_px, middle), (next_x, next_middle)]
        elif axis == "tp":
            points = [(x + aside, y + _HIGH_PX), (next_x + aside, next_y)]
        else:  # along the left edges of the replicas between
            points = [(x, middle), (x - aside, middle), (next_x - aside, next_middle)]
            points.append((next_x, next_middle))
        is_lit = axis == self.view
        is_aside = self.view in AXES and not is_lit
        crosses = self.step.node(here) != self.step.node(there)
        return Line(
            tuple(points),
            width_px=2.8 if is_lit else 1.0,
            dash=(5.0, 4.0) if crosses else (),
            arrow=is_lit and axis == "pp",
            opacity=ASIDE if is_aside else 1.0,
        )

    def _names(self, say: dict[str, str]) -> Iterator[Words]:
        """Of stages above, of replicas at the left."""
        stages, sheets, parts = self.sizes
        for stage in range(stages):
            x = _LEFT_PX + stage * (self.wide_px + _GAP_PX) + self.wide_px / 2
            yield Words(x, _TOP_PX - 12, say["stage"].format(stage), "middle", bold=True)
        for sheet in range(sheets if self.step.dp > 1 else 0):
            y = _TOP_PX + sheet * (parts * _ROW_PX + _SHEET_PX) + 16
            yield Words(4, y, say["dp"].format(sheet), bold=True)

    def _keys(self, say: dict[str, str]) -> Iterator[tuple[list[Shape], str]]:
        """What lines mean."""
        yield [Line(((0, 0), (22, 0)))], say["inside"]
        if self.step.mesh.num_nodes > 1:
            yield [Line(((0, 0), (22, 0)), dash=(5.0, 4.0))], say["across"]

    def _numbers(self, say: dict[str, str]) -> Iterator[tuple[str, str]]:
        yield say["ranks"], str(self.step.ranks)
        yield say["nodes"], str(self.step.mesh.num_nodes)
        if self.view in AXES:
            groups = self.step.mesh.groups(self.view)
            yield say["groups"], str(len(groups))
            yield say["in each"], str(groups.size)

    def _table(self, ranks: list[int], say: dict[str, str]) -> Iterator[tuple[str, ...]]:
        """Where each rank stands, for who reads."""
        heads = [say[f"head {key}"] for key in ("rank", "stage", "dp", "part", "node")]
        if self.view in AXES:
            heads.append(say["head group"].format(self.view))
        yield (*heads, say["head params"])
        params = [held.rank_elements(self.step, stage) for stage in range(self.step.pp)]
        for rank in ranks:
            stage, replica, part = self.at(rank)
            told = [str(each) for each in (rank, stage, replica, part, self.step.node(rank))]
            if self.view in AXES:
                told.append(" ".join(map(str, self.step.mesh.groups(self.view).of(rank))))
            yield (*told, f"{params[stage]:,}")
