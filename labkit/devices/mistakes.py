"""Ten programs that mix two memories, as anybody writes them once: each runs on a CPU and is
refused on an accelerator. On a pretend device they must fail as on CUDA, with the same words.

    run = lab.launch(mistakes.refusals, ranks=2, devices="pretend")
    run[0]["tokens_on_the_cpu"]   # "RuntimeError: Expected all tensors to be on the same ..."
"""

from collections.abc import Callable

SAME = "Expected all tensors to be on the same device"
NO_BACKEND = "No backend type associated with device type cpu"
GENERATOR = "Expected a '{device}' device type for generator but found 'cpu'"


def tokens_on_the_cpu() -> object:
    """A batch that nobody moved."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    return model(torch.randint(11, (4, 7), device="cpu")).sum()


def loss_on_the_cpu_reduced() -> object:
    """A CPU tensor in a collective."""
    import torch
    import torch.distributed as dist

    loss = torch.ones(3, device="cpu")
    dist.all_reduce(loss)
    return loss


def noise_made_on_the_cpu() -> object:
    """Random numbers made without a device where the default is the CPU."""
    import torch

    x = torch.ones(3, 3)
    with torch.device("cpu"):
        noise = torch.randn(3, 3)
    return x + noise


def model_left_on_the_cpu() -> object:
    """DDP around a model that nobody moved."""
    from torch import nn

    return nn.parallel.DistributedDataParallel(nn.Linear(3, 3, device="cpu"))


def numpy_of_a_device() -> object:
    """numpy knows the host's memory alone."""
    import torch

    return torch.ones(3).numpy()


def gathered_into_the_cpu() -> object:
    """Room for an all-gather's result made on the CPU."""
    import torch
    import torch.distributed as dist

    parts = [torch.zeros(3, device="cpu") for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.ones(3))
    return parts


def mask_on_the_cpu() -> object:
    """An attention mask that nobody moved."""
    import torch
    import torch.nn.functional as F

    q = torch.randn(1, 2, 4, 8)
    mask = torch.ones(4, 4, dtype=torch.bool, device="cpu")
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def generator_of_the_cpu() -> object:
    """A generator belongs to a device."""
    import torch

    generator = torch.Generator(device="cpu").manual_seed(3)
    return torch.randn(3, generator=generator)


def loader_shuffles() -> object:
    """A DataLoader shuffles with a CPU generator, and its randperm lands on the default device."""
    import torch

    data = torch.arange(8, device="cpu")
    return list(torch.utils.data.DataLoader(data, batch_size=2, shuffle=True))


def hook_with_a_cpu_tensor() -> object:
    """It fails in the middle of backward."""
    import torch
    from torch import nn

    layer = nn.Linear(3, 3)
    layer.weight.register_hook(lambda gradient: gradient * torch.ones(3, 3, device="cpu"))
    layer(torch.ones(2, 3)).sum().backward()
    return layer.weight.grad


MISTAKES: dict[Callable[[], object], str] = {
    tokens_on_the_cpu: SAME,
    loss_on_the_cpu_reduced: NO_BACKEND,
    noise_made_on_the_cpu: SAME,
    model_left_on_the_cpu: NO_BACKEND,
    numpy_of_a_device: "can't convert {device}",
    gathered_into_the_cpu: "must be on a device of type {device}",
    mask_on_the_cpu: SAME,
    generator_of_the_cpu: GENERATOR,
    loader_shuffles: GENERATOR,
    hook_with_a_cpu_tensor: SAME,
}
"""Each program, and the words that its refusal holds; {device} is the device's type. All but
one are CUDA's own: NCCL (torch 2.11) does not look where the room for an all-gather is, and with
one rank ``gathered_into_the_cpu`` goes through."""


def refusals() -> dict[str, str]:
    """In a rank: what each program raised, as "type: message"; "" where it went through."""
    said = {}
    for mistake in MISTAKES:
        said[mistake.__name__] = ""
        try:
            mistake()
        except Exception as error:
            said[mistake.__name__] = f"{type(error).__name__}: {error}"
    return said
