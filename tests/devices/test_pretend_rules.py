"""A pretend device has an accelerator's rules: mistakes that a CPU forgives are refused in CUDA's
words; torch finds the device wherever it asks for one."""

import copy
import io
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from apart import apart, build
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from labkit.devices import library, pretend
from labkit.devices.rung import Pretend

TWO = "Expected all tensors to be on the same device, but found at least two devices, pretend:"
GENERATOR = "Expected a 'pretend' device type for generator but found 'cpu'"


# --- planted mistakes ---


def tokens_on_the_cpu():
    net = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).to("pretend")
    net(torch.randint(11, (4, 7)))


def noise_without_a_device():
    torch.ones(3, 3, device="pretend") + torch.randn(3, 3)


def a_model_left_behind():
    nn.Linear(3, 3)(torch.ones(2, 3, device="pretend"))


def targets_on_the_cpu():
    F.cross_entropy(torch.zeros(4, 3, device="pretend"), torch.zeros(4, dtype=torch.long))


def numpy_of_the_device():
    torch.ones(3, device="pretend").numpy()


def a_mask_on_the_cpu():
    q = torch.randn(1, 2, 4, 8, device="pretend")
    F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4, dtype=torch.bool))


def a_list_of_both():
    torch.cat([torch.ones(2, device="pretend"), torch.ones(2)])


def into_the_cpus_tensor():
    torch.ones(3).add_(torch.ones(3, device="pretend"))


def into_the_cpus_number():
    torch.tensor(1.0).add_(torch.tensor(1.0, device="pretend"))


def a_cpu_generator():
    torch.randn(3, generator=torch.Generator().manual_seed(3), device="pretend")


def a_loader_that_shuffles():
    torch.set_default_device("pretend")
    list(DataLoader(torch.arange(8, device="cpu"), batch_size=2, shuffle=True))


def a_hook_in_backward():
    linear = nn.Linear(3, 3).to("pretend")
    linear.weight.register_hook(lambda gradient: gradient * torch.ones(3, 3))
    linear(torch.ones(2, 3, device="pretend")).sum().backward()


def two_pretend_devices():
    torch.ones(3, device="pretend:0") + torch.ones(3, device="pretend:1")


def a_device_that_is_none():
    torch.ones(3, device="pretend:2")


MISTAKES = (
    (tokens_on_the_cpu, TWO + "1 and cpu!"),
    (noise_without_a_device, TWO + "1 and cpu!"),
    (a_model_left_behind, TWO + "1 and cpu!"),
    (targets_on_the_cpu, TWO + "1 and cpu!"),
    (numpy_of_the_device, "can't convert pretend:1 device type tensor to numpy. Use Tensor.cpu()"),
    (a_mask_on_the_cpu, TWO + "1 and cpu!"),
    (a_list_of_both, TWO + "1 and cpu!"),
    (into_the_cpus_tensor, TWO + "1 and cpu!"),
    (into_the_cpus_number, TWO + "1 and cpu!"),
    (a_cpu_generator, GENERATOR),
    (a_loader_that_shuffles, GENERATOR),
    (a_hook_in_backward, TWO + "1 and cpu!"),
    (two_pretend_devices, TWO + "0 and pretend:1!"),
    (a_device_that_is_none, "pretend error: invalid device ordinal"),
)


def is_refused(mistake, words):
    with pytest.raises((RuntimeError, TypeError)) as caught:
        mistake()
    assert words in str(caught.value), caught.value


@pytest.mark.a_few(5)
@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[m.__name__ for m, _ in MISTAKES])
def test_a_mistake_is_refused_in_cudas_words(mistake, words):
    apart(is_refused, mistake, words, num_devices=2, index=1)


def what_cuda_takes_from_the_host():
    x = torch.arange(6.0, device="pretend").view(2, 3)
    assert (x * torch.tensor(2.0)).sum().item() == 30
    assert x[torch.tensor([1])].tolist() == [[3, 4, 5]]
    x[torch.tensor([True, False])] = 0
    assert x.sum().item() == 12


def test_numbers_and_indices_may_lie_on_the_host():
    apart(what_cuda_takes_from_the_host)


# --- who asks for a device finds it ---


def torch_finds_it():
    assert torch.accelerator.current_accelerator() == torch.device("pretend")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 4
    assert not torch.pretend.is_initialized(), "or a DeviceMesh never sets the device"
    assert torch.accelerator.current_device_index() == torch.pretend.current_device() == 2
    assert torch.ones(1, device="pretend").device == torch.device("pretend", 2)
    assert torch.pretend.is_initialized()
    with torch.pretend.device(1):
        assert torch.ones(1, device="pretend").device.index == 1
    assert torch.pretend.current_device() == 2
    torch.accelerator.synchronize()
    torch.accelerator.empty_cache()
    assert torch.ones(1).pretend().is_pretend
    assert torch.accelerator.memory_allocated(0) == 0


def a_parameter_stays_itself():
    net = nn.Linear(3, 3)
    before = list(net.parameters())
    net.to("pretend")
    assert all(a is b for a, b in zip(before, net.parameters(), strict=True))
    assert net.weight.is_pretend
    twin = copy.deepcopy(net)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    assert torch.load(file)["weight"].device == torch.device("pretend", 0)
    file.seek(0)
    assert torch.load(file, map_location="cpu")["weight"].device.type == "cpu"
    assert torch.equal(twin.weight, net.weight)


def test_torch_finds_the_device():
    apart(torch_finds_it, num_devices=4, index=2)


def test_moving_and_saving():
    apart(a_parameter_stays_itself)


def nothing_has_changed():
    before = torch.accelerator.current_accelerator()  # a CUDA build names CUDA without a GPU, too
    library.load("pretend")
    assert torch.accelerator.current_accelerator() == before
    x = torch.ones(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    if os.path.isdir("/proc/self/task"):
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads forks no ranks"
    with pytest.raises(ValueError, match="index is one of"):
        pretend.install(Pretend(), num_devices=2, index=2)
    assert torch.accelerator.current_accelerator() == before


def test_loading_the_library_alone_changes_nothing():
    apart(nothing_has_changed, settings=None)


def installed_twice():
    with pytest.raises(ValueError, match="once"):
        pretend.install(Pretend())


def test_a_second_install_is_refused():
    apart(installed_twice)


ENDS_IN_A_HOOK = """
import torch
from labkit.devices import pretend
from labkit.devices.rung import Pretend

pretend.install(Pretend())
linear = torch.nn.Linear(3, 3).to("pretend")
linear.weight.register_hook(lambda gradient: gradient * 2)
linear(torch.ones(2, 3, device="pretend")).sum().backward()
"""
TRAINS = """
import torch
from labkit import model
from labkit.devices import pretend
from labkit.devices.rung import Pretend

class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = [object()]
        return x / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2

pretend.install(Pretend(), num_devices=2, index=1)
net = model.Transformer(1, 16, 2, max_len=8).to("pretend")
for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(lambda parameter: None)
update = torch.optim.AdamW(net.parameters())
tokens, targets = (each.to("pretend") for each in model.story_tokens(2, 8, seed=0))
for _ in range(2):
    update.zero_grad()
    Halved.apply(model.loss(net(tokens), targets)).backward()
    update.step()
Halved.apply(model.loss(net(tokens), targets)).backward()
"""
NUM_ENDS = 2


@pytest.mark.a_few(1)
@pytest.mark.parametrize("program", [ENDS_IN_A_HOOK, TRAINS], ids=["a hook", "training"])
def test_a_program_that_ends_with_a_backward_ends_well(program):
    """Four of five such programs were aborted before the last backward was waited for."""
    build()
    line = [sys.executable, "-c", program]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    for _ in range(NUM_ENDS):
        ended = subprocess.run(line, capture_output=True, text=True, timeout=100, env=one_thread)
        assert (ended.returncode, ended.stderr) == (0, "")


# --- random numbers ---


def the_same_seed_gives_the_same():
    def drawn():
        x = torch.ones(64, device="pretend")
        return torch.stack(
            [torch.randn_like(x), F.dropout(x), x.bernoulli(0.5), torch.rand_like(x)]
        )

    torch.manual_seed(3)
    first = drawn()
    assert not torch.equal(first, drawn())
    torch.manual_seed(3)
    assert torch.equal(first, drawn())
    state = torch.pretend.get_rng_state()
    assert state.nbytes == 16 and state.device.type == "cpu"
    after = drawn()
    torch.pretend.set_rng_state(state)
    assert torch.equal(after, drawn())
    own = torch.Generator("pretend").manual_seed(5)
    assert own.get_state().nbytes == 16
    mine = torch.randn(9, device="pretend", generator=own)
    assert torch.equal(mine, torch.randn(9, device="pretend", generator=own.manual_seed(5)))


def the_cpus_stream_is_its_own():
    torch.manual_seed(3)
    expected = torch.rand(4, device="cpu")
    torch.manual_seed(3)
    F.dropout(torch.ones(64, device="pretend"))
    assert torch.equal(torch.rand(4, device="cpu"), expected)


def a_checkpoint_draws_again():
    torch.manual_seed(0)
    linear = nn.Linear(16, 16).to("pretend")

    def gradient(again):
        torch.manual_seed(7)
        linear.zero_grad()
        x = torch.ones(4, 16, device="pretend")

        def forward(x):
            return F.dropout(linear(x), 0.5)

        y = checkpoint(forward, x, use_reentrant=False) if again else forward(x)
        y.sum().backward()
        return linear.weight.grad.clone()

    assert torch.equal(gradient(True), gradient(False))


LAWS = (the_same_seed_gives_the_same, the_cpus_stream_is_its_own, a_checkpoint_draws_again)


@pytest.mark.parametrize("law", LAWS)
def test_random_numbers(law):
    apart(law)
