"""The theory of a router: tokens choose experts, a capacity drops what is too much, a loss says how
uneven the load is.

A router is a matrix product and a softmax; a token goes to the k experts with the largest
probabilities (Shazeer et al. 2017, arXiv:1701.06538). An expert takes so many tokens of a rank, its
capacity, and drops the others (Lepikhin et al. 2020, arXiv:2006.16668). Without a capacity no token
is dropped, and messages are as uneven as the choice (Gale et al. 2022, arXiv:2211.15841).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from reprlib import repr as brief

import numpy as np

from labkit.units import check_real, check_whole


@dataclass(frozen=True, kw_only=True, eq=False)
class Routing:
    """Where the tokens of one rank go."""

    chosen: np.ndarray
    """int64, shape (tokens, k): the experts of a token, the likeliest first"""
    kept: np.ndarray
    """bool, shape (tokens, k): whether that expert takes it"""
    probabilities: np.ndarray
    """float, shape (tokens, experts): the router's"""

    @property
    def num_experts(self) -> int:
        """E."""
        return self.probabilities.shape[1]

    @property
    def wanted(self) -> np.ndarray:
        """How many tokens choose each expert, shape (experts,)."""
        return np.bincount(self.chosen.ravel(), minlength=self.num_experts)

    @property
    def load(self) -> np.ndarray:
        """How many tokens each expert takes, shape (experts,)."""
        return np.bincount(self.chosen[self.kept], minlength=self.num_experts)

    @property
    def num_dropped(self) -> int:
        """How many choices no expert takes."""
        return int((~self.kept).sum())

    @property
    def auxiliary_loss(self) -> float:
        """E times the sum over experts of (share of the choices) x (mean probability): 1 where both
        are even, up to E where one expert has all (Fedus et al. 2021, arXiv:2101.03961, equations 4
        to 6; here for k choices)."""
        share = self.wanted / self.chosen.size
        return float(self.num_experts * (share * self.probabilities.mean(axis=0)).sum())


def capacity(tokens: int, experts: int, top_k: int, factor: float) -> int:
    """How many tokens of a rank an expert takes: ``factor`` times an even share, rounded up; 0 for
    a factor of 0, which means no bound. Raises ValueError for what is no count."""
    check_whole(1, 1 << 30, tokens=tokens, experts=experts, top_k=top_k)
    check_real(0.0, 1e6, **{"factor of the capacity": factor})
    return math.ceil(factor * top_k * tokens / experts) if factor else 0


def route(scores: np.ndarray, top_k: int, factor: float = 0.0) -> Routing:
    """Where tokens go whose router says ``scores``, shape (tokens, experts).

    First choices come before second ones, and earlier tokens before later ones. Raises ValueError
    for scores of another shape, or more choices than experts.
    """
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 2 or not scores.size or not np.isfinite(scores).all():
        raise ValueError(
            "scores are a table of finite numbers, a row for each token and a column for each "
            f"expert; got the shape {scores.shape}: {brief(scores.tolist())}"
        )
    num_tokens, num_experts = scores.shape
    check_whole(1, num_experts, top_k=top_k)
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities = raised / raised.sum(axis=1, keepdims=True)
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    most = capacity(num_tokens, num_experts, top_k, factor)
    kept = np.ones_like(chosen, dtype=bool)
    if most:
        kept = places(chosen, num_experts) < most
    return Routing(chosen=chosen, kept=kept, probabilities=probabilities)


def seen(run: Iterable[dict]) -> list[list[int]]:
    """How many tokens of each rank each expert took in a run, a list for each rank: as
    ``Layer.loads``."""
    columns = [np.array(each["load"]) for each in run]
    return np.concatenate(columns, axis=1).tolist()


def places(chosen: np.ndarray, num_experts: int) -> np.ndarray:
    """The place of each choice in its expert's queue, shape (tokens, k), from 0."""
    queue = chosen.T.ravel()  # all first choices, then all second ones
    met = np.eye(num_experts, dtype=np.int64)[queue].cumsum(axis=0)
    place = met[np.arange(len(queue)), queue] - 1
    return place.reshape(chosen.T.shape).T
