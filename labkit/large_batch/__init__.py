"""Large batches: how the learning rate rises and falls, how many steps are left, where it ends.

``rules`` is the theory: warm-up, the noise of a gradient, and the law that steps
follow until the critical batch. ``run`` trains on real ranks, with real digits (``digits_run``),
and reads the noise from the ranks' own gradients. ``layerwise_run`` has LARS and LAMB by hand,
``recorded`` a sweep over batches, rates and seeds, which the board shows. Chapter 12.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "rules": [
            "Critical",
            "Noise",
            "fit",
            "noise",
            "warmup_cosine",
        ],
        "run": ["OPTIMIZERS", "Training"],
        "digits_run": ["classifier", "digits"],
        "layerwise_run": ["LAMB", "LARS"],
    },
)
