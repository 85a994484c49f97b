"""Theory of the two phases of an answer, at a GPU's own rates. The prefill reads the weights once
for all tokens of a prompt; a step of decoding reads all of them, and the cache, for one token of
each request.

    story = shape.from_name("LLaMA 7B")
    prefill(story, 512, gpu("A100 80 GB")).bound          # "compute"
    decode(story, 512, gpu("A100 80 GB")).bound           # "memory"
    decode(story, 512, gpu("A100 80 GB"), ranks=8).bound  # "messages"

No kernel is faster than this; real ones reach a part of it (Williams et al. 2009, the roofline;
Pope et al. 2022, section 2, for inference).
"""

from typing import NamedTuple

from labkit.collectives import published
from labkit.planner.plan.cluster import Cluster, Gpu, Group
from labkit.planner.plan.shape import Shape
from labkit.serving import kv_cache
from labkit.units import check_whole

ITEMSIZE = 2
"""bytes of a weight, and of an element of the cache: 16 bit"""
BOUNDS = ("compute", "memory", "messages")


class Phase(NamedTuple):
    """How long one pass takes at least, by what it waits for."""

    compute_us: float
    """its FLOPs at the GPU's peak"""
    memory_us: float
    """the weights and the cache, read once at the memory's bandwidth"""
    messages_us: float
    """two all-reduces a layer, one after another"""
    num_tokens: int
    """tokens that come of it, of all requests: those of the prompts, or one each"""

    @property
    def total_us(self) -> float:
        """Computing hides reading, or the other way round; messages stand behind both."""
        return max(self.compute_us, self.memory_us) + self.messages_us

    @property
    def token_us(self) -> float:
        """For one token."""
        return self.total_us / self.num_tokens

    @property
    def bound(self) -> str:
        """What takes longest: one of BOUNDS."""
        return max(BOUNDS, key=lambda name: getattr(self, f"{name}_us"))


def prefill(shape: Shape, prompt: int, gpu: Gpu, *, batch: int = 1, ranks: int = 1) -> Phase:
    """The pass over ``batch`` prompts of so many tokens. Raises ValueError for no tokens."""
    check_whole(1, kv_cache.MOST_TOKENS, prompt=prompt)
    return _pass(shape, prompt, prompt / 2, 0, gpu, batch, ranks)


def decode(shape: Shape, context: int, gpu: Gpu, *, batch: int = 1, ranks: int = 1) -> Phase:
    """One step for ``batch`` requests that have ``context`` tokens each."""
    check_whole(1, kv_cache.MOST_TOKENS, context=context)
    return _pass(shape, 1, context, context, gpu, batch, ranks)


def _pass(
    shape: Shape, tokens: int, looks_at: float, kept: int, gpu: Gpu, batch: int, ranks: int
) -> Phase:
    """``tokens`` of each request; each looks at so many on average; so many are read from the
    cache."""
    check_whole(1, 10**6, batch=batch)
    check_whole(1, 1 << 16, ranks=ranks)
    attention = 4 * looks_at * shape.heads * shape.width
    flops = batch * tokens * shape.layers * (shape.layer_flops() + attention)
    flops += batch * shape.head_flops()  # the last token's alone
    read = kv_cache.weight_bytes(shape, ITEMSIZE, ranks=ranks)
    read += batch * kv_cache.fullest_bytes(shape, kept, ITEMSIZE, ranks=ranks)
    per_node = max(1, min(gpu.per_node, ranks))
    cluster = Cluster(gpu=gpu, num_gpus=per_node * -(-ranks // per_node), per_node=per_node)
    stream = batch * tokens * shape.hidden * ITEMSIZE
    message_us = _message_us(stream, ranks, cluster)
    return Phase(
        compute_us=flops / ranks / (gpu.tflops * 1e6),
        memory_us=read / (gpu.hbm_gb_per_s * 1e3),
        messages_us=2 * shape.layers * message_us,
        num_tokens=batch * tokens,
    )


def _message_us(num_bytes: int, ranks: int, cluster: Cluster) -> float:
    """An all-reduce. The planner's alpha is fitted to what training sends, a megabyte and more; a
    step of decoding sends kilobytes, so the shortest time that was published for the nearest
    machine stands in its place where that is less."""
    chosen = cluster.gpu
    whole_us = Group(size=ranks).us("all_reduce", num_bytes, cluster, 1.0)
    _, times_us = published.all_reduce_times(chosen.measured)
    less_us = max(0.0, chosen.node_link[0] - min(times_us))
    return max(0.0, whole_us - less_us)
