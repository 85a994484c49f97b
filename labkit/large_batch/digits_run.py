"""Real data for large batches: 1,797 handwritten digits of 8 x 8 pixels, and a small classifier."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from labkit.units import check_whole

NUM_TRAIN = 1437
"""four in five; the rest tests"""


class Digits(NamedTuple):
    """Images and labels, on the rank's device."""

    x: Tensor
    """[images, 64], float32, 0 to 1"""
    y: Tensor
    """[images], the digit"""


def digits(part: str = "train") -> Digits:
    """The digits that scikit-learn ships (Alpaydin and Kaynak 1998), always shuffled alike.

    ``part`` is "train" (1,437 images) or "test" (360). Raises ValueError for another part.
    """
    if part not in ("train", "test"):
        raise ValueError(f"a part is 'train' or 'test'; got {part!r}")
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(7).permutation(len(images))
    chosen = order[:NUM_TRAIN] if part == "train" else order[NUM_TRAIN:]
    return Digits(
        x=torch.tensor(images[chosen] / 16, dtype=torch.float32), y=torch.tensor(labels[chosen])
    )


def classifier(seed: int = 0) -> nn.Sequential:
    """64 inputs, two hidden layers of 128 with ReLU, 10 scores: 26,122 weights, the same for a
    seed on every rank."""
    check_whole(0, 2**31 - 1, seed=seed)
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
