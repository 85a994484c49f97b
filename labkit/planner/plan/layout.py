"""How a training step is divided among ranks, and what can't be."""

from dataclasses import dataclass
from math import ceil

from labkit.planner.plan.cluster import Cluster, Group
from labkit.planner.plan.shape import Shape
from labkit.sharding import states
from labkit.units import check_whole, check_word
from labkit.words import say

PRECISIONS = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
"""precision -> bytes of an element that ranks hand one another"""
RECOMPUTE = (*states.RECOMPUTE, "operators")
"""What is computed again in the backward: nothing, attention's core, whole layers, or operator by
operator: norms, activations and every second product (torchtitan's selective checkpointing)."""
OFFLOADS = ("none", "optimizer")
WEIGHTS_IN_BUBBLE = {
    "gpipe": 0,
    "1f1b": 0,
    "interleaved_1f1b": 0,
    "zb_h1": 1,
    "zb_1p": 1,
    "zb_h2": 2,
    "zb_2p": 2,
    "zbv": 2,
}
"""schedule -> how many backwards for weights fill each slot of the bubble: it has p - 1 of F + B,
and (F + I - k W) is left (Qi et al. 2023, section 2, for k = 1 and 2). ZB-2p, whose order follows
from its times, has its own rule: ``StepTime.bubble_us``."""
ROOM = {"zb_1p": 1, "zb_2p": 2}
"""schedules that ``pipeline.automatic`` finds -> the room it has, in activations of p
microbatches."""
MOST = 10**6


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Ranks on named axes, and what a step feeds them. Neighbours along tp are neighbours; then cp,
    dp and pp, as Megatron orders them."""

    tp: int = 1
    """tensor parallel"""
    cp: int = 1
    """context parallel"""
    pp: int = 1
    """pipeline stages"""
    vpp: int = 1
    """chunks of layers on each pipeline rank"""
    dp: int = 1
    """data parallel (its ranks hold the experts of expert parallelism as well)"""
    ep: int = 1
    """expert parallel: among this many of the dp ranks a layer's experts are shared out"""
    zero: int = 0
    """what dp shards: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too (FSDP)"""
    sp: bool = False
    """sequence parallel: norms and dropouts are cut among tp as well"""
    mbs: int = 1
    """sequences of a microbatch"""
    gbs: int = 1
    """sequences of a step, on all ranks"""
    seq: int = 2048
    """tokens of a sequence"""
    recompute: str = "none"
    """one of RECOMPUTE"""
    offload: str = "none"
    """one of OFFLOADS: what lies in the host's memory; from ZeRO 2 on gradients do, too"""
    precision: str = "bf16"
    """one of PRECISIONS"""
    recipe: str = "megatron"
    """in which types states are kept: a key of ``states.RECIPES``"""
    flash: bool = True
    """whether attention never stores its matrix"""
    schedule: str = "1f1b"
    """of the pipeline: a key of WEIGHTS_IN_BUBBLE"""

    def __post_init__(self) -> None:
        sizes = ("tp", "cp", "pp", "vpp", "dp", "ep", "mbs", "gbs")
        check_whole(1, MOST, **{name: getattr(self, name) for name in sizes})
        check_whole(1, 10**8, seq=self.seq)
        check_whole(0, 3, zero=self.zero)
        check_word(self.recompute, RECOMPUTE, "recompute")
        check_word(self.offload, OFFLOADS, "offload")
        check_word(self.precision, PRECISIONS, "a precision")
        check_word(self.recipe, states.RECIPES, "a recipe")
        check_word(self.schedule, WEIGHTS_IN_BUBBLE, "a schedule")

    @property
    def kind(self) -> str:
        """What it does with the model: "cut" by tp, pp or cp, "shards" (ZeRO 3), or "copies"."""
        if self.tp * self.pp * self.cp > 1:
            return "cut"
        return "shards" if self.zero == 3 else "copies"

    @property
    def num_ranks(self) -> int:
        """How many ranks it takes."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_microbatches(self) -> int:
        """m: microbatches of a step on each rank."""
        return ceil(self.gbs / (self.dp * self.mbs))

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the stream."""
        return PRECISIONS[self.precision]

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on a rank."""
        return self.mbs * self.seq // self.cp

    def group(self, axis: str) -> Group:
        """The ranks along an axis: tp, cp, dp (with cp: they share gradients), ep or pp."""
        inner = self.tp * self.cp
        groups = {
            "tp": Group(size=self.tp),
            "cp": Group(size=self.cp, stride=self.tp),
            "dp": Group(size=self.dp * self.cp, stride=self.tp),
            "ep": Group(size=self.ep, stride=inner),
            "expert dp": Group(size=max(1, self.dp // self.ep), stride=inner * self.ep),
            "pp": Group(size=self.pp, stride=inner * self.dp),
        }
        check_word(axis, groups, "an axis")
        return groups[axis]

    def stage_layers(self, shape: Shape) -> list[int]:
        """Layers of each pipeline rank: as even as they go, the longer ones in the middle, since
        the last stage has the output layer and the first the embedding."""
        least, more = divmod(shape.layers, self.pp)
        first = (self.pp - more) // 2
        return [least + (first <= rank < first + more) for rank in range(self.pp)]

    def root_params(self, shape: Shape, rank: int) -> float:
        """Parameters of a pipeline rank outside of its layers, after tp: tables and the last norm,
        FSDP's root unit."""
        cut, whole = shape.outer_params(is_first=rank == 0, is_last=rank == self.pp - 1)
        return cut / self.tp + whole


def usual_recipe(zero: int, precision: str) -> str:
    """In which types states are kept where nobody says: as Megatron does in bf16 (gradients in
    fp32); as FSDP and fp16 do, 16 bytes a parameter; in fp32."""
    if precision in ("fp32", "tf32"):
        return "fp32"
    return "mixed" if zero == 3 or precision == "fp16" else "megatron"


def has_own_recipe(layout: Layout) -> bool:
    """Whether its states are kept in other types than is usual."""
    return layout.recipe != usual_recipe(layout.zero, layout.precision)


def written(layout: Layout, *, recipe: bool = False) -> str:
    """A layout in few words, those of the code, and what is usual left out: "tp 2 pp 4 dp 8,
    ZeRO 1, mbs 2, recompute full". Two layouts of as many sequences that differ in what they do
    are written differently. With ``recipe`` the usual recipe is told too."""
    axes = ("tp", "cp", "pp", "vpp", "ep", "dp")
    sizes = {name: getattr(layout, name) for name in axes}
    told = [" ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)]
    told += [f"ZeRO {layout.zero}"] if layout.zero else []
    told += ["sp"] if layout.sp and layout.tp > 1 else []
    told += [f"mbs {layout.mbs}"] if layout.mbs > 1 else []
    for name in ("recompute", "offload"):
        value = getattr(layout, name)
        told += [f"{name} {value}"] if value != "none" else []
    has_own = layout.schedule != "1f1b" and layout.pp > 1 and layout.vpp == 1
    told += [layout.schedule] if has_own else []
    told += [layout.precision] if layout.precision != "bf16" else []
    told += [f"recipe {layout.recipe}"] if recipe or has_own_recipe(layout) else []
    told += [] if layout.flash else ["no flash"]
    return ", ".join(filter(None, told))


def refusals(shape: Shape, cluster: Cluster, layout: Layout) -> list[str]:
    """Why a layout can't be, a sentence each; none where it can."""
    found = []
    if layout.num_ranks != cluster.num_gpus:
        axes = f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp}"
        found.append(
            say(
                "{axes} is {ranks} ranks; the cluster has {gpus} GPUs",
                axes=axes,
                ranks=layout.num_ranks,
                gpus=cluster.num_gpus,
            )
        )
    found += shape.refusals(vars(layout))
    if shape.heads % layout.tp:
        found.append(say("{a} heads can't be cut in {n}", a=shape.heads, n=layout.tp))
    if shape.ffn_width % layout.tp:
        found.append(say("an MLP {a} wide can't be cut in {n}", a=shape.ffn_width, n=layout.tp))
    if layout.pp * layout.vpp > shape.layers:
        found.append(
            say(
                "{n} stages of {v} chunks need as many layers; the model has {layers}",
                n=layout.pp,
                v=layout.vpp,
                layers=shape.layers,
            )
        )
    if layout.gbs % (layout.dp * layout.mbs):
        found.append(
            say(
                "a step's {gbs} sequences are not a multiple of dp {dp} x {mbs} a microbatch",
                gbs=layout.gbs,
                dp=layout.dp,
                mbs=layout.mbs,
            )
        )
    if layout.seq % layout.cp:
        found.append(say("{a} tokens can't be cut in {n}", a=layout.seq, n=layout.cp))
    found += _of_chunks(shape, layout)
    found += _of_experts(shape, layout)
    return found


def _of_chunks(shape: Shape, layout: Layout) -> list[str]:
    found = []
    if layout.vpp > 1 and layout.pp == 1:
        found.append(say("chunks need a pipeline: vpp {v} with pp 1", v=layout.vpp))
    if layout.vpp > 1 and shape.layers % (layout.pp * layout.vpp):
        found.append(
            say(
                "{layers} layers are not a multiple of {p} stages x {v} chunks",
                layers=shape.layers,
                p=layout.pp,
                v=layout.vpp,
            )
        )
    if layout.vpp > 1 and layout.num_microbatches % layout.pp:
        found.append(
            say(
                "interleaving needs a multiple of {p} microbatches; a step has {m}",
                p=layout.pp,
                m=layout.num_microbatches,
            )
        )
    if layout.zero == 2 and layout.pp > 1:
        found.append(
            say("ZeRO 2 reduces in each microbatch, and a pipeline holds its gradients: stage 1")
        )
    return found


def _of_experts(shape: Shape, layout: Layout) -> list[str]:
    if layout.ep > 1 and shape.experts % layout.ep:
        return [say("{a} experts can't be shared by {n}", a=shape.experts, n=layout.ep)]
    if layout.ep > 1 and layout.dp % layout.ep:
        return [say("ep {n} does not divide dp {dp}", n=layout.ep, dp=layout.dp)]
    return []


def warnings(shape: Shape, cluster: Cluster, layout: Layout) -> list[str]:
    """Where published runs lie far from any model's line, a sentence each."""
    found = []
    if shape.layers % layout.pp:
        found.append(
            say(
                "{layers} layers on {p} stages: the longest has {most}, the others wait",
                layers=shape.layers,
                p=layout.pp,
                most=max(layout.stage_layers(shape)),
            )
        )
    if layout.tp > cluster.node_size:
        found.append(
            say(
                "tensor parallelism of {t} leaves the node of {n}", t=layout.tp, n=cluster.node_size
            )
        )
    if shape.num_kv_heads % layout.tp:
        found.append(
            say(
                "{kv} heads of keys and values on {t} ranks: some hold the same",
                kv=shape.num_kv_heads,
                t=layout.tp,
            )
        )
    if shape.width % 64 or (shape.hidden // layout.tp) % 64:
        found.append(
            say(
                "heads of {d}, {h} columns a rank: products like multiples of 64",
                d=shape.width,
                h=shape.hidden // layout.tp,
            )
        )
    if layout.pp > 1 and layout.num_microbatches < layout.pp:
        found.append(
            say(
                "{m} microbatches on {p} stages: some stages always wait",
                m=layout.num_microbatches,
                p=layout.pp,
            )
        )
    return found
