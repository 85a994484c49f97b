"""A pretend device computes as the CPU does, to the bit: training, operations and their gradients,
views, and what is resized."""

import itertools
import sys
import types
import unittest
import warnings
from unittest import mock

import pytest
import torch
from apart import apart
from torch import nn
from torch.utils import _pytree

from labkit import model

NUM_STEPS = 30
SEED = torch.manual_seed
EVERY = 5
"""Of torch's own samples of operations, one operation in so many is tried."""
UNINITIALISED = ("empty", "new_empty", "resize", "nn.functional.rrelu")
"""Operations whose results are not defined; rrelu draws its slopes also where it need not."""
COMPRESSED = "sparse."
"""Operations on compressed sparse tensors, of which a pretend device has none; which of them is
drawn depends on torch's version."""
ASK_THE_HOST = ("tensor_split",)
"""Operations that want a tensor of indices on the CPU, on CUDA too."""


def losses(device: str, optimizer: str) -> list[float]:
    """Of a small transformer, made on the CPU and moved."""
    torch.manual_seed(0)
    net = model.Transformer(2, 32, 2, max_len=32).to(device)
    update = torch.optim.AdamW(net.parameters(), lr=1e-2, **{optimizer: True})
    tokens, targets = (each.to(device) for each in model.story_tokens(4, 32, seed=0))
    told = []
    for _ in range(NUM_STEPS):
        loss = model.loss(net(tokens), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        update.step()
        update.zero_grad()
        told.append(loss.item())
    return told


def trains_equally(optimizer):
    on_cpu = losses("cpu", optimizer)
    assert on_cpu[-1] < on_cpu[0]
    assert losses("pretend", optimizer) == on_cpu


@pytest.mark.a_few(1)
@pytest.mark.parametrize("optimizer", ["foreach", "fused"])
def test_training_is_bit_equal(optimizer):
    apart(trains_equally, optimizer)


def convolves_equally():
    def losses(device):
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU())
        net = nn.Sequential(*layers, nn.ConvTranspose2d(4, 2, 2), nn.Flatten()).to(device)
        update = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        images = torch.randn(4, 3, 12, 12, device="cpu").to(device)
        told = []
        for _ in range(3):
            loss = net(images).square().mean()
            loss.backward()
            update.step()
            update.zero_grad()
            told.append(loss.item())
        return told

    assert losses("pretend") == losses("cpu")


def test_convolutions_are_bit_equal():
    apart(convolves_equally)


# --- torch's own samples ---


def moved(values, device):
    """The same values, every tensor of them on a device."""

    def move(value):
        if not isinstance(value, torch.Tensor):
            return device if isinstance(value, torch.device) else value
        return value.detach().to(device, copy=True).requires_grad_(value.requires_grad)

    return _pytree.tree_map(move, values)


def results(op, sample, device, seed=0):
    """What an operation gives on a device, and the gradients of its floating inputs."""
    first, args, kwargs = moved((sample.input, sample.args, sample.kwargs), device)
    if "device" in kwargs:
        kwargs["device"] = device
    with mock.patch("torch.manual_seed", lambda other: SEED(other + seed)):  # some samples seed
        torch.manual_seed(0)
        made = op(first, *args, **kwargs)
    given = [t for t in _pytree.tree_leaves(made) if torch.is_tensor(t)]
    assert {t.device.type for t in given} <= {device}, "a result lies elsewhere"
    differentiable = [t for t in given if t.requires_grad and t.is_floating_point()]
    if differentiable:
        sum(t.float().sum() for t in differentiable).backward()
    leaves = _pytree.tree_leaves((first, args, kwargs))
    gradients = [t.grad for t in leaves if torch.is_tensor(t) and t.grad is not None]
    return [t.detach().to("cpu") for t in (*given, *gradients)]


def are_equal(ours, theirs):
    pairs = zip(ours, theirs, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


def differing():
    """(how many operations were compared, {operation: how it differs})."""
    # torch's samples lie beside its own tests, whose base class we need not have
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    compared = 0
    faults = {}
    for op in op_db[::EVERY]:
        if torch.float32 not in op.dtypes or op.name.startswith((*UNINITIALISED, COMPRESSED)):
            continue
        samples = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
        for sample in itertools.islice(samples, 2):
            try:
                expected = results(op, sample, "cpu")
                again = [results(op, sample, "cpu", seed) for seed in (1, 2, 3)]
            except Exception:
                continue  # the CPU has no answer
            is_random = not all(are_equal(expected, other) for other in again)
            if is_random or op.name in ASK_THE_HOST:
                continue
            compared += 1
            try:
                if not are_equal(results(op, sample, "pretend"), expected):
                    faults[op.name] = "other numbers"
            except Exception as error:
                faults[op.name] = f"{type(error).__name__}: {error}"
    return compared, faults


@pytest.mark.again
def test_operations_and_their_gradients_are_as_the_cpus():
    compared, faults = apart(differing)
    assert compared > 60
    assert faults == {}


# --- views, and what is resized ---


def views_share_bytes():
    base = torch.zeros(4, 6, device="pretend")
    base.view(-1)[3:6].fill_(1)
    base.t()[5].add_(2)
    base[1, 1:3] = 7
    base.as_strided((2,), (7,), 14).mul_(3).sub_(1)
    expected = torch.zeros(4, 6, device="cpu")
    expected.view(-1)[3:6].fill_(1)
    expected.t()[5].add_(2)
    expected[1, 1:3] = 7
    expected.as_strided((2,), (7,), 14).mul_(3).sub_(1)
    assert torch.equal(base.cpu(), expected)
    assert base.chunk(2)[1].untyped_storage().data_ptr() == base.untyped_storage().data_ptr()


def conjugates_are_copied():
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    there = numbers.to("pretend")
    assert torch.equal(there.conj().cpu(), numbers.conj())
    assert torch.equal(there.conj().imag.cpu(), numbers.conj().imag)
    assert torch.equal(torch.view_as_real(there).cpu(), torch.view_as_real(numbers))


def results_are_resized():
    out = torch.empty(0, device="pretend")
    torch.add(torch.ones(3, device="pretend"), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    storage = torch.arange(4.0, device="pretend").untyped_storage()
    storage.resize_(0)
    assert torch.accelerator.memory_allocated() == 512
    storage.resize_(32)
    assert storage.nbytes() == 32
    grown = torch.arange(3.0, device="pretend").resize_(2, 4)
    assert grown.flatten()[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize("law", [views_share_bytes, conjugates_are_copied, results_are_resized])
def test_views_and_sizes(law):
    apart(law)


# --- autocast ---


def autocast_follows_cudas_lists():
    x = torch.randn(4, 8, device="pretend")
    linear = nn.Linear(8, 8).to("pretend")
    classes = torch.zeros(4, dtype=torch.long, device="pretend")
    with torch.autocast("pretend", dtype=torch.bfloat16):
        low = linear(x)
        dtypes = {
            "linear": low.dtype,
            "matmul": (x @ x.t()).dtype,
            "add": (low + 1).dtype,
            "softmax": low.softmax(-1).dtype,
            "sum": low.sum().dtype,
            "norm": low.norm(2).dtype,
            "layer_norm": nn.functional.layer_norm(low, (8,)).dtype,
            "cross_entropy": nn.functional.cross_entropy(low, classes).dtype,
            "dot": torch.dot(low[0], x[0]).dtype,
        }
    bf16 = {name for name, dtype in dtypes.items() if dtype == torch.bfloat16}
    assert bf16 == {"linear", "matmul", "add"}, dtypes
    assert set(dtypes.values()) == {torch.bfloat16, torch.float32}


def gradients_are_scaled():
    torch.manual_seed(0)
    net = nn.Linear(4, 1).to("pretend")
    update = torch.optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("pretend", init_scale=2.0**10)
    x = torch.ones(8, 4, device="pretend")
    told = []
    for scale in (1e6, 1.0, 1.0):  # the first overflows, and is left out
        before = net.weight.detach().clone()
        with torch.autocast("pretend", dtype=torch.float16):
            loss = net(x).square().mean() * scale
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()
        update.zero_grad()
        told.append(bool((net.weight == before).all()))
    assert told == [True, False, False]
    assert scaler.get_scale() == 2.0**9


@pytest.mark.parametrize("law", [autocast_follows_cudas_lists, gradients_are_scaled])
def test_mixed_precision(law):
    apart(law)
