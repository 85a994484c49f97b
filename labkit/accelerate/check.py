"""The exercises of chapter 04, Accelerate. Answers are graded on real ranks, with engines that the
chapter shows."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

__all__ = [
    "accumulate_and_clip",
    "epoch_numbers",
    "exact_accuracy",
    "hint",
    "one_epoch",
    "status",
]


@exercise
def epoch_numbers(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_samples, batch_size, ranks, accumulation)`` says of an epoch how many
    ``samples`` a full update takes, how many ``updates`` there are, and how many steps a prepared
    ``schedule`` takes. Held against a loop with a real Accelerator, run on real ranks.
    """
    for num_ranks, num_samples, batch, num_steps in ((4, 1000, 8, 2), (2, 10, 2, 1), (3, 50, 4, 4)):
        run = on_ranks(num_ranks, _numbers, answer, num_samples, batch, num_steps)
        case = say(
            "{num_samples} samples, {num_ranks} ranks, batches of {batch}, accumulation over "
            "{num_steps}",
            num_samples=num_samples,
            num_ranks=num_ranks,
            batch=batch,
            num_steps=num_steps,
        )
        yield from faults(case, run)


@exercise
def one_epoch(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(accelerator, net, optimizer, loader)`` gets plain objects, trains one epoch, and
    returns on the main process the whole weights under the names of the bare model. The same code
    for every engine. Run on real ranks.
    """
    for engine, num_ranks in ((say("one process"), 1), ("ddp", 3), ("fsdp", 2), ("zero2", 2)):
        run = on_ranks(num_ranks, _epoch, answer, engine)
        case = (
            say("{engine}, {num_ranks} ranks", engine=engine, num_ranks=num_ranks)
            if num_ranks > 1
            else say("one process")
        )
        yield from faults(case, run)


@exercise
def accumulate_and_clip(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(accelerator, net, optimizer, loader, max_norm)``, all prepared: an update per
    ``accelerator.gradient_accumulation_steps`` batches, and one of those that are left at the end,
    with the clipped gradient of the mean over all of its batches and all ranks. Budget: the
    gradients are all-reduced once per update. Run on real ranks.
    """
    for num_ranks, num_steps in ((2, 2), (3, 3), (2, 1)):
        run = on_ranks(num_ranks, _accumulated, answer, num_steps)
        case = say(
            "{num_ranks} ranks, accumulation over {num_steps}",
            num_ranks=num_ranks,
            num_steps=num_steps,
        )
        yield from faults(case, run)
        _, calls, updates = run[0]
        if calls > updates:
            yield over_budget(
                "{case}: {calls} all-reduces for {updates} updates; one per update is enough",
                case=case,
                calls=calls,
                updates=updates,
            )


@exercise
def exact_accuracy(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(accelerator, net, loader)``, both prepared: the share of samples that ``net`` gets
    right, each sample counted once, the same number on every rank. Budget: one collective for the
    whole loader. Run on real ranks.
    """
    for num_samples, num_ranks, batch in ((11, 3, 2), (8, 2, 2), (9, 2, 4)):
        run = on_ranks(num_ranks, _accuracy, answer, num_samples, batch)
        case = say(
            "{num_samples} samples, {num_ranks} ranks, batches of {batch}",
            num_samples=num_samples,
            num_ranks=num_ranks,
            batch=batch,
        )
        yield from faults(case, run)
        _, num_calls = run[0]
        if num_calls > 1:
            yield over_budget(
                "{case}: {num_calls} collectives; one is enough, however many batches there are",
                case=case,
                num_calls=num_calls,
            )


# --- in the ranks ---


def _parts(num_batches: int) -> "tuple[nn.Module, Optimizer, list[tuple[Tensor, Tensor]]]":
    """The same on every rank: a small model, its optimizer, batches of two."""
    import torch

    from labkit import model

    torch.manual_seed(1)
    net = model.Transformer(1, 16, 2, max_len=8)
    batches = [model.story_tokens(2, 8, seed=index) for index in range(num_batches)]
    return net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5), batches


def _loader(batches: "list[tuple[Tensor, Tensor]]") -> object:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(*map(torch.cat, zip(*batches, strict=True))), batch_size=2)


def _right(num_batches: int, per_update: int, max_norm: float | None = None) -> "dict[str, Tensor]":
    """The weights of one process that takes ``per_update`` of the batches at once."""
    import torch

    from labkit import model

    net, optimizer, batches = _parts(num_batches)
    for first in range(0, num_batches, per_update):
        tokens, targets = map(torch.cat, zip(*batches[first : first + per_update], strict=True))
        optimizer.zero_grad()
        model.loss(net(tokens), targets).backward()
        if max_norm:
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
        optimizer.step()
    return net.state_dict()


def _differ(given: object, right: "dict[str, Tensor]") -> str:
    """What is wrong with the weights, or nothing."""
    import torch

    if not isinstance(given, dict):
        return say(
            "returned {kind}, not the weights (a dict of tensors)", kind=type(given).__name__
        )
    odd = sorted(set(given) ^ set(right))
    if odd and odd[0] in right:
        return say("{odd} is missing", odd=odd[0])
    if odd:
        return say("{odd} is no weight of the bare model", odd=odd[0])
    for name, weight in right.items():
        mine = given[name]
        if type(mine) not in (torch.Tensor, torch.nn.Parameter) or mine.shape != weight.shape:
            return say(
                "{name} is not whole: {kind} of shape {shape}",
                name=name,
                kind=type(mine).__name__,
                shape=tuple(mine.shape),
            )
        mine = mine.to(weight.device, torch.float32)  # FSDP gives the host's
        if not torch.allclose(mine, weight, rtol=1e-3, atol=1e-5):
            far = (mine - weight).abs().max()
            return say(
                "{name} is not what one process gets from the same batches: off by up to {far:.2g}",
                name=name,
                far=far,
            )
    return ""


def _numbers(answer: Callable, num_samples: int, batch: int, num_steps: int) -> tuple[str]:
    """What is wrong with the numbers of an epoch that this rank trains."""
    import torch
    from torch.utils.data import DataLoader

    from labkit.accelerate.engines import accelerator

    accelerate = accelerator(accumulation=num_steps)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loader = DataLoader(torch.ones(num_samples, 1), batch_size=batch)
    net, optimizer, steps, loader = accelerate.prepare(net, optimizer, steps, loader)
    updates = 0
    for samples in loader:
        with accelerate.accumulate(net):
            accelerate.backward(net(samples).mean())
            optimizer.step()
            steps.step()
            updates += accelerate.sync_gradients
    num_ranks = accelerate.num_processes
    right = {
        "samples": batch * num_ranks * num_steps,
        "updates": updates,
        "schedule": steps.state_dict()["last_epoch"],
    }
    given = answer(num_samples, batch, num_ranks, num_steps)
    if not isinstance(given, dict):
        return (say("returned {kind}, not a dict", kind=type(given).__name__),)
    for name, number in right.items():
        mine = given.get(name)
        if mine != number:
            return (
                say("{name}: returned {mine}, it is {number}", name=name, mine=mine, number=number),
            )
    return ("",)


def _epoch(answer: Callable, engine: str) -> tuple[str]:
    """What is wrong; the main process alone is asked."""
    import torch.distributed as dist

    from labkit.accelerate.engines import accelerator

    accelerate = accelerator(engine)
    size = dist.get_world_size()
    net, optimizer, batches = _parts(2 * size)
    given = answer(accelerate, net, optimizer, _loader(batches))
    fault = ""
    if accelerate.is_main_process:
        fault = _differ(given, _right(2 * size, size))
    return (fault,)


def _accumulated(answer: Callable, num_steps: int) -> tuple[str, int, int]:
    """What is wrong, all-reduces, updates."""
    import torch.distributed as dist

    from labkit.accelerate.engines import accelerator
    from labkit.measure import traffic

    accelerate = accelerator(accumulation=num_steps)
    size = dist.get_world_size()
    max_norm = 0.5
    num_batches = 2 * num_steps + (num_steps + 1) // 2  # of a rank, in three updates
    net, optimizer, batches = _parts(num_batches * size)
    net, optimizer, loader = accelerate.prepare(net, optimizer, _loader(batches))
    with traffic.count() as counted:
        answer(accelerate, net, optimizer, loader, max_norm)
    right = _right(len(batches), num_steps * size, max_norm)
    return _differ(accelerate.get_state_dict(net), right), counted.calls["all_reduce"], 3


def _accuracy(answer: Callable, num_samples: int, batch: int) -> tuple[str, int]:
    """What is wrong, and how many collectives were called. The first samples, with which loaders
    fill up, are all right."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from labkit.accelerate.engines import accelerator
    from labkit.measure import traffic

    accelerate = accelerator()
    torch.manual_seed(2)
    net = torch.nn.Linear(6, 10)
    inputs = torch.randn(num_samples, 6)
    labels = net(inputs).argmax(-1)
    labels[num_samples // 2 + 1 :] += 1
    true = (net(inputs).argmax(-1) == labels).float().mean().item()
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=batch)
    net, loader = accelerate.prepare(net, loader)
    with traffic.count() as counted:
        given = answer(accelerate, net, loader)
    if not isinstance(given, (int, float)):
        return say("returned {kind}, not a number", kind=type(given).__name__), 0
    fault = ""
    if abs(given - true) > 1e-4:
        fault = say(
            "returned {given:.4f}; of all samples {true:.4f} are right", given=given, true=true
        )
    return fault, counted.calls.total()
