"""The experiment of this subject: one training step of a small transformer on ranks of several
axes, what theory says of it, and the same on real ranks.

    step = mesh_3d.Step(pp=2, dp_shard=2, tp=2)
    step.mesh              # the ranks on their axes, and the groups of each
    step.run()             # real ranks, their losses held against one process
"""

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Comparison, Experiment
from labkit.mesh import Mesh
from labkit.mesh_3d import held, limits, messages, times
from labkit.planner.plan.cluster import gpu
from labkit.planner.plan.layout import PRECISIONS, RECOMPUTE
from labkit.planner.plan.memory import Memory, memory
from labkit.planner.plan.shape import Shape
from labkit.shards import Shards
from labkit.timeline import Timeline
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""The axes of a step, those of ``Mesh``, the farthest apart first."""
ENGINES = ("torch", "deepspeed")
"""Who trains: torch's DTensor, FSDP2 and pipeline stages on one DeviceMesh; or DeepSpeed's
PipelineModule on its own grid."""
SCHEDULES = ("gpipe", "1f1b")
ZERO = (0, 1, 3)
"""Stage 2 reduces gradients in each microbatch; a pipeline holds them until the last."""
MOST_MICROBATCHES = 1024
_WORDS = words.catalogue(
    [
        ("title", "pp {} x dp {} x tp {}, {}"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """One training step of a small transformer, its ranks on named axes.

    ``run()[r]`` is a dict: losses (of four steps of AdamW, the same on every rank), whole_losses
    (one process's), loss_difference and gradient_difference (the largest; the latter of the first
    step's mean gradients, as far as the rank holds them), held_bytes (after the last backward of a
    step, by parameters, gradients and optimizer), calls and payload_bytes (of a step: axis ->
    collective -> how many), step_us and overruns (of a step more, which is recorded).
    """

    pp: int = 2
    """stages of the pipeline"""
    dp_replicate: int = 1
    """replicas that hold the same states"""
    dp_shard: int = 1
    """replicas among which states are shared out, as ``zero`` says"""
    tp: int = 2
    """slices of each layer"""
    zero: int = 3
    """what dp_shard shares out: 1 the optimizer's states, 3 gradients and parameters too (FSDP, and
    with dp_replicate HSDP). Where dp_shard is 1 it says nothing"""
    microbatches: int = 4
    """m, of each replica"""
    schedule: str = "1f1b"
    """of the pipeline: one of SCHEDULES"""
    layers: int = 4
    """L, blocks of the transformer"""
    hidden: int = 32
    """h, features of the stream"""
    heads: int = 4
    """a, heads of attention"""
    vocab: int = limits.REAL_VOCAB
    """words of the vocabulary; real runs read bytes"""
    sequence: int = 32
    """s, tokens of a sequence"""
    batch: int = 16
    """sequences of a step, on all ranks together"""
    precision: str = "fp32"
    """a key of ``PRECISIONS``; runs are fp32"""
    recompute: str = "none"
    """what is computed again in the backward: one of the planner's RECOMPUTE"""
    engine: str = "torch"
    """one of ENGINES"""
    inside: str = "tp"
    """the axis whose neighbours lie beside one another in a node; the others follow in the order of
    AXES"""
    node_size: int = 8
    """ranks of a node"""
    gpu: str = "A100 80 GB"
    """whose memory and times are predicted: a GPU of data/hardware.csv"""
    forward_ms: float = 0.0
    """stated time of a microbatch's forward through all layers of a rank, messages not counted; 0:
    as the GPU would take by the planner, while a run goes at the machine's own pace"""
    latency_ms: float = 0.0
    """stated: what each message takes beside its bytes, where forward_ms is"""
    node_mb_per_s: float = 100.0
    """stated: a rank's link inside its node, where forward_ms is"""
    nic_mb_per_s: float = 100.0
    """stated: a rank's link out of its node, where forward_ms is"""

    def __post_init__(self) -> None:
        check_word(self.engine, ENGINES, "an engine")
        check_word(self.schedule, SCHEDULES, "a schedule")
        check_word(self.precision, PRECISIONS, "a precision")
        check_word(self.recompute, RECOMPUTE, "recompute")
        check_word(self.inside, AXES, "an axis")
        check_whole(1, MOST_MICROBATCHES, microbatches=self.microbatches)
        check_whole(1, 10**6, batch=self.batch, sequence=self.sequence)
        check_whole(1, 10**4, node_size=self.node_size)
        check_whole(0, 3, zero=self.zero)
        if self.zero not in ZERO:
            raise ValueError(
                f"zero is one of {', '.join(map(str, ZERO))}: stage 2 reduces in each microbatch "
                f"what a pipeline holds until the last; got {self.zero}"
            )
        check_real(0.0, 1e6, forward_ms=self.forward_ms, latency_ms=self.latency_ms)
        check_real(1e-3, 1e9, node_mb_per_s=self.node_mb_per_s, nic_mb_per_s=self.nic_mb_per_s)
        self.shape()
        _ = self.mesh
        gpu(self.gpu)

    @property
    def mesh(self) -> Mesh:
        """The ranks on their axes."""
        axes = {axis: getattr(self, axis) for axis in AXES}
        return Mesh(**axes, node_size=self.node_size)

    @property
    def ranks(self) -> int:
        """How many ranks."""
        return self.mesh.num_ranks

    @property
    def dp(self) -> int:
        """Replicas that take a part of the batch each."""
        return self.dp_replicate * self.dp_shard

    @property
    def microbatch(self) -> int:
        """Sequences of a microbatch."""
        return self.batch // (self.dp * self.microbatches)

    def shape(self) -> Shape:
        """The model, as the planner sees it: ``labkit.model.Transformer``."""
        return Shape(
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            vocab=self.vocab,
            tied=False,
            positions=self.sequence,
        )

    counts_messages: ClassVar[bool] = True
    """a step ends when its last message has come"""

    # --- where its ranks lie ---

    def distance(self, axis: str) -> int:
        """How far neighbours along an axis lie apart as the ranks are placed in nodes. Raises
        ValueError for what is no axis."""
        check_word(axis, AXES, "an axis")
        placed = [each for each in AXES if each != self.inside] + [self.inside]
        return prod(getattr(self, each) for each in placed[placed.index(axis) + 1 :])

    def place(self, rank: int) -> int:
        """A rank's place in the row of all nodes, one after another."""
        at = self.mesh.coordinates(rank)
        return sum(at[axis] * self.distance(axis) for axis in AXES)

    def node(self, rank: int) -> int:
        """The node that a rank lies on."""
        return self.place(rank) // self.node_size

    def neighbours_share_node(self, axis: str) -> bool:
        """Whether a rank and the next along an axis lie on one node, wherever they do."""
        return self.distance(axis) < self.node_size

    def nodes_of_group(self, axis: str) -> int:
        """On how many nodes the widest group along an axis lies. Raises ValueError for what is no
        axis."""
        check_word(axis, AXES, "an axis")
        widest = 1
        for group in self.mesh.groups(axis):
            widest = max(widest, len({self.node(rank) for rank in group}))
        return widest

    # --- what theory says ---

    def predict(self) -> Timeline:
        """The step of all axes on one timeline: forwards and backwards, tp's sums between them,
        messages between stages, gathered parameters and reduced gradients, the optimizer. By the
        planner's times of the GPU, or as stated. Raises ValueError where there is no such step."""
        self._check()
        return times.timeline(self)

    def times(self) -> times.Times:
        """What the parts of the step take. Raises ValueError where there is no such step."""
        self._check()
        return times.of(self)

    def message_us(self, collective: str, axis: str, num_bytes: float) -> float:
        """What a message along an axis takes, ``num_bytes`` as a rank hands them in; a receive as
        long as its send. Raises ValueError for what no rank sends."""
        name = "send" if collective == "recv" else collective
        return self.times().message_us(axis, name, num_bytes)

    def states(self) -> Shards:
        """What every rank holds of parameters, gradients and optimizer states, in fp32, as a run
        does. Raises ValueError where there is no such step, or too many ranks to list."""
        self._check()
        return held.states(self)

    def messages(self, rank: int = 0) -> dict[str, dict[str, messages.Counted]]:
        """Axis -> collective -> how often a rank calls it in a step, and the bytes that it hands
        in. Raises ValueError where there is no such step or rank."""
        self._check()
        return messages.counted(self, self.mesh.coordinates(rank)["pp"])

    def memory(self) -> Memory:
        """What the ranks of each stage hold at their highest point, activations included, by the
        planner: tables cut by tp, as Megatron cuts them. Raises ValueError where there is no such
        step."""
        self._check()
        return memory(self.shape(), times.layout(self), self.times().bench.stack)

    def fits(self) -> bool:
        """Whether the fullest rank's memory is that of the GPU, or less."""
        return self.memory().peak_bytes <= self.times().cluster.device_bytes

    def _check(self) -> None:
        if reason := self.impossible("en"):
            raise ValueError(reason)

    def impossible(self, language: str | None = None) -> str | None:
        """Why there is no such step, on any machine; None where there is."""
        return limits.impossible(self, language)

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: there is no such step, this machine is too small, or the engine does
        not do it."""
        return limits.refusal(self, language)

    # --- what real ranks do ---

    def as_run(self) -> "Step":
        """Without stated times, the ranks know neither the GPU nor where they would lie."""
        if self.forward_ms:
            return replace(self, gpu=Step.gpu)
        own = ("gpu", "inside", "node_size", "latency_ms", "node_mb_per_s", "nic_mb_per_s")
        return replace(self, **{name: getattr(Step, name) for name in own})

    def compare(self) -> Comparison:
        """Prediction and measurement on one axis. Raises ValueError where no time is stated: the
        prediction is then of a GPU, and the run of this machine."""
        if not self.forward_ms:
            raise ValueError(
                f"a prediction and a run are compared at stated times; forward_ms is 0, so the one "
                f"is of an {self.gpu} and the other of this machine: give forward_ms, e.g. 20"
            )
        return super().compare()

    def _in_picture(self, timeline: Timeline) -> Timeline:
        """All-reduces have a colour for each axis."""
        return times.by_axis(timeline)

    def start(self) -> "Job":
        """Trains on real ranks, beside one process, in the background."""
        from labkit.mesh_3d import run

        return run.start(self)

    def title(self, language: str | None = None) -> str:
        """Its axes and engine."""
        say = _WORDS[words.spoken_in(language)]
        return say["title"].format(self.pp, self.dp, self.tp, self.engine)
