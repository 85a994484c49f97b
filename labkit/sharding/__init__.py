"""Model states in parts: ZeRO and FSDP, what each rank holds, sends and needs at every moment of a
step.

``states`` is the bill by formula, ``partition`` says which slice lies where; ``moments`` adds what
a step needs on top, by what its ``layers`` keep and what the engine does in its ``phases``.
``step`` is the experiment, ``run`` trains it with the real engine; ``engines`` reads what each rank
of it holds. Boards and exercises are in ``labkit.zero`` (chapter 06) and ``labkit.fsdp`` (chapter
07).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "engines": ["claim", "shards"],
        "run": ["Trainer", "deepspeed_config", "timeline", "wrap"],
        "step": ["ENGINES", "Step"],
    },
)
