"""Beyond one machine: a practice cluster on this one, and what is asked of any cluster.

``one_machine`` has the practice cluster: ``up_run`` starts and removes it, as ``plan`` lays it out,
nodes in network namespaces (``network_run``), joined by a link of stated bandwidth and latency
(``relay_run``), with Debian's Slurm on them (``slurm_run``). ``things_run`` notes what was made.

``examine_run`` asks every rank of any cluster who it is and how fast it reaches the others: a
``matrix``. ``check`` and ``hints.json`` are the exercises.
``two_level`` does an all-reduce three ways, ``node_loss_run`` lets a node die, ``commands_run``
runs a line of shell on every node. Chapter 17.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "one_machine.plan": ["Layout"],
        "commands_run": ["run_on_nodes"],
        "examine_run": ["examine"],
        "two_level_run": ["all_reduces"],
        "node_loss_run": ["lose_node"],
        "matrix": ["Matrix", "slow_links"],
        "one_machine.network_run": ["slow"],
        "one_machine.up_run": ["down", "place", "renew", "status", "up"],
    },
)
