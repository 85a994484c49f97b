"""Every layout that divides: those that fit, the best of them, and by how much the others don't.

Closed forms first, for all; the real schedule is simulated for the few that are shown.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from labkit.planner.plan import memory, steptime
from labkit.planner.plan.layout import Layout, refusals, usual_recipe
from labkit.planner.plan.plan import LAYOUT, Plan
from labkit.shown import Shown
from labkit.units import check_whole, format_bytes, format_us

if TYPE_CHECKING:
    from labkit.shown import Picture

MOST_MICROBATCH = 16
MOST_CHUNKS = 8
LONG_TOKENS = 16_384
"""Sequences from here on may be cut among context-parallel ranks."""
KEPT = 5


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout with its numbers."""

    layout: Layout
    """how the step is divided"""
    step_us: float
    """how long it takes"""
    peak_bytes: float
    """what the fullest GPU holds"""
    device_bytes: float
    """what a GPU has"""
    stack: str
    """whose constants the time is by"""

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU holds it."""
        return self.peak_bytes <= self.device_bytes

    def row(self, num_tokens: float, num_gpus: int) -> dict[str, object]:
        """For ``lab.table``: the axes, the step, the memory, and whose constants were used."""
        layout = self.layout
        names = ("tp", "cp", "pp", "vpp", "dp", "ep", "zero", "mbs", "recompute")
        return {
            **{name: getattr(layout, name) for name in names},
            "step_s": round(self.step_us / 1e6, 3),
            "tokens_per_s_and_gpu": round(1e6 * num_tokens / self.step_us / num_gpus),
            "memory": format_bytes(self.peak_bytes),
            "fits": "yes" if self.fits else f"+{format_bytes(self.peak_bytes - self.device_bytes)}",
            "stack": self.stack,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Search(Shown):
    """What a search found. Shows itself in a notebook: time against memory of all that fit."""

    plan: Plan
    """what was asked for: its model, cluster, batch and sequence"""
    fitting: tuple[Candidate, ...]
    """all that fit, the fastest first"""
    too_large: tuple[Candidate, ...]
    """all that don't, the nearest to fitting first"""
    num_refused: int
    """layouts that do not divide"""
    marked: Mapping[str, Plan] = field(default_factory=dict)
    """plans that the picture names: {name: plan}"""

    def __repr__(self) -> str:
        fastest = format_us(self.fitting[0].step_us) if self.fitting else "none"
        counts = f"{len(self.fitting)} fit, {len(self.too_large)} are too large"
        return f"Search({counts}, {self.num_refused} do not divide; fastest {fastest})"

    def _picture(self, language: str) -> "Picture":
        from labkit.planner.plan import search_picture

        return search_picture.layouts(self, language=language)

    def mark(self, plans: Mapping[str, Plan]) -> "Search":
        """The same search, with more dots that have a name in its picture: {name: plan}."""
        return replace(self, marked={**self.marked, **plans})

    @property
    def best(self) -> Plan:
        """The fastest that fits. Raises ValueError, with the nearest miss, where none does."""
        return self.plans(1)[0]

    def plans(self, most: int = KEPT) -> list[Plan]:
        """The fastest few, as plans."""
        if not self.fitting:
            raise ValueError(f"no layout of {self.plan.shape.name} fits. {self._nearest_miss()}")
        return [as_plan(self.plan, each.layout) for each in self.fitting[:most]]

    def _nearest_miss(self) -> str:
        if not self.too_large:
            return f"None divides {self.plan.gpus} GPUs: take another number, or another batch"
        least = self.too_large[0]
        missing = format_bytes(least.peak_bytes - least.device_bytes)
        return (
            f"The nearest lacks {missing} a GPU: more GPUs, recompute='full' or offload='optimizer'"
        )

    def lightest(self) -> Candidate:
        """The one that leaves most memory free, the faster of equals."""
        return min((*self.fitting, *self.too_large), key=lambda each: each.peak_bytes)

    def frontier(self) -> list[Candidate]:
        """Those that none beats in both time and memory, the fastest first."""
        found = []
        for each in sorted(self.fitting, key=lambda each: (each.step_us, each.peak_bytes)):
            if not found or each.peak_bytes < found[-1].peak_bytes:
                found.append(each)
        return found

    def frontier_plans(self, most: int = KEPT) -> list[Plan]:
        """The frontier's fastest few, as plans: each is slower than the one before, and lighter."""
        return [as_plan(self.plan, each.layout) for each in self.frontier()[:most]]

    def by_kind(self) -> dict[str, Plan]:
        """The fastest that fits of each kind, "cut", "shards" or "copies"; the fastest first."""
        found: dict[str, Plan] = {}
        for each in self.fitting:
            if each.layout.kind not in found:
                found[each.layout.kind] = as_plan(self.plan, each.layout)
        return found

    def by_stack(self) -> dict[str, Plan]:
        """The fastest that fits of each program whose constants were used, the fastest first."""
        found: dict[str, Plan] = {}
        for each in self.fitting:
            if each.stack not in found:
                found[each.stack] = as_plan(self.plan, each.layout)
        return found

    def rows(self, most: int = KEPT) -> list[dict[str, object]]:
        """The fastest few, for ``lab.table``; where none fits, the nearest misses."""
        shown = self.fitting[:most] or self.too_large[:most]
        return [each.row(self.plan.tokens, self.plan.gpus) for each in shown]

    def regret(self, plan: Plan) -> float:
        """How much slower a plan is than the best, each by its own constants. Raises as
        ``best``."""
        return plan.time().step_us / self.best.time().step_us - 1


def search(plan: Plan) -> Search:
    """Every layout of a plan's model and batch on its cluster. What the plan says of its layout is
    not held: all axes, ZeRO's stages, recomputation and microbatches are tried.

    Where the plan names no stack, each layout has the constants of the program that usually runs
    it, since a time that no program reaches helps nobody; ``rows`` and ``by_stack`` say whose. Two
    layouts by two programs differ by the programs too: with a ``stack`` named, all have its own.
    """
    fitting = []
    too_large = []
    num_refused = 0
    for layout in layouts(plan):
        if refusals(plan.shape, plan.cluster, layout):
            num_refused += 1
            continue
        found = evaluate(plan, layout)
        (fitting if found.fits else too_large).append(found)
    fitting.sort(key=lambda each: (each.step_us, each.peak_bytes))
    too_large.sort(key=lambda each: each.peak_bytes)
    return Search(
        plan=plan,
        fitting=tuple(fitting),
        too_large=tuple(too_large),
        num_refused=num_refused,
    )


def evaluate(plan: Plan, layout: Layout) -> Candidate:
    """The numbers of a layout."""
    stack = plan.stack_for(layout.zero)
    time = steptime.step_time(plan.shape, plan.cluster, layout, stack)
    held = memory.memory(plan.shape, layout, stack)
    return Candidate(
        layout=layout,
        step_us=time.step_us,
        peak_bytes=held.peak_bytes,
        device_bytes=plan.cluster.device_bytes,
        stack=stack.called(),
    )


def as_plan(plan: Plan, layout: Layout) -> Plan:
    """The plan with this layout."""
    changes = {name: getattr(layout, name) for name in LAYOUT}
    return plan.but(**changes, batch=layout.gbs)


def layouts(plan: Plan) -> Iterator[Layout]:
    """All that might be, before ``refusals``: tensor parallelism stays in the node, context
    parallelism is for long sequences, chunks are for pipelines, ZeRO is for copies, and its stage 3
    without a pipeline."""
    for tp, cp, pp in _axes(plan):
        dp = plan.gpus // (tp * cp * pp)
        for ep in _experts(plan, dp):
            for zero in _stages(pp, dp, alone=plan.offload != "none" and tp * pp == 1):
                yield from _finer(plan, tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, zero=zero)


def _axes(plan: Plan) -> Iterator[tuple[int, int, int]]:
    for tp in divisors(plan.cluster.node_size):
        for cp in divisors(plan.gpus // tp) if plan.seq >= LONG_TOKENS else (1,):
            if cp > 64:
                continue
            for pp in divisors(plan.gpus // (tp * cp)):
                if pp <= plan.shape.layers:
                    yield tp, cp, pp


def _stages(pp: int, dp: int, alone: bool) -> tuple[int, ...]:
    """Of ZeRO: a single copy has nothing to shard, but with Adam on the host DeepSpeed's stage 3
    sends its gradients there too (``alone``). Stage 2 is left out: none of the published runs that
    the constants were fitted to used it, so nothing backs its time. ``Plan(zero=2)`` plans it."""
    if dp == 1:
        return (0, 3) if alone else (0,)
    return (0, 1) if pp > 1 else (0, 1, 3)


def _experts(plan: Plan, dp: int) -> list[int]:
    if plan.shape.experts == 1:
        return [1]
    return [each for each in divisors(dp) if each <= plan.shape.experts]


def _finer(plan: Plan, **axes: int) -> Iterator[Layout]:
    each_rank = plan.layout.gbs // axes["dp"]
    kept = {each.name: getattr(plan.layout, each.name) for each in fields(Layout)}
    kept["recipe"] = plan.recipe or usual_recipe(axes["zero"], plan.precision)
    for mbs in powers(min(MOST_MICROBATCH, each_rank)):
        for vpp in _chunks(plan, axes["pp"]):
            for recompute in ("none", "full") if plan.flash else ("none", "selective", "full"):
                changes = {"mbs": mbs, "vpp": vpp, "recompute": recompute, "sp": axes["tp"] > 1}
                yield Layout(**{**kept, **axes, **changes})


def _chunks(plan: Plan, pp: int) -> list[int]:
    if pp == 1:
        return [1]
    per_rank = plan.shape.layers // pp
    return [each for each in divisors(per_rank) if each <= MOST_CHUNKS]


def divisors(number: int) -> list[int]:
    """All of them, the smallest first."""
    check_whole(1, 10**7, number=number)
    return [each for each in range(1, number + 1) if number % each == 0]


def powers(most: int) -> list[int]:
    """1, 2, 4, ... up to ``most``."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found
