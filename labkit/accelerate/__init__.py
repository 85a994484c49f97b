"""Accelerate: one loop for DDP, FSDP and DeepSpeed.

``update`` is the theory of an update: which collectives each line of the loop calls under each
engine, and where the weights change. ``engines`` builds the Accelerator of an engine in a rank, on
its device; ``run`` runs the usual loop and looks at every line of an update, and ``described`` says
what ``prepare`` changed. ``script_run`` runs a script with what ``accelerate launch`` would tell,
compares and counts the weights of runs. ``dealing_run`` deals samples out and ``dealing_picture``
draws it; ``picture`` draws an update, predicted and measured; ``board`` is the widget; ``check``
holds the exercises (an epoch's numbers, the same loop for every engine, accumulation with clipping,
an exact accuracy). Chapter 04.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "dealing_picture": [
            "draw_deal",
        ],
        "dealing_run": [
            "deal",
        ],
        "engines": [
            "ENGINES",
            "accelerator",
            "find_device",
        ],
        "run": [
            "described",
            "step",
        ],
        "script_run": [
            "beside",
            "environment",
            "moved",
            "numel",
            "run_script",
            "start_script",
        ],
        "update": [
            "LINES",
            "SHAPE",
            "Update",
            "differing",
        ],
    },
)
