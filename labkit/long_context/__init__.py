"""Long sequences: attention over tokens that lie on several ranks (context parallelism).

``pieces`` is the theory: which pieces of the sequence a rank holds, which pairs of pieces it
multiplies in which round, what it sends, what it keeps; and the pass simulated at stated times.
``attention`` is the experiment; ``ring_run`` is ring attention by hand, ``ulysses_run`` the way
with all-to-all, ``deepspeed_run`` the same by DeepSpeed, ``run`` takes all on real ranks and holds
them against one process. ``board`` is
the widget.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "attention": [
            "Attention",
        ],
        "pieces": [
            "dealt",
            "rounds",
        ],
    },
)
