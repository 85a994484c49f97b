"""What moves while states are sharded or offloaded, as sketches: layers gathered and freed, bytes
between device and host."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from labkit.pictures.bytes_held import LOOKS
from labkit.pictures.scene import WIDTH_PX
from labkit.pictures.sketch import Box, Line, Said, Shape, Sketch, Words, legend, said
from labkit.pictures.style import clipped
from labkit.sharding.partition import STAGES, group_size
from labkit.sharding.states import Transfer
from labkit.units import check_real, check_whole, check_word, format_bytes, format_us
from labkit.words import catalogue, speaking

_WORDS = (
    ("parameters", "parameters"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("buffers", "buffers"),
    ("activations", "activations"),
    ("not_held", "not on this rank"),
    ("own", "this rank's part"),
    ("whole", "whole for a while"),
    ("layers", "{}: {}"),
    ("gather", "all-gather {}"),
    ("ahead", "all-gather {} ahead"),
    ("scatter", "reduce-scatter {}"),
    ("reduce", "all-reduce"),
    ("scatter_reduce", "reduce-scatter and all-reduce {}"),
    ("quiet", "no communication"),
    ("device", "device"),
    ("memory", "host memory"),
    ("link", "link"),
    ("down", "down"),
    ("up", "up"),
    ("forward", "forward"),
    ("backward", "backward"),
    ("step", "update"),
    ("flow", "A step with offload"),
    ("both", "both ways"),
    ("kept", "16-bit gradients, kept there"),
    ("again", "16-bit gradients, to be added to"),
    ("fp32", "fp32 gradients for the update"),
    ("new", "new parameters"),
)
WORDS = catalogue(_WORDS)
_LEFT_PX = 64.0
_GAP_PX = 6.0
_TOP_PX = 78.0
_ROW_GAP_PX = 4.0
Event = tuple[str, int]  # a collective: its key of WORDS, its layer


def layers(
    unit_bytes: Mapping[str, int],
    num_ranks: int,
    moment: str,
    *,
    strategy: str = "fsdp",
    shard_size: int = 0,
    language: str | None = None,
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
    size = group_size(strategy, num_ranks, shard_size)
    check_whole(1, num_ranks, **{"shard_size, by default half of the ranks,": size})
    whole, events = _at(moment, len(unit_bytes), strategy)
    drawing = _Layers(
        unit_bytes=unit_bytes,
        num_ranks=num_ranks,
        moment=moment,
        strategy=strategy,
        shard_size=1 if strategy == "ddp" else size,
        whole=whole,
        events=events,
    )
    return speaking(language, drawing.sketch)


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """What ``layers`` draws."""

    unit_bytes: Mapping[str, int]
    """layer -> bytes of its parameters"""
    num_ranks: int
    """one row each"""
    moment: str
    """of the step"""
    strategy: str
    """how the layers are sharded"""
    shard_size: int
    """ranks among which a layer is cut; 1 where each has all of it"""
    whole: set[int]
    """layers that are gathered"""
    events: list[Event]
    """the collectives of this moment"""

    @property
    def height_px(self) -> float:
        """Of a row."""
        return min(24.0, 150 / self.num_ranks)

    def row_px(self, rank: int) -> float:
        """The upper edge of a rank's row."""
        return _TOP_PX + rank * (self.height_px + _ROW_GAP_PX)

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        own = WORDS[words["code"]]
        names = list(self.unit_bytes)
        happens = words["comma"].join(own[key].format(names[index]) for key, index in self.events)
        heading = own["layers"].format(self.moment, happens or own["quiet"])
        keys, end_px = self._legend(own)
        whole = range(len(names)) if self.strategy == "ddp" else self.whole
        states = ["whole" if index in whole else "own" for index in range(len(names))]
        rows = [(name, own[state]) for name, state in zip(names, states, strict=True)]
        return Sketch(
            shapes=(*self._columns(), *self._ranks(), *keys),
            height_px=end_px,
            heading=heading,
            badge=words["predicted"].lower(),
            table=(("", self.moment), *rows),
            language=words["code"],
            summary=words["plan"].format(heading, self.strategy, self.num_ranks) + ".",
        )

    def _columns(self) -> list[Shape]:
        """Each layer as a column, as wide as its bytes, under its name."""
        room = WIDTH_PX - _LEFT_PX - _GAP_PX * len(self.unit_bytes)
        scale = room / sum(self.unit_bytes.values())
        marked = {index for _, index in self.events}
        shapes: list[Shape] = []
        x = _LEFT_PX
        for index, (name, num_bytes) in enumerate(self.unit_bytes.items()):
            wide = num_bytes * scale
            shapes.append(Words(x + wide / 2, 70, clipped(name, wide + 5, 11), "middle", 11))
            for rank in range(self.num_ranks):
                shapes += self._layer(rank, x, wide, index in self.whole)
                shapes.append(
                    Box(x, self.row_px(rank), wide, self.height_px, marked=index in marked)
                )
            x += wide + _GAP_PX
        return shapes

    def _layer(self, rank: int, x: float, wide: float, whole: bool) -> list[Box]:
        """A layer on a rank: its own part, and the others' left and right of it while the layer is
        whole."""
        slot = wide / self.shard_size
        mine = x + rank % self.shard_size * slot
        others = [(x, mine), (mine + slot, x + wide)] if whole else []
        boxes = [
            Box(begin, self.row_px(rank), end - begin, self.height_px, *LOOKS["gathered"])
            for begin, end in others
            if end - begin > 0.5
        ]
        return [*boxes, Box(mine, self.row_px(rank), slot, self.height_px, *LOOKS["parameters"])]

    def _ranks(self) -> list[Words]:
        """The names of the rows."""
        below = self.height_px / 2 + 4
        return [
            Words(_LEFT_PX - 8, self.row_px(rank) + below, f"rank {rank}", "end", 11)
            for rank in range(self.num_ranks)
        ]

    def _legend(self, own: dict[str, str]) -> tuple[list[Shape], float]:
        """What the boxes mean, and where it ends."""
        looks = {"own": LOOKS["parameters"], "whole": LOOKS["gathered"], "not_held": ()}
        keys = [((Box(0, -7, 22, 14, *look),), own[key]) for key, look in looks.items()]
        return legend(keys, 0, self.row_px(self.num_ranks) + 2)


def _at(moment: str, num_units: int, strategy: str) -> tuple[set[int], list[Event]]:
    """Which units are whole on every rank at a moment, and the collectives that belong to it."""
    forward = [f"F{unit}" for unit in range(num_units)]
    backward = [f"B{unit}" for unit in range(num_units)]
    check_word(moment, ("loss", "step", *forward, *backward), "a moment")
    if strategy == "ddp":
        return set(), [("reduce", 0)] if moment == "B0" else []
    keeps = strategy == "fsdp_grad_op"
    if moment in ("loss", "step"):
        stays = moment == "loss" and keeps
        return set(range(num_units)) if stays else set(), []
    index = int(moment[1:])
    if moment in forward:
        whole = set(range(index + 1)) if keeps else {index}
        return whole, [("gather", index)]
    if keeps:
        return set(range(index + 1)), [("scatter", index)]
    events = [("scatter_reduce" if strategy == "fsdp_hybrid" else "scatter", index)]
    if index > 0:
        events.insert(0, ("ahead", index - 1))
    if index == num_units - 1:
        events.insert(0, ("gather", index))
    return {index, max(0, index - 1)}, events


def flow(
    moves: Sequence[Transfer],
    device: Mapping[str, float],
    host: Mapping[str, float],
    gb_per_s: float,
    *,
    title: Said = "",
    marked: str = "",
    note: Said = "",
    language: str | None = None,
) -> Sketch:
    """Device and host with the parts of the bill that lie there, and between them what a step
    moves, over a stated link, each arrow as thick as its bytes. ``marked``: the phase ("forward",
    "backward", "step") that stands out."""
    check_real(1e-9, gb_per_s=gb_per_s)
    for part in (*device, *host):
        check_word(part, LOOKS, "a part of the bill")
    drawing = _Flow(
        transfers=moves,
        device=device,
        host=host,
        gb_per_s=gb_per_s,
        title=title,
        marked=marked,
        note=note,
    )
    return speaking(language, drawing.sketch)


_FIRST_ARROW_PX = 84.0
_ARROW_ROW_PX = 48.0
_PART_ROW_PX = 26.0
_HOST_PX = 650.0  # left edge of the host's memory


@dataclass(frozen=True, kw_only=True)
class _Flow:
    """What ``flow`` draws."""

    transfers: Sequence[Transfer]
    """one arrow each"""
    device: Mapping[str, float]
    """bytes by part of the bill"""
    host: Mapping[str, float]
    """the same, in the host's memory"""
    gb_per_s: float
    """of the link"""
    title: Said
    """its heading, or "" for the usual one"""
    marked: str
    """the phase that stands out, or "\""""
    note: Said
    """a line below"""

    @property
    def bottom_px(self) -> float:
        """The lower edge of both memories."""
        arrows = _FIRST_ARROW_PX + _ARROW_ROW_PX * len(self.transfers)
        num_parts = max(len(self.device), len(self.host))
        return max(arrows, _FIRST_ARROW_PX + _PART_ROW_PX * num_parts + 40)

    def time(self, num_bytes: float) -> str:
        """How long the link takes for so many bytes, in words."""
        return format_us(num_bytes / self.gb_per_s / 1e3)

    def sketch(self, words: dict[str, str]) -> Sketch:
        """The picture in one language."""
        names = WORDS[words["code"]]
        shapes = [
            *self._arrows(words),
            *self._memory(0.0, names["device"], self.device, words),
            *self._memory(_HOST_PX, names["memory"], self.host, words),
        ]
        note = said(self.note, words["code"])
        if note:
            shapes.append(Words(0, self.bottom_px + 20, note, opacity=0.85))
        rows = []
        for each in self.transfers:
            way = names["down" if each.to_host else "up"]
            what = names[each.why or each.what]
            rows.append((names[each.phase], what, way, f"{each.num_bytes:,.0f}"))
        return Sketch(
            shapes=tuple(shapes),
            height_px=self.bottom_px + (32 if note else 10),
            heading=said(self.title, words["code"]) or names["flow"],
            badge=words["computed"],
            numbers=self._numbers(names),
            table=(("", "", "", "B"), *rows),
            language=words["code"],
        )

    def _arrows(self, words: dict[str, str]) -> list[Shape]:
        """What is moved, one below the other."""
        names = WORDS[words["code"]]
        most = max((each.num_bytes for each in self.transfers), default=1.0)
        shapes: list[Shape] = []
        y = _FIRST_ARROW_PX
        for each in self.transfers:
            begin, end = (260.0, 640.0) if each.to_host else (640.0, 260.0)
            stands_out = each.phase == self.marked or not self.marked
            text = names[each.phase] + words["colon"] + names[each.why or each.what]
            text += f" {format_bytes(each.num_bytes)}" + words["comma"] + self.time(each.num_bytes)
            arrow = Line(
                ((begin, y + 20), (end, y + 20)),
                LOOKS[each.what][0],
                10 * each.num_bytes / most,
                arrow=True,
                opacity=1.0 if stands_out else 0.3,
            )
            bold = stands_out and bool(self.marked)
            opacity = 1.0 if stands_out else 0.6
            label = Words(450, y + 6, text, "middle", bold=bold, opacity=opacity)
            shapes += [arrow, label]
            y += _ARROW_ROW_PX
        return shapes

    def _memory(
        self, x: float, name: str, parts: Mapping[str, float], words: dict[str, str]
    ) -> list[Shape]:
        """A memory and the parts of the bill that lie in it."""
        names = WORDS[words["code"]]
        total = format_bytes(sum(parts.values()))
        shapes: list[Shape] = [
            Box(x, 62, 249, self.bottom_px - 62),
            Words(x + 10, 80, name + words["colon"] + total, bold=True),
        ]
        for number, (part, num_bytes) in enumerate(parts.items()):
            y = 90 + _PART_ROW_PX * number
            text = f"{names[part]} {format_bytes(num_bytes)}"
            shapes.append(Box(x + 10, y, 229, 22, *LOOKS[part], (text,)))
        return shapes

    def _numbers(self, names: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Bytes each way, the link, and the time of all."""
        down = sum(each.num_bytes for each in self.transfers if each.to_host)
        up = sum(each.num_bytes for each in self.transfers if not each.to_host)
        return (
            (names["down"], format_bytes(down)),
            (names["up"], format_bytes(up)),
            (names["link"], f"{self.gb_per_s:g} GB/s"),
            (names["both"], self.time(down + up)),
        )
