"""The first line of a chapter: what holds from there on, set once."""

import importlib
import random
import sys
from dataclasses import dataclass

from labkit import words
from labkit.check import chapters
from labkit.devices import place
from labkit.devices.rung import Rung
from labkit.launching import launcher, settings
from labkit.machine import resources
from labkit.units import check_real, check_whole
from labkit.words import say


@dataclass(frozen=True, kw_only=True, repr=False)
class Opened:
    """What ``begin`` has set, and the machine that launches will find."""

    language: str
    """"en" or "zh\""""
    chapter: str
    """"08", or "" where none was named"""
    ranks: int
    """of a launch that names no number"""
    seed: int
    """of rank 0"""
    deadline_s: float
    """of a launch"""
    rung: str
    """what ranks stand on: "2 GPUs, nccl" or "pretend devices, 2 CPU cores, gloo" """

    def __repr__(self) -> str:
        return say(
            "{rung}. A launch has {ranks} ranks and {deadline_s:g} s, unless it says otherwise.",
            rung=self.rung,
            ranks=self.ranks,
            deadline_s=self.deadline_s,
        )


def begin(
    language: str = "en",
    *,
    chapter: str = "",
    seed: int = 0,
    deadline_s: float = 60.0,
    ranks: int = 2,
) -> Opened:
    """What a chapter's first cell says once: the language of pictures, tables, verdicts and hints;
    how many ranks a launch has and how long it may take where it does not say so itself; the seed
    of the ranks, and of this kernel's ``random``, NumPy and torch as far as they are imported; and
    the chapter, for hints and progress. The process that forks ranks starts in the background.

    Returns what it has set, which a cell may show. Raises ValueError for what can't be set.
    """
    words.spoken_in(language)
    check_whole(0, 2**32 - 1, seed=seed)
    check_real(1.0, 1e9, deadline_s=deadline_s)
    check_whole(1, 10**6, ranks=ranks)
    chosen = place.choose(ranks)
    chapters.open_chapter(chapter)
    words.use(language)
    hang_s = min(deadline_s, settings.Settings().hang_s)
    settings.change(ranks=ranks, seed=seed, timeout_s=deadline_s, hang_s=hang_s)
    _seed(seed)
    launcher.warm()
    if "ipykernel" in sys.modules:
        importlib.import_module("labkit.widgets")  # gives launches their live panel
    return Opened(
        language=language,
        chapter=chapter,
        ranks=ranks,
        seed=seed,
        deadline_s=deadline_s,
        rung=_stood_on(chosen),
    )


def _seed(seed: int) -> None:
    """Seeds what this process has imported."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def _stood_on(rung: Rung) -> str:
    """What the ranks of a usual launch stand on, in words."""
    gpus = resources.num_gpus()
    cores = resources.cores()
    if rung.name == "cuda":
        return say("{gpus} GPUs, nccl", gpus=gpus)
    if rung.name == "shared":
        return say("shared GPUs ({gpus}), gloo", gpus=gpus)
    if rung.name == "pretend":
        return say("pretend devices, {cores} CPU cores, gloo", cores=cores)
    return say("CPU, {cores} cores, gloo", cores=cores)
