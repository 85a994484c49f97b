"""How long a cut layer takes on GPUs, span by span: the planner's own times of products, attention,
memory and collectives, laid in order on a timeline.

Nothing new is reckoned here. Without overlap the spans of a rank sum to what the planner says of
such a layer; with it, a sum of gradients goes on while the weight's own gradient is computed, as
Megatron does where ``overlap`` stands.
"""

from collections.abc import Iterator
from typing import NamedTuple

from labkit.planner.plan import compute
from labkit.planner.plan.cluster import Cluster
from labkit.planner.plan.compute import Bench
from labkit.planner.plan.layout import Layout
from labkit.planner.plan.shape import Shape
from labkit.tensor_parallel.messages import Message, Stream
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows

BEFORE = {"attention": "qkv", "mlp": "up"}
"""place -> the product that opens it, a column; the sum of its input's gradients follows it."""
AFTER = {"attention": "out", "mlp": "down"}
"""place -> the product that closes it, a row"""
MOST_DRAWN = 8
"""ranks of a timeline; all of them do the same at the same time"""


class Span(NamedTuple):
    """What every rank does next."""

    lane: str
    """``COMPUTE`` or ``COMM``"""
    kind: str
    """forward, backward (for an input) or W (for a weight); or a collective"""
    label: str
    """in short"""
    time_us: float
    """how long"""
    num_bytes: int = 0
    """of a message"""
    beside: bool = False
    """whether it begins with the span after it"""


class Cost(NamedTuple):
    """What a cut layer's parts take."""

    products: dict[str, float]
    """product -> us of its forward"""
    attention: tuple[float, float]
    """attention's own products, forward and backward"""
    rest: tuple[float, float]
    """norms, activations, residuals and launches of half a layer, forward and backward"""


def cost(shape: Shape, layout: Layout, bench: Bench) -> Cost:
    """By the planner."""
    layer = compute.layer_pass(shape, layout, bench)
    products = {}
    for each in shape.products():
        inner = each.inner / (layout.tp if each.cut == "rows" else 1)
        columns = each.columns / (layout.tp if each.cut == "columns" else 1)
        products[each.name] = bench.product_us(layout.tokens, inner, columns, layout.precision)
    rest = [each["memory"] + each["overhead"] for each in (layer.forward, layer.backward)]
    return Cost(
        products=products,
        attention=(layer.forward["attention"], layer.backward["attention"]),
        rest=(rest[0] / 2, rest[1] / 2),
    )


def message_us(
    message: Message, stream: Stream, layout: Layout, cluster: Cluster, nic: float
) -> float:
    """A collective along tp, as the planner has it: of the whole stream, whatever a rank hands
    in."""
    group = layout.group("tp")
    return group.us(message.collective, stream.whole_bytes, cluster, nic)


def spans(
    each: Cost, messages: list[tuple[Message, float]], *, overlap: bool = False
) -> Iterator[Span]:
    """One rank's layer, forward and backward, in order; ``messages`` with their times."""
    said: dict[tuple[str, str], list[Span]] = {}
    for message, time_us in messages:
        name = message.collective
        span = Span(COMM, name, name, time_us, message.num_bytes)
        said.setdefault((message.way, message.place), []).append(span)
    for place in ("attention", "mlp"):
        yield from _forward(place, each, said.get(("forward", place), []))
    for place in ("mlp", "attention"):
        yield from _backward(place, each, said.get(("backward", place), []), overlap)


def _forward(place: str, each: Cost, said: list[Span]) -> Iterator[Span]:
    """Norm; gathered, where it is cut; the column; attention; the row; summed."""
    yield Span(COMPUTE, "forward", "norm", each.rest[0])
    yield from said[:-1]
    yield _product("forward", BEFORE[place], each)
    if place == "attention":
        yield Span(COMPUTE, "forward", "attention", each.attention[0])
    yield _product("forward", AFTER[place], each)
    yield from said[-1:]


def _backward(place: str, each: Cost, said: list[Span], overlap: bool) -> Iterator[Span]:
    """The other way round: each product for its input, then for its weight."""
    yield from said[:1] if len(said) > 1 else []
    yield _product("backward", AFTER[place], each)
    yield _product("W", AFTER[place], each)
    if place == "attention":
        yield Span(COMPUTE, "backward", "attention", each.attention[1])
    for again in said[1:-1]:
        yield again._replace(beside=overlap)
    yield _product("backward", BEFORE[place], each)
    for last in said[-1:]:
        yield last._replace(beside=overlap)
    yield _product("W", BEFORE[place], each)
    yield Span(COMPUTE, "backward", "norm", each.rest[1])


def _product(kind: str, name: str, each: Cost) -> Span:
    return Span(COMPUTE, kind, name, each.products[name])


def timeline(every: list[Span], num_ranks: int) -> Timeline:
    """The spans one after another, on every rank (at most ``MOST_DRAWN``). A message that goes on
    beside a product lasts until both are over."""
    rows: list[tuple] = []
    at_us = 0.0
    until_us = 0.0  # when a message that goes on beside is over
    for span in every:
        ends_us = at_us + span.time_us
        for rank in range(min(num_ranks, MOST_DRAWN)):
            rows.append((rank, span.lane, span.kind, span.label, at_us, ends_us, span.num_bytes))
        if span.beside:
            until_us = ends_us
            continue
        at_us = max(ends_us, until_us)
    drawn = min(num_ranks, MOST_DRAWN)
    notes = () if drawn == num_ranks else (f"{drawn} of {num_ranks} ranks",)
    return from_rows(rows, num_ranks=drawn, origin="simulated", notes=notes)
