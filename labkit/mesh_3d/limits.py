"""Which steps there are not, on any machine; and which are not run here, and why."""

import importlib.util
from typing import TYPE_CHECKING

from labkit import words

if TYPE_CHECKING:
    from labkit.mesh_3d.step import Step

MOST_REAL = {"ranks": 8, "hidden": 256, "layers": 16, "tokens": 4096}
"""of a real run; tokens those of a microbatch"""
REAL_VOCAB = 256
"""The small model reads bytes."""
RUN_ZERO = {"torch": (1, 3), "deepspeed": (1,)}
"""Engine -> what it shares out along dp_shard."""
_WORDS = words.catalogue(
    [
        ("alone", "one rank has no axis: take 2 ranks or more"),
        ("many", "real runs take up to {most} {what}; this has {given}"),
        ("fp32", "real runs are held against one process in fp32; this is {}"),
        ("again", "real runs keep all for the backward; this computes some again: {}"),
        ("vocab", "the small model reads bytes: its vocabulary is {}; this has {}"),
        ("uneven", "{ranks} ranks of tp do not divide {what}: take sizes that they divide"),
        ("heads", "{} heads"),
        ("wide", "an MLP {} wide"),
        ("stages", "{pp} stages have as many layers each; the model has {layers}"),
        (
            "batch",
            "a step's {batch} sequences are not a multiple of {dp} replicas x {m} microbatches",
        ),
        ("nothing", "dp_shard {} shares out states, and zero is 0: take 1 or 3, or dp_replicate"),
        ("zero", "{engine} runs zero {known} here; this is {given}"),
        ("mixed", "DeepSpeed's grid has one data axis: take dp_replicate or dp_shard"),
        ("unlaid", "DeepSpeed's grid is for a pipeline: take pp 2 or more"),
        ("order", "DeepSpeed's pipeline engine runs 1f1b; this is {}"),
        ("own pace", "DeepSpeed's grid runs at the machine's own pace here: take forward_ms 0"),
        ("missing", "{} is not installed here: make env installs it"),
    ]
)


def impossible(step: "Step", language: str | None = None) -> str | None:
    """Why there is no such step, on any machine; None where there is."""
    say = _WORDS[words.spoken_in(language)]
    if step.dp_shard > 1 and not step.zero:
        return say["nothing"].format(step.dp_shard)
    if step.layers % step.pp:
        return say["stages"].format(pp=step.pp, layers=step.layers)
    if step.batch % (step.dp * step.microbatches):
        return say["batch"].format(batch=step.batch, dp=step.dp, m=step.microbatches)
    sizes = {"heads": step.heads, "wide": step.shape().ffn_width}
    for what, size in sizes.items():
        if size % step.tp:
            return say["uneven"].format(ranks=step.tp, what=say[what].format(size))
    return None


def refusal(step: "Step", language: str | None = None) -> str | None:
    """Why it can't be run; None where it can."""
    if found := impossible(step, language):
        return found
    say = _WORDS[words.spoken_in(language)]
    if step.ranks == 1:
        return say["alone"]
    tokens = step.microbatch * step.sequence
    given = {"ranks": step.ranks, "hidden": step.hidden, "layers": step.layers, "tokens": tokens}
    for what, most in MOST_REAL.items():
        if given[what] > most:
            return say["many"].format(most=most, what=what, given=given[what])
    if step.precision != "fp32":
        return say["fp32"].format(step.precision)
    if step.recompute != "none":
        return say["again"].format(step.recompute)
    if step.vocab != REAL_VOCAB:
        return say["vocab"].format(REAL_VOCAB, step.vocab)
    return _refused_by_engine(step, say)


def _refused_by_engine(step: "Step", say: dict[str, str]) -> str | None:
    """What the engine does not do."""
    known = RUN_ZERO[step.engine]
    if step.dp_shard > 1 and step.zero not in known:
        told = ", ".join(map(str, known))
        return say["zero"].format(engine=step.engine, known=told, given=step.zero)
    if step.engine == "torch":
        return None
    if step.pp == 1:
        return say["unlaid"]
    if step.dp_replicate > 1 and step.dp_shard > 1:
        return say["mixed"]
    if step.schedule != "1f1b":
        return say["order"].format(step.schedule)
    if step.forward_ms:
        return say["own pace"]
    if not importlib.util.find_spec("deepspeed"):
        return say["missing"].format("DeepSpeed")
    if step.tp > 1 and not has_megatron():
        return say["missing"].format("megatron-core")
    return None


def has_megatron() -> bool:
    """Whether megatron-core is installed; other packages may lie in a folder of that name."""
    return bool(importlib.util.find_spec("megatron") and importlib.util.find_spec("megatron.core"))
