"""Theory of large batches: how the learning rate rises and falls, and how many steps are left.

A larger batch has a better gradient, so a step may be longer and fewer steps are needed; but a
gradient can't become better than exact. Where that begins is the critical batch:

    fit([8, 64, 512], [353, 130, 88])     # fewest steps, critical batch
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from labkit.units import check_real, check_whole

SMALLEST = 1e-12
"""what is less counts as nothing"""


class Critical(NamedTuple):
    """Steps that a training needs, as a function of its batch."""

    fewest_steps: float
    """with a batch as large as one likes"""
    critical_batch: float
    """the batch, in samples, that needs twice the fewest steps"""

    def steps(self, batch: float) -> float:
        """Steps with this batch: S = S_min (1 + B_crit / B) (McCandlish et al. 2018, equations 2.11
        and 2.12, solved for S)."""
        check_real(SMALLEST, 1e18, batch=batch)
        return self.fewest_steps * (1 + self.critical_batch / batch)

    def samples(self, batch: float) -> float:
        """Samples that these steps process together."""
        return batch * self.steps(batch)


class Noise(NamedTuple):
    """How far the gradient of one sample is from that of all of them."""

    variance: float
    """of a sample's gradient, summed over the weights: tr Σ"""
    square: float
    """of the length of the true gradient: \\|G\\|²"""

    @property
    def scale(self) -> float:
        """In samples: tr Σ / |G|², the simple noise scale (McCandlish et al. 2018, equation
        2.9)."""
        return self.variance / self.square if self.square else math.inf


def warmup_cosine(step: int, num_steps: int, warmup: float = 0.1) -> float:
    """What the rate is multiplied by in a step, counted from 0: up in a line during the share
    ``warmup`` of the steps (Goyal et al. 2017, section 2.2), then down along a cosine (Loshchilov
    and Hutter 2017, equation 5). Raises ValueError for a share outside 0 to 1 and a step outside
    the training."""
    check_real(0, 1, warmup=warmup)
    check_whole(1, 10**12, num_steps=num_steps)
    check_whole(0, num_steps - 1, step=step)
    rising = round(warmup * num_steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / (num_steps - rising)))


def fit(batches: Sequence[float], steps: Sequence[float]) -> Critical:
    """The law that lies nearest to measured steps, all of them weighed alike (least squares of the
    relative error).

    Raises ValueError for fewer than two batches and for lists of unequal length.
    """
    if len(batches) != len(steps) or len(set(batches)) < 2:
        raise ValueError(
            "fit needs two batches or more, and the steps of each; got "
            f"{len(set(batches))} batches and {len(steps)} numbers of steps"
        )
    for batch, number in zip(batches, steps, strict=True):
        check_real(SMALLEST, 1e18, batch=batch, steps=number)
    measured = np.asarray(steps, dtype=float)
    terms = np.stack([np.ones(len(batches)), 1 / np.asarray(batches, dtype=float)], axis=1)
    (fewest, slope), *_ = np.linalg.lstsq(terms / measured[:, None], np.ones(len(batches)))
    return Critical(fewest_steps=float(fewest), critical_batch=float(slope / fewest))


def noise(small_square: float, large_square: float, small: float, large: float) -> Noise:
    """The noise of a gradient by its squared lengths with two batches (McCandlish et al. 2018,
    appendix A.1).

    ``small_square`` is the mean squared length of a rank's own gradient, of ``small`` samples;
    ``large_square`` that of the ranks' mean gradient, of ``large``. Both answers are right on
    average and noisy one by one (``square`` may even come out negative): average them over steps
    before you divide. Raises ValueError unless ``small`` is less than ``large``.
    """
    check_real(SMALLEST, 1e18, small=small, large=large)
    if small >= large:
        raise ValueError(f"noise compares a small batch with a larger one; got {small} and {large}")
    square = (large * large_square - small * small_square) / (large - small)
    variance = (small_square - large_square) / (1 / small - 1 / large)
    return Noise(variance=variance, square=square)
