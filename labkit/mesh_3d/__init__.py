"""All axes at once: a model's layers cut among stages of a pipeline, each layer among ranks of
tensor parallelism, and the batch among replicas that share out states or hold them whole.

``held`` says what each rank has of every weight, ``messages`` what the ranks tell one another axis
by axis, ``times`` how long that takes, as one timeline; ``limits`` which steps there are not, and
which are not run here. ``step`` is the experiment; ``run`` trains on real ranks beside one process:
``torch_run`` on one DeviceMesh, ``deepspeed_run`` on DeepSpeed's grid, ``paced_run`` at stated
times. ``picture`` draws the ranks in space, and two steps beside one another in time;
``held_picture`` what ranks hold; ``board`` is the widget. Chapter 10.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "messages": ["Counted"],
        "held_picture": ["parts"],
        "picture": ["beside", "grid"],
        "step": ["AXES", "ENGINES", "SCHEDULES", "Step"],
    },
)
