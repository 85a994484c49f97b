"""Does it scale: the same step on more ranks, what of it is lost, and to what.

``laws`` is the theory: speedup, efficiency, Amdahl and Gustafson, MFU. ``series`` is the
experiment: a step on 1, 2, 4 ranks, strong or weak, of real DistributedDataParallel (``run``); what
is lost is split into what does not divide, contention, communication and waiting. ``peak_run``
measures a device's own peak and the MFU of a step, ``input`` a step that waits for its data,
``scalars_run`` what rank 0 writes for TensorBoard; ``aims`` holds rules of thumb against runs,
``report_picture`` puts all on one page. ``check`` and ``hints.json`` are the exercises. Chapter 15.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "laws": [
            "KINDS",
            "amdahl",
            "efficiency",
            "gustafson",
            "karp_flatt",
            "mfu",
            "speedup",
            "training_flops",
        ],
        "series": ["Scaled", "Scaling", "Spent"],
        "input.feeding": ["Feeding"],
        "peak_run": ["peak", "utilization"],
        "scalars_run": ["monitored"],
        "aims": ["Target", "targets"],
        "report_picture": ["report"],
    },
)
