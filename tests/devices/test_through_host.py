"""Laws of gloo through the host: on devices every collective gives what gloo gives on the CPU,
however one waits for it, and what goes wrong says so."""

import pytest
import through_host_ranks as on_ranks

import labkit as lab
from labkit.devices import library

pytestmark = pytest.mark.real
STANDS = [*on_ranks.STANDS, pytest.param(on_ranks.ON_GPU, marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", autouse=True)
def built():
    """Both libraries, built if they are not."""
    for name in library.missing():
        assert library.build(name) == ""


def launched(fn, stand, folder, ranks=2):
    reason = library.why_not("pretend") if "pretend" in (stand or ()) else None
    if reason:
        pytest.skip(reason)
    devices = {on_ranks.STANDS[0]: "pretend", on_ranks.ON_GPU: "shared"}.get(stand, "cpu")
    run = lab.launch(fn, stand, str(folder), ranks=ranks, devices=devices, timeout_s=60)
    return list(run)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("stand", STANDS)
def test_every_collective_gives_what_gloo_gives(stand, ranks, tmp_path):
    for gave in launched(on_ranks.every_collective, stand, tmp_path, ranks):
        assert {name: ours for name, (ours, _) in gave.items()} == {
            name: theirs for name, (_, theirs) in gave.items()
        }


@pytest.mark.parametrize("stand", STANDS)
def test_however_one_waits_the_result_is_there(stand, tmp_path):
    right = [100.0 + 2 * place for place in range(6)]
    for sums in launched(on_ranks.asynchronous, stand, tmp_path):
        assert sums == {way.__name__: right for way in on_ranks.WAYS}


@pytest.mark.parametrize("stand", STANDS)
def test_two_at_once_may_be_waited_for_in_any_order(stand, tmp_path):
    right = [100.0 + 2 * place for place in range(6)]
    for first, second in launched(on_ranks.two_at_once, stand, tmp_path):
        assert (first, second) == (right, right[:3])


@pytest.mark.parametrize("stand", STANDS[1:])
def test_copies_are_taken_at_the_call_and_come_back_at_the_wait(stand, tmp_path):
    for stood in launched(on_ranks.copied_when_called, stand, tmp_path):
        assert stood["before"] == [-1.0] * 12
        assert stood["after"] == [*map(float, range(6)), *map(float, range(100, 106))]


@pytest.mark.parametrize("stand", STANDS)
def test_a_subgroup_reduces_among_its_own_and_counts_its_calls(stand, tmp_path):
    (alone, _), *pair = launched(on_ranks.in_a_subgroup, stand, tmp_path, ranks=3)
    assert alone == [*map(float, range(6))]
    assert pair == [([300.0 + 2 * place for place in range(6)], 1)] * 2


@pytest.mark.parametrize("stand", STANDS)
def test_what_is_wrong_is_refused_with_its_reason(stand, tmp_path):
    for said in launched(on_ranks.refusals, stand, tmp_path):
        assert "No backend type associated with device type cpu" in said["a CPU tensor"]
        assert "; got one on cpu" in said["a CPU output"]
        assert "contiguous; got one of shape [3] and strides [2]" in said["not contiguous"]
        assert "size" in said["two shapes"]
        # whoever waits longer sees that the other is gone
        assert any(words in said["nobody sends"] for words in ("Timed out", "closed by peer"))


@pytest.mark.parametrize("stand", STANDS)
def test_engines_lose_what_they_lose_on_the_cpu(stand, tmp_path):
    on_cpu = launched(on_ranks.every_engine, None, tmp_path)
    on_device = launched(on_ranks.every_engine, stand, tmp_path)
    tolerance = 1e-3 if stand == on_ranks.ON_GPU else 0  # a GPU's kernels sum in another order
    for theirs, ours in zip(on_cpu, on_device, strict=True):
        for engine, losses in theirs.items():
            assert ours[engine] == pytest.approx(losses, rel=tolerance, abs=tolerance)
    for losses in on_cpu[1].values():
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("stand", STANDS)
def test_who_left_early_is_named_as_on_the_cpu(stand, tmp_path):
    with pytest.raises(lab.Deadlock, match="rank 1 already returned; ranks 0, 2 wait for it in"):
        launched(on_ranks.leave_early, stand, tmp_path, ranks=3)
