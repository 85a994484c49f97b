"""Each fault is asked for on real ranks: it gets its name, its odd rank and its line, in time, and
leaves nothing. Delays are asserted at ten times the bound; benchmarks/soak.py has the exact
ones."""

import time

import psutil
import pytest

import labkit as lab
from labkit import check
from labkit.debugging import faults
from labkit.launching.fork import zygote_client
from labkit.launching.verdicts.outcome import FAULTS

pytestmark = pytest.mark.alone  # bounds in seconds: how soon a fault is named
NO_SINGLE_RANK = {"set_epoch"}
LINES = {
    "exception": "raise ValueError",
    "out_of_memory": "torch.ones(4_000_000)",
    "hang": "time.sleep(0.01)",
    "mismatched_op": "dist.broadcast(x, src=odd)",
    "swapped_order": "dist.all_reduce(y)",
    "missing_rank": "dist.all_reduce",
    "uneven_inputs": "dist.all_reduce",
    "wrong_group": "dist.all_reduce",
    "send_cycle": "dist.send",
    "nan": "model(",
}


@pytest.fixture(scope="module", autouse=True)
def _warm():
    zygote_client.seconds_to_complete()


def below_zygote():
    zygote = psutil.Process(zygote_client.running().process.pid)
    return [p for p in zygote.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("name", faults.PROGRAMS)
def test_a_fault_is_named_with_its_rank_and_line_in_time_and_leaves_nothing(name):
    files = set(zygote_client.running().folder.iterdir())
    began = time.monotonic()
    finding = faults.run(name, ranks=4, odd=1)
    seconds = time.monotonic() - began
    assert finding is not None and finding.fault == name, finding
    if name not in NO_SINGLE_RANK:
        assert (1 in finding.ranks) != (name == "wrong_group"), finding
        assert len(finding.ranks) <= 3 and (
            len(finding.ranks) == 1 or name in ("wrong_group", "send_cycle")
        )
    assert LINES.get(name, "") in finding.where.get("text", "")
    program = faults.PROGRAMS[name]
    assert seconds < 1 + program.silent * 1.0 + 10 * program.notice_s
    deadline = time.monotonic() + 5
    while set(zygote_client.running().folder.iterdir()) - files and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(zygote_client.running().folder.iterdir()) <= files
    while len(below_zygote()) > 8 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(below_zygote()) <= 8  # spares, forked ahead


def test_a_dead_kernel_takes_everything_along():
    finding = faults.dead_kernel(ranks=2)
    assert finding.fault == "dead_kernel" and "processes and its files were gone" in finding.text


def test_every_fault_can_be_asked_for():
    assert {*faults.PROGRAMS, "dead_kernel"} == set(FAULTS)


@pytest.mark.parametrize("odd", [0, 2])
def test_the_odd_one_is_found_wherever_it_is(odd):
    for name in (
        "mismatched_op",
        "mismatched_shape",
        "swapped_order",
        "missing_rank",
        "diverged_replica",
    ):
        assert odd in faults.run(name, ranks=4, odd=odd).ranks, name


def test_of_three_ranks_the_one_with_another_size_is_found_by_gloos_own_words():
    assert [faults.run("mismatched_shape", ranks=3, odd=odd).ranks for odd in range(3)] == [
        (0,),
        (1,),
        (2,),
    ]


@pytest.mark.parametrize("name", ["mismatched_op", "mismatched_shape"])
def test_torchs_detail_is_heeded_when_the_notebook_asks_for_it(name, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    finding = faults.run(name, ranks=3, odd=2)
    assert (finding.fault, finding.ranks) == (name, (2,)) and "DETAIL has found" in finding.text


def test_a_healthy_run_has_no_finding():
    def work():
        import torch
        import torch.distributed as dist

        from labkit.debugging import health
        from labkit.measure import trace

        layer = torch.nn.Linear(2, 2)
        torch.nn.parallel.DistributedDataParallel(layer)
        with trace.record():
            for _ in range(3):
                dist.all_reduce(torch.ones(4))
        return health.compare(layer.named_parameters()), health.finite(layer.named_parameters())

    run = lab.launch(work, ranks=3, backend="gloo")
    assert list(run) == [(None, None)] * 3
    assert check.trace(run).state == "passed" and len(run.calls()[0]) >= 3
    assert "health.finite" in run.calls()[1][-1]["text"], (
        "a call stands at the learner's line, not at ours"
    )


def test_check_trace_tells_what_nothing_else_sees():
    run = lab.launch(faults.PROGRAMS["swapped_order"].rank, 1, ranks=3, backend="gloo")
    assert run[0] != (3.0, 30.0), "the sums are wrong, and the run ended well"
    verdict = check.trace(run)
    assert (
        verdict.state == "wrong" and "rank 1: all_reduce of [[4]] at line" in verdict.counterexample
    )
    assert repr(verdict).startswith("✗ The ranks do not agree:\n"), "a run is told, not graded"
    assert "<b>✗</b> The ranks do not agree:" in verdict._repr_html_()


def test_one_collective_in_two_branches_is_no_swap():
    def branches():
        import torch
        import torch.distributed as dist

        x = torch.ones(4)
        if dist.get_rank() == 0:
            dist.broadcast(x, src=0)
        else:
            dist.broadcast(x, src=0)
        dist.all_reduce(x)

    assert check.trace(lab.launch(branches, ranks=3, backend="gloo")).state == "passed"


def test_memory_is_refused_before_the_machine_notices():
    def greedy():
        import torch

        held = []
        try:
            with faults.memory_limit(64e6):
                while len(held) < 100:
                    held.append(torch.ones(1_000_000))
        except RuntimeError as error:
            return len(held), "allocate memory" in str(error), torch.ones(20_000_000).sum().item()

    num, refused, after = lab.launch(greedy, ranks=1, backend="gloo")[0]
    assert 8 <= num <= 17 and refused and after == 2e7, "the limit ends with its block"


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match=r"a fault is one of .*; got 'flood'"):
        faults.run("flood")
    with pytest.raises(ValueError, match="got ranks=2, odd=1"):
        faults.run("hang", ranks=2)
    with pytest.raises(ValueError, match="got ranks=3, odd=3"):
        faults.run("hang", odd=3)
