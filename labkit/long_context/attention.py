"""The experiment of this subject: attention over a sequence that is cut among ranks, what theory
says of it, and the same on real ranks.

    attention = long_context.Attention(ranks=4, balanced=False)
    attention.predict()     # the pass, simulated at stated times
    attention.payload()     # the bytes that a rank hands to each call, exact
    attention.run()         # real ranks, held against one process
"""

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labkit import words
from labkit.collectives.network import Link
from labkit.experiment import Experiment
from labkit.long_context import pieces
from labkit.timeline import Timeline
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job

WAYS = ("ring", "ulysses")
"""Keys and values go round; or heads are swapped for tokens."""
ENGINES = ("by hand", "deepspeed")
"""Who swaps heads for tokens: Ulysses also has DeepSpeed's ``DistributedAttention``."""
MOST_REAL = {"ranks": 8, "elements": 1 << 22}
"""of a real run: ranks, and elements of the queries of all ranks together"""
ITEMSIZE = 4
"""bytes of an element: runs are in fp32"""
_WORDS = words.catalogue(
    [
        ("ring", "A ring of {} ranks, {} tokens"),
        ("balanced", "A balanced ring of {} ranks, {} tokens"),
        ("ulysses", "Ulysses on {} ranks, {} tokens"),
        ("deepspeed", "DeepSpeed's Ulysses on {} ranks, {} tokens"),
        ("missing", "DeepSpeed is not installed here: make env installs it"),
        ("alone", "one rank has the whole sequence: take 2 ranks or more"),
        ("many", "real runs take up to {most} ranks; this has {given}"),
        (
            "large",
            "real runs take up to {most:,} elements of queries (batch x heads x sequence x "
            "head_dim); this has {given:,}",
        ),
        (
            "link",
            "real ranks send as fast as they can, and this states a link: take link=None, or only "
            "predict it",
        ),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Attention(Experiment):
    """One attention over a sequence that is cut among ranks, forward and backward.

    ``run()[r]`` is a dict: output_difference and gradient_difference (the largest from one
    process), calls, payload_bytes and sent_bytes (of one pass, see ``traffic``), held_bytes (what
    the pass keeps for its backward), pass_allocated_bytes (the most that it adds to a device's
    memory, the lesser of two passes; None on the CPU), step_us, overruns. Raises ValueError for a
    sequence, or heads, that can't be dealt evenly.
    """

    way: str = "ring"
    """one of WAYS"""
    engine: str = "by hand"
    """one of ENGINES"""
    ranks: int = 4
    """n, how many share the sequence"""
    sequence: int = 128
    """s, tokens"""
    heads: int = 4
    """a, heads of attention"""
    head_dim: int = 16
    """d, elements of a head"""
    batch: int = 1
    """b, sequences"""
    causal: bool = True
    """whether a token may only look back"""
    balanced: bool = True
    """in a ring: whether a rank holds a piece from the front and one from the back"""
    pair_ms: float = 20.0
    """a pair of pieces, forward: the pace that is stated and kept"""
    link: Link | None = None
    """what messages take in the prediction; None: no time. Runs have no stated links"""

    def __post_init__(self) -> None:
        check_word(self.way, WAYS, "a way")
        check_word(self.engine, ENGINES, "an engine")
        check_whole(1, 1024, ranks=self.ranks, heads=self.heads, batch=self.batch)
        check_whole(1, 1 << 20, sequence=self.sequence, head_dim=self.head_dim)
        check_real(0.0, 1e6, pair_ms=self.pair_ms)
        if self.sequence % (2 * self.ranks):
            raise ValueError(
                f"each rank holds two pieces of the sequence, all as long; {self.sequence} tokens "
                f"are no {2 * self.ranks} pieces: take a multiple of {2 * self.ranks}"
            )
        if self.way == "ulysses" and self.heads % self.ranks:
            raise ValueError(
                f"Ulysses gives each rank as many heads; {self.heads} heads are not dealt to "
                f"{self.ranks} ranks: take a multiple, or way='ring'"
            )
        if self.way == "ring" and self.engine != "by hand":
            raise ValueError(
                f"a ring is by hand, DeepSpeed has Ulysses; got engine {self.engine!r}: take "
                f"way='ulysses', or engine='by hand'"
            )

    # --- what theory says ---

    def held(self) -> list[tuple[int, int]]:
        """The two pieces of each rank, of twice as many as there are ranks."""
        return pieces.dealt(self.ranks, balanced=self.balanced and self.way == "ring")

    def rounds(self) -> np.ndarray:
        """Pairs that each rank computes in each round of the ring, shape (rounds, ranks); of
        Ulysses, in its only round."""
        if self.way == "ring":
            return pieces.rounds(self.ranks, causal=self.causal, balanced=self.balanced)
        every = tuple(range(2 * self.ranks))
        each = pieces.work(every, every, causal=self.causal) / self.ranks
        return np.full((1, self.ranks), each)

    def tensor_bytes(self) -> int:
        """Bytes of a rank's queries; its keys, values and output are as large."""
        tokens = self.sequence // self.ranks
        return ITEMSIZE * self.batch * self.heads * tokens * self.head_dim

    def payload(self) -> dict[str, int]:
        """Bytes that a rank hands to each call in a forward and a backward. In a ring keys and
        values take n - 1 steps each way; their gradients take n, and are home again."""
        size = self.tensor_bytes()
        if self.ranks == 1:
            return {}
        if self.way == "ring":
            return {"send": size * (2 * 2 * (self.ranks - 1) + 2 * self.ranks)}
        return {"all_to_all": 8 * size}

    def kept_bytes(self) -> int:
        """What a rank keeps between forward and backward: queries, keys, values, output, and a
        logarithm of a sum for each token and head. All of it is 1/n."""
        tokens = self.sequence // self.ranks
        return 4 * self.tensor_bytes() + ITEMSIZE * self.batch * self.heads * tokens

    def pass_bytes(self) -> int | None:
        """The most that the ring's backward adds to a rank's memory, in tensors as large as its
        queries: the output, its gradient and that of the queries; keys and values of two ranks, and
        gradients of two. An nth, each of them. While a pair is computed, two tables of its scores
        and some parts lie where the second gradients lie later. None for Ulysses, whose attention
        is torch's own, with a memory of its own."""
        if self.way == "ulysses":
            return None
        size = self.tensor_bytes()
        piece = self.sequence // (2 * self.ranks)
        scores = ITEMSIZE * self.batch * self.heads * piece**2
        of_pair = max(2 * scores + size // 2, scores + 3 * size // 2)
        logarithms = 2 * ITEMSIZE * self.batch * self.heads * 2 * piece
        return 9 * size + logarithms + max(2 * size, of_pair)

    def predict(self) -> Timeline:
        """The pass, simulated: pairs at their pace, messages over ``link``."""
        table = self.rounds()
        pair_us = 1e3 * self.pair_ms
        size = self.tensor_bytes()
        if self.way == "ring":
            takes_us = self.link.us(2 * size) if self.link else 0.0
            return pieces.ring(table, pair_us, takes_us, 2 * size)
        # the largest part of an all-to-all over links of one's own: n - 1 messages of an nth
        takes_us = (self.ranks - 1) * self.link.us(size / self.ranks) if self.link else 0.0
        return pieces.ulysses(self.ranks, float(table[0, 0]), pair_us, takes_us, size)

    # --- what real ranks do ---

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: too large for this machine, or with a link that runs don't have."""
        say = _WORDS[words.spoken_in(language)]
        if self.ranks == 1:
            return say["alone"]
        if self.ranks > MOST_REAL["ranks"]:
            return say["many"].format(most=MOST_REAL["ranks"], given=self.ranks)
        elements = self.ranks * self.tensor_bytes() // ITEMSIZE
        if elements > MOST_REAL["elements"]:
            return say["large"].format(most=MOST_REAL["elements"], given=elements)
        if self.engine == "deepspeed" and not importlib.util.find_spec("deepspeed"):
            return say["missing"]
        return say["link"] if self.link else None

    def start(self) -> "Job":
        """Takes the pass at its pace beside one process, in the background."""
        from labkit.long_context import run

        return run.start(self)

    def as_run(self) -> "Attention":
        """The ranks know nothing of a link that was simulated."""
        return replace(self, link=None)

    def title(self, language: str | None = None) -> str:
        """The way, ranks and tokens."""
        say = _WORDS[words.spoken_in(language)]
        key = "balanced" if self.way == "ring" and self.balanced else self.way
        key = "deepspeed" if self.engine == "deepspeed" else key
        return say[key].format(self.ranks, self.sequence)
