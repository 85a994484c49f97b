"""How long the parts of a step take, and the step as one timeline of all axes.

Two kinds of times, one way to lay them out. On a GPU they are the planner's: its layers, its head,
its optimizer, its collectives, and what of a message goes on beside computing. Where ``forward_ms``
is stated, a layer is its part of that, its backward twice as long, and a message goes over the
stated links by the same formula (``Group.us``), nothing beside it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from labkit.mesh_3d import held, messages
from labkit.mesh_3d.messages import Message, Part, Work
from labkit.pipeline.schedule import walk
from labkit.pipeline.schedules import SCHEDULES
from labkit.planner.plan import compute, steptime
from labkit.planner.plan.cluster import Cluster, Gpu, Group, gpu
from labkit.planner.plan.compute import Bench, Pass
from labkit.planner.plan.layout import Layout, usual_recipe
from labkit.planner.plan.stacks import MESSAGE_ALPHA_US, nearest
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_word

if TYPE_CHECKING:
    from labkit.mesh_3d.step import Step

BACKWARD = 2.0
"""A stated backward over its forward: two products for each."""
MOST_DRAWN = 16
"""ranks of a timeline; above, one of each stage"""
MOST_SPANS = 3000
"""of one rank of each stage; above, an action's work is one span, and each axis's messages one"""


class Span(NamedTuple):
    """What a rank does next."""

    lane: str
    """``COMPUTE`` or ``COMM``"""
    kind: str
    """"F", "B" or "optimizer"; or a collective"""
    axis: str
    """along which a message goes; "" of work"""
    adds_us: float
    """how much later what comes after it begins"""
    long_us: float
    """how long it lasts: a message that goes on beside work began before that work was over"""
    num_bytes: int = 0
    """of a message"""


@dataclass(frozen=True, kw_only=True)
class Times:
    """What the parts of a step take."""

    step: "Step"
    """which"""

    @property
    def is_stated(self) -> bool:
        """Whether its times are stated."""
        return self.step.forward_ms > 0

    @cached_property
    def cluster(self) -> Cluster:
        """The ranks' GPUs in full nodes; stated links are those of a GPU that has no other."""
        step = self.step
        full = step.node_size * -(-step.ranks // step.node_size)
        chosen: Gpu = gpu(step.gpu)
        if not self.is_stated:
            return Cluster(gpu=chosen, num_gpus=full, per_node=step.node_size)
        link = (1e3 * step.latency_ms, step.node_mb_per_s / 1e3)
        chosen = replace(chosen, links={"all_reduce": link}, hides=False)
        out = step.nic_mb_per_s / 1e3
        return Cluster(gpu=chosen, num_gpus=full, per_node=step.node_size, nic_gb_per_s=out)

    @cached_property
    def bench(self) -> Bench:
        """The GPU, with the constants of the nearest stack."""
        step = self.step
        zero = step.zero if step.dp_shard > 1 else 0
        return Bench(gpu=self.cluster.gpu, stack=nearest(step.gpu, zero))

    @property
    def layout(self) -> Layout:
        """The ranks, as the planner sees them."""
        return layout(self.step)

    @cached_property
    def _passes(self) -> dict[str, Pass]:
        """A block's half and the head, by the planner or as stated."""
        step = self.step
        if self.is_stated:
            half_us = 1e3 * step.forward_ms / (step.layers // step.pp) / 2
            half = Pass(forward={"products": half_us}, backward={"products": BACKWARD * half_us})
            return {"block": half, "head": Pass()}
        shape = step.shape()
        layer = compute.layer_pass(shape, self.layout, self.bench)
        head = compute.head_pass(shape, self.layout, self.bench)
        return {"block": steptime.scaled(layer, 0.5), "head": head}

    def work_us(self, kind: str, way: str) -> float:
        """What half a block or the head takes, F or B. An embedding is looked up: nothing."""
        check_word(way, ("F", "B"), "a pass")
        check_word(kind, messages.WORK, "work")
        found = self._passes.get(kind, Pass())
        return found.forward_us if way == "F" else found.backward_us

    def optimizer_us(self, stage: int) -> float:
        """Adam on what a rank of a stage holds; where times are stated, nothing."""
        if self.is_stated:
            return 0.0
        elements = held.rank_elements(self.step, stage)
        return compute.optimizer_us(elements, self.layout, self.bench)

    def group(self, axis: str) -> Group:
        """The ranks along an axis, as far apart as they are placed."""
        return Group(size=getattr(self.step, axis), stride=self.step.distance(axis))

    def message_us(self, axis: str, collective: str, num_bytes: float) -> float:
        """How long a message takes: ``num_bytes`` as a rank hands them in. Raises ValueError for
        what no rank of a mesh sends."""
        check_word(collective, messages.COLLECTIVES, "a collective")
        group = self.group(axis)
        if collective != "send":
            whole = num_bytes * (group.size if collective == "all_gather" else 1)
            return group.us(collective, whole, self.cluster, self._nic)
        alpha_us = 1e3 * self.step.latency_ms if self.is_stated else MESSAGE_ALPHA_US
        return alpha_us + num_bytes / self.gb_per_s(axis) / 1e3

    def gb_per_s(self, axis: str) -> float:
        """The bandwidth at which a group along an axis speaks: that of its narrowest link."""
        if axis != "pp":
            return self.group(axis).link(self.cluster, self._nic)[1]
        inside = self.step.neighbours_share_node(axis)
        return self.cluster.gpu.node_link[1] if inside else self.cluster.nic * self._nic

    @property
    def _nic(self) -> float:
        """What of the cards' bandwidth is reached."""
        return 1.0 if self.is_stated else self.bench.stack.nic

    def axis_us(self, stage: int) -> dict[str, float]:
        """Axis -> how long the messages of a rank of a stage take in a step, one after another."""
        found: dict[str, float] = {}
        for each, times in messages.said(self.step, stage).items():
            time_us = self.message_us(each.axis, each.collective, each.num_bytes)
            found[each.axis] = found.get(each.axis, 0.0) + times * time_us
        return found

    # --- a rank's step, span by span ---

    def spans(
        self, kind: str, parts: tuple[Part, ...], stage: int, *, lumped: bool = False
    ) -> list[Span]:
        """What an action (F, B) or the end of a step ("optimizer") is made of, in order; lumped:
        its work as one, the messages of each axis as one. Messages to another stage go on by
        themselves and are not among them."""
        key = (kind, parts, stage, lumped)
        if key not in self._known:
            spans = self._spans(kind, parts, stage)
            self._known[key] = list(_lumps(spans) if lumped else spans)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple, list[Span]]:
        """Most actions are like the one before."""
        return {}

    def _spans(self, kind: str, parts: tuple[Part, ...], stage: int) -> Iterator[Span]:
        before_us = 0.0  # work that a gather goes on beside
        for each in parts:
            if isinstance(each, Work):
                before_us = self._worked_us(each, kind, stage)
                yield Span(COMPUTE, kind, "", before_us, before_us)
            elif each.collective != "send":
                yield self._said(each, before_us, stage)

    def _worked_us(self, each: Work, way: str, stage: int) -> float:
        if each.kind == "optimizer":
            return self.optimizer_us(stage)
        return self.work_us(each.kind, way)

    def _said(self, each: Message, before_us: float, stage: int) -> Span:
        """A message, and what of it nothing hides: tp's all of it; a gather goes on beside the
        layer before it; gradients, once a step, beside a backward of the stage, and ZeRO 1's gather
        beside the next forward, as the planner has them."""
        long_us = self.message_us(each.axis, each.collective, each.num_bytes)
        beside_us = 0.0
        if each.axis != "tp" and each.unit and each.collective == "all_gather":
            beside_us = 2 * before_us  # both halves of a block
        elif each.axis != "tp" and not each.unit and self.bench.stack.hides_gradients:
            beside_us = self.stage_us(stage, "F" if each.collective == "all_gather" else "B")
        adds_us = steptime.beside(beside_us, long_us, self.cluster) if beside_us else long_us
        return Span(COMM, each.collective, each.axis, adds_us, long_us, each.num_bytes)

    def stage_us(self, stage: int, way: str) -> float:
        """A microbatch's work on a stage, F or B, messages not counted."""
        total_us = 0.0
        for unit in held.units(self.step, stage):
            times = 2 if unit.kind == "block" else 1
            total_us += times * self.work_us(unit.kind, way)
        return total_us


@lru_cache(maxsize=64)
def of(step: "Step") -> Times:
    """A step's, made once."""
    return Times(step=step)


def layout(step: "Step") -> Layout:
    """The ranks, as the planner sees them: states are shared out along dp_shard, so dp is that, and
    the batch that of one replica of it."""
    zero = step.zero if step.dp_shard > 1 else 0
    return Layout(
        tp=step.tp,
        pp=step.pp,
        dp=step.dp_shard,
        zero=zero,
        mbs=max(1, step.microbatch),
        gbs=max(1, step.batch // step.dp_replicate),
        seq=step.sequence,
        recompute=step.recompute,
        precision=step.precision,
        recipe=usual_recipe(zero, step.precision),
        schedule=step.schedule,
    )


def by_axis(timeline: Timeline) -> Timeline:
    """The same with all-reduces along tp told from those along dp, as pictures draw them."""
    sums = timeline.kind == "all_reduce"
    cut = np.isin(timeline.label, ("tp",))
    copied = np.isin(timeline.label, ("dp_replicate", "dp_shard"))
    kind = np.where(sums & cut, "all_reduce_tp", timeline.kind)
    return replace(timeline, kind=np.where(sums & copied, "all_reduce_dp", kind))


# --- all ranks ---

Row = tuple[int, str, str, str, float, float, int]


def timeline(step: "Step") -> Timeline:
    """The step of all ranks: each action as soon as its rank is free and what it needs is there, a
    message to another stage on its way meanwhile. Above ``MOST_DRAWN`` ranks one of each stage."""
    times = of(step)
    schedule = SCHEDULES[step.schedule](step.pp, step.microbatches)
    actions = [dict(messages.order(step, stage)) for stage in range(step.pp)]
    lumped = sum(map(len, actions[0].values())) > MOST_SPANS / step.pp
    free_us = [0.0] * step.pp
    done_us: dict[tuple, float] = {}
    rows: list[Row] = []  # with the stage in the place of the rank
    for stage, action, key, need in walk(schedule):
        start_us = free_us[stage]
        if need is not None:
            start_us = max(start_us, done_us[need])
        parts = actions[stage][action]
        spans = times.spans(action.kind, parts, stage, lumped=lumped)
        free_us[stage] = _laid(rows, stage, str(action), spans, start_us)
        done_us[key] = free_us[stage]
        for sent in messages.of_kind(parts, Message):
            if sent.collective == "send":
                done_us[key] += times.message_us(sent.axis, "send", sent.num_bytes)
                span = (free_us[stage], done_us[key], sent.num_bytes)
                rows.append((stage, COMM, "send", str(action), *span))
    for stage in range(step.pp):
        spans = times.spans("optimizer", actions[stage][None], stage, lumped=lumped)
        _laid(rows, stage, "optimizer", spans, free_us[stage])
    return _on_ranks(step, rows)


def _laid(
    rows: list[Row], stage: int, action: str, spans: Iterable[Span], start_us: float
) -> float:
    """An action's spans one after another; returns when they are over."""
    at_us = start_us
    for each in spans:
        at_us += each.adds_us
        if each.long_us:
            begun_us = max(0.0, at_us - each.long_us)
            label = each.axis or action
            rows.append((stage, each.lane, each.kind, label, begun_us, at_us, each.num_bytes))
    return at_us


def _lumps(spans: Iterable[Span]) -> Iterator[Span]:
    """The same with all work as one span, and all messages of an axis as one each."""
    found: dict[tuple[str, str, str], Span] = {}
    for each in spans:
        key = (each.lane, each.kind, each.axis)
        one = found.get(key)
        if one is None:
            found[key] = each
            continue
        found[key] = one._replace(
            adds_us=one.adds_us + each.adds_us,
            long_us=one.long_us + each.long_us,
            num_bytes=one.num_bytes + each.num_bytes,
        )
    yield from found.values()


def _on_ranks(step: "Step", rows: list[Row]) -> Timeline:
    """Every rank of a stage does the same at the same time."""
    mesh = step.mesh
    if mesh.num_ranks > MOST_DRAWN:
        told = ("one rank of each stage",)
        return from_rows(rows, num_ranks=step.pp, origin="simulated", notes=told)
    on_stage: dict[int, list[int]] = {}
    for rank in range(mesh.num_ranks):
        on_stage.setdefault(mesh.coordinates(rank)["pp"], []).append(rank)
    every: list[Row] = []
    for stage, *rest in rows:
        every += [(rank, *rest) for rank in on_stage[stage]]
    return from_rows(every, num_ranks=mesh.num_ranks, origin="simulated")
