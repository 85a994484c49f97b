"""What is done to a module when it is imported: at once where it is there, else at its import; and
DeepSpeed's offloaded parameters lie on the host whatever device is the default."""

import sys

import pytest

import labkit as lab
from labkit.devices import imported


def test_a_module_that_is_there_is_told_at_once():
    seen = []
    imported.then("json", seen.append)
    assert seen == [sys.modules["json"]]


def test_a_later_one_is_told_at_the_end_of_its_import_and_once(tmp_path, monkeypatch):
    (tmp_path / "told_later.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = len(sys.meta_path)
    seen = []
    imported.then("told_later", lambda module: seen.append(module.value))
    assert len(sys.meta_path) == finders + 1 and not seen
    import told_later  # noqa: F401

    assert len(sys.meta_path) == finders and seen == [3]


def places():
    """Where the parameters of a stage-3 engine lie that offloads everything."""
    import torch

    from labkit.sharding import run
    from labkit.sharding.step import Step

    net = torch.nn.Linear(8, 8)
    engine = run.wrap(Step(engine="zero3", offload="all"), net).engine
    return sorted({each.ds_tensor.device.type for each in engine.module.parameters()})


@pytest.mark.real
@pytest.mark.usefixtures("built")
def test_offloaded_parameters_lie_on_the_host():
    assert list(lab.launch(places, ranks=2, devices=lab.pretend())) == [["cpu"], ["cpu"]]
