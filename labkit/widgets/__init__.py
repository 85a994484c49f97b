"""Hands: controls around pictures. ``show`` a Scene, ``timeline`` of any run, ``pipeline_parallelism``.

Importing it in a notebook also gives every launch that takes longer than a second its live panel.
"""

from labkit.widgets.live import install
from labkit.widgets.picture import show
from labkit.widgets.pipeline import pipeline_parallelism
from labkit.widgets.usage import timeline

__all__ = ["pipeline_parallelism", "show", "timeline"]
install()
