"""Profiling: who is slow, and the one change that would help most. Chapter 15."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "kinds": ["KINDS", "Slow", "slow"],
        "step": ["Step"],
    },
)
