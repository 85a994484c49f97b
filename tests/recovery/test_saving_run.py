"""The clock of a training that saves: each second is a step or a gap; a save is drawn by its own
parts."""

import pytest

import labkit as lab
from labkit.recovery import checkpoint, saving_run


def trained(folder):
    net, optimizer = saving_run.build(32)
    checkpoint.save_async(folder, 0, net, optimizer).result()  # before the clock: not its own
    clock = saving_run.Clock()
    for step in range(5):
        with clock.step():
            saving_run.one_step(net, optimizer, step)
        if step in (1, 3):
            saving = checkpoint.save_async(folder, step, net, optimizer)
    saving.result()
    return clock.stop()


def test_every_second_is_a_step_or_a_gap(tmp_path):
    for clock in lab.launch(trained, tmp_path, ranks=2, backend="gloo", timeout_s=40):
        assert len(clock.steps_s) == 5 and list(clock.saves) == [1, 3]
        assert clock.still_s > 0
        assert clock.trained_s + clock.still_s == pytest.approx(clock.total_s)
        assert sum(clock.gaps_s().values()) <= clock.still_s
        for step, parts_s in clock.saves.items():
            waited_s = parts_s["copy"][1] - parts_s["previous"][0]
            assert 0 < waited_s <= clock.gaps_s()[step]
        assert saving_run.typical([clock])._picture("zh").summary


def clock_with_gaps(*gaps_s):
    clock = saving_run.Clock()
    now_s = 10.0
    for step, gap_s in enumerate(gaps_s):
        clock.steps_s.append((now_s, now_s + 1))
        now_s += 1 + gap_s
        names = ("previous", "group", "list", "copy", "write", "seal")
        clock.saves[step] = {name: (now_s - gap_s, now_s) for name in names}
    clock.steps_s.append((now_s, now_s + 1))
    clock.end_s = now_s + 1
    return clock


def test_the_typical_save_is_the_one_with_the_median_gap():
    strip = saving_run.typical([clock_with_gaps(0.9, 0.1), clock_with_gaps(0.5)])
    (_, steps), (_, waited), (_, thread) = strip.lanes
    assert [name for name, *_ in steps] == ["0", "1"]
    assert steps[1][1] - steps[0][2] == pytest.approx(0.5)
    assert [span[0]["en"] for span in waited] == ["the save before", "look up", "copy"]
    assert [span[0]["en"] for span in thread] == ["write", "seal"]
    with pytest.raises(ValueError, match="between two steps"):
        saving_run.typical([saving_run.Clock()])
