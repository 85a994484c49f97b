"""A training that outlives its nodes, as torchrun runs it: ``-m labkit.cluster.survivor_run FOLDER
STEPS``. It begins at the last checkpoint, whoever is left, and notes every step.

Gradients are added up and weights moved by hand: DDP and torch's optimizers import torch's
compiler, which would lengthen each start by more than a second."""

import os
import sys
import time
from pathlib import Path

LEARNING_RATE = 0.05
STEP_S = 0.1
"""what a step takes, so that a node can be lost in the midst"""


def main(folder: Path, steps: int) -> None:
    """Trains until ``steps``."""
    import torch
    import torch.distributed as dist

    dist.init_process_group()
    torch.manual_seed(0)  # all ranks begin alike, as one file is loaded by all
    net = torch.nn.Linear(4, 1)
    step = 0
    saved = folder / "last.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        net.load_state_dict(state["model"])
        step = state["step"]
    while step < steps:
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        net.zero_grad()
        (net(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        with torch.no_grad():
            for weight in net.parameters():
                dist.all_reduce(weight.grad)
                weight -= LEARNING_RATE / dist.get_world_size() * weight.grad
        time.sleep(STEP_S)
        step += 1
        if dist.get_rank() == 0:
            draft = saved.with_suffix(".draft")
            torch.save({"model": net.state_dict(), "step": step}, draft)
            draft.replace(saved)
            with open(folder / "steps.txt", "a") as file:
                file.write(f"{time.time()} {step} {dist.get_world_size()}\n")
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
