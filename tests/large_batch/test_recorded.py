"""What was recorded of large batches, and the board that shows it."""

import itertools
import re

import pytest

from labkit import widgets
from labkit.large_batch import board, recorded
from labkit.large_batch.run import OPTIMIZERS


def test_the_sweep_is_whole_and_its_best_are_reached_by_every_seed():
    batches = recorded.batches()
    rates = recorded.rates()
    assert len(recorded.sweep()) == len(batches) * len(rates) * 5
    for batch in batches:
        best = recorded.best(batch)
        mine = [each for each in recorded.sweep() if each.batch == batch and each.rate == best.rate]
        steps = sorted(each.steps for each in mine)
        assert (best.lowest, best.median, best.highest) == (steps[0], steps[2], steps[4])
        assert all(best.median <= each for each in recorded.medians(batch).values())


def test_the_optimum_moves_up_with_the_batch_and_the_steps_go_down():
    best = [recorded.best(batch) for batch in recorded.batches()]
    assert best[0].rate < best[-1].rate
    medians = [each.median for each in best]
    assert all(after <= before for before, after in itertools.pairwise(medians))


def test_the_law_fits_and_the_noise_scale_says_the_critical_batch_roughly():
    law = recorded.law()
    for batch in recorded.batches():
        assert law.steps(batch) == pytest.approx(recorded.best(batch).median, rel=0.35)
    assert 0.4 < recorded.noise().scale / law.critical_batch < 2.5
    assert recorded.law(seed=0).critical_batch == pytest.approx(law.critical_batch, rel=0.6)


def test_the_law_foretells_the_best_rates_too():
    """To a step of the rates, which are each twice the one before."""
    critical = recorded.law().critical_batch
    best = {batch: recorded.best(batch).rate for batch in recorded.batches()}
    for batch, rate in best.items():
        foretold = best[1024] / (1 + critical / batch)
        assert 0.5 < rate / foretold < 2
    rule = 0.2 * 256 / 64  # the linear rule, from half of the best rate of 64
    assert rule == pytest.approx(best[1024] / (1 + critical / 256), rel=0.1)
    assert all(reading.steps is None for reading in recorded.sweep() if reading.rate == 1.6)


def test_every_optimizer_was_tried_at_every_batch():
    ended = recorded.optimizers()
    batches = {each.batch for each in ended}
    assert {(each.batch, each.optimizer) for each in ended} == {
        (batch, name) for batch in batches for name in OPTIMIZERS
    }
    for each in ended:
        assert len(each.accuracies) == 5 and 0 < each.mean <= 1 and each.spread >= 0


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_of_the_board_says_its_best_rate_on_axes_that_stay(language):
    made = widgets.large_batch(language)
    axes = set()
    for batch, page in zip(recorded.batches(), made.book.drawn(), strict=True):
        best = recorded.best(batch)
        told = re.sub("<[^>]+>", " ", page)
        assert f"{best.rate:g}" in told and f"{best.median:g}" in told
        upper = made.by_rate(batch)
        lower = made.by_batch(batch)
        axes.add((_ticks(upper), _ticks(lower)))
        assert upper.badge == lower.badge and upper.table and lower.table
    ((upper_ticks, lower_ticks),) = axes
    assert len(upper_ticks) > 5 and len(lower_ticks) > 5
    assert made.book.num_bytes < 1_500_000


def _ticks(drawn):
    """Where the words along both axes stand."""
    placed = [
        (round(each.x_px), round(each.y_px), each.text)
        for each in drawn.shapes
        if hasattr(each, "text") and re.fullmatch(r"[\d.,k]+", each.text)
    ]
    return tuple(placed)


def test_what_was_not_recorded_is_refused():
    with pytest.raises(ValueError, match=r"recorded are the batches 2, 4, .*; got 33"):
        widgets.large_batch(batch=33)
    with pytest.raises(ValueError, match="seeds 0 to 4"):
        recorded.medians(32, seed=9)
    assert board.large_batch(batch=64).batch == 64
