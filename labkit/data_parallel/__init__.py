"""Data parallelism: every rank has the model, gradients are averaged in buckets while the backward
runs.

``buckets`` is the theory: DDP's own rule for which gradients share a bucket, and the step simulated
on links of a given speed, so that one sees how much communication hides under the backward.
``step`` is the experiment: ``run`` takes it with DistributedDataParallel on real ranks, layers
paced, gradients checked.
``picture`` draws the scheme, and how gradients fill buckets. ``ways_run`` compares ways of getting
gradients by what they send.
``board`` is the widget that shows both, ``check`` holds the exercises (dealing samples, averaging
uneven batches, filling buckets). Chapter 03.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "buckets": [
            "FIRST_BUCKET_BYTES",
            "MIB",
            "Layer",
            "assign",
            "predict",
            "ring_us",
            "simulate",
        ],
        "picture": [
            "filling",
            "scheme",
        ],
        "step": [
            "LINK",
            "Step",
            "shaped",
            "speedup",
        ],
        "ways_run": [
            "compare_ways",
        ],
    },
)
