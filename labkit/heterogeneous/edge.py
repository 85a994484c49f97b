"""A network cut between an edge device and a cloud: where to cut, by theory and on two real ranks.

The edge computes the first layers, sends what they give over a slow link, and the cloud answers
(Kang et al. 2017, "Neurosurgeon"). Early layers give much and cost little; late ones give little
and cost the edge much. ``stream``: the next request begins before the answer is there, and the
slowest of edge, link and cloud sets the pace.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from labkit import words
from labkit.collectives.network import Link
from labkit.experiment import Experiment
from labkit.timeline import COMM, COMPUTE, Timeline, from_rows, step_us
from labkit.units import check_real, check_whole, check_word

if TYPE_CHECKING:
    from labkit.launching.job import Job

LINK = Link(alpha_us=5000.0, bandwidth_gb_per_s=0.001)
"""5 ms and 1 MB/s: a poor radio link"""
FORMS = {"float32": 32, "float16": 16, "int8": 8, "int4": 4}
"""form of a message -> bits of a value"""
HEADER_BYTES = 8
"""the lowest value and the step, with each message of integers"""
_WORDS = words.catalogue(
    [
        ("title", "Cut after layer {after} of {layers}, {form}"),
        ("cloud", "All in the cloud, frames as {form}"),
        ("edge", "All on the edge"),
    ]
)


class Stage(NamedTuple):
    """One layer, for one frame."""

    name: str
    """of the layer"""
    flops: int
    """of its forward"""
    num_values: int
    """that it gives"""


FRAME_VALUES = 32 * 32
"""of a frame, before the first layer"""
NETWORK = (
    Stage("conv 1", 2 * 9 * 2048, 2048),
    Stage("pool 1", 2048, 512),
    Stage("conv 2", 2 * 72 * 1024, 1024),
    Stage("pool 2", 1024, 256),
    Stage("linear 1", 2 * 256 * 64, 64),
    Stage("linear 2", 2 * 64 * 10, 10),
)
"""A small network for frames of 32 x 32; ``edge_run.network`` builds it."""


class Times(NamedTuple):
    """What the parts of one request take, in microseconds."""

    edge_us: float
    """the first layers"""
    up_us: float
    """the message to the cloud"""
    cloud_us: float
    """the other layers"""
    down_us: float
    """the answer"""

    @property
    def latency_us(self) -> float:
        """All of them, one after another."""
        return sum(self)


def packed_bytes(num_values: int, form: str) -> int:
    """Bytes of a message of so many values; of integers with their header, of 4 bits two in a
    byte."""
    check_whole(0, num_values=num_values)
    check_word(form, FORMS, "a form")
    header = HEADER_BYTES if form.startswith("int") else 0
    return -(-num_values * FORMS[form] // 8) + header


@dataclass(frozen=True, kw_only=True)
class Cut(Experiment):
    """Requests that are answered by an edge device and a cloud together.

    Messages are real, computing and the link are paced. ``run()[0]``, the edge's, is a dict:
    latency_us (of each request), payload_bytes (sent by the edge in all), answer_difference (of the
    scores, largest, from one process in float32), agree_share (of 360 test frames given the same
    digit as by one process), accuracy, accuracy_whole (of one process), overruns. Raises ValueError
    for what can't be.
    """

    board_home: ClassVar[None] = None
    """it has none"""

    after: int = 2
    """layers on the edge: 0 sends the frames themselves, 6 sends nothing"""
    form: str = "float32"
    """of what is sent: "float32", "float16", "int8" or "int4\""""
    frames: int = 16
    """of a request"""
    requests: int = 1
    """how many"""
    stream: bool = False
    """whether the edge goes on before the answer is there"""
    edge_gflops: float = 0.05
    """billions of operations a second"""
    cloud_gflops: float = 1.0
    """billions of operations a second"""
    link: Link = LINK
    """both ways"""

    def __post_init__(self) -> None:
        check_whole(0, len(NETWORK), after=self.after)
        check_whole(1, 64, frames=self.frames)
        check_whole(1, 32, requests=self.requests)
        check_word(self.form, FORMS, "a form")
        check_real(1e-6, 1e6, edge_gflops=self.edge_gflops, cloud_gflops=self.cloud_gflops)

    def message_bytes(self) -> int:
        """What the edge sends of one request; 0 where it does all by itself."""
        if self.after == len(NETWORK):
            return 0
        values = NETWORK[self.after - 1].num_values if self.after else FRAME_VALUES
        return packed_bytes(self.frames * values, self.form)

    def times(self) -> Times:
        """What one request takes, by parts."""
        flops = [self.frames * each.flops for each in NETWORK]
        edge_us = sum(flops[: self.after]) / (1e3 * self.edge_gflops)
        if self.after == len(NETWORK):
            return Times(edge_us, 0.0, 0.0, 0.0)
        return Times(
            edge_us=edge_us,
            up_us=self.link.us(self.message_bytes()),
            cloud_us=sum(flops[self.after :]) / (1e3 * self.cloud_gflops),
            down_us=self.link.us(packed_bytes(self.frames * NETWORK[-1].num_values, "float32")),
        )

    def predict(self) -> Timeline:
        """The requests, simulated: rank 0 is the edge, rank 1 the cloud."""
        return from_rows(self._rows(), num_ranks=2, origin="simulated")

    def _rows(self) -> Iterator[tuple]:
        """A link carries one message at a time; a message waits in the edge's one buffer until the
        link is free, and the edge goes on when it has left."""
        took = self.times()
        answer_bytes = packed_bytes(self.frames * NETWORK[-1].num_values, "float32")
        begin_us = link_us = cloud_us = back_us = 0.0
        for number in range(self.requests):
            label = f"F{number}"
            end_us = begin_us + took.edge_us
            yield 0, COMPUTE, "forward", label, begin_us, end_us, 0
            begin_us = end_us
            if self.after == len(NETWORK):
                continue
            sent_us = max(end_us, link_us)
            link_us = sent_us + took.up_us
            for rank, kind in enumerate(("send", "recv")):
                yield rank, COMM, kind, "0>1", sent_us, link_us, self.message_bytes()
            start_us = max(link_us, cloud_us)
            cloud_us = start_us + took.cloud_us
            yield 1, COMPUTE, "forward", label, start_us, cloud_us, 0
            answered_us = max(cloud_us, back_us)
            back_us = answered_us + took.down_us
            for rank, kind in enumerate(("recv", "send")):
                yield rank, COMM, kind, "1>0", answered_us, back_us, answer_bytes
            begin_us = sent_us if self.stream else back_us

    def start(self) -> "Job":
        """Answers requests on two real ranks, in the background."""
        from labkit.heterogeneous import edge_run

        return edge_run.start(self)

    def title(self, language: str | None = None) -> str:
        """Where it is cut, and what is sent."""
        key = {0: "cloud", len(NETWORK): "edge"}.get(self.after, "title")
        return _WORDS[words.spoken_in(language)][key].format(
            after=self.after, layers=len(NETWORK), form=self.form
        )


def every_cut(cut: Cut) -> dict[int, float]:
    """Layers on the edge -> microseconds until the last answer is there."""
    return {after: step_us(cut.but(after=after).predict()) for after in range(len(NETWORK) + 1)}
