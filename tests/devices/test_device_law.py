"""The device law: every launch of the package runs on pretend devices, with the same numbers as on
the CPU, DeepSpeed's engines too."""

import re
import warnings

import pytest

from labkit import collectives, data_parallel, experts, mesh_3d, pipeline, sharding
from labkit.accelerate.update import Update
from labkit.case_studies import Perception
from labkit.devices import rung
from labkit.experiment import Experiment
from labkit.footprint import PARTS
from labkit.heterogeneous import Cut
from labkit.heterogeneous import Step as UnequalStep
from labkit.launching.run import Run
from labkit.launching.verdicts.verdict import RankFailed
from labkit.long_context.attention import WAYS, Attention
from labkit.planner.need import Need
from labkit.planner.plan.plan import Plan
from labkit.planner.strategies import Strategy
from labkit.profiling.bottleneck import Bottleneck
from labkit.scaling.input.feeding import Feeding
from labkit.scaling.series import Scaling
from labkit.serving.generation import Generation
from labkit.serving.load import Load
from labkit.tensor_parallel.layer import Layer
from labkit.your_own import Step as OwnStep
from labkit.zero.stages import Offload, Stages

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built")]
BY_DEEPSPEED = Attention(
    way="ulysses", engine="deepspeed", ranks=2, heads=2, sequence=32, pair_ms=1.0
)
MEGATRON = Layer(engine="megatron", vocab=50, sequence_parallel=True)


def own():
    """A module of torch's own."""
    import torch

    net = torch.nn.Transformer(32, 2, 2, 2, 64, dropout=0.0, batch_first=True)
    return net, (torch.randn(2, 8, 32), torch.randn(2, 8, 32))


LAW = (
    pipeline.Step(ranks=2, microbatches=2, forward_ms=5.0),
    pipeline.Step(
        schedule="gpipe",
        ranks=2,
        microbatches=2,
        forward_ms=5.0,
        training=pipeline.Training(num_steps=2),
    ),
    pipeline.Step(schedule="zbv", ranks=2, microbatches=4, forward_ms=5.0),
    data_parallel.Step(layers=2, layer_mb=1, forward_ms=3, ranks=2),
    data_parallel.Step(layers=2, layer_mb=1, forward_ms=3, ranks=2, link=None),
    *(
        collectives.Call(collective=each, algorithm=algorithm, ranks=3)
        for each, algorithm in (("all_reduce", "ring"), ("all_gather", "ring"))
    ),
    *(sharding.Step(engine=engine, ranks=2) for engine in ("ddp", "fsdp1", "fsdp", "fsdp_grad_op")),
    sharding.Step(engine="fsdp_hybrid", ranks=4),
    *(sharding.Step(engine=f"zero{stage}", ranks=2) for stage in range(4)),
    sharding.Step(engine="zero2", ranks=2, offload="optimizer"),
    sharding.Step(engine="zero3", ranks=2, offload="all"),
    Stages(ranks=2),
    Offload(),
    *(Need(recipe=recipe) for recipe in ("fp32", "bf16", "sgd", "mixed")),
    *(Strategy(strategy=each, ranks=2, batch=4) for each in ("data", "sharded", "layers")),
    experts.Layer(ranks=2, experts=4, tokens=16, token_ms=0.1, capacity=1.0),
    *(Attention(way=way, ranks=2, heads=2, sequence=32, pair_ms=1.0) for way in WAYS),
    *([BY_DEEPSPEED] if BY_DEEPSPEED.refusal("en") is None else []),  # it may not be installed
    UnequalStep(batch=8, split="by speed", num_steps=1),
    Cut(form="int8", edge_gflops=1.0),
    Layer(vocab=50),
    Layer(ranks=3, hidden=36, heads=3, ffn=71, sequence=9, sequence_parallel=True),
    Layer(engine="torch", vocab=50, sequence_parallel=True),
    *([MEGATRON] if MEGATRON.refusal("en") is None else []),  # it may not be installed
    mesh_3d.Step(pp=2, tp=2, sequence=16, microbatches=2),
    mesh_3d.Step(pp=1, dp_replicate=2, dp_shard=2, tp=1, sequence=16, microbatches=2),
    mesh_3d.Step(pp=2, dp_shard=2, tp=1, zero=1, engine="deepspeed", sequence=16, microbatches=2),
    Generation(way="alone", ranks=1, layers=2, dim=32, output=4),
    Generation(ranks=2, layers=2, dim=32, output=4),
    Generation(way="pipeline", ranks=2, layers=2, dim=32, output=4),
    Load(requests=4, rate=100.0, output=4, prompt=4),
    Bottleneck(kind="save", severity=0.0),
    Bottleneck(kind="stages", severity=0.0, cured=True),
    *(Update(engine=engine, ranks=2) for engine in ("ddp", "fsdp", "zero2")),
    Scaling(ranks=(1, 2), batch=2, sample_ms=2.0, num_steps=1),
    Feeding(batches=2, read_ms=2.0, step_ms=5.0),
    *(OwnStep(make=own, engine=engine) for engine in ("fsdp", "ddp", "pipeline")),
    Perception(ranks=2, batch=8, steps=2, encoders_ms=4.0, fusion_ms=2.0, heads_ms=1.0),
)
OF_TIME = re.compile(
    r"(_us|_s|seconds.*|rss_bytes|overruns|wire_received_bytes|allocated_bytes|batch on"
    r"|phases\.\d+\.[1-4])$"
)
"""Results that a clock or the system gave: they differ from run to run (what of a message has come
when the count is read does, too), what only a device can say, and its name."""
ROUNDING = ("output_difference", "gradient_difference", "loss_difference")
"""How far ranks are from one process: by rounding, and a device's attention rounds otherwise."""
SEEDS = 16
"""Bytes that attention on a device keeps for each layer and microbatch beside the CPU's: the seed
and the offset of its random numbers, as CUDA's does."""


def numbers(value: object, name: str = "") -> dict[str, object]:
    """What can be compared in a result, by where it stands."""
    if OF_TIME.search(name):
        return {}
    if isinstance(value, dict):
        parts = {f"{name}.{key}": each for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        parts = {f"{name}.{index}": each for index, each in enumerate(value)}
    else:
        return {name: value}
    found = {}
    for key, each in parts.items():
        found |= numbers(each, key)
    return found


def same(mine: object, other: object) -> bool:
    """Whether two runs agree: numbers to the last bit, shards by their bytes, footprints in what a
    rank holds all the time: the highest point of a moment depends on when gloo's thread lets a
    message go, and on a device torch's AdamW works on all tensors at once (foreach), as on CUDA."""
    if hasattr(mine, "bytes_by"):
        return {kind: list(each) for kind, each in mine.bytes_by("category").items()} == {
            kind: list(each) for kind, each in other.bytes_by("category").items()
        }
    if hasattr(mine, "peak_bytes"):
        states = [PARTS.index(part) for part in ("parameters", "optimizer", "buffers")]
        alike = (mine.num_bytes == other.num_bytes)[:, states].all()
        return mine.labels == other.labels and alike
    return mine == other or mine != mine != other


def test_every_experiment_is_held_to_the_law():
    held = {type(each) for each in LAW}
    subclasses = {each for each in Experiment.__subclasses__() if "labkit." in each.__module__}
    starts_nothing = {Plan}  # of a cluster: its toy is one of the others
    assert held | starts_nothing == subclasses


def differences(runs: list[Run]) -> set[str]:
    """What the ranks of two runs differ in, but for the seeds that attention keeps on a device, and
    how far both are from one process by rounding."""
    found = set()
    for on_cpu, on_device in zip(*runs, strict=True):
        mine = numbers(on_cpu)
        others = numbers(on_device)
        assert set(mine) == set(others)
        for name in mine:
            if same(mine[name], others[name]):
                continue
            if name.endswith(("activation_bytes", "held_bytes")):
                assert 0 < others[name] - mine[name] <= 64 * SEEDS
            elif name.endswith(ROUNDING):
                assert max(mine[name], others[name]) < 1e-4
            else:
                found.add(name)
    return found


SELDOM = "already had autograd metadata"
"""So two launches of DeepSpeed among some hundreds ended on pretend devices, beside other work; the
cause isn't known yet. Forty-three in a row, alone, did not."""


def taken(experiment):
    """A run; where it ends in SELDOM, another one, and a warning."""
    try:
        return experiment.run()
    except RankFailed as failed:
        if SELDOM not in str(failed):
            raise
        warnings.warn(f"{experiment}: {SELDOM}", stacklevel=2)
        return experiment.run()


FIRST = {type(each): each for each in reversed(LAW)}.values()
"""An experiment of each kind: some are held to the law, in ``make test-all`` all of LAW."""


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    "experiment",
    [each if each in FIRST else pytest.param(each, marks=pytest.mark.again) for each in LAW],
    ids=str,
)
def test_a_launch_has_the_same_numbers_on_pretend_devices(experiment, monkeypatch):
    for _ in range(3):
        runs = []
        for name in ("cpu", "pretend"):
            monkeypatch.setenv(rung.VARIABLE, name)
            runs.append(taken(experiment))
            assert runs[-1].devices == name
        assert "pretend device" in runs[1].notes
        # what lies there at the height of a moment depends on gloo's thread: seldom, states too
        if (different := differences(runs)) != {".footprint"}:
            break
    assert not different
