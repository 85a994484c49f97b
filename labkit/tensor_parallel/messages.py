"""What the ranks of tensor parallelism tell one another in a step of one layer: each collective in
order, what a rank hands in, and what of it could go on beside computing.

Before a column there is f, after a row g (Shoeybi et al. 2019, section 3): g sums in the forward, f
sums gradients in the backward, each an all-reduce of the stream. Under sequence parallelism the
stream between them is cut along the tokens, and each all-reduce becomes its two halves: a
reduce-scatter where the cut layer ends, an all-gather where it begins (Korthikanti et al. 2022,
section 4.2.2). The bytes on the wire stay the same; what lies on each rank meanwhile does not.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

PLACES = ("embedding", "attention", "mlp", "head", "loss", "norms")
"""Where a message arises: at the four cut parts, in the loss, and for the weights that every rank
holds whole but has seen a part of the tokens for."""
PASSES = ("forward", "backward")
_LAYER = ("attention", "mlp")


class Message(NamedTuple):
    """One collective."""

    way: str
    """one of PASSES"""
    place: str
    """one of PLACES"""
    collective: str
    """"all_reduce", "all_gather" or "reduce_scatter\""""
    num_bytes: int
    """what a rank hands in, as ``measure.traffic`` counts it"""
    hides: bool
    """whether a product of the backward that does not need it could be computed meanwhile"""


class Stream(NamedTuple):
    """What flows between the cut layers."""

    num_tokens: int
    """of all sequences"""
    hidden: int
    """features of each"""
    itemsize: int
    """bytes of an element"""
    num_ranks: int
    """among which the layer is cut"""
    sequence_parallel: bool
    """whether each rank has some of the tokens between the cut parts"""
    gathers_again: bool = False
    """whether a column keeps this rank's tokens only, and gathers the others' once more for its
    weight's gradient (Korthikanti et al. 2022, section 4.2.2; megatron-core)"""

    @property
    def whole_bytes(self) -> int:
        """All tokens."""
        return self.num_tokens * self.hidden * self.itemsize

    @property
    def part_bytes(self) -> int:
        """A rank's part of them."""
        return self.whole_bytes // self.num_ranks

    def gather(self, way: str, place: str, *, again: bool = False) -> Message:
        """Every rank's tokens to all of them; ``again`` beside the gradient of the column's
        input."""
        return Message(way, place, "all_gather", self.part_bytes, again)

    def sums(self, way: str, place: str) -> Message:
        """The ranks' summands: to all of them whole, or to each its tokens. In the backward the
        gradient of a column's weight could be computed meanwhile."""
        name = "reduce_scatter" if self.sequence_parallel else "all_reduce"
        return Message(way, place, name, self.whole_bytes, way == "backward")


def of_layer(stream: Stream) -> list[Message]:
    """Of attention and MLP, forward and backward; for one rank alone none."""
    if stream.num_ranks == 1:
        return []
    return [*_through(stream, _LAYER, "forward"), *_through(stream, _LAYER[::-1], "backward")]


def _through(stream: Stream, places: Sequence[str], way: str) -> Iterator[Message]:
    """Through cut parts in turn: gathered where one begins, summed where it ends. The backward
    enters where the forward has left."""
    for place in places:
        if stream.sequence_parallel:
            yield stream.gather(way, place)
        yield from _closing(stream, place, way)


def _closing(stream: Stream, place: str, way: str) -> Iterator[Message]:
    """What ends a cut part: in the backward the sum of its column's input gradients, and before it
    the column's input once more, where that was not kept."""
    if way == "backward" and stream.sequence_parallel and stream.gathers_again:
        yield stream.gather(way, place, again=True)
    yield stream.sums(way, place)


def of_model(stream: Stream, loss_elements: Sequence[int]) -> list[Message]:
    """The same with an embedding before and an output layer and its loss after, both cut along the
    vocabulary. ``loss_elements``: elements of each all-reduce of the loss."""
    if stream.num_ranks == 1:
        return []
    found = [stream.sums("forward", "embedding")]
    found += _through(stream, _LAYER, "forward")
    if stream.sequence_parallel:
        found.append(stream.gather("forward", "head"))
    for num in loss_elements:
        found.append(Message("forward", "loss", "all_reduce", num * stream.itemsize, False))
    found += _closing(stream, "head", "backward")
    found += _through(stream, _LAYER[::-1], "backward")
    if stream.sequence_parallel:
        found.append(stream.gather("backward", "embedding"))
    return found


def of_whole_weights(stream: Stream) -> list[Message]:
    """Gradients of what every rank holds whole, where each has seen its own tokens only: two norms
    and the biases after both rows."""
    if stream.num_ranks == 1 or not stream.sequence_parallel:
        return []
    num_bytes = 6 * stream.hidden * stream.itemsize
    return [Message("backward", "norms", "all_reduce", num_bytes, False)]


def payload(found: Sequence[Message]) -> dict[str, int]:
    """Collective -> bytes that a rank hands in."""
    total: Counter[str] = Counter()
    for each in found:
        total[each.collective] += each.num_bytes
    return dict(total)


def calls(found: Sequence[Message]) -> dict[str, int]:
    """Collective -> how often it is called."""
    return dict(Counter(each.collective for each in found))
