"""All axes at once: a model's layers cut among stages of a pipeline, each layer among ranks of
tensor parallelism, and the batch among replicas that share out states or hold them whole.

``step`` is the experiment; ``run`` trains on real ranks and holds their losses against one process.
Chapter 10.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "step": ["AXES", "ENGINES", "SCHEDULES", "Step"],
    },
)
