"""Your own: a module that nobody here wrote, planned, sharded or cut, and read out beside its plan.

``step`` is the experiment: a function that makes your module and a batch, trained for a few steps
in copies (DDP), in shards (FSDP2) or in stages (torch's own pipelines), and beside it what the
planner says of its bytes (``holds``). ``run`` does it on real or pretend ranks, ``cut_run`` cuts a
module in stages where torch can trace it. ``keeps`` lists what a module keeps for its backward, and
sets runs side by side, ``inside_run`` and its picture show which operators of a function keep their
results, ``unknown`` says what labkit can't know of a module, ``waiting_run`` what recorded scripts
wait for, ``verdicts`` what fits and their tests show, and draws a fit; ``recorded_steps`` are those
of a patient clock. ``check`` and ``hints.json``
are the exercises of chapter 21, ``machine_check`` and its hints those of chapter 22. Scripts are
``profiling.recording``'s, machines ``survey``'s. Chapters 21 and 22.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "inside_picture": ["operators"],
        "inside_run": ["recorded"],
        "keeps": ["beside", "columns", "kept", "losses", "peaks"],
        "recorded_steps": ["beside_recorded", "judged_recorded", "recorded_lines"],
        "unknown": ["doubts"],
        "step": ["ENGINES", "Step", "clocked_twice", "in_turns", "out_of_memory"],
        "verdicts": ["beside_fit", "fit_lines", "fitted", "judged", "one_factor"],
        "waiting_run": ["grown", "rests_us", "split", "waited_us"],
    },
)
