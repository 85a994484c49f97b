"""A writer for ``torch.distributed.checkpoint`` that writes no bytes twice."""

import dataclasses
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save as packed

from labkit.recovery.sealed_folder import checkpoints, write


class IncrementalWriter(dcp.HuggingFaceStorageWriter):
    """Writes each tensor into a file of its own, named after its bytes; links what a kept
    checkpoint has already."""

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> "torch.futures.Future":
        """Called by dcp: everything of the plan that this rank shall write."""
        draft = Path(self.path)
        known = {}
        for path in checkpoints(draft.parent):
            known |= {file.name: file for file in path.glob("*.safetensors")}
        for item in plan.items:
            name = item.index.fqn
            place = {"saved_offsets": list(item.tensor_data.chunk.offsets)}
            tensor = planner.resolve_data(item).detach().cpu().contiguous()
            data = packed({name: tensor}, {"DCP_SHARDING_INFO": json.dumps({name: place})})
            file = draft / f"{hashlib.sha256(data).hexdigest()}.safetensors"
            if file.name in known:
                os.link(known[file.name], file)
            else:
                write(file, data)
        return super().write_data(dataclasses.replace(plan, items=[]), planner)
