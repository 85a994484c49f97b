"""How many bytes a GPU holds, by part and by pipeline stage.

States are those of ``sharding.states`` under a named recipe; activations are Korthikanti et al.
2022 (equations 1 to 4), taken apart so that gated MLPs, grouped queries, experts and context
parallelism have their own terms. Bytes are base 10.
"""

from dataclasses import dataclass

from labkit import footprint
from labkit.footprint import Footprint
from labkit.planner.plan.layout import Layout
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import Stack
from labkit.planner.real.counted import Counted
from labkit.sharding import states

PARTS = (
    "parameters",
    "gradients",
    "optimizer",
    "gathered",
    "activations",
    "logits",
    "temporary",
    "fixed",
)
"""Parts of a GPU's memory, in the order in which they are drawn."""
FP32 = 4
UNITS = 2
"""Layers whose parameters are gathered at a time: the one in use, and the next on its way."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What the ranks of each pipeline stage hold at their highest point."""

    stages: tuple[dict[str, float], ...]
    """of each stage: part -> bytes"""

    @property
    def stage_bytes(self) -> list[float]:
        """All parts of each stage."""
        return [sum(stage.values()) for stage in self.stages]

    @property
    def fullest(self) -> int:
        """The stage that holds most."""
        return self.stage_bytes.index(max(self.stage_bytes))

    @property
    def parts(self) -> dict[str, float]:
        """Bytes by PARTS on the fullest stage."""
        return self.stages[self.fullest]

    @property
    def peak_bytes(self) -> float:
        """All parts of the fullest stage."""
        return max(self.stage_bytes)

    @property
    def state_bytes(self) -> float:
        """Parameters, gradients and optimizer on the fullest stage."""
        return sum(self.parts[part] for part in ("parameters", "gradients", "optimizer"))

    def footprint(self) -> Footprint:
        """The fullest stage over a step: between steps, at the end of the forward, at the loss,
        in the backward, at the optimizer's step."""
        parts = self.parts
        kept = {part: parts[part] for part in ("parameters", "optimizer")}
        kept["buffers"] = parts["fixed"]
        held = {**kept, "gradients": parts["gradients"]}
        full = held | {part: parts[part] for part in ("gathered", "activations", "temporary")}
        moments = [
            ("start", kept),
            ("F", full),
            ("loss", {**full, "temporary": parts["temporary"] + parts["logits"]}),
            ("B", full),
            ("step", held),
        ]
        return footprint.from_moments(
            [(label, _whole(bill)) for label, bill in moments], "predicted"
        )


def _whole(bill: dict[str, float]) -> dict[str, int]:
    """In whole bytes."""
    return {part: round(num_bytes) for part, num_bytes in bill.items()}


def memory(shape: Shape, layout: Layout, stack: Stack) -> Memory:
    """What each stage holds."""
    stages = []
    for rank, num_layers in enumerate(layout.stage_layers(shape)):
        parts = {
            **_states(shape, layout, rank, num_layers),
            "gathered": _gathered_bytes(shape, layout, rank),
            "activations": _activation_bytes(shape, layout, rank, num_layers, stack.eager),
            "logits": _logit_bytes(shape, layout) if rank == layout.pp - 1 else 0.0,
            "temporary": 0.0,
            "fixed": 1e9 * stack.fixed_gb,
        }
        if stack.eager:
            parts |= _eager_bytes(shape, layout, rank, parts)
        stages.append(parts)
    return Memory(stages=tuple(stages))


# --- states ---


def stage_params(shape: Shape, layout: Layout, rank: int, num_layers: int) -> tuple[float, float]:
    """(dense, expert) parameters of a rank of a pipeline stage, before dp shards them."""
    dense = num_layers * shape.dense_params / layout.tp + layout.root_params(shape, rank)
    experts = num_layers * shape.expert_params / layout.ep / layout.tp
    return (dense, experts) if shape.experts > 1 else (dense + experts, 0.0)


def _states(shape: Shape, layout: Layout, rank: int, num_layers: int) -> dict[str, float]:
    dense, experts = stage_params(shape, layout, rank, num_layers)
    replicas = layout.dp * layout.cp
    kinds = states.state_bytes(dense, replicas, layout.zero, layout.recipe)
    found = dict.fromkeys(("parameters", "gradients", "optimizer"), 0.0)
    found.update(states.by_category(kinds))
    if experts:
        shared = states.state_bytes(
            experts, max(1, replicas // layout.ep), layout.zero, layout.recipe
        )
        for part, num_bytes in states.by_category(shared).items():
            found[part] += num_bytes
    if layout.offload == "optimizer":
        found["optimizer"] = 0.0
        if layout.zero > 1:  # DeepSpeed's gradients leave as they arise: partition.offload_places
            found["gradients"] = 0.0
    return found


def _gathered_bytes(shape: Shape, layout: Layout, rank: int) -> float:
    """What stage 3 holds in full at the beginning of the backward: UNITS layers' parameters, one
    layer's gradients; what lies outside of the layers, which stays from the forward on (FSDP's
    root unit), and the gradients of its part behind the layers."""
    if layout.zero < 3:
        return 0.0
    layers = (UNITS + 1) * shape.layer_params / layout.tp
    root = layout.root_params(shape, rank)
    is_last = rank == layout.pp - 1
    cut, whole = shape.outer_params(is_first=False, is_last=is_last)
    return layout.itemsize * (layers + root + cut / layout.tp + whole)


# --- activations ---


def layer_bytes(shape: Shape, layout: Layout, eager: bool = False) -> float:
    """What a layer keeps of one microbatch for its backward, nothing recomputed; 16 bit.

    Per token: both norms' inputs and outputs, 8 h, and where there are no gates dropout's masks,
    2 h; cut by sequence parallelism. Queries, keys, values, attention's result and the MLP's inner
    values, cut by tensor parallelism; 5 a s more where attention keeps its matrix, 4 a where it
    keeps its sums. For GPT's shape that is s b h (34 + 5 a s/h) (Korthikanti et al. 2022, equation
    1). ``eager``: torch's RMSNorm keeps the stream and its result in fp32, a gate's activation is
    kept beside its input, and nothing is dropped out.
    """
    if isinstance(shape, Counted):
        return shape.kept_bytes(layout.tokens, layout.itemsize)
    size = layout.itemsize
    stream = 4 * size * shape.hidden + (0 if shape.glu else 2 * shape.hidden)
    queries = shape.heads * shape.width
    pairs = 2 * shape.num_kv_heads * shape.width
    gates = 3 if shape.glu else 2
    if eager:
        stream = 2 * (_norm_bytes(shape, size) + size * shape.hidden)
        gates = 4 if shape.glu else 2
    inner = size * (2 * queries + pairs + gates * shape.active_experts * shape.ffn_width)
    if layout.flash:
        inner += 4 * shape.heads if shape.glu else 0
    elif layout.recompute == "none":
        inner += 5 * shape.heads * layout.seq
    return layout.tokens * (stream / (layout.tp if layout.sp else 1) + inner / layout.tp)


def _norm_bytes(shape: Shape, size: int) -> int:
    """What torch's own norm keeps of a token: RMSNorm, operator by operator, the stream and its
    result in fp32; LayerNorm, a kernel, the stream as it is."""
    return 2 * FP32 * shape.hidden if shape.glu else size * shape.hidden


def weights_share(shape: Shape, layout: Layout) -> float:
    """What of a layer's values its backward for weights needs, and so keeps after the one for the
    input: all but attention's matrix and dropout's masks (M_W / M_B of Qi et al. 2023, section 2.3:
    for GPT's shape 32 / (34 + 5 a s/h)); all of a counted module's."""
    if isinstance(shape, Counted):
        return 1.0
    whole = layout.tp if layout.sp else 1
    masks = 0 if shape.glu else 2 * shape.hidden / whole
    if not layout.flash and layout.recompute == "none":
        masks += 5 * shape.heads * layout.seq / layout.tp
    return 1 - layout.tokens * masks / layer_bytes(shape, layout)


def _activation_bytes(
    shape: Shape, layout: Layout, rank: int, num_layers: int, eager: bool
) -> float:
    """Of all microbatches in flight: p - r of them on stage r of 1F1B, and with interleaving
    1 + (p - 1)/(p v) times as many as the first stage's (Narayanan et al. 2021, section 2.2);
    2 (p - r) - 1 under ZB-H2, p everywhere under ZBV (Qi et al. 2023), all under GPipe. The r, or
    2 r, backwards for weights that wait under ZB-H1 and ZB-H2 keep what they need."""
    left = layout.pp - rank
    waiting = rank * weights_share(shape, layout)
    flights = {
        "gpipe": layout.num_microbatches,
        "zb_h1": left + waiting,
        "zb_1p": left + waiting,
        "zb_h2": 2 * left - 1 + 2 * waiting,
        "zb_2p": 2 * layout.pp,
        "zbv": layout.pp,
    }
    flight = flights.get(layout.schedule, left)
    if layout.vpp > 1:
        flight = layout.pp + (layout.pp - 1) / layout.vpp
    flight = min(layout.num_microbatches, flight)
    one = layer_bytes(shape, layout, eager)
    if layout.recompute == "operators":
        return flight * num_layers * one / 2  # every second product's output
    if layout.recompute != "full":
        return flight * num_layers * one
    stream = layout.tokens * shape.hidden * layout.itemsize / (layout.tp if layout.sp else 1)
    return flight * num_layers * stream + one


def _logit_bytes(shape: Shape, layout: Layout) -> float:
    """Logits in 16 bit, in fp32 for the loss, and their gradient: 10 bytes each where they are not
    cut up, for a microbatch at a time. Where layers are computed again, one layer's values lie
    there afterwards: of the two the larger counts."""
    held = 10 * layout.tokens * shape.vocab / layout.tp
    if layout.recompute == "full":
        return max(0.0, held - layer_bytes(shape, layout))
    return held


def _eager_bytes(
    shape: Shape, layout: Layout, rank: int, parts: dict[str, float]
) -> dict[str, float]:
    """What torch's own operators hold beside the layers' values, a part replaced for each that
    differs. At the loss: logits, in fp32 their logarithms and two gradients, 12 bytes a logit and
    an element. In the backward of the last layer: the logits that the caller still has, what is
    gathered and its gradients, and of a norm's backward five tensors in fp32. The higher of the two
    counts. The last norm's values are kept as a layer's are."""
    tokens = layout.tokens / (layout.tp if layout.sp else 1)
    norm = tokens * (_norm_bytes(shape, layout.itemsize) + layout.itemsize * shape.hidden)
    work = tokens * (5 * FP32 if shape.glu else 3 * layout.itemsize) * shape.hidden
    found = {"temporary": work}
    if rank < layout.pp - 1 or isinstance(shape, Counted):
        return found
    logits = layout.tokens * shape.vocab / layout.tp
    held = layout.itemsize * logits
    root = layout.itemsize * layout.root_params(shape, rank) if layout.zero == 3 else 0.0
    beside = parts["gathered"] + work - root
    if layout.recompute == "full":
        beside += layer_bytes(shape, layout, eager=True)
    found["activations"] = parts["activations"] + norm
    found["logits"] = held + max(0.0, 3 * FP32 * logits - beside)
    return found
