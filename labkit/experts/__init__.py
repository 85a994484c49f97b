"""Experts: an MLP of a layer becomes many, and a router sends each token to a few of them (expert
parallelism).

``routing`` is the theory: which token goes to which expert, what a capacity drops, how even the
load is. ``layer`` is the experiment: bytes and time of the two all-to-alls, and the same on real
ranks (``run``), held against one process that has all experts. ``board`` is the widget.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "layer": [
            "Layer",
        ],
        "routing": [
            "Routing",
            "route",
        ],
        "whole_run": [
            "auxiliary_loss",
        ],
    },
)
