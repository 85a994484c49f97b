"""Laws of a diagnosis: what is proved is named, what is not proved is left alone. No process runs
here."""

import re
from pathlib import Path

import pytest

from labkit import words
from labkit.devices.mistakes import NO_BACKEND
from labkit.launching.verdicts import diagnosis, disagreement, introspect, verdict
from labkit.launching.verdicts.outcome import FAULTS, Finding, Outcome

WORLD = {"0": [0, 1, 2]}


def call(op="all_reduce", seq=1, line=5, shapes=((4,),), group="0", stack=None):
    place = {
        "file": "In[3]",
        "line": line,
        "text": f"dist.{op}(x)",
        "stack": stack or [["In[3]", line]],
    }
    return {
        "group": group,
        "seq": seq,
        "op": op,
        "shapes": [list(s) for s in shapes],
        "dtypes": ["Float"],
        **place,
    }


def stuck(rank, work=None, last=None, calls=(), groups=WORLD, **where):
    pending = (
        () if work is None else ({**work, "ranks": groups[work["group"]], "last": last or {}},)
    )
    where = where or {key: (work or call())[key] for key in ("file", "line", "text")}
    return Outcome(
        rank=rank, how="stuck", where=where, pending=pending, calls=tuple(calls), groups=groups
    )


def returned(rank, *calls):
    return Outcome(rank=rank, how="returned", calls=calls)


def test_a_rank_that_never_called_is_missing():
    last = {0: 1, 1: 0, 2: 1}
    found = diagnosis.missing([stuck(0, call(), last), returned(1), stuck(2, call(), last)])
    assert (found.fault, found.ranks, found.where["line"]) == ("missing_rank", (1,), 5)
    assert "rank 1 already returned; ranks 0, 2 wait for it" in found.text


def test_a_rank_that_called_the_same_line_less_often_has_fewer_inputs():
    last = {0: 3, 1: 2, 2: 3}
    found = diagnosis.missing(
        [
            stuck(0, call(seq=3), last),
            returned(1, call(seq=1), call(seq=2)),
            stuck(2, call(seq=3), last),
        ]
    )
    assert (found.fault, found.ranks) == (
        "uneven_inputs",
        (1,),
    ) and "called that line 2 times" in found.text


def test_calls_of_a_backwards_own_thread_are_counted_by_what_they_are():
    """An accelerator's backward calls where no line is known; the rank's own line is in no call."""
    reduced = {key: call(seq=1)[key] for key in ("group", "op", "shapes", "dtypes")}
    gone = returned(1, reduced | {"seq": 1}, reduced | {"seq": 2}, call(seq=3, line=9))
    last = {0: 4, 1: 3}
    found = diagnosis.missing([stuck(0, call(seq=4), last), gone])
    assert (found.fault, found.ranks) == ("uneven_inputs", (1,))
    assert "made such a call in a backward 2 times" in found.text
    place = {"file": "In[3]", "line": 5, "text": "dist.all_reduce(x)", "call": "all_reduce"}
    found = diagnosis.missing([stuck(0, call(seq=4), last, **place), gone])
    assert found.fault == "missing_rank"


def test_only_the_collective_that_is_waited_for_is_counted():
    """DDP broadcasts its buckets' order in the line that also reduces gradients."""
    last = {0: 4, 1: 3}
    found = diagnosis.missing(
        [stuck(0, call(seq=4), last), returned(1, call(), call("broadcast", 2), call(seq=3))]
    )
    assert "called that line 2 times" in found.text


def test_a_group_that_waits_in_the_worlds_collective_forgot_its_group():
    groups = {"0": [0, 1, 2], "1": [0, 2]}
    last = {0: 1, 1: 0, 2: 1}
    waiting = [stuck(rank, call(), last, groups=groups) for rank in (0, 2)]
    found = diagnosis.missing([*waiting, returned(1)])
    assert (found.fault, found.ranks) == ("wrong_group", (0, 2)) and "pass `group=`" in found.text


@pytest.mark.parametrize("last", [{0: 1, 1: 1, 2: 1}, {0: 1, 1: None, 2: 1}, {0: 1}])
def test_a_rank_that_came_or_whose_number_is_unknown_proves_nothing(last):
    assert diagnosis.missing([stuck(0, call(), last), returned(1), stuck(2, call(), last)]) is None


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (call("broadcast", line=7), "mismatched_op"),
        (call(shapes=((8,),), line=7), "mismatched_shape"),
    ],
)
def test_ranks_in_different_collectives_are_told_apart_and_the_odd_one_is_the_minority(
    other, fault
):
    found = diagnosis.different([stuck(0, call()), stuck(1, other), stuck(2, call())])
    assert (found.fault, found.ranks, found.where["line"]) == (fault, (1,), 7)
    two = diagnosis.different([stuck(0, call()), stuck(1, other)])
    assert two.ranks == (0, 1), "of two that disagree, nobody knows who is odd"


def test_a_rank_that_went_past_its_wrong_collective_is_found_by_what_it_called_before():
    ahead = stuck(1, call(seq=2, line=9), calls=[call("broadcast", line=7)])
    found = diagnosis.different([stuck(0, call()), ahead, stuck(2, call())])
    assert (found.fault, found.ranks) == ("mismatched_op", (1,)) and "broadcast" in found.text


def test_shapes_may_differ_where_the_collective_lets_them():
    uneven = [stuck(r, call("all_to_all", shapes=((r + 1,),))) for r in range(3)]
    assert (
        diagnosis.different(uneven) is None
        and diagnosis.different([stuck(0, call()), stuck(1, call())]) is None
    )


def test_whom_each_rank_waits_for():
    last = {0: 1, 1: 0, 2: 1}
    assert diagnosis.waits_for([stuck(0, call(), last), returned(1), stuck(2, call(), last)]) == {
        0: (1,),
        2: (1,),
    }
    send = {"call": "send", "file": "In[3]", "line": 5, "text": "dist.send(x, 1)"}
    assert diagnosis.waits_for([stuck(0, peer=1, **send), stuck(1, peer=0, **send)]) == {
        0: (1,),
        1: (0,),
    }


def test_silence_is_explained_by_a_stop_a_cycle_or_a_busy_rank():
    send = {"call": "send", "file": "In[3]", "line": 5, "text": "dist.send(x, 1)"}
    stopped = Outcome(rank=1, how="stuck", state="stopped")
    assert diagnosis.silent([stuck(0, call()), stopped]).fault == "sigstop"
    cycle = diagnosis.silent(
        [stuck(0, peer=1, **send), stuck(1, peer=2, **send), stuck(2, peer=0, **send)]
    )
    assert (cycle.fault, cycle.ranks) == ("send_cycle", (0, 1, 2))
    loop = {"call": None, "file": "In[3]", "line": 9, "text": "loop()"}
    chain = [stuck(0, peer=1, **send), stuck(1, peer=2, **send), stuck(2, **loop)]
    assert (diagnosis.silent(chain).fault, diagnosis.silent(chain).ranks) == ("hang", (2,)), (
        "a chain is no cycle"
    )
    last = {0: 1, 1: 0, 2: 1}
    busy = stuck(1, **loop)
    assert diagnosis.silent([stuck(0, call(), last), busy, stuck(2, call(), last)]).ranks == (1,)
    assert diagnosis.silent([stuck(0, call()), stuck(1, call())]) is None


def test_the_same_calls_in_another_order_are_found_and_branches_are_not():
    x = {"line": 5}
    y = {"line": 6}
    right = [call(seq=1, **x), call(seq=2, **y)]
    wrong = [call(seq=1, **y), call(seq=2, **x)]
    found = disagreement.swapped([right, wrong, right])
    assert (found.fault, found.ranks, found.where["line"]) == ("swapped_order", (1,), 6)
    assert disagreement.swapped([right, right, right]) is None
    branch = [call(seq=1, line=8), call(seq=2, **y)]
    assert disagreement.swapped([right, branch, right]) is None, "one call in two branches"


def test_calls_through_one_function_are_told_apart_by_what_called_it():
    def through(first, second):
        return [
            call(seq=seq, line=2, stack=[["f", 2], ["f", line]])
            for seq, line in ((1, first), (2, second))
        ]

    assert disagreement.swapped([through(10, 11), through(11, 10), through(10, 11)]).ranks == (1,)
    assert disagreement.swapped([through(10, 11), through(10, 11)]) is None


def test_gloos_abort_is_blamed_on_whom_the_others_disagree_with():
    four = call()
    eight = call(shapes=((8,),))
    failed = [
        Outcome(rank=r, how="failed", calls=(c,)) for r, c in ((1, eight), (2, four), (3, four))
    ]
    assert disagreement.disagreeing(failed, dead=0) == (1,)
    assert disagreement.disagreeing(failed[1:], dead=0) == (0,), (
        "the others agree: the dead one did not"
    )


def test_gloos_reason_breaks_the_tie_of_two_that_disagree():
    four = call()
    eight = call(shapes=((8,),))
    failed = [Outcome(rank=r, how="failed", calls=(c,)) for r, c in ((1, eight), (2, four))]
    assert disagreement.disagreeing(failed, dead=0) == (1, 2)
    assert disagreement.disagreeing(failed, dead=0, reason="32 vs 4") == (1,), (
        "it awaited less: it was with the smaller"
    )
    assert disagreement.disagreeing(failed, dead=0, reason="4 vs 32") == (2,)


@pytest.mark.parametrize(
    ("op", "shape", "fault"),
    [("BROADCAST", "4", "mismatched_op"), ("ALLREDUCE", "8", "mismatched_shape")],
)
def test_what_torchs_detail_says_is_read_by_rank(op, shape, fault):
    def said(rank, op, shape):
        words = (
            f"Rank {rank} is running collective: CollectiveFingerPrint(SequenceNumber=1, "
            f"OpType={op}, "
            f"TensorShape=[{shape}], TensorDtypes=Float, ...), but Rank 0 is running ..."
        )
        where = {"file": "f", "line": rank, "text": "x"}
        return Outcome(rank=rank, how="failed", error={"message": words, "where": where})

    outcomes = [said(0, "ALLREDUCE", "4"), said(1, op, shape), said(2, "ALLREDUCE", "4")]
    found = disagreement.detailed(outcomes)
    assert (found.fault, found.ranks, found.where["line"]) == (fault, (1,), 1)
    assert f"rank 1: {op.lower()} of [{shape}] Float at line 1" in found.text
    assert disagreement.detailed(outcomes[:1]) is None
    assert disagreement.detailed([returned(0)]) is None


def test_a_finding_has_a_known_name():
    with pytest.raises(ValueError, match=r"a fault is one of .*; got 'flood'"):
        Finding(fault="flood", ranks=(), text="")
    assert all(words.both(means)["zh"] != means for means in FAULTS.values())


def test_a_build_that_failed_for_want_of_a_compiler_says_what_to_install(monkeypatch):
    raised = {"type": "RuntimeError", "message": "Error building extension 'cpu_adam': FAILED"}
    raised |= {"traceback": "", "where": call()}
    failed = Outcome(rank=0, how="failed", error=raised)
    monkeypatch.setattr(verdict.ops, "obstacle", lambda: "no compiler. Install one")
    assert "compile something here: no compiler. Install" in str(
        verdict.judge_failure([failed], [""])
    )
    monkeypatch.setattr(verdict.ops, "obstacle", lambda: None)
    assert "compile something" not in str(verdict.judge_failure([failed], [""]))


def test_a_tensor_left_on_the_cpu_is_told_where_to_go():
    raised = {"type": "RuntimeError", "message": NO_BACKEND, "traceback": "", "where": call()}
    failed = Outcome(rank=0, how="failed", error=raised)
    assert "x.to(torch.get_default_device())" in str(verdict.judge_failure([failed], [""]))
    raised["message"] = "another"
    assert "get_default_device" not in str(verdict.judge_failure([failed], [""]))


NAMES = {"rank", "all_reduce", "broadcast", "send", "recv", "isend", "irecv", "dist", "kill"}
ENGLISH = re.compile(r"\b[a-z_]{4,}")
SENDS = {"call": "send", "file": "In[3]", "line": 5, "text": "dist.send(x)"}


def told_in_chinese():
    """A verdict of each kind."""
    last = {0: 1, 1: None, 2: 1}
    raised = {"type": "KeyError", "message": "x", "traceback": "", "where": call()}
    waiting = [stuck(0, call(), last), stuck(2, call(), last)]
    failed = Outcome(rank=1, how="failed", error=raised)
    killed = Outcome(rank=1, how="died", status=-9, calls=(call(),))
    left = Outcome(rank=1, how="died", status=3)
    silent = Outcome(rank=1, how="stuck")
    yield diagnosis.different([stuck(0, call()), stuck(1, call("broadcast"))]).text
    yield diagnosis.silent([stuck(0, peer=1, **SENDS), stuck(1, peer=0, **SENDS)]).text
    yield diagnosis.silent([*waiting, stuck(1, file="In[3]", line=2, text="x = 1")]).text
    yield diagnosis.silent([Outcome(rank=1, how="stuck", state="stopped")]).text
    yield str(verdict.judge_failure([*waiting, failed], ["", "", ""]))
    yield str(verdict.judge_failure([*waiting, killed], ["", "", ""]))
    yield str(verdict.judge_failure([*waiting, left], ["", "", ""]))
    yield str(verdict.judge_silence([*waiting, silent], ["", "", ""], "停"))
    right = [call(seq=1, line=1), call(seq=2, line=2)]
    wrong = [call(seq=1, line=2), call(seq=2, line=1)]
    yield disagreement.swapped([right, wrong, right]).text


def test_every_verdict_is_chinese_but_for_names(chinese):
    for text in told_in_chinese():
        assert "rank 1" in text and re.search("[\u4e00-\u9fff]", text), text
        assert not set(ENGLISH.findall(text)) - NAMES, text


def raised(rank, *, kind="ValueError", line=20, message="no"):
    error = {"type": kind, "message": message, "traceback": "", "where": {"line": line}}
    if line is None:
        error["where"] = {}
    else:
        error["where"] |= {"file": "In[3]", "text": "f(x)"}
    return Outcome(rank=rank, how="failed", at=float(rank), error=error)


@pytest.mark.parametrize(
    ("others", "odd"),
    [
        ((raised(1), raised(2)), (0, 1, 2)),
        ((raised(1, line=21), raised(2)), (0, 2)),
        ((raised(1, kind="TypeError"), Outcome(rank=2, how="returned")), (0,)),
        ((raised(1, message="Connection closed by peer"), raised(2)), (0, 2)),
        ((Outcome(rank=1, how="died", at=-1.0, status=-9), raised(2)), (1,)),
    ],
)
def test_the_odd_ones_are_all_that_raised_the_same_at_the_same_line(others, odd):
    outcomes = [raised(0), *others]
    assert verdict.judge_failure(outcomes, [""] * 3).finding.ranks == odd


def test_without_a_line_the_odd_ones_are_all_that_said_the_same():
    said = ["pretend:0 is full, 12 free", "pretend:1 is full, 4 free", "no such key: pretend"]
    outcomes = [raised(rank, line=None, message=each) for rank, each in enumerate(said)]
    assert verdict.judge_failure(outcomes, [""] * 3).finding.ranks == (0, 1)


@pytest.mark.parametrize(
    "files, named",
    [
        (("labkit/x.py", "site-packages/nets/gpt.py", "site-packages/torch/ops.py"), "gpt.py"),
        (("labkit/x.py", "site-packages/torch/ops.py"), "ops.py"),
        (("mine.py", "site-packages/nets/gpt.py", "site-packages/torch/ops.py"), "mine.py"),
    ],
)
def test_an_error_deep_in_a_package_names_a_line_of_it(files, named):
    """The learner's own line if there is one, else the package's that was called, else torch's."""
    root = str(Path(introspect.__file__).parents[3])
    call = None
    for file in reversed(files):
        path = f"{root}/{file}" if file.startswith("labkit") else f"/elsewhere/{file}"
        space = {"call": call}
        exec(compile("def f():\n call() if call else 1 / 0", path, "exec"), space)
        call = space["f"]
    with pytest.raises(ZeroDivisionError) as caught:
        call()
    frame = caught.value.__traceback__
    caught.value.__traceback__ = frame.tb_next
    found = introspect.describe(caught.value, {})
    assert found["where"]["file"] == named
    assert named in found["traceback"]
