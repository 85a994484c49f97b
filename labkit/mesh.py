"""The noun for places: ranks on named axes, which of them form a group along an axis, and on which
node each lies.

    mesh = Mesh(pp=2, dp_shard=2, tp=2, node_size=4)
    mesh.coordinates(5)         # {"pp": 1, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1}
    mesh.groups("tp").of(5)     # (4, 5)
    mesh.groups("tp")           # shows itself: the grid of ranks, a colour for each group
    mesh.device_mesh()          # inside ranks: the same as torch's DeviceMesh

Axes have the field's names, and the order of Megatron and torchtitan: neighbours along tp are
neighbouring ranks, and stages of a pipeline lie farthest apart. The planner's ``Layout`` puts its
ranks in the same order.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from labkit.shown import Shown
from labkit.units import check_whole, check_word
from labkit.words import catalogue, speaking

if TYPE_CHECKING:
    from labkit.pictures.sketch import Box, Sketch, Words

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""The axes whose product is the world, the farthest apart first."""
EVERY_AXIS = (*AXES, "ep")
"""All that have groups. Expert parallelism has no ranks of its own: it borrows those of
dp_shard."""
MOST_RANKS = 1 << 17
"""More than any cluster that trains one model: all groups of a mesh are still listed at once."""
MOST_NODES = 8
MOST_IN_NODE = 16
"""Nodes, and ranks of each, that a picture has room for."""
_WORDS = catalogue(
    [
        ("heading", "{} ranks, groups along {}"),
        ("node", "node {}"),
        ("groups", "groups"),
        ("size", "ranks in each"),
        ("nodes", "nodes that a group lies on"),
        ("group", "group {}"),
        ("more", "{} of {} ranks are drawn."),
        ("badge", "computed"),
    ]
)
_LEFT_PX = 70.0
_TOP_PX = 60.0
_ROW_PX = 44.0


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Ranks on named axes."""

    pp: int = 1
    """stages of a pipeline"""
    dp_replicate: int = 1
    """replicas that hold the same shards (HSDP's outer axis; plain DDP has only this one)"""
    dp_shard: int = 1
    """data parallel ranks among which states are sharded (FSDP)"""
    cp: int = 1
    """context parallel: parts of each sequence"""
    tp: int = 1
    """tensor parallel: parts of each layer"""
    ep: int = 1
    """expert parallel: neighbours along dp_shard share out a layer's experts; it divides
    dp_shard"""
    node_size: int = 8
    """ranks of a node; nodes are filled in the order of the ranks"""

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in (*EVERY_AXIS, "node_size")}
        check_whole(1, MOST_RANKS, **sizes)
        if self.num_ranks > MOST_RANKS:
            raise ValueError(
                f"a mesh has up to {MOST_RANKS:,} ranks; its axes make {self.num_ranks:,}: make "
                f"one of them smaller"
            )
        if self.dp_shard % self.ep:
            raise ValueError(
                f"experts are shared out among ranks of dp_shard, so ep divides it; got ep "
                f"{self.ep} and dp_shard {self.dp_shard}"
            )

    @property
    def num_ranks(self) -> int:
        """The world: the product of AXES."""
        return prod(getattr(self, axis) for axis in AXES)

    @property
    def num_nodes(self) -> int:
        """How many nodes the ranks fill."""
        return -(-self.num_ranks // self.node_size)

    def stride(self, axis: str) -> int:
        """How far two neighbours along an axis are apart, counted in ranks. Raises ValueError for
        what is no axis."""
        check_word(axis, EVERY_AXIS, "an axis")
        inner = AXES[AXES.index("dp_shard" if axis == "ep" else axis) + 1 :]
        return prod(getattr(self, each) for each in inner)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on each of AXES. Raises ValueError for a rank that there is not."""
        check_whole(0, self.num_ranks - 1, rank=rank)
        return {axis: rank // self.stride(axis) % getattr(self, axis) for axis in AXES}

    def rank(self, **place: int) -> int:
        """The rank at some coordinates; an axis that is not named is at 0. Raises ValueError for a
        place that there is not."""
        for axis, at in place.items():
            check_word(axis, AXES, "an axis")
            check_whole(0, getattr(self, axis) - 1, **{axis: at})
        return sum(at * self.stride(axis) for axis, at in place.items())

    def node(self, rank: int) -> int:
        """The node that a rank lies on."""
        check_whole(0, self.num_ranks - 1, rank=rank)
        return rank // self.node_size

    def groups(self, axis: str) -> "Groups":
        """The groups along an axis. Raises ValueError for what is no axis."""
        return Groups(mesh=self, axis=axis)

    def device_mesh(self) -> Any:
        """Inside ranks: torch's DeviceMesh on their devices, its axes those of AXES that have more
        than one rank (tp where none has). With expert parallelism dp_shard comes in two parts,
        "dp_shard_mod_ep" and "ep", and as a whole under its own name. Raises ValueError where there
        are more or fewer ranks than the mesh has."""
        import torch
        import torch.distributed as dist

        if dist.get_world_size() != self.num_ranks:
            raise ValueError(
                f"the axes of this mesh make {self.num_ranks} ranks, and {dist.get_world_size()} "
                f"were started: launch as many"
            )
        sizes: dict[str, int] = {}
        for axis in AXES:
            if axis == "dp_shard" and self.ep > 1:
                sizes |= {"dp_shard_mod_ep": self.dp_shard // self.ep, "ep": self.ep}
            elif getattr(self, axis) > 1:
                sizes[axis] = getattr(self, axis)
        sizes = sizes or {"tp": 1}
        kind = torch.get_default_device().type
        made = dist.init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        if self.ep > 1:
            made["dp_shard_mod_ep", "ep"]._flatten("dp_shard")
        return made


@dataclass(frozen=True, kw_only=True)
class Groups(Shown):
    """The groups of a mesh along one axis: ranks that differ in it alone. Shows itself in a
    notebook: the ranks in their nodes, a colour for each group."""

    mesh: Mesh
    """whose ranks they are"""
    axis: str
    """one of EVERY_AXIS"""

    def __post_init__(self) -> None:
        check_word(self.axis, EVERY_AXIS, "an axis")

    @property
    def size(self) -> int:
        """Ranks of each group."""
        return getattr(self.mesh, self.axis)

    def of(self, rank: int) -> tuple[int, ...]:
        """The group that a rank is in, in order."""
        check_whole(0, self.mesh.num_ranks - 1, rank=rank)
        stride = self.mesh.stride(self.axis)
        first = rank - rank // stride % self.size * stride
        return tuple(range(first, first + self.size * stride, stride))

    def number(self, rank: int) -> int:
        """Which of the groups a rank is in, counted from 0 as they are listed."""
        stride = self.mesh.stride(self.axis)
        before, inside = divmod(self.of(rank)[0], stride * self.size)
        return before * stride + inside

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        for rank in range(self.mesh.num_ranks):
            mine = self.of(rank)
            if mine[0] == rank:
                yield mine

    def __len__(self) -> int:
        return self.mesh.num_ranks // self.size

    @property
    def num_nodes(self) -> int:
        """On how many nodes the widest group lies: 1 where no message of this axis leaves a
        node."""
        widest = 1
        for group in self:
            widest = max(widest, len({self.mesh.node(rank) for rank in group}))
        return widest

    def _picture(self, language: str) -> "Sketch":
        return speaking(language, self._sketch)

    def _sketch(self, words: dict[str, str]) -> "Sketch":
        """The picture in one language."""
        from labkit.pictures.sketch import Sketch

        say = _WORDS[words["code"]]
        mesh = self.mesh
        drawn = [rank for rank in range(mesh.num_ranks) if self._has_room(rank)]
        shapes = list(itertools.chain.from_iterable(self._drawn(rank) for rank in drawn))
        nodes = {mesh.node(rank) for rank in drawn}
        shapes += [self._named(node, say) for node in sorted(nodes)]
        left_out = (say["more"].format(len(drawn), mesh.num_ranks),)
        rows = [("", "rank")]
        for number, group in enumerate(itertools.islice(self, MOST_NODES * MOST_IN_NODE)):
            rows.append((say["group"].format(number), " ".join(map(str, group))))
        return Sketch(
            shapes=tuple(shapes),
            height_px=_TOP_PX + _ROW_PX * len(nodes),
            heading=say["heading"].format(mesh.num_ranks, self.axis),
            badge=say["badge"],
            numbers=(
                (say["groups"], str(len(self))),
                (say["size"], str(self.size)),
                (say["nodes"], str(self.num_nodes)),
            ),
            notes=left_out if len(drawn) < mesh.num_ranks else (),
            table=tuple(rows),
            language=words["code"],
        )

    def _has_room(self, rank: int) -> bool:
        """Whether a rank is drawn."""
        node, place = divmod(rank, self.mesh.node_size)
        return node < MOST_NODES and place < MOST_IN_NODE

    def _drawn(self, rank: int) -> Iterator["Box"]:
        """A rank's box in its node, in its group's colour."""
        from labkit.pictures.drawing import WIDTH_PX
        from labkit.pictures.sketch import Box
        from labkit.pictures.style import CYCLE

        node, place = divmod(rank, self.mesh.node_size)
        wide = (WIDTH_PX - _LEFT_PX) / min(self.mesh.node_size, MOST_IN_NODE, self.mesh.num_ranks)
        look = CYCLE[self.number(rank) % len(CYCLE)]
        x = _LEFT_PX + place * wide
        yield Box(x, _TOP_PX + node * _ROW_PX, wide - 6, _ROW_PX - 10, *look, (str(rank),))

    def _named(self, node: int, say: dict[str, str]) -> "Words":
        """A node's name beside its row."""
        from labkit.pictures.sketch import Words

        y = _TOP_PX + node * _ROW_PX + 21
        return Words(_LEFT_PX - 10, y, say["node"].format(node), "end")
