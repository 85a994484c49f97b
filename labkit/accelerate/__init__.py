"""Accelerate: one loop for DDP, FSDP and DeepSpeed. ``run`` builds an Accelerator for each engine
in a rank.

Chapter 04.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "run": [
            "ENGINES",
            "LINES",
            "SHAPE",
            "accelerator",
            "described",
            "step",
        ],
    },
)
