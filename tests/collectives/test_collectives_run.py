"""Plans on real ranks: the results of torch.distributed, the bytes of theory, and over stated links
its times."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

import labkit as lab
from labkit.collectives import algorithms, network
from labkit.collectives import run as collectives_run
from labkit.collectives.network import Link
from labkit.collectives.plans import received_bytes, sent_bytes
from labkit.launching import rank
from labkit.measure import pace, trace

PLANS = [
    (primitive, algorithm)
    for primitive, builders in algorithms.ALGORITHMS.items()
    for algorithm in builders
]


def differences(num_ranks):
    """A rank: every plan on buffers of awkward sizes, beside what each primitive promises. Returns
    what differs."""
    me = dist.get_rank()
    found = []
    dtypes = itertools.cycle((torch.float32, torch.float64, torch.int64))
    for (primitive, algorithm), root in itertools.product(PLANS, (0, num_ranks - 1)):
        options = {"root": root} if primitive in ("broadcast", "reduce") else {}
        plan = algorithms.plan(primitive, algorithm, num_ranks, **options)
        for numel in (1, num_ranks - 1, 97, 60 * num_ranks**2):
            dtype = next(dtypes)
            begun = [torch.arange(numel, dtype=dtype) * (r + 1) + r for r in range(num_ranks)]
            mine = begun[me].clone()
            returned = collectives_run.execute(plan, mine)
            if returned is not mine or not promised(plan, begun, mine, me):
                found.append((primitive, algorithm, root, numel, str(dtype)))
            if numel % num_ranks == 0:
                theirs = collectives_run.library(primitive, begun[me].clone(), root)
                part = collectives_run._result(primitive, mine, root)
                if theirs.shape != part.shape or not torch.equal(theirs, part):
                    found.append((primitive, algorithm, root, numel, str(dtype), "library"))
    return found


def promised(plan, begun, mine, me):
    """Whether every chunk that must stand here does, by the conventions of the primitives."""
    size = plan.num_ranks
    chunks = [buffer.tensor_split(plan.num_chunks) for buffer in begun]
    for chunk, got in enumerate(mine.tensor_split(plan.num_chunks)):
        owner = chunk * size // plan.num_chunks
        total = sum(buffer[chunk] for buffer in chunks)
        wanted = {
            "all_reduce": total,
            "broadcast": chunks[plan.root][chunk],
            "all_gather": chunks[owner][chunk],
            "reduce": total if me == plan.root else None,
            "reduce_scatter": total if me == owner else None,
            "all_to_all": chunks[owner][chunk] if chunk % size == me else None,
            "send_recv": chunks[0][chunk] if me == 1 else None,
        }[plan.primitive]
        if wanted is not None and not torch.equal(got, wanted):
            return False
    return True


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_every_plan_ends_with_what_its_primitive_promises_and_the_library_computes(num_ranks):
    assert (
        list(lab.launch(differences, num_ranks, ranks=num_ranks, timeout_s=60)) == [[]] * num_ranks
    )


def sent_by_hand(plans, num_bytes):
    """A rank: the payload that each plan really sends."""
    from labkit.measure import traffic

    sent = []
    for plan in plans:
        tensor = torch.zeros(round(plan.chunk_bytes(num_bytes) * plan.num_chunks) // 4)
        with traffic.count() as counted:
            collectives_run.execute(plan, tensor)
        sent.append((counted.payload_bytes["send"], counted.payload_bytes["recv"]))
    return sent


def test_every_plan_sends_and_receives_the_bytes_of_theory():
    plans = [algorithms.plan(*names, 4) for names in PLANS]
    run = lab.launch(sent_by_hand, plans, 3840, ranks=4)
    for plan, *pairs in zip(plans, *run, strict=True):
        sent, received = np.array(pairs).T
        assert np.array_equal(sent, sent_bytes(plan, 3840)), plan
        assert np.array_equal(received, received_bytes(plan, 3840)), plan


def test_a_run_tells_times_bytes_and_the_error():
    plan = algorithms.plan("all_reduce", "ring", 3)
    run = collectives_run.launch(plan, 120_000, num_runs=2)
    for r, each in enumerate(run):
        assert len(each["seconds"]) == 2 and min(each["seconds"]) > 0 and max(each["seconds"]) < 10
        assert (
            each["sent_bytes"] == each["received_bytes"] == 160_000 == sent_bytes(plan, 120_000)[r]
        )
        assert each["wire_sent_bytes"] is None or 160_000 < each["wire_sent_bytes"] < 165_000
        assert each["max_error"] < 1e-5 and each["num_overruns"] == 0
    timeline = run.timeline()
    assert timeline.notes == ("gloo",) and set(timeline.lane.tolist()) == {"comm"}
    assert messages(timeline) == messages(network.simulate(plan, network.uniform(3, FAST), 120_000))


FAST = Link(alpha_us=5_000, bandwidth_gb_per_s=0.1)
SLOW = Link(alpha_us=20_000, bandwidth_gb_per_s=0.1)


def messages(timeline):
    """What was sent and received, without its times."""
    return sorted(
        zip(
            *(
                getattr(timeline, name).tolist()
                for name in ("rank", "lane", "kind", "label", "num_bytes")
            ),
            strict=True,
        )
    )


@pytest.mark.alone  # reads the clock of a paced run
@pytest.mark.parametrize(
    ("plan", "links"),
    [
        (algorithms.plan("all_reduce", "ring", 4), network.uniform(4, SLOW)),
        (
            algorithms.plan("all_reduce", "hierarchical", 4),
            network.islands(4, 2, inside=FAST, between=SLOW),
        ),
        (algorithms.plan("broadcast", "tree", 4), network.uniform(4, SLOW)),
    ],
    ids=lambda each: getattr(each, "algorithm", getattr(each, "name", None)),
)
def test_over_stated_links_a_run_takes_what_theory_says(plan, links):
    run = collectives_run.launch(plan, 400_000, network=links)
    simulated = network.simulate(plan, links, 400_000)
    timeline = run.timeline()
    assert messages(timeline) == messages(simulated) and "paced links" in timeline.badge
    for row in range(len(timeline)):
        stated_us = links.link(*map(int, str(timeline.label[row]).split()[0].split(">"))).us(
            timeline.num_bytes[row]
        )
        assert timeline.end_us[row] - timeline.start_us[row] >= stated_us - 1
    seconds = max(each["seconds"][0] for each in run)
    stated_s = simulated.end_us.max() / 1e6
    assert stated_s <= seconds < 10 * stated_s
    assert max(each["max_error"] for each in run) < 1e-5


def test_a_shared_wire_carries_one_message_at_a_time():
    plan = algorithms.plan("all_reduce", "ring", 4, order=(0, 2, 1, 3))
    links = network.islands(4, 2, inside=FAST, between=SLOW, shared=True)
    run = collectives_run.launch(plan, 4_000, network=links)
    simulated = network.simulate(plan, links, 4_000)
    timeline = run.timeline()
    assert messages(timeline) == messages(simulated)
    assert max(each["seconds"][0] for each in run) >= simulated.end_us.max() / 1e6
    for wire in (("0>2", "1>3", "0>3", "1>2"), ("2>0", "3>1", "3>0", "2>1")):
        ways = [str(label).split()[0] for label in timeline.label]
        on_it = timeline.select(np.isin(ways, wire) & (timeline.kind == "recv"))
        on_it = on_it.select(np.argsort(on_it.start_us))
        assert len(on_it) == 12 and np.all(np.diff(on_it.start_us) >= 20_000)


def test_a_late_rank_delays_what_depends_on_it_and_nothing_is_hidden():
    run = lab.launch(chain_with_a_late_sender, ranks=3)
    late_start_s = run[0][0]
    seconds = [end_s - late_start_s for _, end_s in run]
    assert 0.12 <= seconds[2] < 2 and seconds[0] < seconds[2]


def chain_with_a_late_sender():
    """Start and end of a broadcast along a chain whose first rank comes 60 ms late, in seconds on
    the clock that all processes of a machine share (ranks leave a barrier at different times)."""
    import time

    plan = algorithms.plan("broadcast", "ring", 3, num_segments=1)
    dist.barrier()
    start_s = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(0.06)
    collectives_run.execute(
        plan, torch.zeros(3), network.uniform(3, Link(alpha_us=30_000, bandwidth_gb_per_s=1))
    )
    return start_s, time.monotonic()


def a_little_late():
    """A recorded message of 30 ms whose ends wake up 1 ms late: less than what counts as
    overrun."""
    on_time = pace.sleep_until
    pace.sleep_until = lambda deadline_s: on_time(deadline_s + 0.001)
    network_30_ms = network.uniform(2, Link(alpha_us=30_000, bandwidth_gb_per_s=1))
    with trace.record(operators=False):
        collectives_run.execute(
            algorithms.plan("send_recv", "direct", 2), torch.zeros(3), network_30_ms
        )


def test_a_message_ends_when_the_clock_said_so():
    timeline = lab.launch(a_little_late, ranks=2).timeline()
    assert np.all(timeline.end_us - timeline.start_us >= 31_000)


def test_a_stated_time_that_was_not_kept_is_counted_and_noted():
    plan = algorithms.plan("send_recv", "direct", 2)
    hasty = Link(alpha_us=0.001, bandwidth_gb_per_s=1e6)
    run = collectives_run.launch(plan, 4e6, network=network.uniform(2, hasty))
    assert [each["num_overruns"] for each in run] == [1, 1]
    assert "overran" in run.timeline().notes
    took_us = run.timeline().end_us - run.timeline().start_us
    assert np.all(took_us > 10)


def test_a_plan_that_leaves_something_out_is_told_by_its_error():
    whole = algorithms.plan("all_reduce", "ring", 2)
    run = collectives_run.launch(replace(whole, steps=whole.steps[:-1]), 1000)
    assert max(each["max_error"] for each in run) > 0.1


def test_a_send_to_nobody_ends_at_once():
    assert (
        collectives_run.launch(algorithms.plan("send_recv", "direct", 1), 1000, timeout_s=20)[0][
            "sent_bytes"
        ]
        == 0
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_runs": 0},
        {"num_bytes": -1},
        {"num_bytes": float("nan")},
        {"network": network.uniform(3, SLOW)},
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(wrong):
    with pytest.raises(ValueError, match="a network of its plan's 2 ranks"):
        collectives_run.launch(
            algorithms.plan("all_reduce", "ring", 2), **{"num_bytes": 1000} | wrong
        )


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """This process as the only rank of a group."""
    monkeypatch.setattr(rank, "_current", rank.Rank(0, 1, None))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_one_rank_has_nothing_to_send(alone):
    x = torch.arange(5)
    assert collectives_run.execute(algorithms.plan("all_reduce", "ring", 1), x).tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_mistakes_say_what_to_do(alone):
    one = algorithms.plan("all_reduce", "ring", 1)
    x = torch.zeros(4)
    with pytest.raises(ValueError, match="has 1 ranks; got a plan and a network for \\(2, 2\\)"):
        collectives_run.execute(algorithms.plan("all_reduce", "ring", 2), x)
    with pytest.raises(ValueError, match="for \\(1, 2\\)"):
        collectives_run.execute(one, x, network.uniform(2, SLOW))
    with pytest.raises(ValueError, match="contiguous 1-D tensor; got \\(2, 2\\)"):
        collectives_run.execute(one, x.view(2, 2))
    with pytest.raises(ValueError, match="set LABKIT_RUN_DIR"):
        collectives_run.execute(one, x, network.uniform(1, SLOW))
