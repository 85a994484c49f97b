"""Hands: controls around pictures. ``show`` a picture, ``timeline`` of any run, and a board for each subject.

Importing it in a notebook also gives every launch that takes longer than a second its live panel.
"""

from labkit.widgets.ddp import ddp_communication
from labkit.widgets.live import install
from labkit.widgets.picture import show
from labkit.widgets.pipeline import pipeline_parallelism
from labkit.widgets.primitives import collectives
from labkit.widgets.usage import timeline

__all__ = ["collectives", "ddp_communication", "pipeline_parallelism", "show", "timeline"]
install()
