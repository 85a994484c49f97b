"""Runs that go wrong, and what finds out why. Chapter 14.

``faults`` has programs that break on purpose, one for each fault that labkit knows: it launches
them on real ranks and returns what was found. ``health`` asks ranks whether they are well: digests
that must agree, numbers that must be finite, orders that must change. ``broken_run`` launches what
is expected to fail and gives its verdict; ``picture`` draws which of its calls met, and what an
all-reduce leaves where; ``cure_run`` tries the cures for a full memory. What tells a deadlock from
a death, and finds the odd rank, is ``labkit.launching.verdicts.diagnosis``. ``check`` and
``hints.json`` are the exercises: broken runs to explain and to mend. ``start_check`` holds those of
chapter 00.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["broken_run", "cure_run", "faults", "health", "picture"]
)
