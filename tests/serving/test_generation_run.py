"""Real ranks answer with a cache as one process does without; bytes and messages are the formula's;
a model partly on disk answers the same."""

import pytest

import labkit as lab
from labkit.serving import dispatch_run
from labkit.serving.generation import Generation
from labkit.timeline import bubble

SMALL = {"layers": 2, "dim": 32, "requests": 3, "prompt": 5, "output": 6}
WAYS = (
    Generation(way="alone", ranks=1, **SMALL),
    Generation(way="tensor", ranks=2, **SMALL),
    Generation(way="pipeline", ranks=2, microbatches=2, **SMALL),
    pytest.param(
        Generation(way="tensor", ranks=3, heads=5, **(SMALL | {"dim": 40})), marks=pytest.mark.again
    ),
    pytest.param(
        Generation(way="pipeline", ranks=2, microbatches=3, **(SMALL | {"layers": 3})),
        marks=pytest.mark.again,
    ),
)


@pytest.fixture(scope="module", params=WAYS, ids=str)
def answered(request):
    return request.param, request.param.run()


def test_the_tokens_are_those_of_one_process_without_a_cache(answered):
    asked, run = answered
    tokens = run[asked.ranks - 1]["tokens"]
    assert [len(each) for each in tokens] == [asked.output] * asked.requests
    assert all(result["num_differing"] == 0 for result in run)
    assert len(set(map(tuple, tokens))) == asked.requests  # and not all the same
    if asked.way == "tensor":
        assert all(result["tokens"] == tokens for result in run)


def test_the_bytes_are_the_formula_s(answered):
    asked, run = answered
    found = asked.compare()
    assert found.difference().total == 0
    assert [*found.measured.rank_bytes] == [*found.predicted.rank_bytes]
    for rank, result in enumerate(run):
        assert result["cache_bytes"] == asked.cache_bytes(rank)
        if result["allocated_bytes"] is not None:  # in blocks of 512
            assert 0 <= result["allocated_bytes"] - asked.cache_bytes(rank) < 512 * 4 * asked.layers


def test_the_messages_are_two_sums_a_layer(answered):
    asked, run = answered
    if asked.way != "pipeline":
        for result in run:
            assert result["payload_bytes"]["decode"] == asked.payload()
            assert result["payload_bytes"]["prefill"] == asked.payload(asked.prompt)
    else:
        assert run.timeline().kind.tolist().count("F") == (
            asked.ranks * asked.microbatches * asked.output
        )


def test_a_model_partly_on_disk_answers_the_same():
    run = lab.launch(dispatch_run.dispatched, dispatch_run.everywhere("disk"), ranks=1)
    assert run[0]["same"]
    assert run[0]["largest_difference"] == 0
    assert run[0]["disk_bytes"] > 4 * 12 * 64**2 * dispatch_run.LAYERS  # its blocks in fp32


def test_a_place_that_is_none_is_refused():
    with pytest.raises(ValueError, match="a layer lies on one of"):
        dispatch_run.everywhere("tape")


@pytest.mark.alone
def test_one_microbatch_leaves_half_of_two_stages_idle_and_two_do_not():
    shares = []
    for microbatches in (1, 2):
        asked = Generation(
            way="pipeline", ranks=2, microbatches=microbatches, stage_ms=15.0, output=8
        )
        shares.append(bubble(asked.run().timeline()))
    assert shares[0] == pytest.approx(0.5, abs=0.1)
    assert shares[1] < 0.25
