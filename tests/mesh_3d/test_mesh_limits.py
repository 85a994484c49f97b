"""What there is not is refused with the rule; what is not run here is told, and predicted."""

import pytest

from labkit import mesh_3d
from labkit.mesh_3d import limits


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dp_shard": 2, "zero": 0}, "take 1 or 3"),
        ({"pp": 3}, "3 stages have as many layers each; the model has 4"),
        ({"batch": 15}, "not a multiple of"),
        ({"tp": 3}, "3 ranks of tp do not divide 4 heads"),
    ],
)
def test_what_there_is_not_is_told_and_never_predicted(fields, told):
    step = mesh_3d.Step().but(**fields)
    assert told in step.impossible("en")
    assert step.refusal("en") == step.impossible("en")
    for ask in (step.predict, step.states, step.messages, step.memory, step.times):
        with pytest.raises(ValueError, match=told.split(" ")[0]):
            ask()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pp": 1, "tp": 1}, "one rank has no axis"),
        ({"dp_replicate": 4}, "up to 8 ranks; this has 16"),
        ({"hidden": 512}, "up to 256 hidden"),
        ({"layers": 32}, "up to 16 layers"),
        ({"precision": "bf16"}, "fp32; this is bf16"),
        ({"recompute": "full"}, "again: full"),
        ({"vocab": 300}, "its vocabulary is 256; this has 300"),
        ({"engine": "deepspeed", "dp_shard": 2}, "deepspeed runs zero 1 here; this is 3"),
        ({"engine": "deepspeed", "pp": 1}, "take pp 2 or more"),
        ({"engine": "deepspeed", "schedule": "gpipe"}, "runs 1f1b; this is gpipe"),
        ({"engine": "deepspeed", "forward_ms": 5.0}, "take forward_ms 0"),
    ],
)
def test_what_is_not_run_is_refused_and_still_predicted(fields, told):
    step = mesh_3d.Step().but(**fields)
    assert told in step.refusal("en")
    assert step.impossible("en") is None
    assert len(step.predict())
    with pytest.raises(ValueError, match=told[:9]):
        step.run()


def test_deepspeed_s_grid_has_one_data_axis():
    step = mesh_3d.Step(engine="deepspeed", tp=1, dp_replicate=2, dp_shard=2, zero=1)
    assert "one data axis" in step.refusal("en")


@pytest.mark.parametrize("missing", ["deepspeed", "megatron"])
def test_an_engine_that_is_not_installed_is_refused_by_name(missing, monkeypatch):
    real = limits.importlib.util.find_spec

    def found(name):
        return None if name == missing else real(name)

    monkeypatch.setattr(limits.importlib.util, "find_spec", found)
    told = mesh_3d.Step(engine="deepspeed").refusal("en")
    assert missing in told.lower() and "make env" in told


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("zero", 2),
        ("schedule", "zbv"),
        ("engine", "jax"),
        ("inside", "cp"),
        ("microbatches", 0),
        ("forward_ms", -1.0),
        ("gpu", "abacus"),
        ("pp", 0),
    ],
)
def test_wrong_values_are_refused_with_the_rule(field, value):
    with pytest.raises(ValueError, match=f"{field}|{value}"):
        mesh_3d.Step(**{field: value})


def test_a_comparison_wants_stated_times_and_a_run_serves_all_gpus():
    with pytest.raises(ValueError, match="give forward_ms"):
        mesh_3d.Step().compare()
    step = mesh_3d.Step()
    assert step.but(gpu="H100 80 GB", node_size=2, inside="pp").as_run() == step.as_run()
    stated = step.but(forward_ms=20.0)
    assert stated.but(node_size=2).as_run() != stated.as_run()
