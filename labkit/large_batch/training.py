"""A training of the digits' classifier with a batch of any size: what may be turned, and its run on
real ranks."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

OPTIMIZERS = ("sgd", "momentum", "adam", "lars", "lamb")
EVERY = 5
"""steps from one look at the whole loss to the next"""


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training, data-parallel on ``ranks`` ranks.

    It ends when the loss over the whole training set is below ``target``, looked at every 5 steps,
    or after ``most_steps``. Raises ValueError for what can't be.
    """

    batch: int = 32
    """samples of a step, of all ranks together"""
    rate: float = 0.4
    """the highest learning rate"""
    optimizer: str = "sgd"
    """"sgd", "momentum" (0.9), "adam", "lars" or "lamb" """
    warmup: float | None = None
    """None: a constant rate; else the share of ``most_steps`` in which it rises, before it falls
    along a cosine"""
    most_steps: int = 2000
    target: float = 0.15
    """the loss at which it ends; 0: it takes all steps"""
    ranks: int = 2
    seed: int = 0
    """of the weights and of the order of the samples"""

    def __post_init__(self) -> None:
        check_whole(1, 64, ranks=self.ranks)
        check_whole(self.ranks, 10**6, batch=self.batch)
        check_whole(1, 10**6, most_steps=self.most_steps)
        check_whole(0, 2**31 - 1, seed=self.seed)
        check_real(1e-12, 1e6, rate=self.rate)
        check_real(0, 10, target=self.target)
        check_word(self.optimizer, OPTIMIZERS, "an optimizer")
        if self.warmup is not None:
            check_real(0, 1, warmup=self.warmup)
        if self.batch % self.ranks:
            raise ValueError(
                f"a batch is dealt evenly; got {self.batch} samples for {self.ranks} ranks. Take a "
                f"multiple of {self.ranks}"
            )

    def start(self) -> "Job":
        """The training on real ranks, in the background."""
        from labkit.large_batch import run
        from labkit.launching.launcher import start

        return start(run.train, self, ranks=self.ranks)

    def run(self) -> "Run":
        """The training on real ranks. Each returns what ``run.train`` says."""
        return self.start().wait()
