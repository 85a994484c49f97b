"""Theory of the KV cache: what a rank keeps of the tokens that it has seen, in bytes, and how many
requests that leaves room for.

    story = shape.from_name("LLaMA 7B")
    token_bytes(story)                              # half a mebibyte for each token
    room(story, gpu("A100 40 GB").memory_gb * 1e9, tokens=2048)
"""

from labkit.planner.plan.shape import Shape
from labkit.tensor_parallel import cut
from labkit.units import check_real, check_whole

MOST_TOKENS = 10**9


def token_bytes(shape: Shape, itemsize: int = 2) -> int:
    """Keys and values of one token in all layers: 2 x layers x heads of keys x width of a head x
    ``itemsize`` bytes (Kwon et al. 2023, section 3; with grouped queries heads of keys and values
    only: Ainslie et al. 2023, section 2.2)."""
    check_whole(1, 16, itemsize=itemsize)
    return 2 * shape.layers * shape.num_kv_heads * shape.width * itemsize


def cache_bytes(
    shape: Shape, tokens: int, itemsize: int = 2, *, ranks: int = 1, rank: int = 0
) -> int:
    """What a rank keeps of so many tokens under tensor parallelism: the heads of keys and values
    that its queries look at. With fewer such heads than ranks several keep the same one (Pope et
    al. 2022, section 3.3)."""
    check_whole(0, MOST_TOKENS, tokens=tokens)
    _, pairs = cut.heads(shape.heads, shape.num_kv_heads, ranks, rank)
    return tokens * token_bytes(shape, itemsize) * len(pairs) // shape.num_kv_heads


def fullest_bytes(shape: Shape, tokens: int, itemsize: int = 2, *, ranks: int = 1) -> int:
    """The same on the rank that keeps most: where ranks do not divide the heads of keys, that need
    not be the first."""
    check_whole(1, 1 << 20, ranks=ranks)
    some = range(min(ranks, shape.heads))  # ranks beyond the heads have nothing
    return max(cache_bytes(shape, tokens, itemsize, ranks=ranks, rank=each) for each in some)


def weight_bytes(shape: Shape, itemsize: int = 2, *, ranks: int = 1) -> int:
    """A rank's weights under tensor parallelism, all cut evenly. Norms, which every rank holds
    whole, count as cut: less than a ten-thousandth of LLaMA 7B."""
    check_whole(1, 16, itemsize=itemsize)
    check_whole(1, 1 << 20, ranks=ranks)
    return itemsize * -(-shape.params // ranks)


def room(
    shape: Shape,
    gpu_bytes: float,
    tokens: int,
    itemsize: int = 2,
    *,
    ranks: int = 1,
    kept_free: float = 0.1,
) -> int:
    """How many requests of ``tokens`` each (prompt and answer) fit beside the weights on a GPU of
    so many bytes, the share ``kept_free`` of which stays for everything else; 0 where the weights
    alone do not fit."""
    check_real(1.0, 1e18, gpu_bytes=gpu_bytes)
    check_whole(1, MOST_TOKENS, tokens=tokens)
    check_real(0.0, 1.0, kept_free=kept_free)
    left = gpu_bytes * (1 - kept_free) - weight_bytes(shape, itemsize, ranks=ranks)
    each = fullest_bytes(shape, tokens, itemsize, ranks=ranks)
    return max(0, int(left // each))
