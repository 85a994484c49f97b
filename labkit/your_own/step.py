"""The experiment of this subject: a module of the reader's own, what its plan says of its bytes,
and the same with torch's own engines.

    def mine():
        net = GPT2LMHeadModel(GPT2Config(n_layer=4, use_cache=False))
        return net, {"input_ids": torch.randint(1000, (4, 64))}

    your_own.Step(make=mine, engine="fsdp", ranks=2).compare()
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from labkit import words
from labkit.devices.rung import Pretend
from labkit.experiment import Difference, Experiment, Reading
from labkit.footprint import Footprint
from labkit.planner.plan.plan import Plan
from labkit.planner.plan.stacks import EAGER
from labkit.planner.real.counted import Counted
from labkit.planner.trust.rows import Row, timed
from labkit.units import brief, check_real, check_whole, check_word, format_bytes
from labkit.words import both, to_say
from labkit.your_own.holds import bill

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = ("ddp", "fsdp", "pipeline")
"""Copies, shards, stages."""
LEARNING_RATES = {"adamw": 1e-3, "sgd": 0.1}
"""of what updates the weights. Plain SGD holds nothing of its own; its rate is large enough that a
gradient with a wrong factor shows in the third loss."""
PRECISIONS = {2: "bf16", 4: "fp32"}
"""bytes of an element -> how a plan calls the module's own type"""
TEMPORARY = to_say("logits, other temporary tensors")
"""what a plan counts as two parts and a run can't tell apart"""
_WORDS = words.catalogue(
    [
        ("ddp", "{}: copies on {} ranks (DDP), rank {}"),
        ("fsdp", "{}: shards on {} ranks (FSDP), rank {}"),
        ("pipeline", "{}: {} stages, {} microbatches, stage {}"),
        ("peak", "Peak"),
    ]
)


def in_turns(steps: "Sequence[Step]") -> list[float]:
    """Microseconds of the fastest of each step's ``timed`` steps, in one run in which they take
    turns, so that a busy moment slows all alike; after 40 seconds no further round begins. Raises
    ValueError for steps that can't be clocked or differ in ``ranks``, ``devices`` or ``timed``."""
    from labkit.your_own import run

    if len({(each.ranks, each.devices, each.timed) for each in steps}) != 1:
        raise ValueError(
            "steps that take turns are one or more, with the same ranks, devices and timed; "
            f"got {brief(list(steps))}"
        )
    for each in steps:
        if not each.timed or each.engine == "pipeline":
            raise ValueError(
                "the fastest step is one of timed=5 or so, of copies or shards; got "
                f"timed={each.timed}, engine={each.engine!r}"
            )
    return run.in_turns(steps)


def clocked_twice(
    steps: "Sequence[Step]", *, within: float = 0.1, rounds: int = 3
) -> list[tuple[float, float]]:
    """Microseconds of each step, clocked twice by ``in_turns``: (first, second). While two of one
    step lie further apart than ``within``, a share, all are clocked again, and the fastest of each
    clocking counts; in so many ``rounds`` at most, none of which begins after 40 seconds. Raises
    ValueError as ``in_turns`` does, and for no share and no number of rounds."""
    check_real(0, 1e9, within=within)
    check_whole(1, 100, rounds=rounds)
    since_s = time.monotonic()
    took_us = in_turns([*steps, *steps])
    for _ in range(rounds - 1):
        apart = max(max(pair) / min(pair) - 1 for pair in _in_pairs(took_us))
        if apart <= within or time.monotonic() > since_s + 40:
            break
        took_us = list(map(min, took_us, in_turns([*steps, *steps])))
    return _in_pairs(took_us)


def _in_pairs(took_us: list[float]) -> list[tuple[float, float]]:
    """The first half of a list beside the second."""
    half = len(took_us) // 2
    return list(zip(took_us[:half], took_us[half:], strict=True))


def out_of_memory(steps: "Mapping[str, Step]", devices: Pretend) -> list[str]:
    """Which steps, a name -> each, run out of memory on such devices: the names. Raises what else
    goes wrong in their ranks, and ValueError for other things than named steps."""
    if not isinstance(steps, Mapping) or not all(isinstance(each, Step) for each in steps.values()):
        raise ValueError(f"steps are named, a name -> a Step; got {brief(steps)}")
    from labkit.your_own import run

    return [name for name, step in steps.items() if run.is_too_large(step.but(devices=devices))]


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """A module, a batch for it, and who holds what of it.

    ``run()[r]`` is a dict: loss_alone (of the module in one piece, before the first step), losses
    (of three steps; a pipeline's on its last rank), parameters_bytes and footprint (of the
    third step), allocated_bytes (the highest point of the device's own allocator; None on the
    CPU), and step_us and update_us (of each of the ``timed`` steps, taken last, and of its update).
    """

    make: Callable[[], tuple[Any, Any]]
    """gives the module and a batch for it: a tensor, a tuple of them, or a dict by name"""
    loss: Callable[[Any, Any], Any] | None = None
    """of the first tensor of floats in the output, and the batch; None: that tensor if it is a
    scalar, else the mean of its squares, a stand-in with the same memory up to the output"""
    engine: str = "fsdp"
    """one of ENGINES"""
    ranks: int = 2
    """how many ranks"""
    optimizer: str = "adamw"
    """one of LEARNING_RATES; bytes are only planned of "adamw" """
    microbatches: int = 2
    """of a pipeline's step"""
    split: bool = False
    """whether copies and shards take a part of the batch on each rank, ``losses`` their mean: a
    gradient that was never averaged shows then, if the loss is a mean over samples. Else each rank
    takes the whole batch. Stages share a batch in any case"""
    add_tied: bool = True
    """whether stages add up the gradients of a weight that several of them hold, as they have to;
    False shows what comes of leaving that out"""
    timed: int = 0
    """so many more steps by the clock alone, nothing read out or recorded"""
    rank: int = 0
    """whose bytes are shown"""
    devices: str | Pretend | None = None
    """what ranks compute on, as ``lab.launch`` takes it: lab.pretend(memory_mib=64)"""

    board_home: ClassVar[None] = None
    """it has none"""
    reading: ClassVar[Reading] = Reading(
        words.in_every("peak", _WORDS), lambda found: found.peak_bytes, format_bytes
    )
    """the highest point"""
    part_names: ClassVar[dict] = {"temporary": both(TEMPORARY)}
    """by the plan's words"""

    def __post_init__(self) -> None:
        check_word(self.engine, ENGINES, "an engine")
        check_word(self.optimizer, LEARNING_RATES, "an optimizer")
        check_whole(1, 1_000_000, ranks=self.ranks, microbatches=self.microbatches)
        if not callable(self.make):
            raise ValueError(
                "make is a function without arguments that gives (module, batch), so that each "
                f"rank can call it; got {type(self.make).__name__}"
            )
        check_whole(0, 1000, timed=self.timed)
        check_whole(0, self.ranks - 1, rank=self.rank)
        if self.engine == "pipeline" and self.ranks < 2:
            raise ValueError(f"a pipeline has two stages or more; got {self.ranks}")

    def __repr__(self) -> str:
        """Functions by their names, so that it is the same in every process."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("make", "loss"):
            told[name] = getattr(told[name], "__name__", told[name])
        return f"Step({', '.join(f'{name}={value}' for name, value in told.items())})"

    def shape(self) -> Counted:
        """The module as the planner sees it; measured without values, and once."""
        from labkit.your_own import run

        return run.looked(self.make).shape

    def plan(self, **fields: Any) -> Plan:
        """This step as a plan; ``fields`` change it: ``plan(gpus=64, zero=3)``. Memory is that of
        torch's own operators, ``stacks.EAGER``, unless ``stack`` says otherwise."""
        from labkit.your_own import run

        shape, *_ = run.looked(self.make)
        sequences = self.rows()
        same: dict[str, Any] = {
            "model": shape,
            "gpus": self.ranks,
            "seq": shape.seq,
            "precision": PRECISIONS.get(shape.itemsize, "fp32"),
            "recipe": PRECISIONS.get(shape.itemsize, "fp32"),
            "stack": EAGER,
            "mbs": sequences,
            "zero": 3 if self.engine == "fsdp" else 0,
        }
        if self.engine == "pipeline":
            same["pp"] = self.ranks
            same["mbs"] = max(1, sequences // self.microbatches)
            same["batch"] = self.microbatches * same["mbs"]
            same["schedule"] = "gpipe"
        return Plan(**same | fields)

    def rows(self) -> int:
        """Samples of the batch that a rank takes. Raises ValueError where it can't be split."""
        from labkit.your_own import run

        rows = run.looked(self.make).num_rows
        if not self.split or self.engine == "pipeline":
            return rows
        if rows % self.ranks:
            raise ValueError(
                f"split=True gives each of {self.ranks} ranks as many samples; got a batch of "
                f"{rows}. Make one that divides, or leave split away"
            )
        return rows // self.ranks

    def row(self, step_us: float, **fields: Any) -> Row:
        """A step that was timed, as a row for ``planner.fit``: of this step's plan, with ``fields``
        as ``plan`` takes them. Raises ValueError for a time that can't be."""
        return timed(self.plan(**fields), step_us, repr(self))

    def predict(self) -> Footprint:
        """The bytes of ``rank`` over the step, by its plan. Raises ValueError for a module that
        can't be measured, or another optimizer than AdamW."""
        from labkit.your_own import run

        if self.optimizer != "adamw":
            raise ValueError(f"a plan has AdamW's bytes; run() alone takes {self.optimizer!r}")
        looked = run.looked(self.make)
        output_bytes = looked.output_bytes * self.rows() // looked.num_rows
        return bill(self.plan(), self.rank, output_bytes=output_bytes)

    def start(self) -> "Job":
        """Trains three steps with the real engine, in the background."""
        from labkit.your_own import run

        return run.start(self)

    def as_run(self) -> "Step":
        """One run has the bytes of all ranks."""
        return self.but(rank=0)

    def measured(self, run: "Run") -> Footprint:
        """What ``rank`` of a run held."""
        return run[self.rank]["footprint"]

    def difference(self, predicted: Footprint, measured: Footprint) -> Difference:
        """Of the two highest points."""
        more = measured.peak_bytes - predicted.peak_bytes
        return Difference(
            of=words.in_every("peak", _WORDS),
            causes={"peak": more},
            names={"peak": both("read out, less planned")},
            written=format_bytes,
        )

    def title(self, language: str | None = None) -> str:
        """Module, engine, ranks."""
        name = self.shape().name
        counts = (self.ranks, self.rank)
        if self.engine == "pipeline":
            counts = (self.ranks, self.microbatches, self.rank)
        return _WORDS[words.spoken_in(language)][self.engine].format(name, *counts)
