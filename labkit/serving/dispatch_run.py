"""A model larger than its device, by Hugging Face Accelerate: some layers on the device, the others
on the host or on disk, each fetched when its turn comes. Its answers are the same; its time is the
link's.

    run = lab.launch(dispatch_run.dispatched, dispatch_run.everywhere("disk"), ranks=1)
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from labkit import model
from labkit.launching import rank
from labkit.serving import cached_run

LAYERS, DIM, HEADS = 4, 64, 4
"""of the model"""
PROMPT, OUTPUT = 16, 4
"""tokens of the request"""
PLACES = ("device", "host", "disk")


def everywhere(place: str, first: int = 1) -> dict[str, str]:
    """A map of the model's layers: the first ``first`` of them on the device, the others at
    ``place``. Raises ValueError for another place."""
    if place not in PLACES:
        raise ValueError(f"a layer lies on one of {', '.join(PLACES)}; got {place!r}")
    names = [f"layers.{number}" for number in range(LAYERS + 2)]
    return {name: "device" if at < first else place for at, name in enumerate(names)}


def dispatched(places: Mapping[str, str], seed: int = 0) -> dict:
    """On a rank: answers with the model whole, then with its layers where ``places`` says
    ("layers.0" the embedding, then the blocks, the head last).

    Returns
    -------
    dict: tokens, same (whether they are those of the whole model), largest_difference (of the
    logits), disk_bytes (of the files), whole_us and dispatched_us (for one token).
    """
    from accelerate import dispatch_model

    torch.set_num_threads(1)
    whole = cached_run.transformer(LAYERS, DIM, HEADS, PROMPT + OUTPUT, seed)
    prompt_T = model.story_tokens(1, PROMPT, seed=seed)[0][0]
    due, whole_us = _timed(whole, prompt_T)
    with torch.no_grad():
        right = whole(prompt_T[None])
    device = rank.current().device
    targets = {"device": device, "host": "cpu", "disk": "disk"}
    with tempfile.TemporaryDirectory() as folder:
        parts = dispatch_model(
            whole,
            {name: targets[place] for name, place in places.items()},
            main_device=device,
            offload_dir=folder,
        )
        tokens, dispatched_us = _timed(parts, prompt_T)
        with torch.no_grad():
            apart = (parts(prompt_T[None]) - right).abs().max().item()
        sizes = [path.stat().st_size for path in Path(folder).rglob("*.dat")]
    return {
        "tokens": tokens,
        "same": tokens == due,
        "largest_difference": apart,
        "disk_bytes": sum(sizes),
        "whole_us": whole_us,
        "dispatched_us": dispatched_us,
    }


def _timed(net: model.Transformer, prompt_T: torch.Tensor) -> tuple[list[int], float]:
    """The answer, and microseconds for one token of it, after a pass that warms up."""
    cached_run.without_cache(net, prompt_T, 1)
    began_s = time.perf_counter()
    tokens = cached_run.without_cache(net, prompt_T, OUTPUT)
    return tokens, 1e6 * (time.perf_counter() - began_s) / OUTPUT
