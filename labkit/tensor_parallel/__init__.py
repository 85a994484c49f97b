"""Tensor parallelism: every layer cut among ranks, columns first and then rows, and the stream
between them cut along its tokens.

``cut`` says which slice of which weight a rank holds, ``messages`` what the ranks tell one another,
``times`` how long that takes on GPUs, by the planner. ``layer`` is the experiment; ``run`` holds
real ranks against one process: ``by_hand_run`` in two functions f and g, ``torch_run`` by DTensor,
``megatron_run`` by megatron-core. ``board`` is the widget, ``check`` holds the exercises. Chapter
09.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "cut": ["Piece", "heads", "qkv_rows", "share"],
        "layer": ["ENGINES", "Layer"],
    },
)
