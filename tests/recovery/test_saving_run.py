"""The times of a training that saves: every second is a step or a gap; a save is drawn by its own
parts."""

import pytest

import labkit as lab
from labkit.recovery import checkpoint
from labkit.recovery.how_often import Times
from labkit.recovery.saving_run import Training


def trained(folder):
    training = Training(32)
    net, optimizer = training.net, training.optimizer
    checkpoint.save_async(folder, 0, net, optimizer).result()  # before the times: not theirs
    training.begin()
    for step in range(5):
        training.step(step)
        if step in (1, 3):
            saving = checkpoint.save_async(folder, step, net, optimizer)
    saving.result()
    return training.end()


def test_every_second_is_a_step_or_a_gap(tmp_path):
    for times in lab.launch(trained, tmp_path, ranks=2, backend="gloo", timeout_s=40):
        assert len(times.steps_s) == 5 and list(times.saves) == [1, 3]
        assert times.trained_s + times.still_s == pytest.approx(times.total_s)
        waited_s = [parts_s["copy"][1] - parts_s["previous"][0] for parts_s in times.saves.values()]
        assert min(waited_s) > 0 and sum(waited_s) <= times.still_s
        assert [name for name, *_ in times.strip().lanes[0][1]] == ["1", "2", "3"]
        assert times.picture(language="zh").summary


def test_a_save_is_drawn_between_the_steps_beside_it():
    names = ("previous", "group", "list", "copy", "write", "seal")
    times = Times(
        steps_s=[(10, 11), (11.5, 12), (12, 13)],
        saves={0: dict.fromkeys(names, (11, 11.25)), 2: {}},
        end_s=14,
    )
    assert (times.trained_s, times.still_s, times.total_s) == (2.5, 1.5, 4)
    (_, steps), (_, waited), (_, thread) = times.strip().lanes
    assert steps == [("0", 0, 1), ("1", 1.5, 2), ("2", 2, 3)]
    assert [span[0]["en"] for span in waited] == ["look up", "copy", "start the thread"]
    assert waited[0][1] == 1  # from the step's end on
    assert waited[-1][1:] == (1.25, 1.5)  # to the next step's begin: the whole gap has names
    assert [span[0]["en"] for span in thread] == ["write", "seal"]
    assert {span[1:] for span in [*waited[:-1], *thread]} == {(1, 1.25)}
    with pytest.raises(ValueError, match="between two steps"):
        Times(steps_s=[(0, 1)], saves={0: {}}, end_s=2).strip()
