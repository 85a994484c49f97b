"""The experiment of this subject: a layer of experts that lie on several ranks, what theory says of
it, and the same on real ranks.

    layer = experts.Layer(ranks=4, experts=8, skew=1.0)
    layer.loads()       # tokens to experts, by the rank that they come from
    layer.predict()     # the layer in time, simulated: the busiest rank holds up the others
    layer.run()         # real ranks, held against one process that has all experts
"""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from labkit import words
from labkit.experiment import Difference, Experiment, step_difference
from labkit.experts import routing
from labkit.experts.routing import Routing
from labkit.timeline import COMPUTE, Timeline, busy_us, from_rows
from labkit.units import check_real, check_whole

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

BACKWARD = 2.0
"""A backward takes so many forwards: two products of matrices for each one."""
ITEMSIZE = 4
"""bytes of an element: runs are in fp32"""
COUNT_BYTES = 8
"""of how many tokens an expert gets, which ranks tell one another first"""
MOST_RANKS = 8
MOST_ELEMENTS = 1 << 22
"""of a real run: of all weights, and of all tokens, on one process"""
_WORDS = words.catalogue(
    [
        ("busiest", "computing on the busiest rank"),
        ("waiting", "messages and waiting"),
        ("title", "{} experts on {} ranks, {} for each token"),
        ("alone", "one rank has all experts: take 2 ranks or more"),
        ("many", "real runs take up to {most} ranks; this has {given}"),
        (
            "large",
            "real runs take up to {most:,} elements of weights and of tokens, since one process "
            "has them all as well; this has {given:,}",
        ),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Layer(Experiment):
    """A layer of experts, forward and backward.

    ``run()[r]`` is a dict: output_difference and gradient_difference (the largest from one
    process), load (tokens from each rank to each of this rank's experts), num_dropped,
    auxiliary_loss, calls, payload_bytes and sent_bytes (of one pass, see ``traffic``), step_us,
    overruns. Raises ValueError for experts that can't be dealt evenly.
    """

    ranks: int = 4
    """n, how many share the experts; each has as many"""
    experts: int = 8
    """E"""
    tokens: int = 64
    """of each rank"""
    top_k: int = 2
    """k: a token goes to so many experts"""
    capacity: float = 0.0
    """times an even share: what an expert takes of a rank's tokens; 0: all, none is dropped"""
    skew: float = 1.0
    """how unevenly the router likes its experts: 0 not at all; 1 as words in a text (Zipf)"""
    hidden: int = 32
    """elements of a token"""
    ffn: int = 64
    """width of an expert"""
    token_ms: float = 0.2
    """a token in an expert, forward: the pace that is stated and kept"""
    seed: int = 0
    """of the tokens and the weights"""

    def __post_init__(self) -> None:
        check_whole(1, 1024, ranks=self.ranks, experts=self.experts)
        check_whole(1, 1 << 16, tokens=self.tokens, hidden=self.hidden, ffn=self.ffn)
        check_whole(1, self.experts, top_k=self.top_k)
        check_whole(0, 1 << 32, seed=self.seed)
        check_real(0.0, 100.0, capacity=self.capacity, skew=self.skew)
        check_real(0.0, 1e6, token_ms=self.token_ms)
        if self.experts % self.ranks:
            raise ValueError(
                f"each rank has as many experts; {self.experts} experts are not dealt to "
                f"{self.ranks} ranks: take a multiple of {self.ranks}"
            )
        if self.ranks * self.tokens * self.experts > 1 << 24:
            raise ValueError(
                f"a table of all tokens and experts has up to {1 << 24:,} places; got "
                f"{self.ranks * self.tokens * self.experts:,}: take fewer"
            )

    # --- what theory says ---

    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all ranks, shape (ranks x tokens, hidden), and the router's weights, shape
        (hidden + 1, experts), float32. The last row is added: what the router likes anyway."""
        random = np.random.default_rng(self.seed)
        tokens = random.standard_normal((self.ranks * self.tokens, self.hidden))
        weights = random.standard_normal((self.hidden + 1, self.experts)) / self.hidden**0.5
        weights[-1] = -self.skew * np.log(np.arange(1, self.experts + 1))
        return tokens.astype(np.float32), weights.astype(np.float32)

    def routings(self) -> tuple[Routing, ...]:
        """Where the tokens of each rank go."""
        return _routings(self)

    def loads(self) -> np.ndarray:
        """How many tokens of each rank each expert takes, shape (ranks, experts)."""
        return np.stack([each.load for each in self.routings()])

    def dropped(self) -> int:
        """How many choices no expert takes, of all ranks."""
        return sum(each.num_dropped for each in self.routings())

    def home(self) -> np.ndarray:
        """The rank of each expert, shape (experts,)."""
        return np.arange(self.experts) // (self.experts // self.ranks)

    def taken(self) -> np.ndarray:
        """How many tokens each rank's experts take together, shape (ranks,)."""
        by_expert = self.loads().sum(axis=0)
        return np.bincount(self.home(), weights=by_expert, minlength=self.ranks).astype(int)

    def payload(self, rank: int = 0) -> dict[str, int]:
        """Bytes that a rank hands to all-to-alls in a forward and a backward: how many tokens come,
        the tokens, what became of them, and the gradients of both. Raises ValueError for a rank
        that there is not."""
        check_whole(0, self.ranks - 1, rank=rank)
        goes = int(self.loads()[rank].sum())
        comes = int(self.taken()[rank])
        sizes = 2 * (goes + comes) * self.hidden * ITEMSIZE
        return {"all_to_all": COUNT_BYTES * self.experts + sizes}

    def predict(self) -> Timeline:
        """The layer in time, simulated: experts at their pace, messages take none. An all-to-all
        waits for all. A box says how many tokens."""
        rows = []
        now_us = 0.0
        for kind, factor in (("forward", 1.0), ("backward", BACKWARD)):
            takes_us = 1e3 * self.token_ms * factor * self.taken()
            for rank, each_us in enumerate(takes_us.tolist()):
                label = str(self.taken()[rank])
                rows.append((rank, COMPUTE, kind, label, now_us, now_us + each_us, 0))
            now_us += float(takes_us.max())
        return from_rows(rows, num_ranks=self.ranks, origin="simulated")

    # --- what real ranks do ---

    def measured(self, run: "Run") -> Timeline:
        """Its recorded pass; a box says how many tokens, as the prediction's do."""
        found = run.timeline()
        tokens = self.taken().astype(str)[found.rank]
        return replace(found, label=np.where(found.lane == COMPUTE, tokens, found.label))

    def difference(self, predicted: Timeline, measured: Timeline) -> Difference:
        """Computing on the busiest rank, which the step lasts as long as, and waiting: who stands
        in an all-to-all waits, for tokens or for a rank."""
        found = step_difference(predicted, measured)
        busiest = int(self.taken().argmax())
        compute_us = float(busy_us(measured)[busiest] - busy_us(predicted)[busiest])
        return Difference(
            of=found.of,
            causes={"busiest": compute_us, "waiting": found.total - compute_us},
            names={name: words.in_every(name, _WORDS) for name in ("busiest", "waiting")},
        )

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: too large for this machine."""
        say = _WORDS[words.spoken_in(language)]
        if self.ranks == 1:
            return say["alone"]
        if self.ranks > MOST_RANKS:
            return say["many"].format(most=MOST_RANKS, given=self.ranks)
        weights = 2 * self.experts * self.hidden * self.ffn
        dense = self.ranks * self.tokens * self.experts * max(self.hidden, self.ffn)
        if max(weights, dense) > MOST_ELEMENTS:
            return say["large"].format(most=MOST_ELEMENTS, given=max(weights, dense))
        return None

    def start(self) -> "Job":
        """Takes the layer at its pace beside one process, in the background."""
        from labkit.experts import run

        return run.start(self)

    def title(self, language: str | None = None) -> str:
        """Experts, ranks, choices."""
        say = _WORDS[words.spoken_in(language)]
        return say["title"].format(self.experts, self.ranks, self.top_k)


@functools.lru_cache(maxsize=64)
def _routings(layer: Layer) -> tuple[Routing, ...]:
    tokens, weights = layer.inputs()
    scores = tokens @ weights[:-1] + weights[-1]
    parts = np.split(scores, layer.ranks)
    return tuple(routing.route(part, layer.top_k, layer.capacity) for part in parts)
