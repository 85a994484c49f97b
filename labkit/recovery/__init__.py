"""Checkpoints that survive, and training that goes on after a rank has died. Chapter 13.

``checkpoint`` saves and loads a training run: plain, sharded, incremental, in the background, into
another number of ranks or another engine. It has three parts, each of which can be read alone:
``training_state`` is what a checkpoint must hold, ``sealed_folder`` how it is written so that a
killed save does no harm (a hidden name, a digest of every file, one rename), ``incremental`` how
nothing is written twice. All of these run in ranks. ``how_often`` is what saving and failing cost,
with a board; ``Resharding`` draws who reads what, ``interval`` what a failure costs;
``saving_run`` is a training that keeps its times; ``die_in_save`` kills a rank while it saves,
and ``left_by_a_kill`` tells what is left then;
``restart_s`` is how long torchrun takes to come back.
``disturbed_check`` is a training whose ranks are killed at given moments, for the last exercise;
``check`` and ``hints.json`` are the exercises.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=["checkpoint", "how_often", "saving_run"],
    submod_attrs={
        "killed_run": ["die_in_save", "left_by_a_kill"],
        "resharding_picture": ["Resharding"],
        "restarted_run": ["restart_s"],
        "strip_picture": ["Strip", "interval"],
        "checkpoint": [
            "KINDS",
            "about",
            "checkpoints",
            "fault",
            "load",
            "parts_s",
            "save",
            "save_async",
            "spent_s",
            "thread_group",
            "whole",
        ],
    },
)
