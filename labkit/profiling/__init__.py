"""Profiling: who is slow, and the one change that would help most.

``graph`` is the theory: ``waits`` finds what each span of a timeline waited for, ``replay`` plays
that again, ``edit`` changes a part of it. ``shares`` says where the time went, ``advice``
(``lab.advise``) which change would help most. ``bottleneck`` is the experiment: a ``step`` that is
slow in one of ten ways (``kinds``), as a ``program`` that is simulated (``simulation``) or done on
real ranks (``run``), which does the cure as well and holds it against the advice (``proof``).
``recording`` does all this to a script of your own. ``board`` is the widget, ``check`` holds the
exercises. Chapter 15.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "advice": ["RULES", "Advice", "Change", "advise"],
        "bottleneck": ["Bottleneck"],
        "kinds": ["KINDS", "Slow", "slow"],
        "shares": ["SHARES", "Part"],
        "step": ["Step"],
        "proof": ["Proof"],
        "run": ["prove", "recorded", "slow_compute"],
    },
)
