"""A network cut between two real ranks, the edge and the cloud: what ``edge`` predicts.

    heterogeneous.Cut(after=2, form="int8").run()[0]

The network really reads digits, what it sends is really packed, and the answers are held against
one process. Computing and the link are paced.
"""

import functools
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.collectives.network import Link
from labkit.heterogeneous.edge import FORMS, HEADER_BYTES, NETWORK, Cut
from labkit.heterogeneous.run import here, images
from labkit.large_batch.digits_run import Digits
from labkit.measure import links, trace, traffic
from labkit.measure.apart import difference
from labkit.measure.pace import Pace

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.measure.traffic import Message

EDGE, CLOUD = 0, 1
TIMEOUT_S = 120.0
EPOCHS = 6
RATE = 0.05
MOMENTUM = 0.9


def start(cut: Cut) -> "Job":
    """Answers requests, in the background; ``cut.run()`` starts it and waits."""
    from labkit.launching import launcher

    given = (cut, trained(), images("test"))
    return launcher.start(_answer, *given, ranks=2, timeout_s=TIMEOUT_S)


def network() -> nn.Sequential:
    """The layers of ``edge.NETWORK``, each one module: [frames, 1, 32, 32] -> [frames, 10]."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
        nn.MaxPool2d(2),
        nn.Sequential(nn.Flatten(), nn.Linear(256, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )


@functools.cache
def trained() -> dict[str, Tensor]:
    """Weights that read digits: six epochs, once in a notebook."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # layers so small only wait for one another's threads
    try:
        return _trained()
    finally:
        torch.set_num_threads(before)


def _trained() -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = network()
        data = images()
        seen = frames(data.x)
        weights = list(net.parameters())
        speeds = [torch.zeros_like(each) for each in weights]
        for _ in range(EPOCHS):
            for chosen in torch.randperm(len(data.y)).split(64):
                loss = F.cross_entropy(net(seen[chosen]), data.y[chosen])
                gradients = torch.autograd.grad(loss, weights)
                for weight, speed, gradient in zip(weights, speeds, gradients, strict=True):
                    speed.mul_(MOMENTUM).add_(gradient)
                    weight.data -= RATE * speed
    return net.state_dict()


def frames(x: Tensor) -> Tensor:
    """Digits of 8 x 8 as a camera of 32 x 32 sees them: [n, 64] -> [n, 1, 32, 32]."""
    return F.interpolate(x.view(-1, 1, 8, 8), scale_factor=4, mode="bilinear")


def pack(values: Tensor, form: str) -> Tensor:
    """Any tensor as bytes, ``edge.packed_bytes`` of them, uint8, flat.

    Integers count steps from the lowest value to the highest, which 2 to the power of bits - 1
    steps reach; both stand before them, float32.
    """
    flat = values.detach().flatten()
    if not form.startswith("int"):
        return flat.to(getattr(torch, form)).view(torch.uint8)
    bits = FORMS[form]
    low = flat.min()
    step = (flat.max() - low).clamp_min(1e-12) / (2**bits - 1)
    counts = ((flat - low) / step).round().to(torch.uint8)
    if bits == 4:
        even = F.pad(counts, (0, len(counts) % 2))
        counts = even[::2] + 16 * even[1::2]
    return torch.cat([torch.stack([low, step]).view(torch.uint8), counts])


def unpack(message: Tensor, form: str, shape: tuple[int, ...]) -> Tensor:
    """What ``pack`` packed, float32, in this shape; integers are off by half a step at most."""
    if not form.startswith("int"):
        return message.view(getattr(torch, form)).float().view(shape)
    low, step = message[:HEADER_BYTES].clone().view(torch.float32)
    counts = message[HEADER_BYTES:]
    if FORMS[form] == 4:
        counts = torch.stack([counts % 16, counts // 16], dim=1).flatten()
    values = low + step * counts.float()
    return values[: torch.Size(shape).numel()].view(shape)


# --- in the ranks ---


def _answer(cut: Cut, weights: dict[str, Tensor], tests: Digits) -> dict[str, Any] | None:
    """One rank: the edge or the cloud."""
    torch.set_num_threads(1)
    tests = here(tests)
    net = network()
    net.load_state_dict(weights)
    net.eval()
    seen = frames(tests.x)
    given = seen[: cut.requests * cut.frames].split(cut.frames)
    pace = Pace()
    stated = links.stated(functools.partial(_link_us, cut.link), label=_way)
    with torch.no_grad(), stated as link:
        _serve(cut.but(requests=1), net, given[:1], Pace())  # warms up
        dist.barrier()
        with trace.record(operators=False), traffic.count() as counted:
            answers, latency_us = _serve(cut, net, given, pace)
        if dist.get_rank() == CLOUD:
            return None
        told = {
            "latency_us": latency_us,
            "payload_bytes": counted.payload_bytes["send"],
            "overruns": pace.num_overruns + link.num_overruns,
            "answer_difference": difference(answers, [net(each) for each in given]),
        }
        return told | _quality(cut, net, seen, tests.y)


def _serve(
    cut: Cut, net: nn.Sequential, given: tuple[Tensor, ...], pace: Pace
) -> tuple[list[Tensor], list[float]]:
    """This rank's part of some requests; the edge has answers, and how long each took."""
    if dist.get_rank() == EDGE:
        return _edge(cut, net, given, pace)
    if cut.after < len(NETWORK):
        _cloud(cut, net, pace)
    return [], []


def _edge(
    cut: Cut, net: nn.Sequential, given: tuple[Tensor, ...], pace: Pace
) -> tuple[list[Tensor], list[float]]:
    """The first layers; what comes back of the others, and how long each request took."""
    took = cut.times()
    alone = cut.after == len(NETWORK)
    answers = [torch.empty(cut.frames, NETWORK[-1].num_values) for _ in given]
    coming = [] if alone else [dist.irecv(each, CLOUD) for each in answers]
    on_its_way = None
    begun_s = []
    ended_s = []
    for number, each in enumerate(given):
        begun_s.append(time.perf_counter())
        with pace.taking(f"F{number}", took.edge_us):
            made = net[: cut.after](each)
            message = pack(made, cut.form)
        if alone:
            answers[number] = made
            ended_s.append(time.perf_counter())
            continue
        if on_its_way is not None:
            on_its_way.wait()
        on_its_way = dist.isend(message, CLOUD)
        if not cut.stream:
            coming[number].wait()
            ended_s.append(time.perf_counter())
    for number in range(len(ended_s), len(given)):
        coming[number].wait()
        ended_s.append(time.perf_counter())
    return answers, [1e6 * (end - begin) for begin, end in zip(begun_s, ended_s, strict=True)]


def _cloud(cut: Cut, net: nn.Sequential, pace: Pace) -> None:
    """The other layers, request by request."""
    shape = tuple(net[: cut.after](torch.zeros(cut.frames, 1, 32, 32)).shape)
    took = cut.times()
    message = torch.empty(cut.message_bytes(), dtype=torch.uint8)
    on_its_way = None
    for number in range(cut.requests):
        dist.recv(message, EDGE)
        with pace.taking(f"F{number}", took.cloud_us):
            answer = net[cut.after :](unpack(message, cut.form, shape))
        if on_its_way is not None:
            on_its_way.wait()
        on_its_way = dist.isend(answer, EDGE)
    on_its_way.wait()


def _quality(cut: Cut, net: nn.Sequential, seen: Tensor, labels: Tensor) -> dict[str, float]:
    """What the form costs over all test frames: every request is packed as it would be sent."""
    scores = []
    for each in seen.split(cut.frames):
        made = net[: cut.after](each)
        if cut.after < len(NETWORK):
            made = unpack(pack(made, cut.form), cut.form, tuple(made.shape))
        scores.append(net[cut.after :](made))
    mine = torch.cat(scores).argmax(dim=1)
    whole = net(seen).argmax(dim=1)
    return {
        "agree_share": (mine == whole).float().mean().item(),
        "accuracy": (mine == labels).float().mean().item(),
        "accuracy_whole": (whole == labels).float().mean().item(),
    }


def _link_us(link: Link, message: "Message") -> float | None:
    """Its time on the link; the answers' too."""
    return link.us(message.num_bytes) if message.name in ("send", "recv") else None


def _way(message: "Message") -> str:
    """ "0>1"."""
    me = dist.get_rank()
    return f"{me}>{message.peer}" if message.name == "send" else f"{message.peer}>{me}"
