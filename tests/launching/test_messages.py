"""Laws of what is sent: a message and a request arrive as they left, what is no message is refused,
and a rank's state is what its messages tell. No process runs here."""

import json
import socket
from pathlib import Path

import pytest

from labkit.devices.rung import Pretend, Rung
from labkit.launching.fork import messages
from labkit.launching.fork.messages import (
    Ask,
    Bye,
    Complete,
    Exited,
    Expect,
    Failed,
    Forked,
    Kill,
    Launch,
    Order,
    Progress,
    Ready,
    Report,
    Returned,
    Started,
)
from labkit.launching.fork.request import Request, Source
from labkit.launching.rank_state import CallsReader, RankFiles, RankState, is_sign_of_life

WORK = {"group": "0", "seq": 2, "op": "all_reduce", "shapes": [[4]], "dtypes": ["Float"]}
WHERE = {"call": "all_reduce", "peer": None, "file": "In[3]", "line": 5, "text": "x"}
REPORT = Report(at=3.5, where=WHERE, pending=(WORK,), groups={"0": [0, 1]}, last={"0": 2})
RETURNED = Returned(at=4.5, notes=("gloo", "paced"), peak_rss_bytes=10**9, last={"0": 3})
FAILED = Failed(at=4.5, type="KeyError", message="no", traceback="Traceback", where=WHERE)
ALL = [
    Ready(),
    Complete(),
    Expect(modules=("json",)),
    Launch(request={"seed": 1}),
    Forked(pids=(8, 9)),
    Exited(rank=1, status=-9),
    Kill(signal=9, ranks=(0, 1)),
    Order(rank=1, request={"seed": 1}),
    Ask(),
    Bye(),
    Started(at=1.5),
    Progress(at=2.5, step=3, loss=None),
    RETURNED,
    FAILED,
    REPORT,
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_left(message):
    assert messages.decode(json.loads(json.dumps(messages.encode(message)))) == message
    ours, theirs = socket.socketpair()
    with ours, theirs:
        messages.send(ours, message)
        assert messages.receive(theirs) == (message, [])


def test_every_kind_of_message_is_tried():
    assert {type(message).__name__ for message in ALL} == set(messages._KINDS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "has a kind and parts; got None"),
        ([], "has a kind and parts"),
        ({"kind": "Ask"}, "has a kind and parts"),
        ({"kind": "Shout", "parts": {}}, "the kind of a message is one of Ready, .*; got 'Shout'"),
        ({"kind": ["Ask"], "parts": {}}, "the kind of a message is one of"),
        ({"kind": "Exited", "parts": {"rank": 1}}, "Exited has rank, status; got"),
        ({"kind": "Exited", "parts": []}, "Exited has rank, status; got"),
        ({"kind": "Ask", "parts": {"loud": True}}, "Ask has ; got"),
        ({"kind": "Exited", "parts": {"rank": 1, "status": "9"}}, "status of Exited is a .*int"),
        ({"kind": "Started", "parts": {"at": None}}, "at of Started is a .*float"),
    ],
    ids=str,
)
def test_what_is_no_message_is_refused(content, words):
    with pytest.raises(ValueError, match=words):
        messages.decode(content)


def test_half_a_message_is_the_end():
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(b"\x00\x00\x00\x09{}")
        assert messages.receive(theirs) == (None, [])


def test_a_request_arrives_as_it_left():
    request = Request(
        num_ranks=2,
        rung=Rung(name="pretend", backend="pretend", pretend=Pretend(memory_mib=64)),
        seed=5,
        folder=Path("runs", "run-1"),
        num_threads=1,
        cwd="here",
        sys_path=("a", "b"),
        environ={"RANK": "0"},
        sources={"<ipython-3>": Source(name="In[3]", lines=("x = 1\n", "y = 2"))},
        language="zh",
    )
    content = json.loads(json.dumps(request.to_json()))
    assert Request.from_json(content) == request
    assert request.call_file == Path("runs", "run-1", "call.pkl")
    with pytest.raises(TypeError, match="loud"):
        Request.from_json({**content, "loud": True})


def test_a_rank_is_as_its_last_messages_tell():
    new = RankState(rank=1, asked=True)
    assert (new.how, new.last, new.is_waiting) == ("running", {}, False)
    waiting = new.hear(REPORT)
    assert waiting.is_waiting and not waiting.asked and waiting.last == {"0": 2}
    assert new.report is None, "a state never changes"
    told = waiting.hear(Progress(at=3.6, step=4, loss=None))
    assert told.row() == {"rank": 1, "state": "running", "where": WHERE, "step": 4}
    returned = told.hear(RETURNED)
    assert (returned.how, returned.ended_at, returned.last) == ("returned", 4.5, {"0": 3})
    assert not returned.is_waiting
    assert told.hear(FAILED).how == "failed"


def test_an_answer_is_no_sign_of_life():
    assert [is_sign_of_life(each) for each in (Started(), RETURNED, REPORT, FAILED)] == [
        True,
        True,
        False,
        False,
    ]


def test_an_outcome_sets_each_ranks_numbers_beside_the_call_that_waits():
    waiting = RankState(rank=1).hear(REPORT)
    stuck = waiting.outcome({0: {"0": 1}, 1: {"0": 2}}, calls=(WORK,), output="bye")
    assert (stuck.how, stuck.where, stuck.groups) == ("stuck", WHERE, {"0": [0, 1]})
    assert stuck.pending == ({**WORK, "ranks": [0, 1], "last": {0: 1, 1: 2}},)
    assert (stuck.calls, stuck.last_output) == ((WORK,), "bye")
    failed = waiting.hear(FAILED).outcome({}, calls=())
    assert (failed.how, failed.at, failed.error["type"]) == ("failed", 4.5, "KeyError")
    assert "at" not in failed.error


def test_calls_are_read_again_only_once_they_have_changed(tmp_path, monkeypatch):
    files = RankFiles(folder=tmp_path, rank=0)
    reader = CallsReader(folder=tmp_path)
    assert reader.calls(0) == ()
    files.write_calls([WORK])
    assert reader.calls(0) == (WORK,)
    monkeypatch.setattr(RankFiles, "read_calls", lambda files: 1 / 0)
    assert reader.calls(0) == (WORK,)
