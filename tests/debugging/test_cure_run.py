"""The cures for a full memory: what they save, and whether they leave the update as it is."""

import pytest

import labkit as lab
from labkit import footprint
from labkit.debugging import cure_run


@pytest.fixture(scope="module")
def tried():
    return lab.launch(cure_run.steps, ranks=2, backend="gloo", timeout_s=120)[0]


def test_every_cure_lowers_the_peak(tried):
    plain = tried["none"].footprint
    assert list(tried) == ["none", *cure_run.CURES]
    for cure in cure_run.CURES:
        assert tried[cure].footprint.peak_bytes < plain.peak_bytes, cure


def test_here_the_activations_are_the_load_and_fsdp_saves_least(tried):
    plain = tried["none"].footprint
    activations = plain.num_bytes[plain.totals.argmax(), footprint.PARTS.index("activations")]
    assert 2 * activations > plain.peak_bytes
    assert max(cure_run.CURES, key=lambda cure: tried[cure].footprint.peak_bytes) == "FSDP"


@pytest.mark.parametrize("cure", ["microbatches", "checkpointing", "FSDP"])
def test_these_leave_the_update_as_it_is(tried, cure):
    assert lab.difference(tried[cure].weights, tried["none"].weights) < 1e-4


@pytest.mark.parametrize("cure", ["bf16", "half the length"])
def test_these_change_the_training(tried, cure):
    assert lab.difference(tried[cure].weights, tried["none"].weights) > 5e-4


def test_a_cure_that_is_none_is_refused():
    with pytest.raises(ValueError, match="got 'prayer'"):
        cure_run.steps(["prayer"])


def test_of_wide_blocks_and_one_short_sequence_the_states_are_the_load_and_only_fsdp_helps():
    def wide():
        cures = ("none", "microbatches", "checkpointing", "FSDP")
        return cure_run.steps(cures, width=256, num_sequences=1, length=32)

    got = lab.launch(wide, ranks=2, backend="gloo", timeout_s=120)[0]
    plain = got["none"].footprint
    assert plain.peak == "step"
    for cure in ("microbatches", "checkpointing"):
        assert got[cure].footprint.peak_bytes == plain.peak_bytes
    sharded = got["FSDP"].footprint
    at = sharded.labels.index("step")
    assert sharded.totals[at] == pytest.approx(plain.peak_bytes / 2, rel=0.01)


@pytest.mark.parametrize("sizes", [{"width": 30}, {"length": 1}, {"length": 129}, {"width": 0}])
def test_sizes_that_the_model_cannot_have_are_refused(sizes):
    with pytest.raises(ValueError, match="width"):
        cure_run.steps(["none"], **sizes)
