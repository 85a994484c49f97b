"""What a rank measures of itself and writes: its peak, the MFU of a step, scalars."""

import importlib.util

import pytest

import labkit as lab
from labkit import scaling
from labkit.scaling import peak_run, scalars_run

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
