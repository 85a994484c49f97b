"""How many bytes a rank needs, as theory sees it: model states by recipe and ZeRO stage,
activations, and what a step has to communicate.

Base 10 (1 GB = 1e9 bytes), as the papers count. ``partition`` says which slice lies where,
``step`` what a step adds on top.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from labkit.shards import CATEGORIES, ITEMSIZE
from labkit.units import MOST_RANKS, check_real, check_whole, check_word

STAGES = (0, 1, 2, 3)
"""What data parallelism shards: 0 nothing (DDP), 1 optimizer states, 2 gradients too, 3 parameters
too (ZeRO, section 5)."""
SHARDED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}
"""The first stage that shards a part of the bill."""
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """In which types a training recipe keeps its states."""

    name: str
    """a key of RECIPES"""
    dtypes: Mapping[str, str]
    """kind of state -> type of its elements; one element per parameter each"""
    what: str
    """in words"""
    source: str
    """who counts so"""

    @property
    def bytes_per_parameter(self) -> int:
        """Bytes of all states of one parameter on one rank, nothing sharded."""
        return sum(ITEMSIZE[dtype] for dtype in self.dtypes.values())


_ADAM = {"master": "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="sgd",
            dtypes={"parameter": "float32", "gradient": "float32", "momentum": "float32"},
            what="fp32, SGD with momentum",
            source="torch.optim.SGD",
        ),
        Recipe(
            name="fp32",
            dtypes={
                "parameter": "float32",
                "gradient": "float32",
                "exp_avg": "float32",
                "exp_avg_sq": "float32",
            },
            what="fp32, Adam",
            source="torch.optim.AdamW",
        ),
        Recipe(
            name="mixed",
            dtypes={"parameter": "bfloat16", "gradient": "bfloat16", **_ADAM},
            what="16 bit, fp32 master copy and Adam",
            source="Rajbhandari et al. 2020 (ZeRO), section 3.1",
        ),
        Recipe(
            name="deepspeed",
            dtypes={"parameter": "bfloat16", "gradient": "float32", **_ADAM},
            what="16 bit, fp32 gradients for the step",
            source="DeepSpeed's estimator of ZeRO-3: 18 bytes",
        ),
        Recipe(
            name="accumulate",
            dtypes={
                "parameter": "bfloat16",
                "gradient": "bfloat16",
                "main_grad": "float32",
                **_ADAM,
            },
            what="16 bit, gradients accumulated in fp32",
            source="DeepSpeed's estimator of ZeRO-2: 2 + 18 bytes",
        ),
        Recipe(
            name="megatron",
            dtypes={"parameter": "bfloat16", "main_grad": "float32", **_ADAM},
            what="16 bit, gradients in fp32; with stage 1: 6 + 12/N",
            source="Megatron-LM, distributed optimizer: bf16 parameters, fp32 gradients",
        ),
        Recipe(
            name="bf16",
            dtypes={
                "parameter": "bfloat16",
                "gradient": "bfloat16",
                "exp_avg": "bfloat16",
                "exp_avg_sq": "bfloat16",
            },
            what="bf16 throughout, no master copy",
            source="torch.optim.AdamW over a bf16 model",
        ),
    )
}
"""Recipes by name: 12, 16, 16, 18, 20, 18 and 8 bytes per parameter."""


def recipe(name: str) -> Recipe:
    """A recipe by its name. Raises ValueError for one that there is not."""
    check_word(name, RECIPES, "a recipe")
    return RECIPES[name]


def is_sharded(kind: str, stage: int) -> bool:
    """Whether a stage shards this kind of state. Raises ValueError for a stage that is none of 0 to
    3."""
    if stage not in STAGES:
        raise ValueError(f"a stage is 0 (DDP), 1, 2 or 3; got {stage!r}")
    return stage >= SHARDED_FROM.get(CATEGORIES.get(kind, kind), 4)


def state_bytes(
    num_params: float, num_ranks: int = 1, stage: int = 0, recipe_name: str = "mixed"
) -> dict[str, float]:
    """Bytes of each kind of state on one rank: all of it, or a part in ``num_ranks`` where the
    stage shards it.

    With "mixed": 16 P, (4 + 12/N) P, (2 + 14/N) P and 16 P/N for the stages 0 to 3 (Rajbhandari et
    al. 2020, "ZeRO", section 5 and table 1). Nothing is rounded: real partitions are padded, see
    ``partition``.
    """
    check_real(num_params=num_params)
    check_whole(1, MOST_RANKS, num_ranks=num_ranks)
    return {
        kind: num_params * ITEMSIZE[dtype] / (num_ranks if is_sharded(kind, stage) else 1)
        for kind, dtype in recipe(recipe_name).dtypes.items()
    }


def by_category(kinds: Mapping[str, float]) -> dict[str, float]:
    """The bill by its parts (parameters, gradients, optimizer, ...) from bytes by kind."""
    found: dict[str, float] = {}
    for kind, num_bytes in dict(kinds).items():
        part = CATEGORIES.get(kind, kind)
        found[part] = found.get(part, 0) + num_bytes
    return found


def largest_model(
    device_bytes: float, num_ranks: int = 1, stage: int = 0, recipe_name: str = "mixed"
) -> float:
    """How many parameters fit if nothing but model states lay on the device (ZeRO, table 2,
    "theoretical max")."""
    check_real(device_bytes=device_bytes)
    return device_bytes / sum(state_bytes(1, num_ranks, stage, recipe_name).values())


def ranks_needed(
    num_params: float,
    device_bytes: float,
    stage: int,
    recipe_name: str = "mixed",
    extra_bytes: float = 0.0,
    most: int = 1 << 20,
) -> int | None:
    """The fewest ranks whose devices hold the states and ``extra_bytes`` each (activations, say);
    None where no number up to ``most`` is enough, because what the stage does not shard is too
    large."""

    def fits(num_ranks: int) -> bool:
        states = state_bytes(num_params, num_ranks, stage, recipe_name)
        return sum(states.values()) + extra_bytes <= device_bytes

    check_real(device_bytes=device_bytes, extra_bytes=extra_bytes)
    if not fits(most):
        return None
    too_few = 0
    enough = most
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fits(middle):
            enough = middle
        else:
            too_few = middle
    return enough


def deepspeed_estimate(num_params: int, num_ranks: int, stage: int, largest_layer: int = 0) -> int:
    """What DeepSpeed's own estimators say of a device without offload, in bytes: stage 2 or 3.

    ``estimate_zero2_model_states_mem_needs`` counts 2 P + 18 P/N, that is "accumulate"; its sister
    for stage 3 counts 18 P/N, that is "deepspeed", and 4 bytes for each parameter of the largest
    layer. DeepSpeed's page on memory says 4 P + 16 P/N for stage 2: that is an older count, and its
    printed example still shows it.
    """
    if stage not in (2, 3):
        raise ValueError(f"DeepSpeed estimates stages 2 and 3; got {stage!r}")
    check_real(num_params=num_params, largest_layer=largest_layer)
    check_whole(1, MOST_RANKS, num_ranks=num_ranks)
    types = recipe("accumulate" if stage == 2 else "deepspeed").dtypes
    sizes = {kind: ITEMSIZE[dtype] for kind, dtype in types.items()}
    whole = sum(size for kind, size in sizes.items() if not is_sharded(kind, stage))
    sharded = sum(sizes.values()) - whole
    num_bytes = whole * num_params + int(sharded * num_params / num_ranks)
    if stage == 3:
        num_bytes += 4 * largest_layer
    return num_bytes


# --- activations ---


def layer_activation_bytes(
    seq_len: int,
    batch: int,
    hidden: int,
    heads: int,
    *,
    recompute: str = "none",
    flash: bool = False,
    tensor_parallel: int = 1,
    sequence_parallel: bool = False,
) -> float:
    """What one GPT layer keeps for its backward, in bytes: 16 bit, dropout on (Korthikanti et al.
    2022, "Reducing Activation Recomputation", equations 1 to 4 and section 5).

    s b h (34 + 5 a s/h) for one rank; s b h (10 + 24/t + 5 a s/(h t)) with tensor parallelism of t,
    all of it divided by t with sequence parallelism too. Selective recomputation drops the term
    with s squared, and so does flash attention, which never stores the attention matrix. Full
    recomputation keeps the layer's input: 2 s b h.
    """
    check_word(recompute, RECOMPUTE, "recompute")
    check_real(
        1, seq_len=seq_len, batch=batch, hidden=hidden, heads=heads, tensor_parallel=tensor_parallel
    )
    sbh = seq_len * batch * hidden
    t = tensor_parallel
    if recompute == "full":
        return 2 * sbh / (t if sequence_parallel else 1)
    stores_matrix = recompute == "none" and not flash
    squared = 5 * heads * seq_len / hidden if stores_matrix else 0
    if sequence_parallel:
        return sbh * ((34 + squared) / t)
    return sbh * (10 + (24 + squared) / t)


def block_activation_bytes(
    batch: int, seq_len: int, dim: int, heads: int, itemsize: int = 4
) -> int:
    """What a ``model.Block`` of this project keeps, in bytes: counted tensor by tensor, with
    torch's flash attention.

    Elements per token: the input 1 (in D), its norm 1, q, k, v 3, attention 1, the stream 1, its
    norm 1, the MLP's hidden layer before and after GELU 8, together 16; beside them mean and
    deviation of both norms (in the model's type on a CPU), and in fp32 the log of the softmax's sum
    per head. No dropout, hence 32 s b h and not 34 for 16 bit.
    """
    check_real(batch=batch, seq_len=seq_len, dim=dim, heads=heads, itemsize=itemsize)
    return batch * seq_len * ((16 * dim + 4) * itemsize + 4 * heads)


# --- communication ---


def step_volume(
    num_bytes: float, num_ranks: int, stage: int, num_microbatches: int = 1, reshard: bool = True
) -> dict[str, float]:
    """What each rank sends in a step, in bytes, by collective: all of them at their lower bound.

    ``num_bytes``: the gradients of the whole model, as many as the parameters have. An all-reduce
    is a reduce-scatter and an all-gather: 2 (N-1)/N of it, for DDP as for ZeRO 1 and 2. Stage 3
    gathers the parameters for the forward and again for the backward: 3 (N-1)/N, half as much again
    (Rajbhandari et al. 2020, section 7.2). ``reshard=False`` keeps them from the forward to the
    backward. DDP and stage 1 reduce once per step, stages 2 and 3 in each microbatch; stage 3 also
    gathers in each.
    """
    is_sharded("parameter", stage)
    check_real(num_bytes=num_bytes)
    check_whole(1, MOST_RANKS, num_ranks=num_ranks, num_microbatches=num_microbatches)
    part = num_bytes * (num_ranks - 1) / num_ranks
    if stage == 0:
        return {"all_reduce": 2 * part}
    scatters = num_microbatches if stage > 1 else 1
    gathers = 1
    if stage == 3:
        gathers = num_microbatches * (2 if reshard else 1)
    return {"reduce_scatter": part * scatters, "all_gather": part * gathers}


class Transfer(NamedTuple):
    """Bytes that one rank moves between its device and the host's memory in a step."""

    phase: str
    """"forward", "backward" or "step\""""
    what: str
    """"parameters" or "gradients\""""
    to_host: bool
    """False: to the device"""
    num_bytes: float
    """in the whole step"""
    why: str = ""
    """where its phase and ``what`` leave it open: gradients in 16 bit that are "kept" on the host
    or come "again" to be added to, "fp32" ones for the update, or what is "new" after it"""


def offload_moves(
    num_params: float,
    num_ranks: int,
    stage: int,
    offload: str = "optimizer",
    num_microbatches: int = 1,
) -> list[Transfer]:
    """What crosses the link to the host when DeepSpeed offloads (read off its code, 0.19.8, and
    counted on a pretend device), per rank and step.

    Optimizer states on the host: this rank's gradients go there as fp32, 4 P/N bytes, and its
    updated parameters come back in 16 bit, 2 P/N (the ZeRO-Offload paper counts 2 P/N both ways:
    Ren et al. 2021, section 4.1). Further microbatches are added on the device: the 16-bit sum, 2
    P/N, goes down in each, and comes up again in all but the first. Stage 3 does so with one
    microbatch too, and brings it up in every one. "all" keeps the parameters on the host as well: 2
    P/N up for each forward and each backward, and nothing after the step.
    """
    able = ("optimizer", "all") if stage == 3 else ("optimizer",)
    if stage not in (1, 2, 3) or offload not in able:
        raise ValueError(
            f"ZeRO 1 to 3 offload the optimizer, and ZeRO 3 all; got {offload!r} for stage "
            f"{stage!r}"
        )
    check_real(num_params=num_params)
    check_whole(1, MOST_RANKS, num_ranks=num_ranks, num_microbatches=num_microbatches)
    part = 2 * num_params / num_ranks  # in 16 bit
    again = num_microbatches if stage == 3 else num_microbatches - 1
    transfers = []
    if offload == "all":
        for phase in ("forward", "backward"):
            transfers.append(Transfer(phase, "parameters", False, part * num_microbatches))
    if again:
        transfers.append(Transfer("backward", "gradients", True, part * num_microbatches, "kept"))
        transfers.append(Transfer("backward", "gradients", False, part * again, "again"))
    transfers.append(Transfer("backward", "gradients", True, 2 * part, "fp32"))
    if offload == "optimizer":
        transfers.append(Transfer("step", "parameters", False, part, "new"))
    return transfers
