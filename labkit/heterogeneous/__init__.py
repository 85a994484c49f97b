"""Unequal machines: slow and fast ranks in one training, and a network cut between an edge device
and a cloud.

``split`` is the theory of dealing a batch by speed, and ``step`` the experiment: ``run`` takes it
on real ranks at stated speeds, which a probe measures. ``join_run`` is DDP's way with ranks that
run out of batches. ``stale_run`` trains with a parameter server for so many seconds, its workers
waiting for one another or not. ``edge`` says where to cut a network, and ``edge_run`` answers
requests on two ranks over a slow link. ``board`` deals batches, ``check`` holds the exercises.
Chapter 16.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "edge": ["Cut", "every_cut", "packed_bytes"],
        "join_run": ["join"],
        "run": ["speeds"],
        "split": ["SPLITS", "by_speed", "equal", "fastest", "idle_share", "weights"],
        "stale_run": ["Training"],
        "step": ["Step"],
    },
)
