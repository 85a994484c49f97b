"""The bill of a small model that two ranks can train, part by part and to the byte."""

from labkit import footprint
from labkit.sharding import partition, step

RECIPES = ("mixed", "fp32", "bf16", "sgd")
"""precision and optimizer: keys of ``states.RECIPES``"""
SMALL = {"num_layers": 4, "dim": 64, "num_heads": 4, "seq_len": 32}
"""The model that real ranks train beside the large one that is computed."""


def small_bill(recipe: str, batch: int) -> dict[str, float]:
    """What a rank should hold of the small model after a backward, to the byte, by PARTS."""
    units = step.transformer(**SMALL, batch=batch)
    held = partition.predict("ddp", step.shapes(units), 2, recipe_name=recipe)
    if recipe in ("mixed", "sgd"):
        # AdamW alone counts its steps in a tensor; DeepSpeed in a number
        held = held.select(held.kind != "step")
    predicted = step.predict("ddp", units, 2, recipe_name=recipe)
    after_the_loss = predicted.labels.index("loss")
    kept = predicted.num_bytes[after_the_loss, footprint.PARTS.index("activations")]
    states = {part: float(per_rank[0]) for part, per_rank in held.bytes_by("category").items()}
    # the mean of the loss keeps how many it is of, in 4 bytes
    return {**states, "activations": float(kept) + 4}
