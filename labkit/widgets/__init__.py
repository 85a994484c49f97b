"""Hands: controls around pictures. ``show`` a picture, ``timeline`` of any run, and a board for each subject.

Importing it in a notebook also gives every launch that takes longer than a second its live panel.
"""

from labkit.widgets.crossing import architectures
from labkit.widgets.ddp import ddp_communication
from labkit.widgets.fsdp import fsdp_sharding
from labkit.widgets.live import install, report
from labkit.widgets.need import training_need
from labkit.widgets.picture import show
from labkit.widgets.pipeline import pipeline_parallelism
from labkit.widgets.primitives import collectives
from labkit.widgets.strategy import strategies
from labkit.widgets.trace import trace
from labkit.widgets.usage import timeline
from labkit.widgets.zero import offload_flow, zero_stages

__all__ = ["architectures", "collectives", "ddp_communication", "fsdp_sharding", "offload_flow",
           "pipeline_parallelism", "report", "show", "strategies", "timeline", "trace", "training_need", "zero_stages"]
install()
