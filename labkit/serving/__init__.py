"""Inference on several ranks: answers token by token, and many requests at once. Chapter 16.

``kv_cache`` says what is kept of each token, in bytes, and how many requests fit; ``phases`` what
prefill and decode wait for on a GPU. ``Generation`` has a small transformer answer with a KV cache
on real ranks, cut by tensor parallelism or as a pipeline, token by token as one process does.
``Load`` is a server: requests come by chance, ``queue`` has the policies, static and continuous
batching, and the server's loop; ``Served`` is what became of the requests, simulated or measured.
``batching_run`` is that loop on real ranks, ``dispatch_run`` a model partly on disk (accelerate).
``board`` is the widget, ``check`` holds the exercises.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["dispatch_run", "kv_cache", "phases", "queue"],
    submod_attrs={
        "generation": ["Generation"],
        "load": ["Load"],
        "served": ["Served"],
    },
)
