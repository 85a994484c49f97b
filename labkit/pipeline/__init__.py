"""Pipeline parallelism: layers on different ranks, microbatches between them.

``schedule`` is what an order is and when it is valid, ``schedules`` writes the known ones,
``zero_bubble`` finds one from times and a limit of memory, ``simulation`` turns an order into a
timeline with its bubble, ``runtime`` says what torch's own runtime can run of that. ``step`` is the
experiment: it predicts, ``run`` trains by the same order on real ranks, and ``difference`` explains
where a measured timeline differs from the predicted one.
``pipedream_run`` is the asynchronous pipeline that never flushes. ``board`` is the widget, ``demo``
the main job without a browser, ``check`` holds the exercises. Chapter 08.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "schedule": [
            "KINDS",
            "Action",
            "Schedule",
            "key_and_need",
            "parse",
            "phases",
            "posts",
            "validate",
            "walk",
        ],
        "zero_bubble": [
            "automatic",
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
            "zero_bubble_h2",
        ],
        "simulation": [
            "Cost",
            "bubble_formula",
            "in_flight",
            "own_bubble",
            "simulate",
            "steady",
        ],
        "runtime": [
            "TORCH_CLASSES",
            "cost",
            "refusal",
        ],
        "difference": [
            "CAUSES",
            "gap_us",
            "message_us",
            "overheads_us",
            "residual",
            "words",
        ],
        "step": [
            "Step",
            "Training",
        ],
    },
)
