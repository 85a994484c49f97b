"""Which model needs which machine: the bill of a model, and the strategies that make it fit.

``models`` is the catalogue of models and GPUs, as published, with what training one takes. ``need``
is the bill of a small model to the byte, ``need_run`` reads it out of two real ranks and
``need_board`` shows it beside the large one's. ``strategies`` says who holds and sends what under
data parallelism, sharded states, model parallelism and a hybrid; ``strategies_run`` trains by each
on real ranks, ``strategies_board`` is the widget. ``links`` counts the bytes over each link of a
plan. ``picture`` draws bills, strategies and architectures; ``check`` holds the exercises.
``real.blocks_run`` has blocks whose kept bytes a reader counts. Chapter 01.

``plan`` is the planner: a model, a cluster and a layout in; memory, time, days and money out, and
the search for the best layout; its ``board`` is the widget, ``memory_bars`` and ``time_bars`` draw
plans under each other, ``mesh`` says where ranks lie. ``card_picture`` puts two plans side by side.
``measured`` reads a module of your own, ``rehearse`` runs one rank of a plan with fake tensors,
``speeds`` reads what this machine reaches. ``trust`` fits its constants on measured rows and judges
it on others. Chapters 18 and 19: ``plan_check`` and ``trust_check`` hold their exercises.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "card_picture": [
            "card",
        ],
        "links": [
            "both_ways_bytes",
            "carried_bytes",
            "crossing_bytes",
        ],
        "models": [
            "DEVICES",
            "MODELS",
            "PARTS",
            "TFLOPS",
            "Model",
        ],
        "need": [
            "RECIPES",
            "Need",
            "cards",
            "small_bill",
        ],
        "plan.cluster": [
            "Cluster",
            "Gpu",
            "gpu",
        ],
        "real.blocks_run": [
            "KINDS",
            "block",
        ],
        "real.counted": [
            "Counted",
        ],
        "real.fake_run": [
            "rehearse",
        ],
        "real.here_run": [
            "speeds",
        ],
        "plan.layout": [
            "Layout",
        ],
        "real.module_run": [
            "measured",
        ],
        "plan.picture": [
            "memory_bars",
            "mesh",
            "time_bars",
        ],
        "plan.plan": [
            "Plan",
        ],
        "plan.plan_board": [
            "board",
        ],
        "plan.search": [
            "search",
        ],
        "plan.shape": [
            "Shape",
        ],
        "plan.stacks": [
            "STACKS",
            "Stack",
        ],
        "picture": [
            "architectures",
            "holders",
            "stacked",
        ],
        "strategies": [
            "STRATEGIES",
            "Strategy",
            "costs",
            "num_stages",
            "predicted",
        ],
        "strategies_board": [
            "ways",
        ],
        "trust.fit": [
            "fit",
            "predicted_us",
        ],
        "trust.rows": [
            "load",
        ],
        "trust.validate": [
            "megatron_runs",
            "validate",
        ],
    },
)
