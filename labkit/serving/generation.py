"""The experiment of a few answers at once: the small transformer with a KV cache, on one rank, cut
among ranks, or as a pipeline.

    answers = serving.Generation(way="tensor", ranks=2)
    answers.predict()      # Shards: whose keys and values lie where, by formula
    answers.run()          # real ranks, held token by token against one process without a cache
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment, Reading
from labkit.planner.plan.shape import Shape
from labkit.serving import kv_cache
from labkit.shards import Shards, from_rows, join
from labkit.tensor_parallel import cut
from labkit.units import check_real, check_whole, check_word, format_bytes

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

WAYS = ("alone", "tensor", "pipeline")
"""One rank has all; each has some heads of every layer; each has some layers."""
ITEMSIZE = 4
"""bytes of an element: runs are in fp32"""
KIND = "cache"
MOST_REAL = {"ranks": 4, "dim": 256, "layers": 16, "tokens": 512, "requests": 32}
"""of a real run; ``tokens`` are a request's, prompt and answer"""
_WORDS = words.catalogue(
    [
        ("title", "KV cache of {requests} requests, {way}"),
        ("alone", "one rank"),
        ("tensor", "heads on {} ranks"),
        ("pipeline", "layers on {} ranks"),
        ("held", "cache of a rank"),
        ("cache", "KV cache"),
        ("of", "Bytes of all ranks together"),
        ("many", "real runs take up to {most} {what}; this has {given}"),
        ("ranks", "ranks"),
        ("dim", "features"),
        ("layers", "layers"),
        ("tokens", "tokens in a request"),
        ("requests", "requests"),
        ("heads", "{heads} heads can't be dealt to {ranks} ranks: each needs one or more"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Generation(Experiment):
    """Answers of equal length to prompts of equal length, the likeliest token at each place.

    ``run()[r]`` is a dict: tokens (of each request; of a pipeline on its last rank, else empty),
    num_differing (requests answered otherwise by one process that has no cache), shards (the
    cache's live tensors), cache_bytes (their storages), allocated_bytes (what the device's
    allocator holds more with the cache than without; None where there is none), prefill_us and
    decode_us (for one token of one request), calls and payload_bytes (of the prefill and of one
    step, see ``traffic``; empty for a pipeline).
    """

    way: str = "tensor"
    """one of WAYS"""
    ranks: int = 2
    """how many"""
    layers: int = 4
    """L"""
    dim: int = 64
    """features of the stream"""
    heads: int = 4
    """heads of attention"""
    requests: int = 4
    """answered at once"""
    prompt: int = 16
    """tokens given"""
    output: int = 16
    """tokens of each answer"""
    microbatches: int = 2
    """of a pipeline: groups of requests that are on their way at once"""
    stage_ms: float = 0.0
    """of a pipeline: a stage's stated time for a microbatch's token; 0: the machine's own"""
    seed: int = 0
    """of weights and prompts"""

    reading: ClassVar[Reading] = Reading(
        words.in_every("held", _WORDS), lambda held: float(held.rank_bytes.max()), format_bytes
    )
    """what ``sweep`` draws of it: the cache on the fullest rank"""

    def __post_init__(self) -> None:
        check_word(self.way, WAYS, "a way")
        check_whole(1, 1024, ranks=self.ranks)
        check_whole(1, 10**5, layers=self.layers, requests=self.requests, heads=self.heads)
        check_whole(1, 10**6, prompt=self.prompt, output=self.output, dim=self.dim)
        check_real(0.0, 1e4, stage_ms=self.stage_ms)
        check_whole(1, self.requests, microbatches=self.microbatches)
        self.shape()
        if self.way == "alone" and self.ranks > 1:
            raise ValueError(f'way="alone" is one rank; got ranks={self.ranks}: give ranks=1')
        if self.way == "pipeline" and not 2 <= self.ranks <= self.layers:
            raise ValueError(
                f"a pipeline has two stages or more, each with a layer or more; got {self.ranks} "
                f"ranks and {self.layers} layers"
            )

    # --- what theory says ---

    def shape(self) -> Shape:
        """The model, as the planner sees it."""
        return Shape(layers=self.layers, hidden=self.dim, heads=self.heads, vocab=256)

    @property
    def kept(self) -> int:
        """Tokens that are kept of a request: all but the last one, at which nobody looks."""
        return self.prompt + self.output - 1

    def cache_bytes(self, rank: int = 0) -> int:
        """Of a rank, by the formula. Raises ValueError for a rank that there is not."""
        check_whole(0, self.ranks - 1, rank=rank)
        tokens = self.requests * self.kept
        whole = kv_cache.cache_bytes(self.shape(), tokens, ITEMSIZE)
        if self.way == "pipeline":
            return whole * len(self.stage(rank)) // self.layers
        return kv_cache.cache_bytes(self.shape(), tokens, ITEMSIZE, ranks=self.ranks, rank=rank)

    def cache_bytes_of_request(self) -> int:
        """Of one request on all ranks together."""
        return kv_cache.cache_bytes(self.shape(), self.kept, ITEMSIZE)

    def stage(self, rank: int) -> range:
        """The layers of a rank, as ``model.split`` deals them."""
        if self.way != "pipeline":
            return range(self.layers)
        return range(rank * self.layers // self.ranks, (rank + 1) * self.layers // self.ranks)

    def held_heads(self, rank: int) -> range:
        """The heads of a rank."""
        if self.way != "tensor":
            return range(self.heads)
        return cut.heads(self.heads, self.heads, self.ranks, rank)[0]

    def predict(self) -> Shards:
        """Keys and values of each layer, flattened head by head."""
        each = self.requests * self.kept * self.shape().width
        rows = []
        for rank in range(self.ranks):
            held = self.held_heads(rank)
            for layer in self.stage(rank):
                for name in ("keys", "values"):
                    place = (held.start * each, held.stop * each, "float32", "device")
                    rows.append((rank, KIND, f"layer {layer} {name}", *place))
        return from_rows(rows, num_ranks=self.ranks, origin="predicted")

    def payload(self, tokens: int = 1) -> dict[str, int]:
        """Bytes that a rank hands to all-reduces in a pass over so many tokens of each request: two
        sums of the stream in each layer. Nothing where the model is not cut by heads."""
        check_whole(1, 10**6, tokens=tokens)
        if self.way != "tensor" or self.ranks == 1:
            return {}
        return {"all_reduce": 2 * self.layers * self.requests * tokens * self.dim * ITEMSIZE}

    # --- what real ranks do ---

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: too large, or heads that can't be dealt."""
        say = _WORDS[words.spoken_in(language)]
        given = {
            "ranks": self.ranks,
            "dim": self.dim,
            "layers": self.layers,
            "tokens": self.prompt + self.output,
            "requests": self.requests,
        }
        for what, most in MOST_REAL.items():
            if given[what] > most:
                return say["many"].format(most=most, what=say[what], given=given[what])
        if self.way == "tensor" and self.heads < self.ranks:
            return say["heads"].format(heads=self.heads, ranks=self.ranks)
        return None

    def start(self) -> "Job":
        """Answers on real ranks, in the background."""
        from labkit.serving import run

        return run.start(self)

    def measured(self, run: "Run") -> Shards:
        """What the live tensors of the ranks' caches hold."""
        return join(result["shards"] for result in run)

    def difference(self, predicted: Shards, measured: Shards) -> Difference:
        """Bytes of all ranks together."""
        more = float(measured.num_bytes.sum() - predicted.num_bytes.sum())
        return Difference(
            of=words.in_every("of", _WORDS),
            causes={KIND: more},
            names={KIND: words.in_every("cache", _WORDS)},
            written=format_bytes,
        )

    def title(self, language: str | None = None) -> str:
        """How many requests, and how the model is cut."""
        say = _WORDS[words.spoken_in(language)]
        way = say[self.way].format(self.ranks)
        return say["title"].format(requests=self.requests, way=way)
