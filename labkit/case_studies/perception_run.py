"""The perception training on real ranks: the very step that ``perception`` predicts, its losses
held against one process that has everything.

Each part's computing takes the stated time (the real work, and sleep), each message too. Every rank
draws the same scenes and takes its own.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit import model
from labkit.case_studies.perception import CELLS, EVERY, LABELS, SHARE, WIDTH, Perception
from labkit.case_studies.sensors_run import Encoders, Fusion, Heads, Scenes, kinds, scenes
from labkit.communication.compressed_run import largest_with_feedback
from labkit.launching import rank
from labkit.measure import links, pace, trace, traffic
from labkit.timeline import COMPUTE

if TYPE_CHECKING:
    from labkit.launching.job import Job

TIMEOUT_S = 120.0
MOMENTUM = 0.9
PROBE_TRIES = 3


def start(step: Perception) -> "Job":
    """Trains at the stated pace, in the background; ``step.run()`` starts it and waits."""
    from labkit.launching import launcher

    return launcher.start(_train, step, ranks=step.ranks, timeout_s=TIMEOUT_S)


# --- in the ranks ---


def _train(step: Perception) -> dict[str, Any]:
    """One rank: what ``Perception`` says that its run returns."""
    torch.set_num_threads(1)
    rank.current().note("paced")
    part = _Part(step, dist.get_rank())
    samples_per_s = part.speed()
    step_us = []
    losses = []
    handed_in = 0
    stated = links.stated(lambda message: step.message_us(message.num_bytes), label=part.label)
    dist.barrier()
    with stated:
        for number in range(step.steps):
            last = number == step.steps - 1
            recording = trace.record(operators=False) if last else contextlib.nullcontext()
            with recording:
                began_s = time.perf_counter()
                losses.append(part.step(scenes(step.batch, seed=number), number))
                step_us.append(1e6 * (time.perf_counter() - began_s))
            handed_in += part.handed_in_bytes
    whole = torch.tensor(losses)
    dist.all_reduce(whole)
    alone = _alone(step)
    apart = max(abs(mine - due) for mine, due in zip(whole.tolist(), alone, strict=True))
    return {
        "losses": whole.tolist(),
        "losses_alone": alone,
        "loss_difference": apart,
        "step_us": step_us,
        "handed_in_bytes": handed_in,
        "weights": part.num_weights,
        "samples_per_s": samples_per_s,
        "overruns": part.pace.num_overruns,
    }


class _Part:
    """What one rank has of the net, and its part of a step."""

    def __init__(self, step: Perception, me: int) -> None:
        self._step = step
        self._rank = me
        self._copied = step.placement == "copied"
        self.pace = pace.Pace()
        self.sending = ""
        self.handed_in_bytes = 0
        torch.manual_seed(0)  # every rank draws the same weights
        encoders = model.drawn(Encoders)
        heads = model.drawn(Heads)
        fusing = step.group("fusion")
        self.encoders = encoders if me in step.group("encoders") else None
        self.fusion = None
        if me in fusing:
            self.fusion = Fusion() if self._copied else Fusion(fusing.index(me), len(fusing))
        self.heads = heads if me in step.group("heads") else None
        everything = [each for each in (self.encoders, self.fusion, self.heads) if each]
        weights = list(torch.nn.ModuleList(everything).parameters())
        self._kinds = dict(kinds(self.encoders, self.heads))
        if self._copied:
            self._kinds = {"weights": weights}
        self.num_weights = {kind: _count(weights) for kind, weights in self._kinds.items()}
        self._groups = {each: _group(step, each) for each in ("encoders", "heads")}
        self._optimizer = torch.optim.SGD(weights, step.rate, momentum=MOMENTUM)
        self._memory: dict[str, Tensor] = {}

    def label(self, message: traffic.Message) -> str:
        """What a message is called in a recording."""
        return self.sending or message.name

    def speed(self) -> float:
        """Scenes a second of this rank's encoders at its pace, the best of three; 0.0 where it has
        none."""
        if not self.encoders:
            return 0.0
        mine = self._step.scenes("encoders")[self._rank]
        seen = scenes(self._step.batch).part(mine)
        self.encoders(seen)
        best_s = float("inf")
        for _ in range(PROBE_TRIES):
            began_s = time.perf_counter()
            with self._computing("encoders", "forward"):
                self.encoders(seen)
            best_s = min(best_s, time.perf_counter() - began_s)
        return len(mine) / best_s

    def step(self, seen: Scenes, number: int) -> float:
        """One update; this rank's part of the loss."""
        features = self._encode(seen)
        whole = self._handed_on("features", features.detach()).requires_grad_()
        with self._computing("fusion", "forward"):
            partial = self.fusion(whole) if self.fusion else None
        mine = torch.zeros(self._step.batch, CELLS, WIDTH) if partial is None else partial.detach()
        fused = self._handed_on("features", mine)
        loss, gradient = self._judge(fused, seen)
        gradient = self._handed_on("features", gradient)
        whole_gradient = torch.zeros_like(whole)
        with self._computing("fusion", "backward"):
            if partial is not None:
                partial.backward(gradient)
                whole_gradient = whole.grad
        whole_gradient = self._handed_on("features", whole_gradient)
        with self._computing("encoders", "backward"):
            if self.encoders:
                features.backward(whole_gradient)
        self._exchange(number)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if number % EVERY == EVERY - 1:
            self._average_late()
        return loss

    def _encode(self, seen: Scenes) -> Tensor:
        """Features of the whole batch, those of other ranks 0; copied, this rank's alone."""
        whole = torch.zeros(self._step.batch, CELLS + 2, WIDTH)
        with self._computing("encoders", "forward"):
            if self.encoders:
                mine = self._step.scenes("encoders")[self._rank]
                made = self.encoders(seen.part(mine))
                whole = made if self._copied else _placed(made, mine, self._step.batch)
        return whole

    def _judge(self, fused: Tensor, seen: Scenes) -> tuple[float, Tensor]:
        """This rank's part of the loss, and of its gradient for the fusion's output."""
        if not self.heads:
            return 0.0, torch.zeros_like(fused)
        given = fused.requires_grad_()
        mine = self._step.scenes("heads")[self._rank]
        with self._computing("heads", "forward"):
            part = given if self._copied else given[mine.start : mine.stop]
            loss = self.heads(part, seen.part(mine)) / self._step.batch
        with self._computing("heads", "backward"):
            loss.backward()
        return loss.item(), given.grad

    @contextlib.contextmanager
    def _computing(self, part: str, way: str) -> Iterator[None]:
        """A block that takes what this rank needs for a part of the net, recorded."""
        stated_us = self._step.compute_us(part, way, self._rank)
        if self._rank not in self._step.group(part):
            yield
            return
        start_ns = time.time_ns()
        with self.pace.taking("", stated_us):
            yield
        trace.span(way, LABELS[part], start_ns, time.time_ns(), lane=COMPUTE)

    def _handed_on(self, label: str, mine: Tensor) -> Tensor:
        """The sum over all ranks; copied, each keeps its own."""
        whole = mine.contiguous().clone()
        if self._copied:
            return whole
        self.sending = label
        dist.all_reduce(whole)
        return whole

    # --- gradients ---

    def _exchange(self, number: int) -> None:
        """Each kind's gradients, summed over the ranks that have it, by its way."""
        with traffic.count() as counted:
            for kind, weights in self._kinds.items():
                self.sending = kind
                group = self._groups["heads" if kind == "heads" else "encoders"]
                way = self._step.policy.get(kind, "exact")
                flat = torch.cat([weight.grad.flatten() for weight in weights])
                _put([weight.grad for weight in weights], self._sent(kind, way, flat, group))
        self.handed_in_bytes = counted.payload_bytes.total()

    def _sent(self, kind: str, way: str, flat: Tensor, group: Any) -> Tensor:
        """What comes of this rank's flat gradient."""
        num_ranks = dist.get_world_size(group)
        if num_ranks == 1:
            return flat
        if way == "late":
            return flat * num_ranks  # as if all ranks had the same
        if way == "top-k":
            memory = self._memory.get(kind, torch.zeros_like(flat))
            kept = max(1, int(SHARE * len(flat)))
            mean, self._memory[kind] = largest_with_feedback(flat, memory, kept)
            return mean * num_ranks
        message = flat.half() if way == "fp16" else flat
        dist.all_reduce(message, group=group)
        return message.float()

    def _average_late(self) -> None:
        """The weights of what travels late, averaged."""
        for kind, weights in self._kinds.items():
            if self._step.policy.get(kind) == "late":
                flat = torch.cat([weight.detach().flatten() for weight in weights])
                self.sending = kind
                with traffic.count() as counted:
                    dist.all_reduce(flat)
                self.handed_in_bytes += counted.payload_bytes.total()
                _put([weight.data for weight in weights], flat / dist.get_world_size())


def _count(weights: list[Tensor]) -> int:
    return sum(weight.numel() for weight in weights)


def _group(step: Perception, part: str) -> Any:
    """The process group of a part; None: everybody. All ranks make it."""
    return dist.new_group(list(step.group(part))) if step.placement == "apart" else None


def _placed(made: Tensor, mine: range, batch: int) -> Tensor:
    """Some scenes' features among zeros for the others."""
    before = made.new_zeros(mine.start, *made.shape[1:])
    after = made.new_zeros(batch - mine.stop, *made.shape[1:])
    return torch.cat([before, made, after])


def _put(targets: list[Tensor], flat: Tensor) -> None:
    """A flat tensor into others, in order."""
    start = 0
    for target in targets:
        target.copy_(flat[start : start + target.numel()].view_as(target))
        start += target.numel()


def _alone(step: Perception) -> list[float]:
    """The losses of one process that has the whole net and the whole batches."""
    torch.manual_seed(0)
    encoders = model.drawn(Encoders)
    heads = model.drawn(Heads)
    fusion = Fusion()
    weights = [*encoders.parameters(), *fusion.parameters(), *heads.parameters()]
    optimizer = torch.optim.SGD(weights, step.rate, momentum=MOMENTUM)
    losses = []
    for number in range(step.steps):
        seen = scenes(step.batch, seed=number)
        loss = heads(fusion(encoders(seen)), seen) / step.batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


Trained = Callable[[Perception], dict]
