"""Pipeline parallelism: layers on different ranks, microbatches between them.

``schedule`` is what an order is and when it is valid, ``schedules`` writes the known ones,
``simulation`` turns an order into a timeline with its bubble. ``run`` trains the same order on real
ranks, ``residual`` explains the difference. ``pipedream`` is the asynchronous one. Chapter 08.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "schedule": [
            "Action",
            "KINDS",
            "Schedule",
            "key_and_need",
            "parse",
            "phases",
            "validate",
            "walk",
        ],
        "schedules": [
            "SCHEDULES",
            "TITLES",
            "gpipe",
            "interleaved_1f1b",
            "interleaved_zero_bubble",
            "naive",
            "one_f_one_b",
            "zbv",
            "zero_bubble_h1",
        ],
        "simulation": [
            "Cost",
            "bubble_formula",
            "in_flight",
            "simulate",
        ],
        "run": [
            "TORCH_CLASSES",
            "Training",
            "calibrate",
            "cost",
            "execute",
            "launch",
            "refusal",
            "start",
        ],
        "residual": [
            "CAUSES",
            "gap_us",
            "message_us",
            "words",
        ],
    },
)
