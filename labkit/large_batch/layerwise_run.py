"""LARS and LAMB by hand: each weight tensor, a *layer*, has a step in proportion to its own length.

torch has neither; ``pytorch_optimizer`` has both, and the tests hold these two against it.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from labkit.units import check_real


class LARS(torch.optim.Optimizer):
    """SGD with momentum, its rate set layer by layer (You et al. 2017, algorithm 1, equation 6).

    rate: the global learning rate; momentum and decay as in SGD; trust: what share of its own
    length a layer moves at rate 1. Biases and norms (one dimension) move as in SGD, and don't
    decay.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        rate: float,
        momentum: float = 0.9,
        decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        check_real(0, 1e6, rate=rate, momentum=momentum, decay=decay, trust=trust)
        super().__init__(params, {"lr": rate, "momentum": momentum, "decay": decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """One update. Raises ValueError for a closure: these optimizers need none."""
        _no_closure(closure)
        for group in self.param_groups:
            for weight in [each for each in group["params"] if each.grad is not None]:
                grad = weight.grad.clone()
                if weight.dim() > 1:
                    length = weight.norm()
                    ratio = _ratio(length, grad.norm() + group["decay"] * length)
                    grad = group["trust"] * ratio * (grad + group["decay"] * weight)
                speed = self.state[weight].setdefault("speed", torch.zeros_like(weight))
                speed.mul_(group["momentum"]).add_(grad, alpha=group["lr"])
                weight -= speed


class LAMB(torch.optim.Optimizer):
    """Adam, each layer's update as long as the layer itself times the rate (You et al. 2020,
    algorithm 2).

    rate, betas, eps: as in Adam; decay: added to the update before its length is taken; debias:
    whether the means are corrected for their first steps, as the algorithm says and some
    implementations don't. Biases and norms (one dimension) move as in Adam.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        decay: float = 0.0,
        debias: bool = True,
    ) -> None:
        check_real(0, 1e6, rate=rate, eps=eps, decay=decay)
        check_real(0, 1, first_beta=betas[0], second_beta=betas[1])
        options = {"lr": rate, "betas": betas, "eps": eps, "decay": decay, "debias": debias}
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """One update. Raises ValueError for a closure: these optimizers need none."""
        _no_closure(closure)
        for group in self.param_groups:
            for weight in [each for each in group["params"] if each.grad is not None]:
                update = self._adam(weight, group) + group["decay"] * weight
                if weight.dim() > 1:
                    update *= _ratio(weight.norm(), update.norm())
                weight -= group["lr"] * update

    def _adam(self, weight: Tensor, group: dict) -> Tensor:
        """What Adam would subtract at rate 1."""
        state = self.state[weight]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weight), square=torch.zeros_like(weight))
        state["step"] += 1
        first, second = group["betas"]
        state["mean"].lerp_(weight.grad, 1 - first)
        state["square"].lerp_(weight.grad**2, 1 - second)
        mean = state["mean"]
        square = state["square"]
        if group["debias"]:
            mean = mean / (1 - first ** state["step"])
            square = square / (1 - second ** state["step"])
        return mean / (square.sqrt() + group["eps"])


def _ratio(weight: Tensor, update: Tensor) -> Tensor:
    """The layer's length over its update's; 1 where one of them is 0."""
    usable = (weight > 0) & (update > 0)
    return torch.where(usable, weight / update.clamp_min(1e-30), torch.ones_like(weight))


def _no_closure(closure: object) -> None:
    if closure is not None:
        raise ValueError("LARS and LAMB take no closure; call backward yourself, then step()")
