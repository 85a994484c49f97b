"""The experiment of this subject: what is trained in one step and how its states are kept, what
theory says of it, and the same with the real engine.

    step = sharding.Step(engine="zero2", ranks=4)
    step.predict()          # Shards: which slice lies where between two microbatches
    step.footprint()        # the bytes of a rank over the step
    step.payload()          # what its collectives are handed
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment
from labkit.footprint import Footprint
from labkit.sharding import moments, partition
from labkit.sharding.moments import Unit
from labkit.shards import Shards, join
from labkit.units import check_whole, format_bytes

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = tuple(partition.STAGES)
"""The engines that can be chosen."""
_WORDS = words.catalogue(
    [
        ("title", "{}, {} ranks"),
        ("of", "Bytes of all ranks together"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Step(Experiment):
    """What is trained, and how its states are kept.

    ``run()[r]`` is a dict: shards (between the microbatches of the second step), footprint,
    live_bytes (all that torch holds at that moment, by another count), allocated_bytes (the highest
    point of the device's own allocator; None on the CPU), calls, payload_bytes and
    sent_bytes (of the second step, see ``traffic``), step_us, loss, and order: (collective, bytes)
    of each call of a third step, unwatched, which ``sharding.timeline`` draws.
    """

    engine: str = "ddp"
    """one of ENGINES"""
    ranks: int = 2
    """how many ranks"""
    offload: str = "none"
    """"none", "optimizer", or "all" (parameters too, ZeRO 3)"""
    bucket_size: int = 50_000
    """DeepSpeed's reduce_bucket_size, in elements"""
    layers: int = 4
    """blocks of the transformer"""
    dim: int = 64
    """its width"""
    heads: int = 4
    """its heads"""
    batch: int = 1
    """sequences per microbatch and rank"""
    seq_len: int = 32
    """tokens of a sequence"""
    microbatches: int = 2
    """per step; 2 or more show what lies there between them"""

    board_home: ClassVar[str] = "labkit.fsdp.board"
    """the board of chapter 07; ZeRO's stages, chapter 06, are ``zero.stages.Stages``"""

    def __post_init__(self) -> None:
        check_whole(1, 1_000_000, ranks=self.ranks)
        counts = (self.microbatches, self.layers, self.dim, self.batch, self.seq_len)
        if min(counts) < 1:
            raise ValueError(f"a step has a microbatch, a layer and a token or more; got {self}")
        partition.predict(self.engine, {"w": (1,)}, self.ranks, offload=self.offload)

    def units(self) -> list[Unit]:
        """The layers of the model."""
        return moments.transformer(
            num_layers=self.layers,
            dim=self.dim,
            num_heads=self.heads,
            batch=self.batch,
            seq_len=self.seq_len,
        )

    def layer_bytes(self) -> dict[str, int]:
        """{layer: bytes of its parameters, in fp32}, from the embedding to the head."""
        names = ("embed", *(f"block {index + 1}" for index in range(self.layers)), "head")
        return {name: 4 * unit.num_params for name, unit in zip(names, self.units(), strict=True)}

    def predict(self) -> Shards:
        """What the ranks should hold between two microbatches."""
        units = self.units()
        return partition.predict(
            self.engine,
            moments.shapes(units),
            self.ranks,
            offload=self.offload,
            bucket_size=self.bucket_size,
            units=moments.groups(units),
        )

    def footprint(self, rank: int = 0) -> Footprint:
        """The bytes of a rank over the step."""
        return moments.predict(
            self.engine,
            self.units(),
            self.ranks,
            rank=rank,
            offload=self.offload,
            bucket_size=self.bucket_size,
        )

    def payload(self) -> dict[str, int]:
        """Bytes that a rank hands to each collective in a step, as ``traffic`` counts them: the
        whole tensor to an all-reduce and a reduce-scatter, its own part to an all-gather. Padding
        included, DeepSpeed's few bytes of norm and overflow not. DeepSpeed's stages 1 and 2 call
        all-reduce where a reduce-scatter would do. Raises ValueError for one rank: engines then
        leave out what nobody needs.
        """
        if self.ranks < 2:
            raise ValueError(f"a payload is predicted for 2 ranks or more; got {self.ranks}")
        count = self.microbatches
        held = {kind: int(per_rank[0]) for kind, per_rank in self.predict().bytes_by().items()}
        if self.engine in ("ddp", "zero0"):
            return {"all_reduce": held["gradient"]}
        if self.engine in ("zero1", "zero2"):
            reductions = count if self.engine == "zero2" else 1
            whole_bytes = 2 * sum(unit.num_params for unit in self.units())  # bf16
            part_bytes = held["master"] // 2  # of which this is the fp32 copy
            return {"all_reduce": reductions * whole_bytes, "all_gather": part_bytes}
        part_bytes = held["parameter"]
        gathers = count if self.engine == "fsdp_grad_op" else 2 * count
        size = partition.group_size(self.engine, self.ranks)
        found = {"all_gather": gathers * part_bytes, "reduce_scatter": count * size * part_bytes}
        if self.engine == "fsdp_hybrid":
            found["all_reduce"] = count * part_bytes
        return found

    def start(self) -> "Job":
        """Trains with the real engine, in the background."""
        from labkit.sharding import run

        return run.start(self)

    def measured(self, run: "Run") -> Shards:
        """What the ranks of a run held between two microbatches."""
        return join(result["shards"] for result in run)

    def difference(self, predicted: Shards, measured: Shards) -> Difference:
        """Bytes of all ranks together, by kind of state."""
        before = _total_bytes(predicted)
        after = _total_bytes(measured)
        kinds = dict.fromkeys((*before, *after))
        causes = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in kinds}
        return Difference(
            of=words.in_every("of", _WORDS),
            causes={kind: amount for kind, amount in causes.items() if amount},
            names={kind: dict.fromkeys(words.LANGUAGES, kind) for kind in kinds},
            written=format_bytes,
        )

    def title(self, language: str | None = None) -> str:
        """Engine and ranks."""
        return _WORDS[words.spoken_in(language)]["title"].format(self.engine, self.ranks)


def _total_bytes(shards: Shards) -> dict[str, int]:
    """Kind -> bytes on all ranks together."""
    return {kind: int(per_rank.sum()) for kind, per_rank in shards.bytes_by().items()}
