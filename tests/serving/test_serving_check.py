"""The exercises of inference: what is right passes, and each usual mistake is told."""

import pytest

from labkit.serving import check


def scheduler(waiting, owed, slots):
    done = [number for number, tokens in owed.items() if tokens == 0]
    free = slots - len(owed) + len(done)
    return waiting[:free], done


def static(waiting, owed, slots):
    if any(owed.values()):
        return [], []
    return waiting[:slots], list(owed)


def forgets_the_leaving(waiting, owed, slots):
    _, done = scheduler(waiting, owed, slots)
    return waiting[: slots - len(owed)], done


def last_first(waiting, owed, slots):
    admit, done = scheduler(waiting[::-1], owed, slots)
    return admit, done


def budget(params, layers, kv_heads, head_dim, gpu_bytes, tokens, ranks):
    each = 2 * layers * -(-kv_heads // ranks) * head_dim * 2 * tokens
    return max(0, (gpu_bytes * 9 // 10 - 2 * -(-params // ranks)) // each)


def without_layers(params, layers, *others):
    return budget(params, 1, *others)


def halves_a_head(params, layers, kv_heads, head_dim, gpu_bytes, tokens, ranks):
    each = 2 * layers * kv_heads * head_dim * 2 * tokens // ranks
    return max(0, (gpu_bytes * 9 // 10 - 2 * -(-params // ranks)) // each)


def rounds_heads_down(params, layers, kv_heads, head_dim, gpu_bytes, tokens, ranks):
    each = 2 * layers * max(1, kv_heads // ranks) * head_dim * 2 * tokens
    return max(0, (gpu_bytes * 9 // 10 - 2 * -(-params // ranks)) // each)


def below_nothing(*given):
    found = budget(*given)
    return found if found else -1


@pytest.mark.real
def test_a_scheduler_by_iteration_passes_and_serves():
    verdict = check.continuous_batch(scheduler)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (static, "right: admit [1], retire []"),
        (forgets_the_leaving, "yours: admit []"),
        (last_first, "right: admit"),
    ],
)
def test_usual_mistakes_of_a_scheduler_are_drawn(answer, told):
    verdict = check.continuous_batch(answer)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample, verdict
    assert "inside   [" in verdict.counterexample


def test_a_budget_passes():
    verdict = check.cache_budget(budget)
    assert verdict.state == "passed", verdict


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (without_layers, "LLaMA 7B, 40 GB, 2048 tokens, tp 1"),
        (halves_a_head, "LLaMA-2 70B, 80 GB, 4096 tokens, tp 16"),
        (rounds_heads_down, "LLaMA 7B, 40 GB, 2048 tokens, tp 3"),
        (below_nothing, "got -1; right is 0"),
    ],
)
def test_usual_mistakes_of_a_budget_are_named(answer, told):
    verdict = check.cache_budget(answer)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample, verdict
