"""Answers token by token on real ranks, with a KV cache, held against one process without one.

    run = serving.Generation(way="pipeline", ranks=2, stage_ms=10).run()
    run[1]["tokens"], run[1]["num_differing"]
    run.timeline()          # of a pipeline: who computes which microbatch's token, and when

Each rank's heads are cut by ``cached_run``; a pipeline's stages hand the stream on, and the last
one hands the tokens back to the first.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import model
from labkit.measure import memory, trace, traffic
from labkit.measure.pace import Pace
from labkit.serving import cached_run
from labkit.serving.cached_run import CachedModel
from labkit.serving.generation import KIND, Generation
from labkit.shards import Shards, from_rows

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0


class Timed(NamedTuple):
    """Answers, and what they took."""

    tokens: list[list[int]]
    """of each request"""
    prefill_us: float
    """for one token of one prompt"""
    decode_us: float
    """for one more token of one request"""
    calls: dict[str, dict[str, int]]
    """phase -> collective -> how often, in the prefill and in one step of decoding"""
    payload_bytes: dict[str, dict[str, int]]
    """phase -> collective -> bytes handed in"""


def start(asked: Generation) -> "Job":
    """Answers in the background. ``run()`` starts it and waits."""
    from labkit.launching import launcher

    return launcher.start(_answer, asked, ranks=asked.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def _answer(asked: Generation) -> dict:
    """One rank."""
    torch.set_num_threads(1)  # the matrices are small
    me = dist.get_rank()
    whole = cached_run.transformer(asked.layers, asked.dim, asked.heads, asked.kept, asked.seed)
    prompts_BT, _ = model.story_tokens(asked.requests, asked.prompt, seed=asked.seed)
    made = _part(asked, whole, me)
    before_bytes = memory.allocated_bytes()
    made.keep(asked.requests, asked.kept)
    after_bytes = memory.allocated_bytes()
    if asked.way == "pipeline":
        found = _pipelined(asked, made, prompts_BT)
    else:
        found = _together(asked, made, prompts_BT)
    due = [cached_run.without_cache(whole, each, asked.output) for each in prompts_BT]
    differing = [mine != right for mine, right in zip(found.tokens, due, strict=False)]
    is_known = before_bytes is not None and after_bytes is not None
    return {
        "tokens": found.tokens,
        "num_differing": sum(differing),
        "shards": _shards(asked, made, me),
        "cache_bytes": made.cache_bytes,
        "allocated_bytes": after_bytes - before_bytes if is_known else None,
        "prefill_us": found.prefill_us,
        "decode_us": found.decode_us,
        "calls": found.calls,
        "payload_bytes": found.payload_bytes,
    }


def _part(asked: Generation, whole: model.Transformer, me: int) -> CachedModel:
    """This rank's layers and heads, still without a cache."""
    layers = list(whole.layers)
    if asked.way == "pipeline":
        layers = list(model.split(whole, asked.ranks)[me])
    num_ranks, rank = (asked.ranks, me) if asked.way == "tensor" else (1, 0)
    return CachedModel(layers, num_ranks, rank)


def _together(asked: Generation, made: CachedModel, prompts_BT: Tensor) -> Timed:
    """All requests in one batch, on every rank alike."""
    slots = range(asked.requests)
    starts = [0] * asked.requests
    dist.barrier()
    began_s = time.perf_counter()
    with traffic.count() as in_prefill:
        following_B = made.next_tokens(prompts_BT, slots, starts)
        answers = [following_B.tolist()]
    prefilled_s = time.perf_counter()
    counted = []
    for step in range(asked.output - 1):
        starts = [asked.prompt + step] * asked.requests
        with traffic.count() as in_step:
            following_B = made.next_tokens(following_B[:, None], slots, starts)
            answers.append(following_B.tolist())
        counted.append(in_step)
    decoded_s = time.perf_counter()
    phases = {"prefill": in_prefill, "decode": counted[-1] if counted else traffic.Counted()}
    return Timed(
        tokens=[list(each) for each in zip(*answers, strict=True)],
        prefill_us=1e6 * (prefilled_s - began_s) / (asked.requests * asked.prompt),
        decode_us=_per_token_us(asked, decoded_s - prefilled_s),
        calls={name: dict(each.calls) for name, each in phases.items()},
        payload_bytes={name: dict(+each.payload_bytes) for name, each in phases.items()},
    )


def _per_token_us(asked: Generation, seconds: float) -> float:
    """For one more token of one request."""
    return 1e6 * seconds / max(1, asked.requests * (asked.output - 1))


def _pipelined(asked: Generation, made: CachedModel, prompts_BT: Tensor) -> Timed:
    """Microbatches one behind another through the stages; the tokens' way back is a message too."""
    groups = torch.arange(asked.requests).tensor_split(asked.microbatches)
    stage = _Stage(asked, made)
    times_s = []
    with trace.record(operators=False):
        dist.barrier()
        for step in range(asked.output):
            times_s.append(time.perf_counter())
            for number, group in enumerate(groups):
                tokens_BT = prompts_BT[group] if step == 0 else None
                stage.take(number, group.tolist(), step, tokens_BT)
        stage.finish(len(groups))
        times_s.append(time.perf_counter())
        dist.barrier()  # or who is through writes its recording while others still compute
    decode_s = times_s[-1] - times_s[1] if asked.output > 1 else 0.0
    return Timed(
        tokens=list(stage.answers()),
        prefill_us=1e6 * (times_s[1] - times_s[0]) / (asked.requests * asked.prompt),
        decode_us=_per_token_us(asked, decode_s),
        calls={},
        payload_bytes={},
    )


class _Stage:
    """What a rank of the pipeline does with a microbatch: takes it in, computes, hands it on."""

    def __init__(self, asked: Generation, made: CachedModel) -> None:
        self.asked = asked
        self.made = made
        self.me = dist.get_rank()
        self.last = asked.ranks - 1
        self.pace = Pace()
        self.sent: list = []
        self.chosen: dict[int, list[list[int]]] = {}
        if asked.stage_ms:
            from labkit.launching import rank

            rank.current().note("paced")

    def take(self, number: int, slots: list[int], step: int, tokens_BT: Tensor | None) -> None:
        """One token of a microbatch, or its prompts."""
        asked = self.asked
        num_tokens = asked.prompt if step == 0 else 1
        x = self._received(len(slots), num_tokens, tokens_BT)
        starts = [0 if step == 0 else asked.prompt + step - 1] * len(slots)
        with self.pace.taking(f"{self.me}F{number}", 1e3 * asked.stage_ms):
            y = self.made.through(x, slots, starts)
            if self.me == self.last:
                y = cached_run.likeliest(y)
        if self.me < self.last:
            self._send(y, self.me + 1)
            return
        for slot, token in zip(slots, y.tolist(), strict=True):
            self.chosen.setdefault(slot, []).append(token)
        self._send(y, 0)

    def _received(self, num: int, num_tokens: int, tokens_BT: Tensor | None) -> Tensor:
        """What the stage before hands on; on the first, the tokens: the prompts, or the last one's
        choice."""
        if self.me:
            x = torch.empty(num, num_tokens, self.asked.dim)
            dist.recv(x, self.me - 1)
            return x
        if tokens_BT is not None:
            return tokens_BT
        return self._back(num)[:, None]

    def _back(self, num: int) -> Tensor:
        """The tokens that the last stage chose for this microbatch, (B,)."""
        tokens = torch.empty(num, dtype=torch.int64)
        dist.recv(tokens, self.last)
        return tokens

    def _send(self, x: Tensor, other: int) -> None:
        x = x.contiguous()
        self.sent.append((dist.isend(x, other), x))

    def finish(self, num_groups: int) -> None:
        """Takes in the last tokens, which nobody needs, and waits until all is sent."""
        if self.me == 0:
            for group in torch.arange(self.asked.requests).tensor_split(num_groups):
                self._back(len(group))
        for work, _ in self.sent:
            work.wait()

    def answers(self) -> Iterator[list[int]]:
        """The tokens of each request; none but on the last stage."""
        for slot in sorted(self.chosen):
            yield self.chosen[slot]


def _shards(asked: Generation, made: CachedModel, me: int) -> Shards:
    """Which elements the live caches hold, by the sizes of their storages."""
    rows = []
    first = asked.held_heads(me).start * asked.requests * asked.kept * asked.shape().width
    names = []
    for layer in asked.stage(me):
        names += [f"layer {layer} keys", f"layer {layer} values"]
    for name, each in zip(names, made.caches(), strict=True):
        size = each.untyped_storage().nbytes() // each.element_size()
        rows.append((me, KIND, name, first, first + size, "float32", "device"))
    notes = memory.backend_notes()
    return from_rows(rows, num_ranks=asked.ranks, origin="measured", notes=notes)
