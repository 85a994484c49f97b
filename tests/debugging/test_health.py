"""Laws of health: equal tensors have equal digests in every process, a NaN is found on its rank
before it spreads."""

import subprocess
import sys

import pytest

import labkit as lab
from labkit.debugging import health
from labkit.timeline import from_rows


def test_statistics_say_what_is_finite_and_what_is_not():
    import torch

    row = health.statistics(torch.tensor([1.0, 3.0, float("nan"), float("inf")]))
    assert row == {
        "shape": (4,),
        "dtype": "float32",
        "device": "cpu",
        "num_nan": 1,
        "num_inf": 1,
        "min": 1.0,
        "max": 3.0,
        "mean": 2.0,
        "std": 1.0,
    }
    assert health.statistics(torch.empty(0))["mean"] is None
    assert health.statistics(torch.tensor([True, False]))["max"] == 1.0
    assert health.statistics(torch.tensor([1, 2], dtype=torch.bfloat16))["mean"] == 1.5


@pytest.mark.again
def test_a_digest_is_the_same_in_every_interpreter_and_hash_is_not():
    code = (
        "import torch; from labkit.debugging import health; t = torch.arange(6.0)[::2];"
        "print(health.digest(t), hash(t.numpy().tobytes()))"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
        ).stdout.split()
        for _ in range(2)
    ]
    assert said[0][0] == said[1][0] and said[0][1] != said[1][1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_digests_differ_with_one_bit_and_work_for_every_type(dtype):
    import torch

    a = torch.zeros(5, dtype=getattr(torch, dtype))
    b = a.clone()
    b[3] = 1
    assert health.digest(a) == health.digest(a.clone()) != health.digest(b)


def test_compare_and_finite_name_the_rank_and_the_tensor():
    def work(odd):
        import torch
        import torch.distributed as dist

        named = {"a": torch.ones(3), "b": torch.ones(2)}
        equal = health.compare(named.items()), health.finite(named.items())
        if dist.get_rank() == odd:
            named["b"][1] = float("inf")
        return equal, health.compare(named.items()), health.finite(named.items())

    for equal, differs, infinite in lab.launch(work, 2, ranks=4, backend="gloo"):
        assert equal == (None, None)
        assert (differs.fault, differs.ranks) == (
            "diverged_replica",
            (2,),
        ) and "the first is b" in differs.text
        assert (infinite.fault, infinite.ranks) == (
            "nan",
            (2,),
        ) and "rank 2 first in b" in infinite.text


def test_compare_needs_the_same_names():
    def work():
        import torch
        import torch.distributed as dist

        health.compare([(f"layer{dist.get_rank()}", torch.ones(1))])

    with pytest.raises(lab.RankFailed, match="must name the same tensors in the same order"):
        lab.launch(work, ranks=2, backend="gloo")


def test_guarded_gradients_are_ddps_own():
    def work(guarded):
        import torch

        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        if guarded:
            health.guard(model)
        model(torch.full((2, 3), float(torch.distributed.get_rank()))).sum().backward()
        return [p.grad for p in model.parameters()]

    plain = lab.launch(work, False, ranks=2, backend="gloo")
    guarded = lab.launch(work, True, ranks=2, backend="gloo")
    assert all(a.equal(b) for r in range(2) for a, b in zip(plain[r], guarded[r], strict=True))


def test_orders_that_repeat_are_found():
    assert health.same_order({0: [1, 2], 1: [2, 1], 2: [1, 2]}).text.startswith(
        "epoch 2 has the order of epoch 0"
    )
    assert health.same_order({0: [1, 2], 1: [2, 1]}) is None


def test_a_slow_rank_is_found_only_where_the_others_really_wait():
    def reduces(late_us):
        return from_rows(
            [
                (
                    r,
                    "comm",
                    "all_reduce",
                    "x",
                    100 * k + (late_us if r == 1 else 0),
                    100 * k + 95,
                    16,
                )
                for k in range(5)
                for r in range(3)
            ],
            num_ranks=3,
            origin="measured",
        )

    assert health.slow(reduces(90)).ranks == (1,) and "rank 1" in health.slow(reduces(90)).text
    assert (
        health.slow(reduces(5)) is None
        and health.slow(reduces(0).select(reduces(0).rank > 5)) is None
    )
