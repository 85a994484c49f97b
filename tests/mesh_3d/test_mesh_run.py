"""Steps of all axes on real ranks: equal to one process, and every byte on its axis."""

import pytest

import labkit as lab
from labkit.mesh_3d import limits
from labkit.mesh_3d import run as real
from labkit.mesh_3d.step import Step
from labkit.timeline import COMM, COMPUTE, step_us

pytestmark = pytest.mark.real
SMALL = {"sequence": 16, "microbatches": 2}
EIGHT = (
    Step(pp=2, dp_replicate=2, tp=2, layers=2, **SMALL),
    Step(pp=2, dp_shard=2, tp=2, **SMALL),
    Step(pp=1, dp_replicate=2, dp_shard=2, tp=2, layers=2, **SMALL),
)
"""DP x PP x TP with whole replicas and with FSDP2; HSDP x TP."""
FOUR = (
    Step(pp=2, dp_shard=2, tp=1, schedule="gpipe", **SMALL),
    Step(pp=1, dp_shard=2, tp=2, zero=1, **SMALL),
    Step(pp=1, dp_replicate=2, dp_shard=2, tp=1, layers=3, hidden=36, zero=1, **SMALL),
    Step(pp=1, dp_replicate=4, tp=1, **SMALL),
    Step(pp=4, tp=1, sequence=16),
)
"""FSDP2 and ZeRO 1 beside another axis, ZeRO 1 within replicas, whole replicas, a long pipeline."""
DEEPSPEED = Step(pp=2, dp_shard=2, tp=2, zero=1, layers=2, engine="deepspeed", **SMALL)
FLOAT = 4e-6
"""Of a loss of 6: a few of its last bits, after four steps."""


def all_of(steps):
    """In a rank: one step of a mesh after the other, in one launch."""
    return [real._train(each) for each in steps]


def taken(steps, **options):
    """(step, its results by rank) of steps on as many ranks."""
    run = lab.launch(all_of, steps, ranks=steps[0].ranks, timeout_s=120, **options)
    yield from zip(steps, zip(*run, strict=True), strict=True)


@pytest.mark.a_few(1)
@pytest.mark.parametrize("steps", [FOUR, EIGHT], ids=["four", "eight"])
def test_every_mesh_trains_as_one_process_does_and_sends_what_theory_says(steps):
    for step, results in taken(steps):
        for rank, result in enumerate(results):
            assert result["loss_difference"] < FLOAT
            assert result["losses"][0] > result["losses"][-1] > 0
            assert result["gradient_difference"] < 1e-6
            assert _sent(result) == _predicted(step, rank)
            held = step.states().bytes_by("category")
            assert result["held_bytes"] == {kind: each[rank] for kind, each in held.items()}


def _sent(result):
    """Axis, collective -> calls and bytes, as counted; of a message whoever sends."""
    found = {}
    for axis, calls in result["calls"].items():
        for name, number in calls.items():
            if name != "recv":
                found[axis, name] = (number, result["payload_bytes"][axis][name])
    return found


def _predicted(step, rank):
    """The same by theory."""
    found = {}
    for axis, by_name in step.messages(rank).items():
        found |= {(axis, name): tuple(each) for name, each in by_name.items()}
    return found


@pytest.mark.again
def test_deepspeed_s_grid_trains_as_one_process_does():
    if reason := DEEPSPEED.refusal("en"):
        pytest.skip(reason)
    run = DEEPSPEED.run()
    num_blocks = DEEPSPEED.layers // DEEPSPEED.pp
    for result in run:
        assert result["loss_difference"] < FLOAT
        assert result["gradient_difference"] < 1e-6
        # a sum in each half of a block, forward and backward
        assert result["calls"]["tp"]["all_reduce"] == 4 * num_blocks * DEEPSPEED.microbatches
        assert result["calls"]["dp_shard"]["all_gather"] == 1
    line = run.timeline()
    assert {"F", "B", "optimizer"} <= set(line.kind[line.lane == COMPUTE])


def test_gradients_that_replicas_keep_to_themselves_are_seen():
    run = lab.launch(unsummed, FOUR[3], ranks=4)
    assert all(result["gradient_difference"] > 1e-4 for result in run)


def unsummed(step):
    """A rank whose replicas do not tell one another their gradients."""
    from labkit.mesh_3d import torch_run

    torch_run.Replicas.reduce = lambda self: None
    return real._train(step)


def test_the_axis_of_a_group():
    mesh = Step(pp=2, dp_shard=2, tp=2).mesh
    assert real.axis_of(mesh, 0, (0, 1)) == "tp"
    assert real.axis_of(mesh, 0, (0, 2)) == "dp_shard"
    assert real.axis_of(mesh, 5, (5, 1)) == "pp"
    assert real.axis_of(mesh, 0, range(8)) == "world"
    assert real.axis_of(mesh, 0, (0, 3)) == "world"


@pytest.mark.again
@pytest.mark.alone
def test_at_stated_times_a_step_takes_as_long_as_simulated():
    inside = Step(pp=2, tp=2, forward_ms=160.0, latency_ms=8.0, node_mb_per_s=20.0, **SMALL)
    across = inside.but(node_size=2, inside="pp", nic_mb_per_s=0.5)
    read = {}
    for name, step in (("inside", inside), ("across", across)):
        compared = step.compare()
        read[name] = compared.readings
        assert {"paced", "paced links"} <= set(compared.run.notes)
        assert read[name]["measured"] == pytest.approx(read[name]["predicted"], rel=0.1)
        assert _drawn(compared.measured) == _drawn(compared.predicted)
    assert read["across"]["measured"] > 1.2 * read["inside"]["measured"]


def _drawn(line):
    """Rank, kind, label of what tells a step: actions, tp's sums, the optimizer."""
    found = {}
    for rank, lane, kind, label in zip(line.rank, line.lane, line.kind, line.label, strict=True):
        if kind in ("F", "B", "all_reduce"):
            found.setdefault((rank, lane, kind), set()).add(label)
    return found


def test_an_unpaced_run_records_its_update_and_says_so():
    run = FOUR[0].run()
    line = run.timeline()
    assert "paced" not in run.notes
    assert set(line.kind[line.lane == COMPUTE]) == {"F", "B", "optimizer"}
    assert {"all_gather", "send", "recv"} <= set(line.kind[line.lane == COMM])
    assert step_us(line) > 0
    with pytest.raises(ValueError, match="stated times"):
        FOUR[0].compare()


def test_an_engine_that_is_missing_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(limits, "has_megatron", lambda: False)
    assert "megatron-core" in DEEPSPEED.refusal("en")
    with pytest.raises(ValueError, match="megatron-core"):
        DEEPSPEED.run()
