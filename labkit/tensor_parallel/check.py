"""The exercises of chapter 09, tensor parallelism. Real ranks, counted messages and one process are
the judges."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from labkit.check import exercise, faults, hint, on_ranks, over_budget, status, unlike, wrong
from labkit.planner import strategies_run
from labkit.planner.strategies import SMALL
from labkit.tensor_parallel import cut
from labkit.tensor_parallel.layer import Layer
from labkit.words import say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["column_then_row", "hint", "status", "tensor_or_pipeline", "which_slice"]

Rows = list[tuple[int, int]]


@exercise
def column_then_row(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(x, up, up_bias, down, down_bias)`` is a rank's part of an MLP, linear(gelu(linear(x,
    up, up_bias)), down, down_bias): ``up`` has this rank's features out, ``down`` the same features
    in, ``x`` and ``down_bias`` are whole.

    It returns the whole output on every rank, and its backward leaves the gradients of one process
    in ``x`` and in this rank's weights. Budget: one all-reduce in the forward, one in the backward.
    Run on real ranks.
    """
    for num_ranks, tokens, hidden, wide in ((2, 5, 6, 8), (3, 3, 4, 7), (4, 2, 5, 4)):
        run = on_ranks(num_ranks, _paired, answer, tokens, hidden, wide, hang_s=25)
        case = say(
            "{num_ranks} ranks, {tokens} tokens, {hidden} to {wide} features and back",
            num_ranks=num_ranks,
            tokens=tokens,
            hidden=hidden,
            wide=wide,
        )
        yield from faults(case, run)
        due = 4 * tokens * hidden
        for way, (calls, sent) in zip((say("forward"), say("backward")), run[0][1:], strict=True):
            if calls > 1:
                yield over_budget(
                    "{case}: {calls} collectives in the {way}; one is enough for a column and a "
                    "row together",
                    case=case,
                    calls=calls,
                    way=way,
                )
            if sent > due:
                yield over_budget(
                    "{case}: {sent} bytes handed to collectives in the {way}; the output has {due}",
                    case=case,
                    sent=sent,
                    way=way,
                    due=due,
                )


@exercise
def which_slice(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(heads, kv_heads, head_dim, num_ranks, rank)`` lists three ranges (start, stop): the
    rows of one weight that a rank holds. Its rows are all heads' queries, then all heads' keys,
    then all values, each head of ``head_dim`` rows.

    Heads of queries are dealt as even as may be, the first ranks have one more. A rank holds the
    heads of keys and values that its queries look at, and no others: several ranks may hold the
    same. A wrong answer is drawn.
    """
    for sizes in (
        (8, 8, 4, 2),
        (8, 2, 3, 2),
        (6, 6, 2, 4),
        (8, 2, 3, 8),
        (9, 3, 2, 4),
        (5, 1, 2, 3),
    ):
        heads, kv_heads, width, num_ranks = sizes
        for rank in range(num_ranks):
            given = [(int(start), int(stop)) for start, stop in answer(*sizes, rank)]
            rows = cut.qkv_rows(*sizes, rank)
            right = [(each.start, each.stop) for each in rows]
            if given != right:
                total = (heads + 2 * kv_heads) * width
                yield wrong(
                    "{heads} heads, {kv} of keys, {width} rows each, rank {rank} of {ranks}: got "
                    "{given}; right is {right}\nyours  {mine}\nright  {due}",
                    heads=heads,
                    kv=kv_heads,
                    width=width,
                    rank=rank,
                    ranks=num_ranks,
                    given=given,
                    right=right,
                    mine=_drawn(given, total, width),
                    due=_drawn(right, total, width),
                )


def _drawn(ranges: Rows, total: int, width: int) -> str:
    """A sign per head: "#" held, "+" a part of it, "." not."""
    held = set()
    for start, stop in ranges:
        held.update(range(max(0, start), min(total, stop)))
    signs = ""
    for first in range(0, total, width):
        count = len(held & {*range(first, first + width)})
        if count == width:
            signs += "#"
        else:
            signs += "+" if count else "."
    return signs


@exercise
def tensor_or_pipeline(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(layers, hidden, sequence, batch, num_ranks, microbatches, link_gb_per_s,
    compute_us)`` is (bytes, bytes, "tensor" or "pipeline"): what the busiest rank hands in for a
    step by tensor parallelism and by a pipeline, in fp32, and which of the two ends first.

    ``compute_us``: the step of one rank alone; both divide it by the ranks. An all-reduce of S
    bytes takes 2 (N-1)/N S over the link, and nothing hides it. The pipeline's messages hide; its
    bubble, N-1 microbatches long, does not. At a small size real ranks are counted.
    """
    for case in (
        (8, 1024, 512, 16, 4, 16, 600.0, 200_000.0),
        (8, 1024, 512, 16, 4, 16, 1.0, 200_000.0),
        (24, 2048, 1024, 8, 8, 8, 300.0, 2_000_000.0),
        (4, 4096, 2048, 4, 2, 1, 25.0, 900_000.0),
    ):
        yield from _weighed(answer, case)
    batch = 4
    for num_ranks in (2, 4):
        given = (SMALL["num_layers"], SMALL["dim"], SMALL["seq_len"], batch, num_ranks, batch)
        mine = answer(*given, 1.0, 1e5)
        for place, strategy in enumerate(("tensor", "layers")):
            run = on_ranks(num_ranks, strategies_run.train, strategy, batch, False, hang_s=25)
            counted = max(sum(strategies_run.payload(each).values()) for each in run)
            if mine[place] != counted:
                yield wrong(
                    "{ranks} real ranks, {layers} layers of {hidden}, {batch} sequences of "
                    "{sequence}: {strategy} handed in {counted:,} bytes, counted; got {mine:,}",
                    ranks=num_ranks,
                    layers=given[0],
                    hidden=given[1],
                    batch=batch,
                    sequence=given[2],
                    strategy=("tensor", "pipeline")[place],
                    counted=counted,
                    mine=mine[place],
                )


def _weighed(answer: Callable, case: tuple) -> Iterator[tuple[str, str]]:
    """One case by numbers: bytes of both, and which is quicker."""
    layers, hidden, sequence, batch, num_ranks, microbatches, bandwidth, compute_us = case
    layer = Layer(ranks=num_ranks, hidden=hidden, heads=16, sequence=sequence, batch=batch)
    tensor_bytes = layers * layer.payload()["all_reduce"]
    pipeline_bytes = (1 if num_ranks == 2 else 2) * layer.stream().whole_bytes
    share = (num_ranks - 1) / num_ranks
    tensor_us = compute_us / num_ranks + 2 * share * tensor_bytes / bandwidth / 1e3
    pipeline_us = compute_us / num_ranks * (microbatches + num_ranks - 1) / microbatches
    quicker = "tensor" if tensor_us < pipeline_us else "pipeline"
    told = say(
        "{layers} layers of {hidden}, {batch} sequences of {sequence}, {ranks} ranks, "
        "{microbatches} microbatches, {bandwidth:g} GB/s",
        layers=layers,
        hidden=hidden,
        batch=batch,
        sequence=sequence,
        ranks=num_ranks,
        microbatches=microbatches,
        bandwidth=bandwidth,
    )
    given = tuple(answer(*case))
    if given[:2] != (tensor_bytes, pipeline_bytes):
        yield wrong(
            "{case}: tensor {tensor:,} bytes and pipeline {pipeline:,}; got {given}",
            case=told,
            tensor=tensor_bytes,
            pipeline=pipeline_bytes,
            given=given[:2],
        )
    if given[2] != quicker:
        yield wrong(
            "{case}: tensor takes {tensor:,.0f} us, the pipeline {pipeline:,.0f}; got {given!r}",
            case=told,
            tensor=tensor_us,
            pipeline=pipeline_us,
            given=given[2],
        )


# --- in the ranks ---


def _paired(
    answer: Callable, tokens: int, hidden: int, wide: int
) -> tuple[str, tuple[int, int], tuple[int, int]]:
    """What is wrong on this rank; collectives and their bytes in the forward and the backward."""
    import torch
    import torch.distributed as dist

    from labkit.measure import traffic

    torch.manual_seed(0)
    whole = {
        "x": torch.randn(tokens, hidden),
        "up": torch.randn(wide, hidden),
        "up_bias": torch.randn(wide),
        "down": torch.randn(hidden, wide),
        "down_bias": torch.randn(hidden),
    }
    wanted = torch.randn(tokens, hidden)
    dims = {"up": 0, "up_bias": 0, "down": 1}
    features = cut.share(wide, dist.get_world_size(), dist.get_rank())
    mine = {}
    for name, each in whole.items():
        if name in dims:
            each = each.narrow(dims[name], features.start, len(features))
        mine[name] = each.clone().requires_grad_()
    right = _one_process(whole, wanted)
    with traffic.count() as forward:
        made = answer(*mine.values())
    with traffic.count() as backward:
        made.backward(wanted)
    fault = unlike(made.detach(), right["y"], say("the output of one process"))
    if fault:
        fault = say("the output {fault}", fault=fault)
    for name, each in mine.items():
        if fault:
            break
        due = right[name]
        if name in dims:
            due = due.narrow(dims[name], features.start, len(features))
        fault = _unlike_gradient(name, each, due)
    counts = [(each.calls.total(), each.payload_bytes.total()) for each in (forward, backward)]
    return fault, counts[0], counts[1]


def _one_process(whole: "dict[str, Tensor]", wanted: "Tensor") -> "dict[str, Tensor]":
    """The output, and the gradient of all that goes in."""
    import torch.nn.functional as F

    given = {name: each.clone().requires_grad_() for name, each in whole.items()}
    inner = F.gelu(F.linear(given["x"], given["up"], given["up_bias"]))
    made = F.linear(inner, given["down"], given["down_bias"])
    made.backward(wanted)
    return {"y": made.detach(), **{name: each.grad for name, each in given.items()}}


def _unlike_gradient(name: str, mine: "Tensor", right: "Tensor") -> str:
    """What is wrong with a gradient, or nothing."""
    if mine.grad is None:
        return say("{name}.grad is None", name=name)
    found = unlike(mine.grad, right, say("that of one process"))
    return say("{name}.grad {found}", name=name, found=found) if found else ""
