"""What a rank measures of itself and writes: its peak, the MFU of a step, scalars, settings."""

import importlib.util

import pytest

import labkit as lab
from labkit import scaling
from labkit.scaling import peak_run, scalars_run, tuning_run

pytestmark = pytest.mark.real
HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None


def test_an_mfu_is_what_a_step_does_of_what_the_device_can():
    found = lab.launch(scaling.utilization, ranks=1, hidden=32, layers=1, batch=2)[0]
    assert 0 < found["mfu_share"] < 1.5
    reckoned = scaling.mfu(found["flops"], found["step_us"], found["peak_flops_per_s"])
    assert found["mfu_share"] == reckoned
    per_token = found["flops"] / (2 * 64)
    assert per_token == 6 * (12 * 32**2 + 13 * 32 + 2 * 32 + 256 * 32) + 12 * 32 * 64


def test_a_pretend_device_has_nothing_to_compile_for_and_says_so(monkeypatch):
    monkeypatch.setattr(peak_run, "has_accelerator", lambda: True)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "pretend device" in peak_run.obstacle()


def test_what_is_kept_grows_in_a_line_and_recomputation_keeps_less():
    kept = {}
    for recompute in (False, True):
        for microbatch in (1, 4):
            each = tuning_run.Setting(microbatch=microbatch, recompute=recompute, sample_ms=0.0)
            kept[microbatch, recompute] = tuning_run.trial(each, ranks=1)["kept_bytes"]
    assert kept[4, False] == pytest.approx(4 * kept[1, False], rel=0.02)
    assert kept[4, True] < 0.4 * kept[4, False]


def test_a_setting_that_does_not_fit_ends_before_its_backward():
    each = tuning_run.Setting(microbatch=4)
    assert tuning_run.trial(each, 400_000, ranks=2)["step_us"] is None


@pytest.mark.again
@pytest.mark.alone
def test_tuning_predicts_bytes_and_finds_the_fastest_that_fits():
    rows = tuning_run.tune(16, 450_000, call_ms=30.0)
    assert rows[0]["recompute"] and rows[0]["microbatch"] == 8
    for row in rows:
        assert row["kept_bytes"] == pytest.approx(row["predicted_bytes"], rel=0.02)
        assert row["step_us"] >= row["stated_us"]
    with pytest.raises(ValueError, match="not even one sample"):
        tuning_run.tune(16, 1000)


@pytest.mark.skipif(not HAS_TENSORBOARD, reason="tensorboard is not installed")
@pytest.mark.again
def test_rank_0_writes_what_all_ranks_agree_on(tmp_path):
    run = lab.launch(scaling.monitored, str(tmp_path), 3, ranks=2)
    assert run[0] == run[1]
    found = scalars_run.read(tmp_path)
    assert set(found) == set(scalars_run.SCALARS)
    for name, values in run[0].items():
        assert list(found[name].values()) == pytest.approx(values, rel=1e-6)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


def test_a_folder_without_scalars_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds none"):
        scalars_run.read(tmp_path)
