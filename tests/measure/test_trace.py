"""Recordings of real ranks: actions without their waits, messages with their bytes, all ranks on
one clock."""

import json
import time
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

import labkit as lab
from labkit.launching import rank
from labkit.measure import trace, trace_rows
from labkit.timeline import bubble, busy_us


class Stage:
    """What trace touches of a PipelineStage; its actions take known times."""

    stage_index = 3

    def forward_one_chunk(self, mb, *args, **kwargs):
        time.sleep(0.02)

    def backward_one_chunk(self, mb, loss=None, full_backward=True, last_backward=False):
        time.sleep(0.04 if full_backward else 0.02)

    def backward_weight_one_chunk(self, mb, last_backward=False):
        time.sleep(0.01)


def act_between_waits():
    """Rank 1 waits 50 ms for rank 0, then acts: what a pipeline's second stage does."""
    stage = Stage()
    x = torch.zeros(250)
    dist.barrier()
    with trace.record(stage):
        if dist.get_rank() == 0:
            stage.forward_one_chunk(0)
            time.sleep(0.05)
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
            stage.forward_one_chunk(0)
            stage.backward_one_chunk(0)
            stage.backward_one_chunk(1, full_backward=False)
            stage.backward_weight_one_chunk(mb=1)
    rank.current().note("noted too late to stand in the recording")
    return [name for name in vars(stage)]


@pytest.fixture(scope="module")
def acted():
    return lab.launch(act_between_waits, ranks=2)


@pytest.mark.alone  # reads the clock
def test_actions_are_recorded_as_executed_and_without_their_waits(acted):
    timeline = acted.timeline()
    mine = timeline.select((timeline.lane == "compute") & (timeline.rank == 1))
    mine = mine.select(np.argsort(mine.start_us))
    assert mine.label.tolist() == ["3F0", "3B0", "3I1", "3W1"]
    assert mine.kind.tolist() == ["F", "B", "I", "W"]
    took_ms = (mine.end_us - mine.start_us) / 1e3
    assert np.all(took_ms >= [20, 40, 20, 10]) and np.all(took_ms < np.array([20, 40, 20, 10]) + 25)
    assert (timeline.origin, timeline.num_ranks) == ("measured", 2) and "gloo" in timeline.notes


@pytest.mark.alone  # reads the clock
def test_the_ranks_share_one_clock(acted):
    timeline = acted.timeline()
    first, second = (
        timeline.select((timeline.label == "3F0") & (timeline.rank == r)) for r in (0, 1)
    )
    assert second.start_us[0] >= first.end_us[0] + 50_000
    assert second.start_us[0] < first.end_us[0] + 250_000


def test_a_message_has_its_bytes_and_lasts_until_it_was_received(acted):
    timeline = acted.timeline()
    received = timeline.select((timeline.kind == "recv") & (timeline.rank == 1))
    assert received.num_bytes.tolist() == [1000] and received.lane.tolist() == ["comm"]
    sent = timeline.select((timeline.kind == "send") & (timeline.rank == 0))
    assert received.start_us[0] < received.end_us[0] and received.end_us[0] >= sent.start_us[0]


def receive_from_whoever_comes():
    x = torch.zeros(250)
    with trace.record(operators=False):
        dist.send(x, 0) if dist.get_rank() else dist.recv(x)


def test_a_receive_from_whoever_comes_is_a_receive():
    timeline = lab.launch(receive_from_whoever_comes, ranks=2, backend="gloo").timeline()
    assert timeline.select(timeline.rank == 0).kind.tolist() == ["recv"]


def test_labels_come_off_again(acted):
    assert acted[0] == acted[1] == []


def test_merged_chrome_trace_has_a_named_process_per_rank(acted, tmp_path):
    path = trace.merge_chrome(acted.folder, tmp_path / "merged.json")
    events = json.loads(path.read_text())["traceEvents"]
    names = {
        e["pid"]: e["args"]["name"]
        for e in events
        if e["ph"] == "M" and e["name"] == "process_name"
    }
    begun = {names[e["pid"]].split(":")[0]: e["ts"] for e in events if e["name"] == "3F0"}
    assert set(begun) == {"rank 0", "rank 1"}
    assert 50_000 < begun["rank 1"] - begun["rank 0"] < 300_000
    assert {e["ph"] for e in events} <= set("XMisftB")


def reduce_and_multiply():
    a = torch.randn(256, 256) / 16
    dist.barrier()
    with trace.record():
        with torch.profiler.record_function("my block"):
            for _ in range(
                3
            ):  # products alone: a span is called after its longest operator, whichever that is
                a = a @ a
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1000, dtype=torch.bfloat16))


def test_plain_code_has_compute_communication_marks_and_idle_time():
    timeline = lab.launch(reduce_and_multiply, ranks=2).timeline()
    reduces = timeline.select(timeline.kind == "all_reduce")
    assert reduces.num_bytes.tolist() == [2000, 2000] and set(reduces.lane.tolist()) == {"comm"}
    marks = timeline.select(timeline.lane == "mark")
    assert marks.label.tolist() == ["my block", "my block"]
    assert np.all(busy_us(timeline) > 0) and bubble(timeline) > 0
    products = timeline.select(timeline.label == "matmul")
    assert set(products.rank.tolist()) == {0, 1} and set(products.kind.tolist()) == {"compute"}
    assert not any("c10d" in label for label in timeline.label.tolist())


def pass_on_by_hand():
    """A pipeline by hand that receives and sends inside its label."""
    x = torch.zeros(10)
    dist.barrier()
    with trace.record(), torch.profiler.record_function(f"{dist.get_rank()}F0"):
        if dist.get_rank() == 1:
            dist.recv(x, 0)
        time.sleep(0.03)
        if dist.get_rank() == 0:
            dist.send(x, 1)


@pytest.mark.alone  # reads the clock
def test_waiting_inside_a_label_is_not_computing():
    timeline = lab.launch(pass_on_by_hand, ranks=2).timeline()
    assert sorted(timeline.label[timeline.lane == "compute"].tolist()) == ["0F0", "1F0"]
    assert np.all(busy_us(timeline) >= 30_000) and np.all(busy_us(timeline) < 55_000)


def send_over_a_stated_link():
    """A span around a labelled block that really sends; one that no recording sees; and a message
    beside both."""
    x = torch.ones(100)
    other = 1 - dist.get_rank()
    send, recv = (dist.send, dist.recv) if dist.get_rank() == 0 else (dist.recv, dist.send)
    trace.span("send", "too early", time.time_ns(), time.time_ns(), 1)
    dist.barrier()
    with trace.record():
        with torch.profiler.record_function("the first label takes torch some milliseconds"):
            pass
        start_ns = time.time_ns()
        with torch.profiler.record_function("block"):
            send(x, other)
            time.sleep(0.03)
        trace.span("send", "0>1", start_ns, time.time_ns(), 400)
        time.sleep(0.01)
        recv(x, other)


@pytest.mark.alone  # reads the clock
def test_an_added_span_stands_for_the_message_under_it_on_the_same_clock(tmp_path):
    run = lab.launch(send_over_a_stated_link, ranks=2)
    timeline = run.timeline()
    added = timeline.select(timeline.label == "0>1")
    block = timeline.select(timeline.label == "block")
    assert added.rank.tolist() == block.rank.tolist() == [0, 1]
    assert set(added.kind.tolist()) == {"send"} and set(added.lane.tolist()) == {"comm"}
    assert added.num_bytes.tolist() == [400, 400]
    assert np.all(np.abs(added.end_us - block.end_us) < 5_000)
    assert np.min(np.abs(added.start_us - block.start_us)) < 1_000
    beside = timeline.select((timeline.lane == "comm") & (timeline.label != "0>1"))
    assert sorted(zip(beside.rank.tolist(), beside.kind.tolist(), strict=True)) == [
        (0, "recv"),
        (1, "send"),
    ]
    events = json.loads(trace.merge_chrome(run.folder, tmp_path / "merged.json").read_text())[
        "traceEvents"
    ]
    assert [event["args"]["bytes"] for event in events if event["name"] == "0>1"] == [400, 400]


def say_what_needs_escapes():
    words = 'a "b" \\ 50 % 节点 ±'
    rank.current().note(words)
    with trace.record():
        now_ns = time.time_ns()
        trace.span("send", words, now_ns, now_ns + 1000)
    return words


def test_words_come_back_as_they_were_given():
    run = lab.launch(say_what_needs_escapes, ranks=1)
    timeline = run.timeline()
    assert run[0] in timeline.notes and run[0] in timeline.label.tolist()


def test_stages_are_recorded_without_every_operator_unless_asked(alone):
    class Working(Stage):
        def forward_one_chunk(self, mb):
            return torch.ones(20) + 1

    recorded = []
    for operators in (None, True):
        stage = Working()
        with trace.record(stage, operators=operators):
            stage.forward_one_chunk(0)
        names = [
            event["name"]
            for event in json.loads((alone / "trace-0.json").read_text())["traceEvents"]
        ]
        assert "3F0" in names
        recorded.append("aten::add" in names)
    assert recorded == [False, True]


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """This process as the only rank of a run."""
    monkeypatch.setattr(rank, "_current", rank.Rank(0, 1, tmp_path))
    return tmp_path


class Engine:
    """What trace touches of a DeepSpeed PipelineEngine."""

    stage_id = 1

    def run(self, commands):
        for command in commands:
            MethodType(self._INSTRUCTION_MAP[command], self)(buffer_id=0)


ForwardPass, BackwardPass, SendGrad = (
    type(name, (), {}) for name in ("ForwardPass", "BackwardPass", "SendGrad")
)
Engine._INSTRUCTION_MAP = dict.fromkeys(
    (ForwardPass, BackwardPass, SendGrad), lambda self, buffer_id: None
)


def test_deepspeed_instructions_are_counted_into_microbatches(alone):
    engine = Engine()
    with trace.record(engine):
        engine.run([ForwardPass, ForwardPass, BackwardPass, SendGrad, BackwardPass])
    assert trace.read(alone).label.tolist() == ["1F0", "1F1", "1B0", "1B1"]
    assert vars(engine) == {}


def test_labels_come_off_after_an_error_too(alone):
    stage = Stage()
    with pytest.raises(ZeroDivisionError), trace.record(stage):
        _ = 1 / 0
    assert vars(stage) == {} and not list(alone.iterdir())


def test_recordings_that_count_from_other_moments_stand_on_one_clock(tmp_path):
    """Rank 1's zero is 2 ms after rank 0's, so what both call 100 us is 2 ms apart."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 10.0, "ts": 100.0, "args": {}}
    for number in (0, 1):
        content = {
            "traceEvents": [{**kernel, "name": "gemm"}],
            "baseTimeNanoseconds": 10**18 + 2_000_000 * number,
            "labkit": {"rank": number, "num_ranks": 2, "notes": []},
        }
        (tmp_path / f"trace-{number}.json").write_text(json.dumps(content))
    assert trace.read(tmp_path).start_us.tolist() == [0.0, 2000.0]


def test_gpu_kernels_are_the_compute_where_there_are_some(tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 10.0}
    reduce = {"Collective name": "allreduce", "In msg nelems": 100, "dtype": "BFloat16"}
    events = [
        {**kernel, "name": "gemm", "ts": 500.0, "args": {}},
        {**kernel, "name": "ncclDevKernel_AllReduce", "ts": 600.0, "args": reduce},
        {**kernel, "name": "aten::mm", "cat": "cpu_op", "ts": 100.0, "args": {}},
    ]
    about = {"rank": 1, "num_ranks": 2, "notes": ["nccl"]}
    (tmp_path / "trace-1.json").write_text(
        json.dumps({"traceEvents": events, "baseTimeNanoseconds": 10**18, "labkit": about})
    )
    timeline = trace.read(tmp_path)
    assert timeline.label.tolist() == ["allreduce", "gemm"] and timeline.lane.tolist() == [
        "comm",
        "compute",
    ]
    assert timeline.num_bytes.tolist() == [200, 0] and timeline.start_us.tolist() == [100.0, 0.0]


def test_mistakes_say_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(rank, "_current", rank.Rank(0, 1, None))
    with pytest.raises(ValueError, match="record\\(folder="), trace.record():
        pass
    with pytest.raises(ValueError, match="holds no such file"):
        trace.read(tmp_path)
    (tmp_path / "trace-0.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="another kind of file"):
        trace.read(tmp_path)
    with (
        pytest.raises(ValueError, match="got SimpleNamespace"),
        trace.record(SimpleNamespace(), folder=tmp_path),
    ):
        pass


def test_what_fsdp_does_around_its_messages_is_not_computing():
    def event(cat, name, start, end, tid=1):
        return {"cat": cat, "name": name, "ts": start, "dur": end - start, "tid": tid}

    events = [
        event("cpu_op", "aten::mm", 0, 100),
        event("cpu_op", "autograd: AddmmBackward0", 200, 1000),
        event("cpu_op", "aten::mm", 300, 400),  # inside of it
        event("cpu_op", "aten::copy_", 1400, 1450),
        event("cpu_op", "aten::copy_", 1400, 1450, tid=2),
        event("user_annotation", "FSDP::backward_prefetch", 500, 800),
        event("user_annotation", "FSDP::all_gather", 550, 700),  # inside of it
        event("user_annotation", "FSDP::post_backward_reduce", 950, 1500),
        event("user_annotation", "mine", 0, 2000),
    ]
    told = {"labkit": {"rank": 0}, "traceEvents": events}
    found = [row[4:6] for row in trace_rows.rows(told, 0.0) if row[1] == "compute"]
    assert found == [(0, 100), (200, 500), (800, 950), (1400, 1450)]
