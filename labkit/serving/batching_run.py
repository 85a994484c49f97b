"""A server on real ranks: requests come by the machine's clock, forwards are real, and the loop is
``queue.serve``, the one that is simulated.

Rank 0 has the queue and the clock. What it decides, a prefill or a step, it broadcasts, and all
ranks compute it together, each its heads.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import model
from labkit.measure.pace import Pace, sleep_until
from labkit.serving import cached_run, queue
from labkit.serving.cached_run import CachedModel
from labkit.serving.load import Load
from labkit.serving.queue import POLICIES, Policy, Request, Visit

if TYPE_CHECKING:
    from labkit.launching.job import Job

LAYERS, DIM, HEADS = 2, 64, 4
"""of the model that answers"""
END, PREFILL, DECODE = 0, 1, 2
"""what rank 0 tells the others"""
TIMEOUT_S = 120.0


def start(load: Load) -> "Job":
    """The server, in the background. ``load.run()`` starts it and waits."""
    from labkit.launching import launcher

    return launcher.start(serve_on_ranks, load, ranks=load.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def serve_on_ranks(load: Load, policy: Policy | None = None) -> dict:
    """One rank's part of serving a load; ``Load`` says what it returns. ``policy``: another one
    than the load names."""
    from labkit.launching import rank

    torch.set_num_threads(1)  # the matrices are small
    if load.paced:
        rank.current().note("paced")
    whole = cached_run.transformer(LAYERS, DIM, HEADS, load.longest(), load.seed)
    prompts, _ = model.story_tokens(load.requests, load.prompt, seed=load.seed)
    server = _Server(load, whole, prompts)
    visits = server.lead(policy or POLICIES[load.policy]) if not server.me else server.follow()
    differing = 0
    for number, tokens in server.answers.items():
        differing += tokens != cached_run.without_cache(whole, prompts[number], len(tokens))
    return {
        "tokens": dict(sorted(server.answers.items())),
        "num_differing": differing,
        "cache_bytes": server.made.cache_bytes,
        "overruns": server.pace.num_overruns,
        "times_us": [tuple(each) for each in visits],
    }


class _Server:
    """A rank's model and cache, and on rank 0 the clock; ``queue.Floor``."""

    def __init__(self, load: Load, whole: model.Transformer, prompts: Tensor) -> None:
        self.load = load
        self.cost = load.cost()
        self.coming = load.coming()
        self.prompts = prompts
        self.me = dist.get_rank()
        self.made = CachedModel(list(whole.layers), load.ranks, self.me)
        self.made.keep(load.slots, load.longest())
        self.pace = Pace()
        self.answers: dict[int, list[int]] = {}
        self.inside: dict[int, int] = {}  # slot -> request
        self.begins_s = 0.0

    def lead(self, policy: Policy) -> list[Visit]:
        """Rank 0: serves all, then sends the others home."""
        self._warm()
        patience_us = 1e3 * self.load.patience_ms
        self.begins_s = time.perf_counter()
        try:
            return queue.serve(self.coming, policy, self.load.slots, self, patience_us)
        finally:
            self._tell(END, [])

    def follow(self) -> list[Visit]:
        """The others: do as rank 0 says."""
        self._warm()
        while True:
            what, told = self._told()
            if what == END:
                return []
            if what == PREFILL:
                self._fill(self.coming[told[0]], told[1])
            else:
                self._step(told)

    def _warm(self) -> None:
        """Connects the ranks before the first request comes: a pass over a prompt, forgotten."""
        self.made.next_tokens(self.prompts[:1], [0], [0])
        dist.barrier()

    # --- what rank 0's queue asks for ---

    def now_us(self) -> float:
        """Since the server's start."""
        return 1e6 * (time.perf_counter() - self.begins_s)

    def wait(self, until_us: float) -> None:
        """Asleep."""
        sleep_until(self.begins_s + 1e-6 * until_us)

    def prefill(self, request: Request, slot: int) -> None:
        """On all ranks, at its pace."""
        with self._taking(self.cost.prompt_us(request.prompt)):
            self._tell(PREFILL, [request.number, slot])
            self._fill(request, slot)

    def decode(self, slots: Sequence[int]) -> None:
        """On all ranks, at its pace."""
        with self._taking(self.cost.decode_us(len(slots))):
            self._tell(DECODE, slots)
            self._step(slots)

    def _taking(self, stated_us: float) -> contextlib.AbstractContextManager:
        return self.pace.taking("", stated_us if self.load.paced else 0.0)

    # --- what every rank does ---

    def _fill(self, request: Request, slot: int) -> None:
        """The prompt into a slot; the first token."""
        prompt = self.prompts[request.number : request.number + 1]
        first = self.made.next_tokens(prompt, [slot], [0])
        self.inside[slot] = request.number
        self.answers[request.number] = first.tolist()

    def _step(self, slots: Sequence[int]) -> None:
        """A token for each slot. Who is done is computed as well, as in a padded batch, and its
        token forgotten."""
        asked = [self.coming[self.inside[slot]] for slot in slots]
        starts = []
        latest = []
        for each in asked:
            tokens = self.answers[each.number]
            latest.append(tokens[-1])
            starts.append(min(self.load.prompt + len(tokens), self.load.longest()) - 1)
        following = self.made.next_tokens(torch.tensor(latest)[:, None], slots, starts)
        for each, token in zip(asked, following.tolist(), strict=True):
            if len(self.answers[each.number]) < each.output:
                self.answers[each.number].append(token)

    def _tell(self, what: int, numbers: Sequence[int]) -> None:
        """Rank 0: one broadcast."""
        told = [what, len(numbers), *numbers]
        padded = told + [0] * (2 + max(2, self.load.slots) - len(told))
        dist.broadcast(torch.tensor(padded), 0)

    def _told(self) -> tuple[int, list[int]]:
        """The others: what rank 0 broadcast."""
        heard = torch.zeros(2 + max(2, self.load.slots), dtype=torch.int64)
        dist.broadcast(heard, 0)
        what, num, *numbers = heard.tolist()
        return what, numbers[:num]
