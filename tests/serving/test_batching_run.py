"""A real server: every answer is the one that a request alone gets, and what is measured is what
was simulated."""

import pytest

from labkit.serving.load import Load

LIGHT = Load(requests=8, rate=40.0, output=5, prompt=4, step_ms=1.0, sequence_ms=0.0)


@pytest.fixture(scope="module", params=("static", "continuous"))
def served(request):
    load = LIGHT.but(policy=request.param, paced=False)
    return load, load.run()


def test_every_request_gets_the_tokens_that_it_would_get_alone(served):
    load, run = served
    for result in run:
        assert result["num_differing"] == 0
        lengths = {number: len(tokens) for number, tokens in result["tokens"].items()}
        assert lengths == {each.number: each.output for each in load.coming()}
    assert run[0]["tokens"] == run[1]["tokens"]
    assert len(set(map(tuple, run[0]["tokens"].values()))) > load.requests // 2


def test_the_visits_are_whole_and_nobody_enters_before_coming(served):
    load, run = served
    found = load.measured(run)
    assert [each.number for each in found.visits] == [*range(load.requests)]
    assert "paced" not in found.notes
    due = [each.arrives_us for each in load.coming()]
    assert [each.arrives_us for each in found.visits] == due


def test_the_cache_has_room_for_the_longest_request_in_every_slot(served):
    load, run = served
    each = 2 * 2 * 64 * 4  # keys and values, layers, features, fp32
    assert sum(result["cache_bytes"] for result in run) == load.slots * load.longest() * each


@pytest.mark.alone
def test_a_paced_server_does_what_was_simulated():
    measured = {}
    for policy in ("static", "continuous"):
        load = Load(policy=policy, requests=10, rate=12.0, ranks=1)  # two wait for each other
        found = load.compare()
        assert "paced" in found.measured.notes
        mean_us = found.predicted.latency_us.mean()
        assert abs(found.difference().total) < 0.15 * mean_us
        measured[policy] = found.measured.figures().latency_p95_us
    assert measured["continuous"] < measured["static"]
