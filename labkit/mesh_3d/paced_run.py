"""A step at its stated times: a stage computes as long as it is told to, and every message takes as
long as its link needs for it.

Tensor parallelism speaks within a stage's forward and backward: what a chunk is stated to compute
is dealt evenly to the pieces between its messages.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from labkit.launching import rank
from labkit.measure import links, trace
from labkit.measure.labels import replaced
from labkit.measure.pace import Pace
from labkit.measure.traffic import Message
from labkit.mesh_3d.run import axis_of
from labkit.mesh_3d.step import Step
from labkit.mesh_3d.times import BACKWARD
from labkit.timeline import COMPUTE


@contextlib.contextmanager
def stated(step: Step, stage: Any) -> Iterator[Pace]:
    """The step's times, of a stage and of all links of this rank, while the block runs; what was
    late is counted in the pace."""
    me = dist.get_rank()

    def axis(message: Message) -> str:
        return axis_of(step.mesh, me, message.ranks)

    def time_us(message: Message) -> float | None:
        along = axis(message)
        if message.name == "barrier" or along == "world":
            return None
        return step.message_us(message.name, along, message.num_bytes)

    def label(message: Message) -> str:
        ways = {"send": f"{me}>{message.peer}", "recv": f"{message.peer}>{me}"}
        return ways.get(message.name, axis(message))

    num_messages = _num_messages(step, stage)
    clock = _Chunks(stage.stage_index, 1e3 * step.forward_ms, num_messages, axis)
    rank.current().note("paced")
    methods = {
        "forward_one_chunk": clock.chunk(stage.forward_one_chunk, "F"),
        "backward_one_chunk": clock.chunk(stage.backward_one_chunk, "B"),
    }
    with (
        replaced(stage, **methods),
        links.stated(time_us, label=label, around=clock.around) as late,
    ):
        yield late
    late.num_overruns += clock.pace.num_overruns


def _num_messages(step: Step, stage: Any) -> int:
    """Of tensor parallelism, in a forward or a backward of a stage: attention and MLP have one
    each, in every block."""
    from labkit import model

    blocks = [each for each in stage.submod if isinstance(each, model.Block)]
    return 2 * len(blocks) if step.tp > 1 else 0


class _Chunks:
    """What a stage computes, at its pace."""

    def __init__(
        self, stage: int, forward_us: float, num_messages: int, axis: Callable[[Message], str]
    ) -> None:
        self.pace = Pace()
        self._stage = stage
        self._forward_us = forward_us
        self._pieces = max(1, num_messages)
        self._axis = axis
        self._name: tuple[str, str] | None = None  # kind and label of the chunk under way
        self._piece_us = 0.0  # what each piece of it is stated to take
        self._left = 0  # pieces that are to come
        self._start_s = 0.0  # when the piece began, later by as long as it stood still
        self._since_ns = 0  # when it began or went on

    def chunk(self, method: Callable, kind: str) -> Callable:
        """The method of the stage, at its pace."""

        @functools.wraps(method)
        def paced(index: int, *args: Any, **kwargs: Any) -> Any:
            total_us = self._forward_us * (1 if kind == "F" else BACKWARD)
            self._name = (kind, f"{self._stage}{kind}{index}")
            self._piece_us = total_us / self._pieces
            self._left = self._pieces
            self._begin()
            made = method(index, *args, **kwargs)
            self._end()
            self._name = None
            return made

        return paced

    @contextlib.contextmanager
    def around(self, message: Message) -> Iterator[None]:
        """Around a message: one of tensor parallelism ends a piece and the next begins after it;
        while any other goes on the piece stands still."""
        if self._name is None:
            yield
            return
        ends = self._axis(message) == "tp"
        stopped_s = time.perf_counter()
        if ends:
            self._end()
        else:
            self._draw()
        yield
        if ends:
            self._begin()
        else:
            self._start_s += time.perf_counter() - stopped_s
            self._since_ns = time.time_ns()

    def _begin(self) -> None:
        self._start_s = time.perf_counter()
        self._since_ns = time.time_ns()

    def _end(self) -> None:
        """Sleeps out the piece; after the last one nothing is stated."""
        self._left -= 1
        if self._left >= 0:
            self.pace.finish(self._start_s, self._piece_us)
        self._draw()

    def _draw(self) -> None:
        """Records the piece, or as much of it as there was."""
        kind, label = self._name
        trace.span(kind, label, self._since_ns, time.time_ns(), lane=COMPUTE)
