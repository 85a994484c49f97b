"""The experiment: a model, a cluster and a layout in; memory, time, days and money out."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar

from labkit import words
from labkit.experiment import Experiment, Reading
from labkit.footprint import Footprint
from labkit.pipeline import step as pipeline_step
from labkit.pipeline.schedule import Schedule
from labkit.pipeline.schedules import SCHEDULES
from labkit.pipeline.simulation import Cost, simulate
from labkit.pipeline.zero_bubble import automatic
from labkit.planner.plan import memory, shape, stacks, steptime
from labkit.planner.plan.cluster import Cluster, Gpu, gpu
from labkit.planner.plan.layout import ROOM, Layout, refusals, usual_recipe, warnings, written
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import NAMED, Stack, nearest
from labkit.planner.plan.steptime import StepTime
from labkit.sharding import step as sharding_step
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows, step_us
from labkit.units import check_real, check_word, format_us
from labkit.words import both, say

TOY_RANKS = 4
MOST_SPANS = 20_000
"""A step of more actions than this is not simulated: its closed form stands."""
DAY_US = 86_400e6
OWN_ENDS = ("zb_h2", "zb_1p", "zb_2p", "zbv")
"""Schedules whose ranks go on to the optimizer at their own ends, and undo a step that should not
have been (Qi et al. 2023, section 4)."""
LAYOUT = tuple(each.name for each in fields(Layout) if each.name not in ("dp", "gbs"))
"""Fields of a Layout that a Plan has as well, by the same name."""


@dataclass(frozen=True, kw_only=True)
class Plan(Experiment):
    """Training a model on a cluster by a layout. Nothing is started: ``refusal`` says so, and
    ``toy`` is the same division at a size that runs here."""

    model: str | Shape = "LLaMA 7B"
    """a name of data/models.csv, the path of a Hugging Face config.json, or a Shape"""
    gpu: str | Gpu = "A100 80 GB"
    """a name of data/hardware.csv, or a Gpu"""
    gpus: int = 8
    """how many"""
    per_node: int = 0
    """GPUs of a node; 0: as many as a usual machine has"""
    nic_gb_per_s: float = 0.0
    """out of a node for each GPU; 0: as a usual machine has"""
    memory_gb: float = 0.0
    """of a GPU; 0: as printed"""
    tp: int = 1
    """tensor parallel"""
    cp: int = 1
    """context parallel"""
    pp: int = 1
    """pipeline stages"""
    vpp: int = 1
    """chunks of layers on each pipeline rank"""
    ep: int = 1
    """expert parallel"""
    zero: int = 0
    """what data parallelism shards: 0 to 3"""
    sp: bool = False
    """sequence parallel"""
    mbs: int = 1
    """sequences of a microbatch"""
    batch: int = 0
    """sequences of a step; 0: one microbatch on each data-parallel rank and stage"""
    seq: int = 2048
    """tokens of a sequence"""
    recompute: str = "none"
    """none, selective or full"""
    offload: str = "none"
    """none, or optimizer: on the host, with ZeRO 2 or 3 the gradients too"""
    precision: str = "bf16"
    """of the products"""
    recipe: str = ""
    """in which types states are kept: a key of ``states.RECIPES``; "": ``layout.usual_recipe``"""
    flash: bool = True
    """whether attention never stores its matrix"""
    schedule: str = "1f1b"
    """of the pipeline"""
    stack: str | Stack = ""
    """whose constants: a key of stacks.NAMED, or a fitted Stack; "": the nearest shipped one"""

    shape: Shape = field(init=False, repr=False, compare=False)
    """the model in sizes"""
    cluster: Cluster = field(init=False, repr=False, compare=False)
    """the machine"""
    layout: Layout = field(init=False, repr=False, compare=False)
    """the division, with dp"""
    used: Stack = field(init=False, repr=False, compare=False)
    """whose constants are used"""

    reading: ClassVar[Reading] = Reading(both("step"), step_us, format_us)
    """what ``sweep`` draws of it"""
    board_home: ClassVar[str] = "labkit.planner.plan.plan_board"
    """its board"""

    def __post_init__(self) -> None:
        model = self.model if isinstance(self.model, Shape) else _shape(self.model)
        cluster = Cluster(
            gpu=self.gpu if isinstance(self.gpu, Gpu) else gpu(self.gpu),
            num_gpus=self.gpus,
            per_node=self.per_node,
            nic_gb_per_s=self.nic_gb_per_s,
            memory_gb=self.memory_gb,
        )
        if isinstance(self.stack, str) and self.stack:
            check_word(self.stack, NAMED, "a stack")
        object.__setattr__(self, "shape", model)
        object.__setattr__(self, "cluster", cluster)
        object.__setattr__(self, "layout", self._layout())
        object.__setattr__(self, "used", self.stack_for(self.zero))
        if self.num_inner > 1 or self.zero or self.mbs > 1:
            self.check()

    @property
    def num_inner(self) -> int:
        """Ranks that share one copy of the model's work: tp x cp x pp."""
        return self.tp * self.cp * self.pp

    def check(self) -> None:
        """Raises ValueError for a layout that can't be, with the reason and a way out. A plan that
        names no layout is held to it when its numbers are asked for: ``search`` finds one."""
        if found := refusals(self.shape, self.cluster, self.layout):
            raise ValueError(". ".join(filter(None, (found[0], self._way_out()))))

    def _way_out(self) -> str:
        """What would fit instead, where that is known."""
        step = self.layout.dp * self.mbs
        if self.gpus % self.num_inner:
            return say("tp x cp x pp divides {gpus}", gpus=self.gpus)
        if self.layout.gbs % step:
            whole = max(1, self.layout.gbs // step) * step
            return say("A batch of {whole} sequences divides evenly", whole=whole)
        return say("vpp 1 always divides") if self.vpp > 1 else ""

    def _layout(self) -> Layout:
        same = {name: getattr(self, name) for name in LAYOUT}
        same["recipe"] = self.recipe or usual_recipe(self.zero, self.precision)
        dp = max(1, self.gpus // max(1, self.num_inner))
        batch = self.batch or dp * self.mbs * self.pp
        return Layout(dp=dp, gbs=batch, **same)

    def stack_for(self, zero: int) -> Stack:
        """Whose constants serve at a ZeRO stage: the ones asked for, else the nearest shipped."""
        if isinstance(self.stack, Stack):
            return self.stack
        return NAMED[self.stack] if self.stack else nearest(self.cluster.gpu.name, zero)

    # --- numbers ---

    def time(self) -> StepTime:
        """How long a step takes, by part. Raises ValueError for a layout that can't be."""
        self.check()
        return steptime.step_time(self.shape, self.cluster, self.layout, self.used)

    def memory(self) -> memory.Memory:
        """What the GPUs of each stage hold, by part. Raises ValueError for a layout that can't
        be."""
        self.check()
        return memory.memory(self.shape, self.layout, self.used)

    def footprint(self) -> Footprint:
        """What the fullest GPU holds over a step."""
        return self.memory().footprint()

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU holds it."""
        return self.memory().peak_bytes <= self.cluster.device_bytes

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.layout.gbs * self.seq

    def tokens_per_s(self) -> float:
        """Tokens per second of all GPUs together."""
        return 1e6 * self.tokens / self.time().step_us

    def mfu(self, *, causal: bool = False) -> float:
        """Model FLOPs over the dense peak (Chowdhery et al. 2022, appendix B): nothing recomputed
        is counted, attention in full, or half of it where ``causal``."""
        flops = self.tokens * self.shape.token_flops(self.seq, causal=causal)
        tflops = self.cluster.gpu.tflops
        if self.precision == "fp8":
            tflops = self.cluster.gpu.tflops_8bit
        return flops / self.time().step_us / 1e6 / self.gpus / tflops

    def days(self, tokens: float) -> float:
        """Days for so many tokens, nothing failing."""
        check_real(0.0, 1e18, tokens=tokens)
        return tokens / self.tokens * self.time().step_us / DAY_US

    def cost(self, tokens: float, price_per_gpu_hour: float) -> float:
        """What that costs at a price that you state."""
        check_real(0.0, 1e9, price_per_gpu_hour=price_per_gpu_hour)
        return 24 * self.days(tokens) * self.gpus * price_per_gpu_hour

    def warnings(self) -> list[str]:
        """Where published runs lie far from any model's line, and where no shipped stack knows.
        Raises ValueError for a layout that can't be."""
        group = self.layout.group("dp")
        num_nodes = group.size // group.in_node(self.cluster.node_size) if self.zero == 3 else 1
        found = warnings(self.shape, self.cluster, self.layout)
        return found + stacks.warnings(self.used, num_nodes, self.mfu())

    def trust(self) -> str:
        """How far to trust the time, in a sentence."""
        return self.used.trust()

    def row(self) -> dict[str, object]:
        """For ``lab.table``: model, layout, memory, step, MFU, and whose constants they are by."""
        return {
            "model": self.shape.name,
            "gpus": self.gpus,
            "layout": written(self.layout),
            "memory_bytes": self.memory().peak_bytes,
            "fits": self.cluster.holds(self.memory().peak_bytes),
            "step_us": self.time().step_us,
            "mfu_share": self.mfu(),
            "stack": self.used.called(),
        }

    # --- as an experiment ---

    def predict(self) -> Timeline:
        """A step of the pipeline's ranks, one of each stage, on the course's own axis: what the
        stages compute by the real schedule, then data parallelism and the optimizer."""
        time = self.time()
        order = self._order(time)
        work = simulate(order, _cost(time, order.num_stages))
        rows = list(zip(*(getattr(work, name).tolist() for name in _COLUMNS), strict=True))
        for rank in range(order.num_ranks):
            mine = work.rank == rank if self.schedule in OWN_ENDS else slice(None)
            rows += _after(time, rank, float(work.end_us[mine].max()))
        return from_rows(rows, num_ranks=order.num_ranks, origin="simulated")

    def _order(self, time: StepTime) -> Schedule:
        num_actions = 2 * self.pp * self.vpp * self.layout.num_microbatches
        if num_actions > MOST_SPANS:
            raise ValueError(
                f"a timeline has at most {MOST_SPANS:,} actions; this step has {num_actions:,}. "
                f"Its numbers stand: time(), memory()"
            )
        counts = [self.pp, self.layout.num_microbatches]
        if self.vpp > 1:
            return SCHEDULES["interleaved_1f1b"](*counts, self.vpp)
        if self.schedule in ROOM:
            return automatic(
                *counts,
                _cost(time, self.pp),
                most_kept=ROOM[self.schedule] * self.pp,
                weight_share=memory.weights_share(self.shape, self.layout),
            )
        return SCHEDULES[self.schedule](*counts)

    def refusal(self, language: str | None = None) -> str:
        """A plan is not started; where its toy can be, that is said."""
        with words.meanwhile(words.spoken_in(language)):
            told = say("a plan for {gpus} GPUs is not started here", gpus=self.gpus)
            if self.pp > 1 or self.layout.dp > 1 or self.gpus == 1:
                told = say(
                    "{told}; toy() is the same division of the small model, and runs", told=told
                )
            return told

    def toy(self) -> Experiment:
        """The same division of the course's small model, which runs here: the pipeline if there is
        one, else how data parallelism keeps its states. Raises ValueError where tensor parallelism
        is all there is."""
        if self.pp > 1:
            ranks = min(self.pp, TOY_RANKS)
            schedule = "interleaved_1f1b" if self.vpp > 1 else self.schedule
            if schedule in ROOM:
                schedule = automatic(ranks, 2 * TOY_RANKS, most_kept=ROOM[schedule] * ranks)
            return pipeline_step.Step(
                schedule=schedule,
                ranks=ranks,
                microbatches=2 * TOY_RANKS,
                chunks=min(self.vpp, 2),
            )
        if self.layout.dp == 1 and self.gpus > 1:
            raise ValueError(
                "a toy divides by pipeline or data parallelism; this plan has neither. Give pp, or "
                "leave ranks for dp"
            )
        engines = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
        return sharding_step.Step(engine=engines[self.zero], ranks=min(self.layout.dp, TOY_RANKS))

    def title(self, language: str | None = None) -> str:
        """Model, cluster, layout, batch; what is usual is left out. Two plans that differ in what
        they do have two titles."""
        return ", ".join(filter(None, self.titles(language)))

    def titles(
        self, language: str | None = None, *, stack: bool = True, recipe: bool = False
    ) -> tuple[str, str]:
        """The title in two lines: model and machine; layout and batch, and whose constants it is
        by, where they aren't the usual ones and ``stack`` isn't off; with ``recipe`` the usual one
        too."""
        layout = self.layout
        step = [written(layout, recipe=recipe)]
        if layout.gbs != layout.dp * self.mbs * self.pp:
            step.append(both("batch {count}", count=layout.gbs)[words.spoken_in(language)])
        step += [f"seq {self.seq}"] if self.seq != Plan.seq else []
        is_usual = self.used == nearest(self.cluster.gpu.name, self.zero)
        step += [] if is_usual or not stack else [f"stack {self.used.called(language)}"]
        machine = f"{self.shape.name}, {self.cluster.written(language)}"
        return machine, ", ".join(filter(None, step))


_COLUMNS = ("rank", "lane", "kind", "label", "start_us", "end_us", "num_bytes")


def _after(time: StepTime, rank: int, begun: float) -> list[tuple]:
    """Rows of a timeline: gradients, the optimizer, and what a sharded one gathers behind it."""
    sent = {name: (COMM, name, "dp", time_us) for name, time_us in time.data.items()}
    gathers = sent.pop("all_gather", None)
    parts = [*sent.values(), (COMPUTE, "optimizer", "Adam", time.optimizer_us)]
    if gathers:
        parts.append(gathers)
    rows = []
    for lane, kind, label, time_us in parts:
        rows.append((rank, lane, kind, label, begun, begun + time_us, 0))
        begun += time_us
    return rows


def _cost(time: StepTime, num_stages: int) -> Cost:
    """Of each stage of the schedule: its part of what its rank takes."""
    ranks = len(time.stages)
    chunks = num_stages // ranks
    forward = tuple(time.stages[stage % ranks].forward_us / chunks for stage in range(num_stages))
    backward = tuple(time.stages[stage % ranks].backward_us / chunks for stage in range(num_stages))
    weights = tuple(time.stages[stage % ranks].weights_us / chunks for stage in range(num_stages))
    inputs = tuple(whole - part for whole, part in zip(backward, weights, strict=True))
    return Cost(forward_us=forward, backward_us=backward, input_us=inputs, weight_us=weights)


def _shape(name: str) -> Shape:
    if isinstance(name, str) and (name.endswith(".json") or Path(name).is_dir()):
        path = Path(name)
        return shape.from_config(path / "config.json" if path.is_dir() else path)
    return shape.from_name(name)
