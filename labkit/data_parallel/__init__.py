"""Data parallelism: every rank has the model, gradients are averaged in buckets while the backward
runs.

``buckets`` assigns gradients to buckets and simulates the step; ``run`` takes it with
DistributedDataParallel. Chapter 03.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "buckets": [
            "FIRST_BUCKET_BYTES",
            "Layer",
            "MIB",
            "assign",
            "simulate",
            "step_us",
        ],
        "run": [
            "launch",
            "predict",
            "ring_us",
            "start",
        ],
    },
)
