"""The exercises of inference in chapter 16. A scheduler is watched step by step, then serves on
real ranks; a budget is held against the planner's models."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from labkit.check import exercise, hint, on_ranks, status, wrong
from labkit.planner.plan.shape import from_name
from labkit.serving import kv_cache, queue
from labkit.serving.load import Load

__all__ = ["cache_budget", "continuous_batch", "hint", "status"]

LOADS = (
    Load(requests=6, slots=2, rate=100.0, output=3),
    Load(requests=30, slots=4, rate=9.0, seed=5),
    Load(requests=40, slots=8, rate=30.0, spread=1.2, seed=7),
    Load(requests=12, slots=3, rate=50.0, output=1, spread=0.0),
)
"""simulated, step by step"""
AT_ONCE = Load(requests=10, slots=3, rate=1e6, prompt=4, output=6, paced=False, seed=3)
"""on real ranks: all come together, so that the clock decides nothing"""
FEWER = 0.8
"""of the steps of a static batch; what is right takes less"""


class _Mistaken(Exception):
    """A decision that is not the right one, in words."""


@exercise
def cache_budget(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(params, layers, kv_heads, head_dim, gpu_bytes, tokens, ranks)`` is how many requests
    of ``tokens`` tokens fit on GPUs of ``gpu_bytes`` bytes under tensor parallelism: an integer.

    Weights and cache have 16 bit. A tenth of each GPU stays free for everything else. The ranks
    share the weights evenly, rounded up to a whole parameter, and deal out the heads of keys and
    values, so that the fullest rank's are rounded up; where there are fewer heads than ranks, each
    rank keeps one. Where the weights alone do not fit: 0.
    """
    for name, gigabytes, tokens, ranks in (
        ("LLaMA 7B", 40, 2048, 1),
        ("LLaMA 7B", 40, 2048, 2),
        ("LLaMA 7B", 16, 2048, 1),
        ("LLaMA 7B", 14, 2048, 1),
        ("LLaMA-2 70B", 80, 4096, 4),
        ("LLaMA-2 70B", 80, 4096, 8),
        ("LLaMA-2 70B", 80, 4096, 16),
        ("LLaMA-3 8B", 24, 8192, 1),
        ("LLaMA 7B", 40, 2048, 3),
    ):
        shape = from_name(name)
        given = (shape.params, shape.layers, shape.num_kv_heads, shape.width)
        mine = answer(*given, gigabytes * 10**9, tokens, ranks)
        right = kv_cache.room(shape, gigabytes * 1e9, tokens, ranks=ranks)
        if mine != right or isinstance(mine, bool):
            each = kv_cache.fullest_bytes(shape, tokens, ranks=ranks)
            yield wrong(
                "{name}, {gigabytes} GB, {tokens} tokens, tp {ranks}: got {mine}; right is "
                "{right}\na rank keeps {each:,} bytes of a request, and of the weights {weights:,}",
                name=name,
                gigabytes=gigabytes,
                tokens=tokens,
                ranks=ranks,
                mine=mine,
                right=right,
                each=each,
                weights=kv_cache.weight_bytes(shape, ranks=ranks),
            )


@exercise
def continuous_batch(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(waiting, owed, slots)`` is asked before every step and returns two lists of numbers,
    (admit, retire).

    ``waiting`` lists the requests outside, the first come first; ``owed`` says of each inside how
    many tokens it still gets; at most ``slots`` are inside. Who owes no token retires, and at once;
    who retires makes room, and no slot stays free while somebody waits: first come, first served.
    Every decision is judged, in simulated loads; then the answer serves on real ranks, and every
    request gets the tokens that it would get alone.
    """
    for load in LOADS:
        try:
            queue.simulate(load.coming(), _watched(answer), load.slots, load.cost())
        except _Mistaken as told:
            yield "wrong", str(told)
    yield from _served(answer)


def _watched(answer: Callable) -> queue.Policy:
    """The answer, every decision of which is held against the right one."""

    def policy(
        waiting: Sequence[int], owed: Mapping[int, int], slots: int
    ) -> tuple[Sequence[int], Sequence[int]]:
        admit, retire = answer(list(waiting), dict(owed), slots)
        right_admit, right_retire = queue.continuous(waiting, owed, slots)
        mine = list(admit), sorted(retire)
        if mine != (list(right_admit), sorted(right_retire)):
            _, told = wrong(
                "{slots} slots\ninside   {inside}\nwaiting  {waiting}\nyours: admit {admit}, "
                "retire {retire}\nright: admit {due_admit}, retire {due_retire}",
                slots=slots,
                inside=_drawn(owed, slots),
                waiting=list(waiting),
                admit=mine[0],
                retire=mine[1],
                due_admit=list(right_admit),
                due_retire=list(right_retire),
            )
            raise _Mistaken(told)
        return admit, retire

    return policy


def _drawn(owed: Mapping[int, int], slots: int) -> str:
    """A box per slot: the request, and a "#" for each token that it still gets."""
    boxes = [f"[{number}: {'#' * tokens or 'done'}]" for number, tokens in owed.items()]
    return " ".join(boxes + ["[ ]"] * (slots - len(boxes)))


def _served(answer: Callable) -> Iterator[tuple[str, str]]:
    """The same on real ranks: everybody is answered, as alone, in fewer steps than a static
    batch."""
    run = on_ranks(2, _counted, AT_ONCE, answer)
    steps, result = run[0]
    unlike = max(each["num_differing"] for _, each in run)
    if len(result["tokens"]) < AT_ONCE.requests or unlike:
        yield wrong(
            "two ranks: {answered} of {all} requests were answered, {unlike} of them otherwise "
            "than alone",
            answered=len(result["tokens"]),
            all=AT_ONCE.requests,
            unlike=unlike,
        )
    static = _num_steps(queue.static)
    if steps > FEWER * static:
        yield wrong(
            "two ranks: you were asked before {steps} steps; a static batch takes {static}",
            steps=steps,
            static=static,
        )


def _num_steps(policy: queue.Policy) -> int:
    """How often a policy is asked."""
    asked = 0

    def counted(*state: object) -> tuple[Sequence[int], Sequence[int]]:
        nonlocal asked
        asked += 1
        return policy(*state)

    queue.simulate(AT_ONCE.coming(), counted, AT_ONCE.slots, AT_ONCE.cost())
    return asked


# --- in the ranks ---


def _counted(load: Load, answer: Callable) -> tuple[int, dict]:
    """How often rank 0 asked the answer, and what serving returned."""
    from labkit.serving import batching_run

    asked = 0

    def counted(*state: object) -> tuple[Sequence[int], Sequence[int]]:
        nonlocal asked
        asked += 1
        return answer(*state)

    result = batching_run.serve_on_ranks(load, counted)
    return asked, result
