"""The kit of exercises: an answer is tried on cases it has not seen, and gets a verdict.

A notebook opens its chapter's own file: ``from labkit.pipeline import check``. Then
``check.<exercise>(answer)`` gives a Verdict and never raises (only the stop button stops it),
``check.hint("<exercise>")`` tells more after each attempt, and ``check.status()`` prints where you
stand: the exercises of the chapter that ``lab.begin`` has named, else of every subject that the
kernel has loaded.

``exercises`` registers them, keeps their history and gives the hints, which lie beside each
subject's check as ``hints.json``, or as ``spare_hints.json`` where an exercise is on no page.
``verdict`` is what becomes of an answer, in English or Chinese. ``grading`` is what graders use:
ranks, limits of time, faults in words.

What a reader types beside that: ``opening`` is ``lab.begin``, the first line of a chapter;
``guesses`` is ``lab.guess``, with its ``guess_field``; ``standing`` is ``lab.progress``. ``record``
keeps attempts and guesses beyond the kernel, ``chapters`` knows which exercises a chapter has.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "exercises": ["exercise", "hint", "status"],
        "grading": ["faults", "limit", "on_ranks", "over_budget", "trace", "unlike", "wrong"],
        "verdict": ["Verdict"],
    },
)
