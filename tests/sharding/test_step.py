"""Bytes over a step: what is simulated is what torch allocates, for every engine."""

import numpy as np
import pytest

from labkit.footprint import PARTS, from_moments
from labkit.sharding import moments, partition
from labkit.sharding.moments import predict, transformer
from labkit.sharding.step import Step

SMALL = {"num_layers": 3, "dim": 32, "num_heads": 2, "batch": 1, "seq_len": 16}


@pytest.mark.a_few(2)
@pytest.mark.real
@pytest.mark.parametrize(
    "engine, offload, ranks",
    [
        ("ddp", "none", 2),
        ("zero1", "none", 2),
        ("zero2", "none", 2),
        ("zero2", "optimizer", 2),
        ("zero3", "none", 2),
        ("zero3", "all", 2),
        ("fsdp", "none", 2),
        ("fsdp_grad_op", "none", 2),
        ("fsdp_hybrid", "none", 4),
    ],
)
def test_the_measured_peak_is_the_predicted_one_within_two_percent(engine, offload, ranks):
    setting = Step(engine=engine, offload=offload, ranks=ranks, layers=8)
    run = setting.run()
    fullest = int(setting.measured(run).rank_bytes.argmax())
    measured = run[fullest]["footprint"]
    predicted = setting.footprint(fullest)
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.02)
    assert predicted.labels == measured.labels  # the same moments, each of them near
    assert np.all(np.abs(predicted.totals / measured.totals - 1) < 0.09), (
        predicted.totals / measured.totals
    )


def test_the_moments_are_the_layers_there_and_back():
    labels = predict("ddp", transformer(**SMALL), 2).labels
    assert labels == ("F0", "F1", "F2", "F3", "F4", "loss", "B4", "B3", "B2", "B1", "B0", "step")


@pytest.mark.parametrize("engine", ["ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp_grad_op"])
def test_nothing_is_below_what_lies_there_between_steps(engine):
    units = transformer(**SMALL)
    rest = partition.predict(engine, moments.shapes(units), 2, bucket_size=20_000)
    step = predict(engine, units, 2, bucket_size=20_000)
    during = step.totals[:-1]  # the update drops stage 1's whole gradients
    assert np.all(during >= rest.rank_bytes[0]) and step.peak_bytes == step.totals.max()
    assert (
        step.num_bytes.shape == (12, len(PARTS)) and step.labels[step.totals.argmax()] == step.peak
    )


def test_what_resharding_saves_is_the_gathered_model():
    units = transformer(**SMALL)
    full, kept = (predict(engine, units, 2) for engine in ("fsdp", "fsdp_grad_op"))
    gathered = PARTS.index("gathered")
    model = sum(unit.num_params for unit in units) * 4
    assert kept.num_bytes[:, gathered].max() == model
    assert full.num_bytes[:, gathered].max() == max(unit.num_params for unit in units) * 4


def test_of_two_moments_with_one_label_the_higher_counts():
    made = from_moments(
        [("F0", {"parameters": 5}), ("F0", {"parameters": 3, "temporary": 4}), ("B0", {})],
        "predicted",
    )
    assert (
        made.labels == ("F0", "B0") and made.totals.tolist() == [7, 0] and made.badge == "predicted"
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda units: predict("zero2", units, 2, bucket_size=10),
            "the largest has 8192 elements, .* is 10",
        ),
        (lambda units: predict("fsdp1", units, 2), "DDP, ZeRO 1 to 3 and FSDP 2; got fsdp1"),
        (lambda units: predict("zero4", units, 2, bucket_size=9000), "an engine is one of"),
    ],
)
def test_what_has_no_footprint_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(transformer(**SMALL))
