"""The experiment of this subject: one layer of a transformer cut among ranks, what theory says of
it, and the same on real ranks.

    layer = tensor_parallel.Layer(ranks=4, sequence_parallel=True)
    layer.predict()        # Shards: which slice of which weight lies where
    layer.messages()       # every collective of a step, in order
    layer.timeline()       # the step on GPUs, simulated by the planner's times
    layer.run()            # real ranks, held against one process
"""

import importlib.util
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from labkit import words
from labkit.experiment import Difference, Experiment, Reading
from labkit.planner.plan.cluster import Cluster, gpu
from labkit.planner.plan.compute import Bench
from labkit.planner.plan.layout import PRECISIONS, Layout
from labkit.planner.plan.shape import Shape
from labkit.planner.plan.stacks import STACKS
from labkit.sharding import states
from labkit.shards import Shards, from_rows, join
from labkit.tensor_parallel import cut, messages, times
from labkit.tensor_parallel.messages import Message, Stream
from labkit.timeline import Timeline
from labkit.units import check_whole, check_word, format_bytes

if TYPE_CHECKING:
    from labkit.launching.job import Job
    from labkit.launching.run import Run

ENGINES = ("by hand", "torch", "megatron")
"""Who cuts: forty lines of our own; DTensor's ``parallelize_module``; megatron-core's layers."""
MOST_REAL = {"ranks": 8, "hidden": 256, "tokens": 4096, "vocab": 4096}
"""of a real run"""
STACK = "megatron-a100"
"""Whose constants the simulated times have, where a GPU has no stack of its own."""
_WORDS = words.catalogue(
    [
        ("title", "A layer on {} ranks, {}"),
        ("title_sp", "A layer on {} ranks, {}, sequence parallel"),
        ("by hand", "by hand"),
        ("of", "Bytes of all ranks together"),
        ("held", "weights and gradients of a rank"),
        ("missing", "megatron-core is not installed here: make env installs it"),
        ("alone", "one rank has the whole layer: take 2 ranks or more"),
        ("many", "real runs take up to {most} {what}; this has {given}"),
        ("fp32", "real runs are held against one process in fp32; this is {}"),
        ("heads", "{heads} heads can't be dealt to {ranks} ranks: each needs one or more"),
        (
            "shared",
            "{kv} heads of keys and values on {ranks} ranks: some would lie on several, and their "
            "gradients be summed once more; the runs leave that out: take a number of ranks that "
            "divides {kv}",
        ),
        (
            "uneven",
            "{engine} cuts evenly, and {ranks} ranks do not divide {what}: take sizes that they "
            "divide, or cut by hand",
        ),
        (
            "tokens",
            "sequence parallelism gives each rank as many tokens, and {ranks} ranks do not divide "
            "{sequence}: take a sequence that they divide, or leave it whole",
        ),
        ("queries", "{heads} heads"),
        ("keys", "{heads} heads of keys"),
        ("wide", "an MLP {wide} wide"),
        ("vocab", "a vocabulary of {vocab}"),
    ]
)


@dataclass(frozen=True, kw_only=True)
class Layer(Experiment):
    """One layer, and if there is a vocabulary the embedding before and the loss after it.

    ``run()[r]`` is a dict: shards (the weights that the rank's live tensors hold, and their
    gradients), calls, payload_bytes, order and sent_bytes (of one step, see ``traffic``),
    output_difference and gradient_difference (the largest from one process), largest_gradient (of
    one process), activation_bytes (what autograd kept of the forward at its peak), loss, step_us.
    """

    engine: str = "by hand"
    """one of ENGINES"""
    ranks: int = 2
    """t, how many share the layer"""
    sequence_parallel: bool = False
    """whether the stream between the cut parts is cut along the tokens"""
    hidden: int = 64
    """h, features of the stream"""
    heads: int = 4
    """a, heads of attention"""
    kv_heads: int = 0
    """heads of keys and values; 0: as many as heads"""
    ffn: int = 0
    """width of the MLP; 0: four times hidden"""
    vocab: int = 0
    """words of a vocabulary whose embedding, output layer and loss are cut as well; 0: none"""
    sequence: int = 32
    """s, tokens of a sequence"""
    batch: int = 2
    """b, sequences"""
    precision: str = "fp32"
    """of the stream: a key of ``PRECISIONS``; runs are fp32"""
    overlap: bool = False
    """whether the simulated step sums gradients of the stream beside those of a weight"""
    gpu: str = "A100 80 GB"
    """whose times are simulated: a GPU of data/hardware.csv"""
    node_size: int = 8
    """GPUs of a node"""

    reading: ClassVar[Reading] = Reading(
        words.in_every("held", _WORDS), lambda held: float(held.rank_bytes.max()), format_bytes
    )
    """what ``sweep`` draws of it: weights and gradients on the fullest rank"""

    def __post_init__(self) -> None:
        check_word(self.engine, ENGINES, "an engine")
        check_word(self.precision, PRECISIONS, "a precision")
        check_whole(1, 1024, ranks=self.ranks)
        check_whole(1, 10**6, sequence=self.sequence, batch=self.batch)
        check_whole(0, 10**6, vocab=self.vocab)
        check_whole(1, 10**4, node_size=self.node_size)
        self.shape()
        gpu(self.gpu)

    # --- what theory says ---

    def shape(self) -> Shape:
        """The layer, as the planner sees a model."""
        return Shape(
            layers=1,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            ffn=self.ffn,
            vocab=max(1, self.vocab),
        )

    def layout(self) -> Layout:
        """The ranks, as the planner sees them."""
        return Layout(
            tp=self.ranks,
            sp=self.sequence_parallel,
            mbs=self.batch,
            gbs=self.batch,
            seq=self.sequence,
            precision=self.precision,
        )

    def stream(self) -> Stream:
        """What flows between the cut parts. Under sequence parallelism a sequence that the ranks do
        not divide is filled up with empty tokens."""
        sequence = self.sequence
        if self.sequence_parallel:
            sequence += -sequence % self.ranks
        return Stream(
            num_tokens=self.batch * sequence,
            hidden=self.hidden,
            itemsize=PRECISIONS[self.precision],
            num_ranks=self.ranks,
            sequence_parallel=self.sequence_parallel,
            gathers_again=self.engine == "megatron",
        )

    def pieces(self, rank: int) -> list[cut.Piece]:
        """What a rank holds of every weight. Raises ValueError for a rank that there is not."""
        shape = self.shape()
        found = cut.layer_pieces(shape, self.ranks, rank)
        if self.vocab:
            found += cut.vocabulary_pieces(shape, self.ranks, rank)
        return found

    def messages(self) -> list[Message]:
        """Every collective of a step in order, as this engine calls them."""
        stream = self.stream()
        if not self.vocab:
            found = messages.of_layer(stream)
        else:
            found = messages.of_model(stream, self._loss_elements())
        if self.engine == "by hand":  # the others leave these to the optimizer
            found += messages.of_whole_weights(stream)
        return found

    def _loss_elements(self) -> list[int]:
        """Elements of the all-reduces of a loss over a cut vocabulary: the largest logit of each
        token; then the sum of exponentials and the target's logit, at once by hand and one after
        the other in megatron-core and torch."""
        tokens = self.batch * self.sequence
        return [tokens, 2 * tokens] if self.engine == "by hand" else [tokens, tokens, tokens]

    def payload(self) -> dict[str, int]:
        """Bytes that a rank hands to each collective in a step."""
        return messages.payload(self.messages())

    def predict(self) -> Shards:
        """Which slice of which weight, and of its gradient, lies on which rank, in fp32."""
        rows = []
        for rank in range(self.ranks):
            pieces = self.pieces(rank)
            held = {"parameter": pieces, "gradient": [self._gradient(each) for each in pieces]}
            for kind, each in held.items():
                for name, start, stop in cut.placed(each):
                    rows.append((rank, kind, name, start, stop, "float32", "device"))
        return from_rows(rows, num_ranks=self.ranks, origin="predicted")

    def _gradient(self, piece: cut.Piece) -> cut.Piece:
        """What a rank holds of a weight's gradient: as much as of the weight. DTensor (torch 2.13)
        keeps an embedding's gradient for all words on every rank, zeros for the others'."""
        if self.engine == "torch" and piece.name == "embed.weight":
            return piece._replace(dim=-1)
        return piece

    def rank_bytes(self, rank: int = 0) -> int:
        """Bytes of a rank's weights in this precision."""
        return PRECISIONS[self.precision] * cut.rank_elements(self.pieces(rank))

    def kept_bytes(self) -> float:
        """What the layer keeps on a rank for its backward, 16 bit and with dropout, by the papers'
        formula: ``states.layer_activation_bytes``."""
        return states.layer_activation_bytes(
            self.sequence,
            self.batch,
            self.hidden,
            self.heads,
            flash=True,
            tensor_parallel=self.ranks,
            sequence_parallel=self.sequence_parallel,
        )

    def timeline(self) -> Timeline:
        """A step of the layer on GPUs in full nodes, simulated by the planner's times."""
        chosen = gpu(self.gpu)
        full = self.node_size * -(-self.ranks // self.node_size)
        cluster = Cluster(gpu=chosen, num_gpus=full, per_node=self.node_size)
        own = f"megatron-{chosen.family.lower()}"
        bench = Bench(gpu=chosen, stack=STACKS.get(own, STACKS[STACK]))
        stream = self.stream()
        layout = self.layout()
        timed = []
        for each in messages.of_layer(stream):
            time_us = times.message_us(each, stream, layout, cluster, bench.stack.nic)
            timed.append((each, time_us))
        parts = times.cost(self.shape(), layout, bench)
        return times.timeline([*times.spans(parts, timed, overlap=self.overlap)], self.ranks)

    # --- what real ranks do ---

    def refusal(self, language: str | None = None) -> str | None:
        """Why it can't be run: too large for this machine, or cut as the engine does not."""
        say = _WORDS[words.spoken_in(language)]
        if self.engine == "megatron" and not _has_megatron():
            return say["missing"]
        if self.ranks == 1:
            return say["alone"]
        given = {
            "ranks": self.ranks,
            "hidden": self.hidden,
            "tokens": self.batch * self.sequence,
            "vocab": self.vocab,
        }
        for what, most in MOST_REAL.items():
            if given[what] > most:
                return say["many"].format(most=most, what=what, given=given[what])
        if self.precision != "fp32":
            return say["fp32"].format(self.precision)
        return self._uncut(say)

    def _uncut(self, say: dict[str, str]) -> str | None:
        """What of the layer can't be dealt to the ranks."""
        shape = self.shape()
        if self.sequence_parallel and self.sequence % self.ranks:
            return say["tokens"].format(ranks=self.ranks, sequence=self.sequence)
        if self.heads < self.ranks:
            return say["heads"].format(heads=self.heads, ranks=self.ranks)
        if cut.shared_heads(shape, self.ranks):
            return say["shared"].format(kv=shape.num_kv_heads, ranks=self.ranks)
        if self.engine == "by hand":
            return None
        sizes = {
            say["queries"].format(heads=self.heads): self.heads,
            say["keys"].format(heads=shape.num_kv_heads): shape.num_kv_heads,
            say["wide"].format(wide=shape.ffn_width): shape.ffn_width,
            say["vocab"].format(vocab=self.vocab): self.vocab,
        }
        for what, size in sizes.items():
            if size % self.ranks:
                return say["uneven"].format(engine=self.engine, ranks=self.ranks, what=what)
        return None

    def start(self) -> "Job":
        """Cuts the layer and takes two steps, beside one process, in the background."""
        from labkit.tensor_parallel import run

        return run.start(self)

    def as_run(self) -> "Layer":
        """The ranks know nothing of what was simulated."""
        return replace(self, overlap=False, gpu=Layer.gpu, node_size=Layer.node_size)

    def measured(self, run: "Run") -> Shards:
        """What the live tensors of a run's ranks hold."""
        return join(result["shards"] for result in run)

    def difference(self, predicted: Shards, measured: Shards) -> Difference:
        """Bytes of all ranks together, by kind."""
        causes = {}
        after: dict[str, Any] = measured.bytes_by()
        for kind, per_rank in predicted.bytes_by().items():
            held = after[kind].sum() if kind in after else 0
            causes[kind] = float(held - per_rank.sum())
        return Difference(
            of=words.in_every("of", _WORDS),
            causes={kind: amount for kind, amount in causes.items() if amount},
            names={kind: dict.fromkeys(words.LANGUAGES, kind) for kind in causes},
            written=format_bytes,
        )

    def title(self, language: str | None = None) -> str:
        """Ranks, engine, and whether the sequence is cut as well."""
        say = _WORDS[words.spoken_in(language)]
        key = "title_sp" if self.sequence_parallel else "title"
        return say[key].format(self.ranks, say.get(self.engine, self.engine))


def _has_megatron() -> bool:
    """Whether megatron-core is installed; other packages may lie in a folder of that name."""
    return bool(importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.core"))
