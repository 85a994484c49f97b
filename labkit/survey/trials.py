"""What a survey runs: trials, part by part, the ones that matter most first.

A trial of ``data_parallel``, ``sharding`` or ``pipeline`` is that subject's own experiment;
``collectives`` and ``device`` have rank functions of their own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.data_parallel import step as data_parallel
from labkit.experiment import Experiment
from labkit.pipeline import step as pipeline
from labkit.sharding import step as sharding
from labkit.units import check_whole, check_word

PARTS = ("device", "collectives", "data_parallel", "sharding", "pipeline")
"""The parts of a survey, in the order in which they are taken."""
PRIMITIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
ENGINES = ("fsdp", "fsdp_grad_op", "ddp")
"""As ZeRO stages: all in parts; parameters whole while it computes; nothing in parts."""
SCHEDULES = ("1f1b", "gpipe", "interleaved_1f1b")
SMALL = {"layers": 4, "dim": 256, "heads": 4, "batch": 2, "seq_len": 64}
LARGE = {"layers": 12, "dim": 1024, "heads": 16, "batch": 8, "seq_len": 128}
"""The transformer of one training step: for a CPU, and for a GPU (some 150 M parameters)."""
EACH_S = 10.0
"""How long one collective is timed, at most."""
_SUBJECTS = {
    "data_parallel": data_parallel.Step,
    "sharding": sharding.Step,
    "pipeline": pipeline.Step,
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a survey."""

    part: str
    """one of PARTS"""
    name: str
    """what its folder is called"""
    ranks: int
    """on how many ranks"""
    fields: dict = field(default_factory=dict)
    """what its experiment, or its rank function, is given besides"""

    def experiment(self) -> Experiment | None:
        """The experiment; None where ranks only measure."""
        kind = _SUBJECTS.get("sharding" if "engine" in self.fields else self.part)
        return kind(ranks=self.ranks, **self.fields) if kind else None


def trials(parts: Iterable[str], ranks: int, *, minutes: float, has_gpu: bool) -> list[Trial]:
    """All trials of some parts, on ``ranks`` ranks where a part has several. Raises ValueError for
    what is no part."""
    check_whole(2, 64, ranks=ranks)
    found = []
    for part in parts:
        check_word(part, PARTS, "a part")
        found += _OF_PART[part](ranks, minutes, has_gpu)
    return found


def _device(ranks: int, minutes: float, has_gpu: bool) -> list[Trial]:
    model = LARGE if has_gpu else SMALL
    return [
        Trial(part="device", name="device", ranks=1, fields={"most_s": _each_s(minutes)}),
        Trial(part="device", name="device-memory", ranks=1, fields={"engine": "ddp", **model}),
    ]


def _collectives(ranks: int, minutes: float, has_gpu: bool) -> list[Trial]:
    found = []
    for primitive in PRIMITIVES:
        fields = {"primitive": primitive, "most_s": _each_s(minutes)}
        name = f"collectives-{primitive}"
        found.append(Trial(part="collectives", name=name, ranks=ranks, fields=fields))
    return found


def _data_parallel(ranks: int, minutes: float, has_gpu: bool) -> list[Trial]:
    cases = {
        "overlap": {"overlap": True, "bucket_mb": 4.0},
        "no-overlap": {"overlap": False, "bucket_mb": 4.0},
        "one-bucket": {"overlap": True, "bucket_mb": 100.0},
    }
    return [
        Trial(part="data_parallel", name=f"data_parallel-{name}", ranks=ranks, fields=fields)
        for name, fields in cases.items()
    ]


def _sharding(ranks: int, minutes: float, has_gpu: bool) -> list[Trial]:
    return [
        Trial(
            part="sharding",
            name=f"sharding-{engine}",
            ranks=ranks,
            fields={"engine": engine, **SMALL},
        )
        for engine in ENGINES
    ]


def _pipeline(ranks: int, minutes: float, has_gpu: bool) -> list[Trial]:
    found = []
    for times in (2, 1, 4):  # twice as many microbatches as ranks is what chapters show
        for schedule in SCHEDULES:
            fields = {"schedule": schedule, "microbatches": times * ranks}
            name = f"pipeline-{schedule}-{times * ranks}"
            found.append(Trial(part="pipeline", name=name, ranks=ranks, fields=fields))
    return found


def _each_s(minutes: float) -> float:
    """Seconds for one collective, or for one device: a fortieth of the time."""
    return min(EACH_S, 1.5 * minutes)


_OF_PART = {
    "device": _device,
    "collectives": _collectives,
    "data_parallel": _data_parallel,
    "sharding": _sharding,
    "pipeline": _pipeline,
}
