"""Story models of 5 B and 20 B parameters: the layouts that a textbook prints, planned.

The 5 B has 24 layers of 4096 and ZeRO 3 with the optimizer on the host; the 20 B has 44 layers of
6144, tensor parallelism 4, a pipeline of 4 and ZeRO 1. Cards are not named there: A100 of 40 GB.
Each is planned by the constants and bytes of the program that usually runs it: ZeRO 3 with Adam on
the card by FSDP's, with Adam on the host by DeepSpeed's.
"""

from labkit.planner.plan.plan import Plan
from labkit.planner.plan.shape import Shape
from labkit.units import check_whole
from labkit.words import say

MIDDLE = Shape(name="story 5B", layers=24, hidden=4096, heads=16, vocab=50_257)
LARGE = Shape(name="story 20B", layers=44, hidden=6144, heads=64, vocab=50_257)


def plans(gpus: int = 32) -> dict[str, Plan]:
    """The printed layouts, and for each model the one without its saving: name -> plan; a name says
    how many sequences of how many tokens a card takes at a time. For ``planner.memory_bars``, or
    ``plan.row()`` each. Raises ValueError for a number of cards that
    16 does not divide."""
    check_whole(16, 4096, gpus=gpus)
    if gpus % 16:
        raise ValueError(f"tp 4 x pp 4 are 16 cards of a copy; got {gpus}. Take 16, 32, 64")
    card = "A100 40 GB"
    middle = Plan(model=MIDDLE, gpu=card, gpus=8, zero=3, mbs=4, batch=32, seq=1024)
    cut = {"tp": 4, "sp": True, "pp": 4, "zero": 1}
    large = Plan(model=LARGE, gpu=card, gpus=gpus, batch=256, seq=2048, **cut)
    return {
        say("5B, 4 x 1,024: Adam on the host"): middle.but(offload="optimizer"),
        "5B, 4 x 1,024: ZeRO 3": middle.but(recipe="fp32"),
        "5B, 4 x 1,024: DDP": middle.but(zero=0),
        say("20B, 1 x 2,048: activations kept"): large,
        say("20B, 1 x 2,048: all recomputed"): large.but(recompute="full"),
    }
