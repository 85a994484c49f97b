"""How long a step takes, by part: what every stage computes and sends, what of it hides, the
bubble, and what comes after the last backward."""

from dataclasses import dataclass

from labkit.planner.plan import compute
from labkit.planner.plan.cluster import Cluster
from labkit.planner.plan.compute import Bench, Pass
from labkit.planner.plan.layout import WEIGHTS_IN_BUBBLE, Layout
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import MESSAGE_ALPHA_US, Stack

PARTS = (
    "products",
    "attention",
    "memory",
    "overhead",
    "tensor",
    "context",
    "expert",
    "gather",
    "pipeline",
    "bubble",
    "data",
    "optimizer",
)
"""Parts of a step, in the order in which they are drawn."""
SMOOTH = 4
"""Of two things at a time the longer counts, and where both are as long some more: the 4-norm."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step, closed form."""

    stages: tuple[Pass, ...]
    """of each pipeline rank: one microbatch, all its layers and messages"""
    num_microbatches: int
    """m"""
    num_chunks: int
    """v"""
    schedule: str
    """of the pipeline: a key of WEIGHTS_IN_BUBBLE"""
    data: dict[str, float]
    """what data parallelism calls once a step -> its microseconds that nothing hides"""
    optimizer_us: float
    """the optimizer"""

    @property
    def data_us(self) -> float:
        """All that nothing hides of what data parallelism sends once a step."""
        return sum(self.data.values())

    @property
    def stage_us(self) -> list[float]:
        """A microbatch on each stage, forward and backward."""
        return [each.forward_us + each.backward_us for each in self.stages]

    @property
    def bubble_us(self) -> float:
        """What the slowest stage waits for the others: each of them once, a chunk's part of it
        with interleaving (Narayanan et al. 2021, section 2.2; for equal stages (p-1) t / v); less
        what backwards for weights fill (Qi et al. 2023, section 2). ZB-2p's room for 2p forwards
        is more than the wait for the first backward, unless its input's half is much longer."""
        stages = list(self.stages)
        stage_us = self.stage_us
        longest = stages.pop(stage_us.index(max(stage_us)))
        if self.schedule == "zb_2p":
            longer_us = [each.backward_us - each.weights_us - each.forward_us for each in stages]
            return max(0.0, sum(longer_us) - longest.forward_us)
        filling = WEIGHTS_IN_BUBBLE[self.schedule]
        waits_us = []
        for each in stages:
            filled_us = (1 + filling) * each.weights_us if filling else 0.0
            waits_us.append(max(0.0, each.forward_us + each.backward_us - filled_us))
        return sum(waits_us) / self.num_chunks

    @property
    def step_us(self) -> float:
        """From the first forward to the optimizer's end."""
        busy_us = self.num_microbatches * max(self.stage_us)
        return busy_us + self.bubble_us + self.data_us + self.optimizer_us

    def parts(self) -> dict[str, float]:
        """Microseconds by PARTS on the slowest stage; they sum to the step."""
        slowest = max(self.stages, key=lambda each: each.forward_us + each.backward_us)
        found = dict.fromkeys(PARTS, 0.0)
        for way in (slowest.forward, slowest.backward):
            for part, time_us in way.items():
                found[part] += self.num_microbatches * time_us
        found["bubble"] = self.bubble_us
        found["data"] = self.data_us
        found["optimizer"] = self.optimizer_us
        return found


def step_time(shape: Shape, cluster: Cluster, layout: Layout, stack: Stack) -> StepTime:
    """A step of this model on this cluster, so divided, by this stack."""
    bench = Bench(gpu=cluster.gpu, stack=stack)
    layer = _layer_with_messages(shape, cluster, layout, bench)
    head = compute.head_pass(shape, layout, bench)
    stages = []
    for rank, num_layers in enumerate(layout.stage_layers(shape)):
        stage = scaled(layer, num_layers)
        if rank == layout.pp - 1:
            stage = joined(stage, head)
        if layout.zero >= 2:
            stage = joined(stage, _root_pass(shape, cluster, layout, stack, rank))
        stages.append(joined(stage, _message_pass(shape, cluster, layout, stack)))
    held = held_params(shape, layout)
    return StepTime(
        stages=tuple(stages),
        num_microbatches=layout.num_microbatches,
        num_chunks=layout.vpp,
        schedule=layout.schedule,
        data=_data(held, cluster, layout, stack, stages),
        optimizer_us=compute.optimizer_us(held, layout, bench),
    )


def scaled(one: Pass, times: float) -> Pass:
    """As many of them."""
    return Pass(
        forward={part: times * time_us for part, time_us in one.forward.items()},
        backward={part: times * time_us for part, time_us in one.backward.items()},
    )


def joined(one: Pass, other: Pass) -> Pass:
    """One after the other."""
    ways = []
    for first, second in ((one.forward, other.forward), (one.backward, other.backward)):
        parts = dict.fromkeys([*first, *second])
        ways.append({part: first.get(part, 0.0) + second.get(part, 0.0) for part in parts})
    return Pass(forward=ways[0], backward=ways[1])


def held_params(shape: Shape, layout: Layout) -> float:
    """Parameters of the fullest rank before dp shards them: its layers and an embedding, cut by
    tp; experts also by ep."""
    layer = shape.dense_params + shape.expert_params / layout.ep
    tables = shape.embedding_params * (1 if shape.tied or layout.pp > 1 else 2)
    return (max(layout.stage_layers(shape)) * layer + tables) / layout.tp


# --- messages within a layer ---


def _layer_with_messages(shape: Shape, cluster: Cluster, layout: Layout, bench: Bench) -> Pass:
    """A layer of one microbatch with tensor, context, expert and gathering messages."""
    layer = compute.layer_pass(shape, layout, bench)
    nic = bench.stack.nic
    again = 1 if layout.recompute == "full" else 0
    tensor_us = _tensor_us(shape, cluster, layout, nic)
    expert_us = _expert_us(shape, cluster, layout, nic)
    context_us = _context_us(shape, cluster, layout, nic)
    attention = layer.forward["attention"], layer.backward["attention"]
    forward = {
        "tensor": tensor_us,
        "expert": expert_us,
        "context": beside(attention[0], context_us, cluster),
    }
    backward = {
        "tensor": (1 + again) * tensor_us,
        "expert": (1 + again) * expert_us,
        "context": beside(attention[1], 2 * context_us, cluster),
    }
    both = joined(layer, Pass(forward=forward, backward=backward))
    if layout.zero < 2:
        return both
    return joined(both, _gather_pass(both, shape, cluster, layout, nic))


def beside(longer_us: float, other_us: float, cluster: Cluster) -> float:
    """What a message adds to work that goes on beside it: SMOOTH's norm, less the work; all of it
    where the same cores compute and send."""
    if not other_us or not cluster.gpu.hides:
        return other_us
    return (longer_us**SMOOTH + other_us**SMOOTH) ** (1 / SMOOTH) - longer_us


def _tensor_us(shape: Shape, cluster: Cluster, layout: Layout, nic: float) -> float:
    """Two all-reduces of the stream (Shoeybi et al. 2019, section 3); with sequence parallelism
    two all-gathers and two reduce-scatters, which are as many bytes."""
    group = layout.group("tp")
    num_bytes = layout.tokens * shape.hidden * layout.itemsize
    if layout.sp:
        halves = ("all_gather", "reduce_scatter")
        return 2 * sum(group.us(half, num_bytes, cluster, nic) for half in halves)
    return 2 * group.us("all_reduce", num_bytes, cluster, nic)


def _context_us(shape: Shape, cluster: Cluster, layout: Layout, nic: float) -> float:
    """Keys and values go round the ring once (Liu et al. 2023, ring attention)."""
    pairs = 2 * shape.num_kv_heads * shape.width / layout.tp
    num_bytes = layout.mbs * layout.seq * pairs * layout.itemsize
    return layout.group("cp").us("all_gather", num_bytes, cluster, nic)


def _expert_us(shape: Shape, cluster: Cluster, layout: Layout, nic: float) -> float:
    """Tokens to their experts and back: two all-to-alls."""
    cut = layout.tp if layout.sp else 1
    num_bytes = layout.tokens * shape.active_experts * shape.hidden * layout.itemsize / cut
    return 2 * layout.group("ep").us("all_to_all", num_bytes, cluster, nic)


def _gather_pass(layer: Pass, shape: Shape, cluster: Cluster, layout: Layout, nic: float) -> Pass:
    """What ZeRO 2 and 3 send in each microbatch and the layer does not hide: stage 3 gathers the
    layer's parameters for the forward and the backward, both scatter its gradients."""
    group = layout.group("dp")
    num_bytes = layout.itemsize * shape.layer_params / layout.tp
    scatter_us = group.us("reduce_scatter", num_bytes, cluster, nic)
    gather_us = group.us("all_gather", num_bytes, cluster, nic) if layout.zero == 3 else 0.0
    return Pass(
        forward={"gather": beside(layer.forward_us, gather_us, cluster)},
        backward={"gather": beside(layer.backward_us, gather_us + scatter_us, cluster)},
    )


def _root_pass(shape: Shape, cluster: Cluster, layout: Layout, stack: Stack, rank: int) -> Pass:
    """The same for what lies outside of the layers, FSDP's root unit: gathered before the first
    layer and kept for the backward, scattered after it. Nothing goes on beside either."""
    group = layout.group("dp")
    num_bytes = layout.itemsize * layout.root_params(shape, rank)
    scatter_us = group.us("reduce_scatter", num_bytes, cluster, stack.nic)
    gather_us = group.us("all_gather", num_bytes, cluster, stack.nic)
    return Pass(
        forward={"gather": gather_us if layout.zero == 3 else 0.0},
        backward={"gather": scatter_us},
    )


# --- messages between stages, and after the step ---


def _message_pass(shape: Shape, cluster: Cluster, layout: Layout, stack: Stack) -> Pass:
    """The stream to the next stage and its gradient back, for each chunk; tp ranks send a part
    each (Narayanan et al. 2021, section 4.1). Where some of the messages leave their node, all
    stages wait for those."""
    if layout.pp == 1:
        return Pass()
    group = layout.group("pp")
    inside = group.in_node(cluster.node_size) >= group.size
    bandwidth = cluster.gpu.node_link[1] if inside else cluster.nic * stack.nic
    num_bytes = layout.tokens * shape.hidden * layout.itemsize / layout.tp
    one_us = MESSAGE_ALPHA_US + num_bytes / bandwidth / 1e3
    return Pass(
        forward={"pipeline": layout.vpp * one_us}, backward={"pipeline": layout.vpp * one_us}
    )


def _data(
    held: float, cluster: Cluster, layout: Layout, stack: Stack, stages: list[Pass]
) -> dict[str, float]:
    """Gradients once a step: all-reduced, or under ZeRO 1 scattered, and parameters gathered after
    the optimizer; less what the last backward (and the next forward) hides. From stage 2 on
    gradients go in each microbatch, and at stage 3 parameters do, too (``_gather_pass``)."""
    group = layout.group("dp")
    if group.size < 2 or layout.zero == 3:
        return {}
    slowest = max(stages, key=lambda each: each.backward_us)
    backward_us = slowest.backward_us if stack.hides_gradients else 0.0
    forward_us = slowest.forward_us if stack.hides_gradients else 0.0
    grad_bytes = held * (2 if layout.precision == "fp16" else 4)
    gathered = held * layout.itemsize if layout.zero else grad_bytes
    reduce_us = group.us("reduce_scatter", grad_bytes, cluster, stack.nic)
    gather_us = group.us("all_gather", gathered, cluster, stack.nic)
    if not layout.zero:
        return {"all_reduce": beside(backward_us, reduce_us + gather_us, cluster)}
    gathers = {"all_gather": beside(forward_us, gather_us, cluster)}
    if layout.zero == 2:
        return gathers
    return {"reduce_scatter": beside(backward_us, reduce_us, cluster)} | gathers
