"""Story models: planned at 5 B and 20 B, and a small one by ZeRO 3 that learns a page by heart."""

import pytest

from labkit.case_studies import Story, stories, tokenizer


def test_the_models_have_the_sizes_they_are_named_after():
    assert 4.8e9 < stories.MIDDLE.params < 5.4e9
    assert 19.5e9 < stories.LARGE.params < 21e9


def test_what_fits_and_what_does_not():
    fits = {name: plan.fits for name, plan in stories.plans().items()}
    assert [*fits.values()] == [True, True, False, True, True]
    with pytest.raises(ValueError, match="16 cards"):
        stories.plans(24)


def test_states_on_the_card_are_fsdps_and_beside_the_host_deepspeeds():
    on_host, on_card = [plan.memory().parts for plan in stories.plans().values()][:2]
    assert on_card["parameters"] == pytest.approx(2 * on_host["parameters"])
    assert on_card["optimizer"] == pytest.approx(2 * on_card["parameters"])
    assert on_host["optimizer"] == 0


def test_the_tokenizer_gives_back_what_it_read_in_fewer_tokens():
    trained = tokenizer(400)
    text = "Old Tom had a small blue boat. 小船"
    ids = trained.encode(text).ids
    assert trained.decode(ids) == text and max(ids) < 400
    assert len(ids) < len(text.encode())


@pytest.mark.again
@pytest.mark.real
def test_a_small_model_learns_its_page():
    run = Story(steps=30).run()
    told = run[0]
    assert told["kept"] * 2 == pytest.approx(told["weights"], rel=0.01)
    assert told["losses"][-1] < told["losses"][0] - 1.5
    assert told["text"].startswith("Old Tom had") and told["text"] == run[1]["text"]


def test_a_beginning_that_the_page_lacks_is_refused():
    with pytest.raises(ValueError, match="something in the page"):
        Story(begin="Once upon a time in a land")
