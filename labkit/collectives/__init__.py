"""Collectives: who sends which part to whom, what that costs on a network, and the same on real
ranks.

``algorithms`` writes a collective as a plan, step by step; ``network`` says how long a plan takes
on given links, and ``calibrate`` measures the links of this machine. ``run`` executes a plan,
message by message, or calls torch's own. ``picture`` draws plans, networks and machines; ``board``
is the widget. Chapter 02.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "algorithms": [
            "ALGORITHMS",
            "Move",
            "Plan",
            "chain",
            "direct",
            "double_tree",
            "hierarchical",
            "holdings",
            "lower_bound_bytes",
            "pairwise",
            "plan",
            "received_bytes",
            "ring",
            "sent_bytes",
            "square_island",
            "star",
            "tree",
            "validate",
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
        "run": [
            "START_S",
            "execute",
            "launch",
            "library",
            "start",
        ],
    },
)
