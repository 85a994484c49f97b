"""How long a GPU computes on a layer, by part: matrix products, attention, memory traffic.

A product of M rows takes its FLOPs at a share of the peak, and half a wave of tiles more (the last
wave is half empty on average). Norms, activations and residuals take their bytes. A number here is
for one microbatch on one rank; ``Pass`` has the forward and the backward.
"""

from dataclasses import dataclass, field

from labkit.planner.plan.cluster import Gpu
from labkit.planner.plan.layout import Layout
from labkit.planner.plan.shape import Product, Shape
from labkit.planner.plan.stacks import HBM_SHARE, TILE, Stack
from labkit.planner.real.counted import Counted

PARTS = ("products", "attention", "memory", "overhead")
FLASH_BACKWARD = 2.5
"""Matrix products of flash attention's backward over its forward's (Dao 2023, section 3.1: five
for two)."""
MATRIX_BYTES = {"forward": 13, "backward": 24}
"""Bytes read and written for each element of an attention matrix that is stored, 16 bit: scores
out, softmax in and out, dropout in and out with its mask, values in; the backward twice that."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Microseconds by part, forward and backward."""

    forward: dict[str, float] = field(default_factory=dict)
    """part -> us of the forward"""
    backward: dict[str, float] = field(default_factory=dict)
    """part -> us of the backward, recomputation included"""

    @property
    def forward_us(self) -> float:
        """All of the forward."""
        return sum(self.forward.values())

    @property
    def backward_us(self) -> float:
        """All of the backward."""
        return sum(self.backward.values())

    @property
    def weights_us(self) -> float:
        """Of the backward what can wait, the gradients of the weights: for each product of the
        forward one more, as long."""
        return self.forward.get("products", 0.0)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A GPU under a stack: what turns FLOPs and bytes into microseconds."""

    gpu: Gpu
    """which"""
    stack: Stack
    """how it is used"""

    def peak(self, precision: str, eight_bit: bool = True) -> float:
        """Dense FLOPs of a microsecond at a precision; attention has no 8 bit."""
        tflops = self.gpu.tflops_8bit if precision == "fp8" and eight_bit else self.gpu.tflops
        if precision in ("fp32", "tf32"):
            tflops = self.gpu.tflops * self.gpu.fp32_share
        return tflops * 1e6

    def product_us(self, rows: float, inner: float, columns: float, precision: str) -> float:
        """[rows, inner] x [inner, columns]: its FLOPs, and half a wave of tiles."""
        rate = self.stack.matmul * self.peak(precision)
        tile_flops = 2 * TILE * TILE * inner
        return (2 * rows * inner * columns + 0.5 * tile_flops * self.gpu.sms) / rate

    def traffic_us(self, num_bytes: float) -> float:
        """Bytes that a kernel reads and writes in the GPU's memory."""
        return num_bytes / (HBM_SHARE * self.gpu.hbm_gb_per_s * 1e3)


def layer_pass(shape: Shape, layout: Layout, bench: Bench) -> Pass:
    """One layer, one microbatch."""
    forward = {
        "products": _products_us(shape, layout, bench),
        "attention": attention_us(shape, layout, bench, "forward"),
        "memory": bench.traffic_us(_stream_bytes(shape, layout)),
        "overhead": bench.stack.layer_us / 3,
    }
    backward = {
        "products": 2 * forward["products"],
        "attention": attention_us(shape, layout, bench, "backward"),
        "memory": 2 * forward["memory"],
        "overhead": 2 * bench.stack.layer_us / 3,
    }
    if layout.recompute == "full":
        backward = {part: backward[part] + forward[part] for part in PARTS}
    elif layout.recompute == "selective" and not layout.flash:
        backward["attention"] += forward["attention"]
    elif layout.recompute == "operators":
        backward["products"] += forward["products"] / 2
        backward["memory"] += forward["memory"]
    return Pass(forward=forward, backward=backward)


def _products_us(shape: Shape, layout: Layout, bench: Bench) -> float:
    """All products of a layer's forward; of its experts, those that a rank's tokens go through."""
    total_us = 0.0
    for each in shape.products():
        total_us += _product_us(each, shape, layout, bench)
    return total_us


def _product_us(each: Product, shape: Shape, layout: Layout, bench: Bench) -> float:
    inner = each.inner / (layout.tp if each.cut == "rows" else 1)
    columns = each.columns / (layout.tp if each.cut == "columns" else 1)
    if each.name not in ("up", "down") or shape.experts == 1:
        return bench.product_us(layout.tokens, inner, columns, layout.precision)
    here = max(1, shape.experts // layout.ep)
    rows = layout.tokens * shape.active_experts / here  # tokens of ep ranks meet on each
    return here * bench.product_us(rows, inner, columns, layout.precision)


def attention_us(shape: Shape, layout: Layout, bench: Bench, way: str) -> float:
    """Attention's own products, and the traffic of its matrix where it is stored."""
    flops = layout.tokens * shape.attention_flops(layout.seq, causal=layout.flash) / layout.tp
    rate = bench.stack.attention * bench.peak(layout.precision, eight_bit=False)
    if layout.flash:
        return flops / rate * (1 if way == "forward" else FLASH_BACKWARD)
    elements = layout.tokens * layout.seq * shape.heads / layout.tp
    stored_us = bench.traffic_us(MATRIX_BYTES[way] * elements * layout.itemsize / 2)
    return flops / rate * (1 if way == "forward" else 2) + stored_us


def _stream_bytes(shape: Shape, layout: Layout) -> float:
    """Bytes that norms, residuals, dropouts and activations of a layer's forward read and write.

    Per token: two norms (in, out) and two residuals (two in, one out), 10 h, cut by sequence
    parallelism alone; the MLP's activation (GELU: in and out; gated: two in, one out) and queries
    and keys on their way, cut by tensor parallelism. For 8 bit, inputs of products are cast: 3
    bytes an element.
    """
    if isinstance(shape, Counted):
        return shape.moved_bytes(layout.tokens, layout.itemsize)
    stream = 10 * shape.hidden / (layout.tp if layout.sp else 1)
    gate = 3 if shape.glu else 2
    pairs = 2 * (shape.heads + shape.num_kv_heads) * shape.width
    inner = (gate * shape.active_experts * shape.ffn_width + pairs) / layout.tp
    cast = 0.0
    if layout.precision == "fp8":
        cast = 3 * (2 * shape.hidden + shape.ffn_width / layout.tp)
    return layout.tokens * (layout.itemsize * (stream + inner) + cast)


def head_pass(shape: Shape, layout: Layout, bench: Bench) -> Pass:
    """The output layer and its loss, one microbatch: logits in fp32 are written, read and
    rewritten (20 bytes a logit over both passes)."""
    rows = layout.tokens
    columns = shape.vocab / layout.tp
    products_us = bench.product_us(rows, shape.hidden, columns, _wide(layout))
    traffic_us = bench.traffic_us(10 * rows * columns)
    return Pass(
        forward={"products": products_us, "memory": traffic_us},
        backward={"products": 2 * products_us, "memory": traffic_us},
    )


def _wide(layout: Layout) -> str:
    """The output layer stays in 16 bit where the others have 8."""
    return "bf16" if layout.precision == "fp8" else layout.precision


def optimizer_us(num_params: float, layout: Layout, bench: Bench) -> float:
    """Adam on a rank's part of the parameters."""
    part = num_params / (layout.dp * layout.cp if layout.zero else 1)
    return bench.traffic_us(bench.gpu.adam_bytes * part)
