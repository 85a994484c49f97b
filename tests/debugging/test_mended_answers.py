"""The exercises of chapter 14: plausible answers that are wrong or wasteful are caught, and so is a
fault that is hidden."""

import pytest
import torch
from test_debugging_check import BOOK, EXERCISES, judged
from torch import distributed as dist

import labkit as lab
from labkit.debugging import check, cure_run

pytestmark = pytest.mark.usefixtures("a_fresh_learner")


# --- plausible answers that are wrong ---


def log_alone(losses):
    """No collective: no hang, and no mean over the ranks."""
    means = losses[::2]
    if dist.get_rank() == 0:
        print(means)
    return means


def log_everywhere(losses):
    means = BOOK["my_one"](losses)
    print(means)
    return means


def log_on_rank_0(losses):
    """All reduce, but only rank 0 keeps the means."""
    means = BOOK["my_one"](losses)
    return means if dist.get_rank() == 0 else []


def log_every_step(losses):
    means = []
    for step, loss in enumerate(losses):
        mean = torch.tensor(loss)
        dist.all_reduce(mean)
        if step % 2 == 0:
            means.append(mean.item() / dist.get_world_size())
    if dist.get_rank() == 0:
        print(means)
    return means


def log_and_barrier(losses):
    """Every second loss at the price of two calls each."""
    dist.barrier()
    dist.barrier()
    return BOOK["my_one"](losses)


def swallowing(losses):
    """The broken one in a try: whoever hangs, hangs."""
    try:
        return BOOK["log_losses"](losses)
    except RuntimeError:
        return [0.0]


def dashboard_by_name(metrics):
    """One message for each number, in one order."""
    return dict(sorted(BOOK["dashboard"](dict(sorted(metrics.items()))).items()))


def dashboard_by_rank_0(metrics):
    """Only renames what came out: the sums stay mixed."""
    return dict(zip(("loss", "accuracy"), BOOK["dashboard"](metrics).values(), strict=True))


def dashboard_with_barriers(metrics):
    dist.barrier()
    dist.barrier()
    return BOOK["my_two"](metrics)


def pass_by_gathering(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts[dist.get_rank() - 1]


def pass_it_twice(x):
    BOOK["my_four"](x)
    return BOOK["my_four"](x)


def pass_the_wrong_way(x):
    rank = dist.get_rank()
    size = dist.get_world_size()
    got = torch.empty_like(x)
    requests = [dist.isend(x, dst=(rank - 1) % size), dist.irecv(got, src=(rank + 1) % size)]
    for request in requests:
        request.wait()
    return got


def pass_without_waiting(x):
    """The receive is never waited for: what it returns has not arrived."""
    rank = dist.get_rank()
    size = dist.get_world_size()
    got = torch.full_like(x, -7.0)
    dist.isend(x, dst=(rank + 1) % size)
    dist.irecv(got, src=(rank - 1) % size)
    return got


def agree_on_rank_0s(weight, grad, limit):
    """The replicas agree, on a value that is not the one meant."""
    weight = BOOK["update"](weight, grad, limit)
    dist.broadcast(weight, src=0)
    return weight


def clip_first(weight, grad, limit):
    """Every rank clips its own gradient before the mean: replicas agree, but the mean is
    another."""
    norm = grad.norm()
    if norm > limit:
        grad *= limit / norm
    dist.all_reduce(grad)
    return weight - grad / dist.get_world_size()


def never_clip(weight, grad, limit):
    dist.all_reduce(grad)
    return weight - grad / dist.get_world_size()


def mean_of_means(losses):
    mean = losses.mean().nan_to_num()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def mean_of_those_that_have(losses):
    both = torch.tensor([losses.mean().nan_to_num().item(), float(len(losses) > 0)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def skipping(losses):
    return BOOK["my_six"](losses) if len(losses) else 0.0


def one_number_each(losses):
    total = 0.0
    for loss in (losses.sum(), torch.tensor(float(len(losses)))):
        dist.all_reduce(loss)
        dist.all_reduce(torch.zeros(1))
        total = (*total, loss.item()) if total else (loss.item(),)
    return total[0] / total[1]


@pytest.mark.a_few(5)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("case_one", log_alone, "right is ["),
        ("case_one", log_everywhere, "2 ranks: rank 1 printed '[3.5"),
        ("case_one", log_on_rank_0, "rank 1 returned [], right is [3.5"),
        ("case_one", lambda losses: [], "rank 0 returned [], right is ["),
        ("case_one", swallowing, "already returned"),
        (
            "case_two",
            lambda metrics: metrics,
            "rank 0 returned {'loss': 2.0, 'accuracy': 0.25}, right is {'loss': 3.0, ",
        ),
        ("case_two", dashboard_by_rank_0, "right is {'loss': 3.0, 'accuracy': 0.5}"),
        ("case_two", lambda metrics: {}, "rank 0 returned {}, right is "),
        ("case_two", lambda metrics: [3.0, 0.5], "rank 0 returned [3.0, 0.5], right is "),
        ("case_four", pass_the_wrong_way, "smallest and largest; rank "),
        (
            "case_four",
            lambda x: x,
            "rank 0 returned [-1.0, -1.0], smallest and largest; rank 1 had 1s",
        ),
        ("case_four", pass_without_waiting, "smallest and largest; rank "),
        ("case_four", lambda x: None, "rank 0 returned None"),
        ("case_five", agree_on_rank_0s, "right is ["),
        ("case_five", clip_first, "the ranks have [[9.0, 0.0], [-8.0, 1.0]]: rank 0 returned "),
        (
            "case_five",
            never_clip,
            "the ranks have [[8.0, 6.0], [6.0, 8.0], [0.0, 0.0]]: rank 0 returned ",
        ),
        (
            "case_six",
            mean_of_means,
            "the ranks have [[1.0, 5.0, 3.0], [7.0], []]: rank 0 returned ",
        ),
        ("case_six", mean_of_those_that_have, "rank 0 returned 5.0, right is 4.0"),
        ("case_six", skipping, "rank 2 already returned"),
        ("case_six", lambda losses: "4", "rank 0 returned 4, right is 4.0"),
    ],
)
def test_a_hidden_fault_gets_its_counterexample(name, answer, words):
    verdict = judged(name, answer)
    assert verdict.state == "wrong" and words in verdict.counterexample, verdict


@pytest.mark.a_few(2)
@pytest.mark.parametrize("name", EXERCISES)
def test_the_broken_function_itself_is_wrong(name):
    broken = dict(
        zip(
            EXERCISES,
            ("log_losses", "dashboard", "pass_on", "update", "mean_of_all"),
            strict=True,
        )
    )[name]
    assert judged(name, BOOK[broken]).state == "wrong"


@pytest.mark.again
def test_two_messages_in_one_order_are_right_too():
    assert judged("case_two", dashboard_by_name).state == "passed"


@pytest.mark.again
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("case_one", log_and_barrier, "rank 0 made 3 calls; 2 are enough"),
        ("case_two", dashboard_with_barriers, "made 3 calls; 2 are enough"),
        ("case_four", pass_it_twice, "bytes; x has 1200000"),
        ("case_four", pass_by_gathering, "4 ranks, 300000 numbers each: rank 0 sent "),
        ("case_six", one_number_each, "made 4 calls; 2 are enough"),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = judged(name, answer)
    assert verdict.state == "over budget" and words in verdict.counterexample, verdict


def test_an_answer_that_waits_for_ever_is_told():
    def waits(x):
        dist.recv(torch.empty_like(x), src=(dist.get_rank() + 1) % dist.get_world_size())

    verdict = judged("case_four", waits)
    assert verdict.state == "wrong" and "no sign of life" in verdict.counterexample


@pytest.mark.a_few(3)
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (("microbatches", 17.4e6), "microbatches: at step a rank still holds 3"),
        (("checkpointing", 34.9e6), "checkpointing: at step a rank still holds 3"),
        (("FSDP", 34.9e6), "FSDP: not 3.49e+07 bytes at step"),
        (("FSDP", float("nan")), "FSDP: not nan bytes at step"),
        (("bf16", 17.4e6), "bf16: the update is no longer the same"),
        (("half the length", 17.4e6), "half the length: the update is no longer the same"),
        (("prayer", 0), "cure 'prayer' is none of microbatches, checkpointing"),
        ("FSDP", "the answer is (cure, bytes at step); got 'FSDP'"),
        ((17.4e6, "FSDP"), "the answer is (cure, bytes at step); got (17400000.0, 'FSDP')"),
    ],
)
def test_a_wrong_cure_or_wrong_bytes_are_told(said, words):
    verdict = check.case_three(lambda: said)
    assert verdict.state == "wrong" and words in verdict.counterexample, verdict


def test_the_chapters_cure_and_bytes_pass():
    def plain():
        return cure_run.steps(["none"], width=256, num_sequences=1, length=32)["none"].footprint

    BOOK["wide"] = lab.launch(plain, ranks=2, backend="gloo", timeout_s=120)[0]
    assert check.case_three(BOOK["my_three"]).state == "passed"
