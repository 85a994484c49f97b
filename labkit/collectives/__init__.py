"""Collectives: who sends which part to whom, what that costs on a network, and the same on real
ranks. Chapter 02.

``plans`` is the noun: a collective step by step, what it leaves where, how many bytes it sends.
``algorithms`` writes plans: rings, trees, hierarchies. ``network`` says how long a plan takes on
given links, by simulation, by closed forms and by a line through measured times; ``published`` has
times that others measured. ``run`` executes a plan on real ranks, message by message, or calls
torch's own; ``calibrate_run`` measures what the links of this machine do. ``picture`` draws a plan
step by step, ``network_picture`` who is linked with whom, ``topology_picture`` the inside of a
machine, ``overview`` six collectives before and after, and algorithms side by side. ``board`` is
the widget; ``check`` and ``hints.json`` are the exercises.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "calibrate_run",
        "network",
        "network_picture",
        "picture",
        "published",
        "topology_picture",
    ],
    submod_attrs={
        "plans": [
            "Message",
            "Plan",
            "holdings",
            "received_bytes",
            "sent_bytes",
            "validate",
        ],
        "algorithms": [
            "ALGORITHMS",
            "chain",
            "direct",
            "double_tree",
            "hierarchical",
            "lower_bound_bytes",
            "pairwise",
            "plan",
            "ring",
            "square_island",
            "star",
            "tree",
        ],
        "network": [
            "Fit",
            "Link",
            "Network",
            "algbw",
            "busbw",
            "busbw_factor",
            "crossover_bytes",
            "fit",
            "formula_us",
            "islands",
            "simulate",
            "time_us",
            "uniform",
        ],
        "call": ["NETWORKS", "Call"],
        "overview.picture": ["Six"],
        "overview.ways_picture": ["Ways"],
        "run": ["START_S", "execute", "launch", "library", "start"],
    },
)
