"""The scheme and the buckets, drawn: what a picture says is what the step does."""

import itertools

import pytest

from labkit import data_parallel
from labkit.data_parallel import Step
from labkit.pictures.drawing import WIDTH_PX
from labkit.pictures.sketch import Box


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("num_ranks", "samples"), [(2, 8), (4, 8), (8, 8)])
def test_the_scheme_deals_every_sample_once_and_has_one_mean(num_ranks, samples, language):
    picture = data_parallel.scheme(num_ranks, samples, language=language)
    dealt = [row[1].split(", ") for row in picture.table[1:]]
    assert sorted(itertools.chain(*dealt), key=int) == [str(each) for each in range(samples)]
    assert {len(each) for each in dealt} == {samples // num_ranks}
    boxes = picture.only(Box)
    assert len(boxes) == samples + 3 * num_ranks + 1
    assert max(box.x_px + box.width_px for box in boxes) <= WIDTH_PX


@pytest.mark.parametrize(("num_ranks", "samples"), [(1, 8), (9, 9), (3, 8), (2, 65)])
def test_a_scheme_that_can_not_be_drawn_is_refused(num_ranks, samples):
    with pytest.raises(ValueError, match=r"samples|num_ranks"):
        data_parallel.scheme(num_ranks, samples)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("bucket_mb", [0.5, 1.5, 8])
def test_a_bucket_is_as_wide_as_its_gradients(bucket_mb, language):
    step = Step(layers=12, layer_mb=0.5, bucket_mb=bucket_mb)
    picture = data_parallel.filling(step, language=language)
    listed = [tuple(map(int, row[1].split(", "))) for row in picture.table[1:]]
    assert tuple(listed) == step.buckets()
    boxes = picture.only(Box)
    top_px = min(box.y_px for box in boxes)
    gradients = [box for box in boxes if box.y_px == top_px]
    messages = [box for box in boxes if box.y_px > top_px]
    assert [box.texts[0] for box in gradients] == [str(n) for n in reversed(range(12))]
    assert len(messages) == len(listed)
    for box, bucket in zip(messages, listed, strict=True):
        assert box.width_px + 1 == pytest.approx(len(bucket) * (gradients[0].width_px + 1))
