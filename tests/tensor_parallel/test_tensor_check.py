"""The exercises of tensor parallelism: right answers pass, each usual mistake is named."""

import pytest

from labkit.tensor_parallel import check

pytestmark = pytest.mark.real


def in_two_functions(x, up, up_bias, down, down_bias):
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.autograd import Function

    class Enter(Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            total = grad.clone()
            dist.all_reduce(total)
            return total

    class Leave(Function):
        @staticmethod
        def forward(ctx, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(ctx, grad):
            return grad

    inner = F.gelu(F.linear(Enter.apply(x), up, up_bias))
    return Leave.apply(F.linear(inner, down)) + down_bias


def plain_all_reduce(x, up, up_bias, down, down_bias):
    import torch.distributed as dist
    import torch.nn.functional as F

    made = F.linear(F.gelu(F.linear(x, up, up_bias)), down) + 0 * down_bias
    dist.all_reduce(made.data)
    return made + down_bias


def bias_on_every_rank(x, up, up_bias, down, down_bias):
    import torch.distributed as dist
    import torch.nn.functional as F

    made = F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)
    dist.all_reduce(made.data)
    return made


def two_sums(x, up, up_bias, down, down_bias):
    import torch.distributed as dist

    made = in_two_functions(x, up, up_bias, down, down_bias)
    dist.all_reduce(up.detach().new_zeros(1))
    return made


def test_one_all_reduce_for_a_column_and_a_row_passes():
    assert check.column_then_row(in_two_functions).state == "passed"


@pytest.mark.a_few(1)
@pytest.mark.parametrize(
    ("answer", "state", "told"),
    [
        (plain_all_reduce, "wrong", "x.grad"),
        (bias_on_every_rank, "wrong", "the output"),
        (two_sums, "over budget", "2 collectives in the forward"),
    ],
)
def test_usual_mistakes_of_the_pair_are_named(answer, state, told):
    verdict = check.column_then_row(answer)
    assert verdict.state == state
    assert told in verdict.counterexample


def slices(heads, kv_heads, head_dim, num_ranks, rank, floor=False):
    each, more = divmod(heads, num_ranks)
    first = rank * each + min(rank, more)
    stop = first + each + (rank < more)
    group = heads // kv_heads
    keys = (first // group, stop // group if floor else (stop - 1) // group + 1)
    values_at = heads + kv_heads
    return [
        (first * head_dim, stop * head_dim),
        tuple((heads + at) * head_dim for at in keys),
        tuple((values_at + at) * head_dim for at in keys),
    ]


def test_whole_heads_of_keys_pass_and_a_half_one_is_drawn():
    assert check.which_slice(slices).state == "passed"
    verdict = check.which_slice(lambda *sizes: slices(*sizes, floor=True))
    assert verdict.state == "wrong"
    assert "yours" in verdict.counterexample and "#" in verdict.counterexample


def weighed(layers, hidden, sequence, batch, num_ranks, microbatches, link, compute_us):
    stream = 4 * batch * sequence * hidden
    tensor = 4 * layers * stream
    pipeline = stream if num_ranks == 2 else 2 * stream
    share = (num_ranks - 1) / num_ranks
    tensor_us = compute_us / num_ranks + 2 * share * tensor / link / 1e3
    pipeline_us = compute_us / num_ranks * (microbatches + num_ranks - 1) / microbatches
    return tensor, pipeline, "tensor" if tensor_us < pipeline_us else "pipeline"


@pytest.mark.again
def test_tensor_against_pipeline_by_numbers_and_by_run():
    assert check.tensor_or_pipeline(weighed).state == "passed"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *given: (weighed(*given)[0] // 2, *weighed(*given)[1:]), "tensor"),
        (lambda *given: (*weighed(*given)[:2], "tensor"), "the pipeline"),
        (lambda *given: (*weighed(*given)[:2], "pipeline"), "tensor takes"),
    ],
)
def test_wrong_numbers_are_named(answer, told):
    verdict = check.tensor_or_pipeline(answer)
    assert verdict.state == "wrong"
    assert told in verdict.counterexample


def test_a_formula_that_only_fits_large_numbers_meets_the_real_ranks():
    def off_at_four_ranks(*given):
        tensor, pipeline, quicker = weighed(*given)
        return tensor, pipeline // 2 if given[1] == 64 and given[4] == 4 else pipeline, quicker

    verdict = check.tensor_or_pipeline(off_at_four_ranks)
    assert verdict.state == "wrong"
    assert "4 real ranks" in verdict.counterexample
