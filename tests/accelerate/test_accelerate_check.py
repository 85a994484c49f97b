"""The exercises of chapter 04: the right answers pass, typical mistakes are caught, wasteful ones
are told so."""

import math

import pytest
import torch

from labkit import model
from labkit.accelerate import check

pytestmark = pytest.mark.usefixtures("a_fresh_learner")
EXERCISES = ("epoch_numbers", "one_epoch", "accumulate_and_clip", "exact_accuracy")


def numbers(num_samples, batch_size, ranks, accumulation, up=math.ceil, times=True):
    """The reference for epoch_numbers, and how it can go wrong."""
    updates = up(up(up(num_samples / batch_size) / ranks) / accumulation)
    return {
        "samples": batch_size * ranks * accumulation,
        "updates": updates,
        "schedule": updates * ranks if times else updates,
    }


def epoch(accelerator, net, optimizer, loader, together=True, scaled=True, collect=None):
    """The reference for one_epoch, and how it can go wrong."""
    if together:
        net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    else:
        net = accelerator.prepare(net)
        loader = accelerator.prepare(loader)
    for tokens, targets in loader:
        loss = model.loss(net(tokens), targets)
        if scaled:
            accelerator.backward(loss)
        else:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return collect(accelerator, net) if collect else accelerator.get_state_dict(net)


def accumulated(
    accelerator, net, optimizer, loader, max_norm, guard=True, part=1, late=False, rest=True
):
    """The reference for accumulate_and_clip, and how it can go wrong."""
    steps = accelerator.gradient_accumulation_steps
    for index, (tokens, targets) in enumerate(loader):
        left = len(loader) - index // steps * steps
        factor = steps / min(steps, left) if rest else 1
        with accelerator.accumulate(net):
            accelerator.backward(factor * model.loss(net(tokens), targets) / part)
            if not late and (accelerator.sync_gradients or not guard):
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            if late:
                accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.zero_grad()


def accuracy(accelerator, net, loader, real=True):
    """The reference for exact_accuracy; without ``real`` what is filled up counts as well."""
    hits = torch.zeros(())
    for number, (inputs, labels) in enumerate(loader):
        dealt = number * accelerator.num_processes + accelerator.process_index
        left = len(loader.dataset) - dealt * len(labels) if real else len(labels)
        hits += (net(inputs).argmax(-1) == labels)[: max(0, left)].sum()
    return accelerator.reduce(hits).item() / len(loader.dataset)


def gathered_at_the_end(accelerator, net, loader):
    """The other right way: the hits of all ranks at once, put in the dataset's order."""
    hits = [net(inputs).argmax(-1) == labels for inputs, labels in loader]
    every = accelerator.gather(torch.cat(hits))
    dealt = every.view(accelerator.num_processes, len(loader), -1).transpose(0, 1)
    return dealt.flatten()[: len(loader.dataset)].float().mean().item()


def gathered_per_batch(accelerator, net, loader, collect="gather_for_metrics"):
    """A message for every batch."""
    hits = [
        getattr(accelerator, collect)(net(inputs).argmax(-1) == labels) for inputs, labels in loader
    ]
    return torch.cat(hits).float().mean().item()


REFERENCES = dict(zip(EXERCISES, (numbers, epoch, accumulated, accuracy), strict=True))


@pytest.mark.again
@pytest.mark.parametrize("name", EXERCISES)
def test_the_reference_passes(name):
    verdict = getattr(check, name)(REFERENCES[name])
    assert (verdict.state, verdict.counterexample, verdict.hint) == ("passed", "", "")


def test_an_accuracy_of_gathered_hits_passes():
    assert check.exact_accuracy(gathered_at_the_end).state == "passed"


def unprepared(accelerator, net, optimizer, loader):
    """Every rank trains on everything, for itself."""
    for tokens, targets in loader:
        model.loss(net(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return net.state_dict()


def every_batch(accelerator, net, optimizer, loader, max_norm):
    """Without accumulate: an update per batch."""
    for tokens, targets in loader:
        accelerator.backward(model.loss(net(tokens), targets))
        accelerator.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()


def each_its_own(accelerator, net, loader):
    hits = [(net(inputs).argmax(-1) == labels) for inputs, labels in loader]
    return torch.cat(hits).float().mean().item()


def for_the_main_one(accelerator, net, loader):
    value = accuracy(accelerator, net, loader)
    return value if accelerator.is_main_process else None


def mean_of_means(accelerator, net, loader):
    means = [(net(inputs).argmax(-1) == labels).float().mean() for inputs, labels in loader]
    return accelerator.gather(torch.stack(means)).mean().item()


@pytest.mark.a_few(6)
@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("epoch_numbers", lambda *args: 16, "returned int, not a dict"),
        (
            "epoch_numbers",
            lambda *args: numbers(*args, up=int),
            "batches of 8, accumulation over 2, rank 0: updates: returned 15",
        ),
        (
            "epoch_numbers",
            lambda *args: numbers(*args, times=False),
            "schedule: returned 16, it is",
        ),
        (
            "one_epoch",
            unprepared,
            "ddp, 3 ranks, rank 0: layers.0.token.weight is not what one process gets from",
        ),
        ("one_epoch", lambda *args: epoch(*args, collect=lambda a, net: net.state_dict()), "is "),
        (
            "one_epoch",
            lambda *args: epoch(*args, collect=lambda a, net: a.unwrap_model(net).state_dict()),
            "fsdp, 2 ranks, rank 0: layers.0.token.weight is not whole: DTensor",
        ),
        (
            "one_epoch",
            lambda *args: epoch(*args, together=False),
            "passed together to `Accelerator.prepare()`",
        ),
        (
            "accumulate_and_clip",
            lambda *args: accumulated(*args, rest=False),
            "2 ranks, accumulation over 2, rank 0: layers.0.token.weight is not what",
        ),
        ("one_epoch", lambda *args: epoch(*args, scaled=False), "zero2, 2 ranks"),
        (
            "one_epoch",
            lambda *args: None,
            "one process, rank 0: returned NoneType, not the weights",
        ),
        (
            "accumulate_and_clip",
            every_batch,
            "2 ranks, accumulation over 2, rank 0: layers.0.token.weight is not what one",
        ),
        (
            "accumulate_and_clip",
            lambda *args: accumulated(*args, guard=False),
            "accumulation over 2, rank 0: layers.0",
        ),
        (
            "accumulate_and_clip",
            lambda *args: accumulated(*args, part=8),
            "2 ranks, accumulation over 2, rank 0: layers.0",
        ),
        (
            "accumulate_and_clip",
            lambda *args: accumulated(*args, late=True),
            "accumulation over 2, rank 0: layers.0",
        ),
        (
            "accumulate_and_clip",
            lambda *args: None,
            "accumulation over 2, rank 0: layers.0.token.weight is not what one",
        ),
        (
            "exact_accuracy",
            lambda *args: accuracy(*args, real=False),
            "11 samples, 3 ranks, batches of 2, rank 0: ",
        ),
        (
            "exact_accuracy",
            lambda *args: gathered_per_batch(*args, collect="gather"),
            "11 samples, 3 ranks, batches of 2, rank 0: ",
        ),
        ("exact_accuracy", each_its_own, "11 samples, 3 ranks, batches of 2, rank "),
        ("exact_accuracy", mean_of_means, "of all samples 0.5455 are right"),
        ("exact_accuracy", for_the_main_one, "rank 1: returned NoneType, not a number"),
    ],
)
def test_a_typical_mistake_gets_its_counterexample(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "wrong"
    assert words in verdict.counterexample, verdict.counterexample


def counting(accelerator, net, optimizer, loader, max_norm):
    """Right, but every batch is all-reduced."""
    steps = accelerator.gradient_accumulation_steps
    for index, (tokens, targets) in enumerate(loader):
        here = min(steps, len(loader) - index // steps * steps)
        accelerator.backward(model.loss(net(tokens), targets) * steps / here)
        if index % steps == here - 1:
            accelerator.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        (
            "accumulate_and_clip",
            counting,
            "2 ranks, accumulation over 2: 5 all-reduces for 3 updates; one per update is",
        ),
        (
            "exact_accuracy",
            gathered_per_batch,
            "11 samples, 3 ranks, batches of 2: 2 collectives; one is enough",
        ),
    ],
)
def test_a_right_answer_that_costs_too_much_is_told_so(name, answer, words):
    verdict = getattr(check, name)(answer)
    assert verdict.state == "over budget", verdict
    assert words in verdict.counterexample, verdict.counterexample


def only_the_main_one_gathers(accelerator, net, loader):
    return accuracy(accelerator, net, loader) if accelerator.is_main_process else 0.0


def test_a_deadlock_is_a_verdict():
    verdict = check.exact_accuracy(only_the_main_one_gathers)
    assert verdict.state == "wrong"
    assert "already returned" in verdict.counterexample and "all_reduce" in verdict.counterexample
