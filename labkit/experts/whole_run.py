"""The same layer on one process: every expert computes every token, and a token takes what its own
experts say."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.experts import routing
from labkit.experts.layer import Layer


class Choice(NamedTuple):
    """What a router says of the tokens of one rank."""

    chosen: Tensor
    """int64, shape (tokens, k): the experts of a token, the likeliest first"""
    weight: Tensor
    """shape (tokens, k): how much of each its output has; they sum to 1, dropped ones included"""
    kept: Tensor
    """bool, shape (tokens, k): whether the expert takes it"""
    auxiliary_loss: Tensor
    """a number"""


def choose(layer: Layer, x_TD: Tensor, router_DE: Tensor) -> Choice:
    """The router: a product, a softmax, the k largest; what is over an expert's capacity goes."""
    probabilities_TE = (x_TD @ router_DE[:-1] + router_DE[-1]).softmax(-1)
    weight_TK, chosen_TK = probabilities_TE.topk(layer.top_k, -1)
    loss = auxiliary_loss(probabilities_TE, chosen_TK)
    weight_TK = weight_TK / weight_TK.sum(-1, keepdim=True)
    return Choice(chosen_TK, weight_TK, within_capacity(layer, chosen_TK), loss)


def auxiliary_loss(probabilities_TE: Tensor, chosen_TK: Tensor) -> Tensor:
    """How unevenly a router deals out tokens: each expert's share of the choices times its mean
    probability, summed, times the number of experts (Fedus et al. 2021, eq. 4). 1 where all is
    even, and as many as there are experts where one has everything."""
    num_experts = probabilities_TE.shape[-1]
    share_E = F.one_hot(chosen_TK, num_experts).sum((0, 1)) / chosen_TK.numel()
    return num_experts * (share_E * probabilities_TE.mean(0)).sum()


def within_capacity(layer: Layer, chosen_TK: Tensor) -> Tensor:
    """Which choices of a rank's tokens their experts take: bool, of the same shape."""
    most = routing.capacity(len(chosen_TK), layer.experts, layer.top_k, layer.capacity)
    if not most:
        return torch.ones_like(chosen_TK, dtype=torch.bool)
    queue = chosen_TK.T.reshape(-1)  # all first choices, then all second ones
    met = F.one_hot(queue, layer.experts).cumsum(0)
    place = met.gather(1, queue.unsqueeze(1)) - 1
    return (place < most).view(layer.top_k, -1).T


def weights(layer: Layer) -> list[Tensor]:
    """All experts' weights: up, shape (experts, hidden, ffn), and down, shape (experts, ffn,
    hidden)."""
    up = torch.randn(layer.experts, layer.hidden, layer.ffn) / layer.hidden**0.5
    down = torch.randn(layer.experts, layer.ffn, layer.hidden) / layer.ffn**0.5
    return [up, down]


def every_rank(
    layer: Layer, tokens: Tensor, router_DE: Tensor, up_EDF: Tensor, down_EFD: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs and the auxiliary losses of all ranks, each for its own tokens."""
    outputs = []
    losses = []
    for x_TD in tokens.chunk(layer.ranks):
        choice = choose(layer, x_TD, router_DE)
        inner_TEF = F.gelu(torch.einsum("td,edf->tef", x_TD, up_EDF))
        every_TED = torch.einsum("tef,efd->ted", inner_TEF, down_EFD)
        place = choice.chosen.unsqueeze(-1).expand(-1, -1, layer.hidden)
        weight_TK = choice.weight * choice.kept
        outputs.append((every_TED.gather(1, place) * weight_TK.unsqueeze(-1)).sum(1))
        losses.append(choice.auxiliary_loss)
    return outputs, losses
