"""Five ways to divide training among ranks: data parallel, states sharded, by layers, hybrid, and
inside each layer (tensor parallel). Who holds what and sends what: of a large model by formula, of
a small one to the byte."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from labkit import tables, words
from labkit.experiment import Experiment
from labkit.planner.models import DEVICES, MODELS
from labkit.sharding import moments, partition, states
from labkit.sharding.moments import Unit
from labkit.shards import ITEMSIZE
from labkit.units import check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

STRATEGIES = ("data", "sharded", "layers", "hybrid", "tensor")
RECIPES = ("fp32", "mixed")
"""in which types: keys of ``states.RECIPES``"""
MOST_RANKS = 4
MOST_BATCH = 16
"""of a real run"""
SMALL = {"num_layers": 8, "dim": 64, "num_heads": 4, "seq_len": 32}
"""The model that real ranks train beside the large one that is computed."""
TENSOR_ALL_REDUCES = 4
"""of a block in a step of tensor parallelism: after attention and MLP in the forward, before both
in the backward (Shoeybi et al. 2019, section 3)"""
SPLIT_WIDE = 12
"""of the 16 tensors (as large as its input) that a block keeps, those that tensor parallelism
splits: q, k, v, the attention, and the MLP's hidden layer twice; input, stream and both norms stay
whole"""
_WORDS = words.catalogue(
    [
        ("heading", "{}, {} ranks, {}"),
        ("data", "data parallel"),
        ("sharded", "states sharded"),
        ("layers", "model parallel"),
        ("hybrid", "hybrid, 2 stages"),
        ("tensor", "tensor parallel"),
        ("heads", "tensor parallelism splits the {} heads of the small model; {} ranks can't"),
        ("many", "real runs take up to {} ranks"),
        ("long", "real runs take up to {} sequences"),
    ]
)


def num_stages(strategy: str, num_ranks: int) -> int:
    """p: into how many parts the layers are cut."""
    return {"layers": num_ranks, "hybrid": 2}.get(strategy, 1)


# --- a large model ---


@dataclass(frozen=True, kw_only=True)
class Strategy(Experiment):
    """A large model trained with Adam by one of the strategies; a run trains the small model by it,
    in fp32."""

    strategy: str = "data"
    """one of STRATEGIES"""
    model: str = "LLaMA 7B"
    """a key of MODELS"""
    device: str = "A100 80 GB"
    """a key of DEVICES"""
    ranks: int = 4
    """N"""
    batch: int = 16
    """sequences per step, on all ranks together"""
    recipe: str = "fp32"
    """one of RECIPES"""
    one_by_one: bool = False
    """whether a rank takes its sequences as microbatches of one, and begins each backward as soon
    as it can (1F1B in a pipeline); else it keeps the activations of all of them. A run does the
    latter."""
    shard_optimizer: bool = False
    """whether data parallel ranks share what the optimizer adds (ZeRO 1); a run doesn't"""

    def __post_init__(self) -> None:
        check_word(self.strategy, STRATEGIES, "a strategy")
        check_word(self.model, MODELS, "a model")
        check_word(self.device, DEVICES, "a device")
        check_word(self.recipe, RECIPES, "a recipe")
        check_whole(1, 100_000, ranks=self.ranks, batch=self.batch)
        if self.shard_optimizer and self.strategy != "data":
            raise ValueError(f"shard_optimizer is of strategy 'data'; got {self.strategy!r}")

    @property
    def num_stages(self) -> int:
        """p: into how many parts the layers are cut."""
        return num_stages(self.strategy, self.ranks)

    @property
    def num_replicas(self) -> int:
        """d: how many take a part of the batch."""
        return 1 if self.strategy == "tensor" else self.ranks // self.num_stages

    @property
    def num_slices(self) -> int:
        """Of how many slices of each of its layers a rank holds one."""
        return self.ranks if self.strategy in ("sharded", "tensor") else 1

    @property
    def part(self) -> float:
        """The share of the layers that the longest stage has."""
        num_layers = MODELS[self.model].layers
        return ceil(num_layers / self.num_stages) / num_layers

    @property
    def zero_stage(self) -> int:
        """3 where the states are sharded, 1 where the optimizer is, else 0."""
        return 3 if self.strategy == "sharded" else int(self.shard_optimizer)

    @property
    def share(self) -> float:
        """Sequences of a step that a rank takes."""
        return self.batch / self.num_replicas

    @property
    def kept_sequences(self) -> float:
        """Sequences whose activations a rank keeps at the same time."""
        return min(self.share, self.num_stages) if self.one_by_one else self.share

    @property
    def idle(self) -> float:
        """The share of a rank's time that the pipeline leaves idle."""
        stages = self.num_stages
        return (stages - 1) / (self.share + stages - 1)

    def bill(self) -> dict[str, float]:
        """Bytes on the busiest rank, by PARTS. Tensor parallel: all weights are split, norms and
        biases too; activations by Korthikanti et al. 2022, equation 2."""
        if self.strategy == "tensor":
            model = MODELS[self.model]
            whole = model.bill(1, self.recipe)
            split = {part: num_bytes / self.ranks for part, num_bytes in whole.items()}
            kept = model.activation_bytes(1, self.recipe, tensor_parallel=self.ranks)
            return {**split, "activations": self.kept_sequences * kept}
        one_sequence = MODELS[self.model].bill(
            1, self.recipe, num_ranks=self.ranks, stage=self.zero_stage
        )
        bill = {part: num_bytes * self.part for part, num_bytes in one_sequence.items()}
        bill["activations"] *= self.kept_sequences
        return bill

    def sent_bytes(self) -> float:
        """What the busiest rank sends in a step. Sharded states are gathered, and their gradients
        summed, for each microbatch."""
        model = MODELS[self.model]
        itemsize = ITEMSIZE[states.recipe(self.recipe).dtypes["gradient"]]
        if self.strategy == "tensor":
            stream = itemsize * model.dim * model.seq_len * self.batch
            reduced = TENSOR_ALL_REDUCES * model.layers * stream
            return states.step_volume(reduced, self.ranks, 0)["all_reduce"]
        volume = states.step_volume(
            itemsize * model.params * self.part, self.num_replicas, self.zero_stage
        )
        # to the next stage in the forward, to the one before in the backward
        edges = min(2, self.num_stages - 1)
        messages = edges * itemsize * model.dim * model.seq_len * self.share
        times = self.share if self.one_by_one and self.strategy == "sharded" else 1
        return times * sum(volume.values()) + messages

    # --- the small model, which runs ---

    def predict(self) -> "list[Expected]":
        """What each rank should hold and hand over of the small model."""
        return predicted(self.strategy, self.ranks, self.batch)

    def refusal(self, language: str | None = None) -> str | None:
        """Two cores bear so much."""
        say = _WORDS[words.spoken_in(language)]
        if self.ranks > MOST_RANKS:
            return say["many"].format(MOST_RANKS)
        if self.strategy == "tensor" and SMALL["num_heads"] % self.ranks:
            return say["heads"].format(SMALL["num_heads"], self.ranks)
        return say["long"].format(MOST_BATCH) if self.batch > MOST_BATCH else None

    def start(self) -> "Job":
        """The strategy on real ranks, in the background."""
        from labkit.planner import strategies_run

        return strategies_run.start(self.strategy, self.ranks, self.batch)

    def as_run(self) -> "Strategy":
        """A run trains the small model, whatever stands here."""
        return Strategy(strategy=self.strategy, ranks=self.ranks, batch=self.batch)

    def measured(self, run: "Run") -> list[dict]:
        """What each rank returned."""
        return list(run.results)

    def title(self, language: str | None = None) -> str:
        """Strategy, ranks and model."""
        say = _WORDS[words.spoken_in(language)]
        return say["heading"].format(say[self.strategy], self.ranks, self.model)


def costs(steps: Mapping[str, Strategy]) -> tables.Table:
    """Strategies by name, a row each: what the busiest rank holds, what it sends in a step, and the
    share of its time that the pipeline leaves idle. Raises ValueError for none."""
    check_whole(1, 1000, **{"number of ways": len(steps)})
    rows = [
        {
            "way": name,
            "held_bytes": sum(step.bill().values()),
            "sent_bytes": step.sent_bytes(),
            "idle_share": step.idle,
        }
        for name, step in steps.items()
    ]
    heads = {
        "way": words.both("way"),
        "held_bytes": words.both("fullest rank holds"),
        "sent_bytes": words.both("busiest rank sends"),
        "idle_share": words.both("bubble"),
    }
    return tables.table(rows, heads=heads)


# --- the small model ---


class Expected(NamedTuple):
    """What theory says of one rank that trains the small model."""

    bill: dict[str, float]
    """bytes that it holds after a backward, by PARTS"""
    payload: dict[str, float]
    """bytes that it hands over in a step, by collective; a receive is another rank's send"""


def small_units(batch: int) -> list[Unit]:
    """Layers of the small model, for a microbatch of so many sequences."""
    return moments.transformer(**SMALL, batch=batch)


def num_params() -> int:
    """How many parameters the small model has."""
    return sum(unit.num_params for unit in small_units(1))


def predicted(strategy: str, num_ranks: int, batch: int) -> list[Expected]:
    """Per rank what it should hold after a backward of the small model and hand over in a step,
    ``batch`` sequences on all ranks together."""
    if strategy == "tensor":
        return [_expected_of_tensor(num_ranks, batch)] * num_ranks
    stages = num_stages(strategy, num_ranks)
    num_replicas = num_ranks // stages
    share = batch // num_replicas
    num_microbatches = share if stages > 1 else 1
    sequences = share // num_microbatches
    units = small_units(sequences)
    engine = "fsdp" if strategy == "sharded" else "ddp"
    found = []
    for rank in range(num_ranks):
        stage = rank % stages
        mine = _units_of_stage(units, stage, stages)
        held = partition.predict(engine, moments.shapes(mine), num_ranks).bytes_by("category")
        bill = {part: float(per_rank[rank]) for part, per_rank in held.items()}
        kept = _kept_bytes(mine, sequences, first=stage == 0, last=stage == stages - 1)
        bill["activations"] = num_microbatches * kept
        if strategy == "sharded":
            payload = _payload_of_fsdp(float(held["parameters"][0]), num_ranks)
        else:
            payload = _payload_of_stage(mine, stage, stages, num_replicas, share)
        found.append(Expected(bill, payload))
    return found


def _expected_of_tensor(num_ranks: int, batch: int) -> Expected:
    """Of any rank: its part of each block's matrices, everything else whole, and the whole
    batch."""
    units = small_units(batch)
    shapes = {
        name: _tensor_part(name, shape, num_ranks) for name, shape in moments.shapes(units).items()
    }
    held = partition.predict("ddp", shapes, num_ranks).bytes_by("category")
    stream = 4 * batch * SMALL["seq_len"] * SMALL["dim"]
    split = SPLIT_WIDE * stream + units[1].kept_bytes  # with the softmax of the heads
    saved = SMALL["num_layers"] * split * (1 - 1 / num_ranks)
    bill = {part: float(per_rank[0]) for part, per_rank in held.items()}
    bill["activations"] = _kept_bytes(units, batch, first=True, last=True) - saved
    reduced = TENSOR_ALL_REDUCES * SMALL["num_layers"] * stream
    return Expected(bill, {"all_reduce": float(reduced)})


def _tensor_part(name: str, shape: tuple[int, ...], num_ranks: int) -> tuple[int, ...]:
    """A rank's part of a tensor of a block: rows of what opens attention and MLP, columns of what
    closes them."""
    first, *rest = shape
    if ".qkv." in name or ".up." in name:
        return first // num_ranks, *rest
    if name.endswith((".out.weight", ".down.weight")):
        return first, rest[0] // num_ranks
    return shape


def _units_of_stage(units: list[Unit], stage: int, stages: int) -> list[Unit]:
    """The layers of a stage, cut as ``model.split`` cuts them: the embedding with the first block,
    the head with the last."""
    num_blocks = SMALL["num_layers"]
    between = [1 + number * num_blocks // stages for number in range(1, stages)]
    cuts = [0, *between, len(units)]
    return units[cuts[stage] : cuts[stage + 1]]


def _kept_bytes(units: list[Unit], sequences: int, *, first: bool, last: bool) -> float:
    """What a stage keeps of a microbatch of so many sequences for its backward."""
    kept = sum(4 * unit.gradients[0].kept + unit.kept_bytes for unit in units)
    # the last stage keeps the labels; footprint counts them to the first
    label_bytes = 8 * SMALL["seq_len"] * sequences
    if first:
        kept -= label_bytes
    if last:
        kept += label_bytes + 4  # and the mean of the loss how many it is of
    return kept


def _payload_of_fsdp(part_bytes: float, num_ranks: int) -> dict[str, float]:
    """Parameters are gathered in the forward and in the backward, each rank handing over its part;
    whole gradients are reduced once."""
    return {"all_gather": 2 * part_bytes, "reduce_scatter": num_ranks * part_bytes}


def _payload_of_stage(
    units: list[Unit], stage: int, stages: int, num_replicas: int, share: int
) -> dict[str, float]:
    """Gradients to the other replicas, activations to the next stage, their gradients to the one
    before; ``share`` sequences pass."""
    payload = {}
    if num_replicas > 1:
        payload["all_reduce"] = 4 * sum(unit.num_params for unit in units)
    neighbours = [each for each in (stage - 1, stage + 1) if 0 <= each < stages]
    if neighbours:
        message_bytes = 4 * share * SMALL["dim"] * SMALL["seq_len"]
        payload["send"] = len(neighbours) * message_bytes
    return payload
