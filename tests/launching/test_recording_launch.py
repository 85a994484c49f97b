"""``launch(..., record=True)``: all that a function does, recorded without a word in it."""

import pytest

import labkit as lab


def share(numbers):
    import torch
    import torch.distributed as dist

    x = torch.full((256,), float(numbers))
    dist.all_reduce(x)
    return x[0].item()


def test_a_launch_that_records_has_a_timeline():
    run = lab.launch(share, 3, ranks=2, record=True, timeout_s=60)
    assert run.results == (6.0, 6.0)
    timeline = run.timeline()
    sent = timeline.select(timeline.kind == "all_reduce")
    assert set(sent.rank) == {0, 1}


def test_without_it_nothing_is_recorded():
    run = lab.launch(share, 3, ranks=2, timeout_s=60)
    with pytest.raises(ValueError, match="record=True"):
        run.timeline()


def test_a_function_that_has_the_word_for_itself_is_asked_about():
    with pytest.raises(lab.Refused, match="whether the ranks record"):
        lab.launch(lambda record: record, ranks=1, record=True)
