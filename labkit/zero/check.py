"""The exercises of chapter 06, ZeRO. Real ranks, live bytes and DeepSpeed's own engine are the
judges."""

from collections.abc import Callable, Iterator
from itertools import chain

from labkit.check import exercise, hint, on_ranks, over_budget, status, wrong
from labkit.sharding import states
from labkit.sharding.step import Step
from labkit.words import say
from labkit.zero import trained_check

__all__ = [
    "choose_stage",
    "cut_evenly",
    "hint",
    "same_training",
    "shard_adamw",
    "status",
    "which_stage",
]

_TO_CUT = (  # sizes of tensors, ranks
    ((8, 8), 4),
    ((12, 4), 2),
    ((7, 3, 6), 4),
    ((5, 5, 5, 2), 3),
    ((1, 20, 2, 2), 4),
    ((3, 2), 8),
    ((9,), 1),
)
_TO_CHOOSE = (  # parameters, ranks, bytes to fill, the link's bytes/s, tokens, microbatches
    (1e9, 8, 60e9, 25e9, 8192, 1),
    (1e9, 8, 60e9, 300e9, 4096, 8),
    (7e9, 8, 60e9, 25e9, 2048, 1),
    (7e9, 8, 60e9, 300e9, 2048, 1),
    (7e9, 8, 60e9, 25e9, 6000, 1),
    (7e9, 8, 60e9, 25e9, 4500, 1),
    (7e9, 8, 60e9, 25e9, 4500, 4),
    (7e9, 8, 30e9, 25e9, 512, 1),
    (7e9, 8, 30e9, 25e9, 2048, 4),
    (7e9, 8, 30e9, 25e9, 3200, 4),
    (7e9, 8, 20e9, 25e9, 2048, 2),
    (7e9, 2, 75e9, 25e9, 2500, 1),
    (70e9, 8, 60e9, 300e9, 8192, 1),
)
_FLOPS = 150e12  # what a card computes a second


@exercise
def shard_adamw(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(model, backward, num_steps)`` trains with AdamW(lr=0.01) on the mean gradient of all
    ranks.

    ``backward(step)`` leaves this rank's gradients in ``model``, adding to what is there. Budget:
    live states of about 1/N of the parameters, and no more to send than an all-reduce of the
    gradients. Run on real ranks.
    """
    for num_ranks, widths in (
        (2, (6, 9, 9, 8, 9, 7, 9, 4)),
        (3, (7, 8, 7, 9, 8, 9, 7, 8, 3)),
        (4, (8,) * 12),
    ):
        run = on_ranks(num_ranks, trained_check.sharded, answer, widths)
        case = say("{num_ranks} ranks, layers {widths}", num_ranks=num_ranks, widths=widths)
        for rank, result in enumerate(run):
            if result["fault"]:
                yield wrong(
                    "{case}, rank {rank}: {fault}", case=case, rank=rank, fault=result["fault"]
                )
        total, largest = run[0]["total_bytes"], run[0]["largest_bytes"]
        held = max(result["held_bytes"] for result in run)
        if held > 2 * (total // num_ranks + largest) + 128:
            yield over_budget(
                "{case}: a rank's optimizer holds {held} bytes; the moments of everything are "
                "{all_moments}, of a part in {num_ranks} {part}",
                case=case,
                held=held,
                all_moments=2 * total,
                num_ranks=num_ranks,
                part=2 * total // num_ranks,
            )
        sent = sum(result["volume"] for result in run) / num_ranks
        due = 2 * total * (num_ranks - 1) / num_ranks
        if sent > 1.05 * due + 128:
            yield over_budget(
                "{case}: a step sends {sent:.0f} bytes per rank; an all-reduce of the gradients "
                "sends {due:.0f}",
                case=case,
                sent=sent,
                due=due,
            )


@exercise
def cut_evenly(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(sizes, num_ranks)`` has a list per rank of (tensor, start, stop): the slices that it
    keeps of tensors of these sizes.

    Every element lies on one rank, no rank has more than its share (rounded up), and a rank's
    slices follow each other, so that one flat buffer holds them. A wrong answer is drawn.
    """
    for sizes, num_ranks in _TO_CUT:
        case = say("tensors of {sizes} on {num_ranks} ranks", sizes=sizes, num_ranks=num_ranks)
        given = answer(list(sizes), num_ranks)
        fault = _unlike_a_layout(given, sizes, num_ranks)
        if fault:
            yield wrong("{case}: {fault}", case=case, fault=fault)
        owners = _owners(given, sizes)
        drawn = _drawn(owners)
        for tensor, row in enumerate(owners):
            for at, ranks in enumerate(row):
                if len(ranks) != 1:
                    yield wrong(
                        "{case}: element {at} of tensor {tensor} lies on {count} ranks\n{drawn}",
                        case=case,
                        at=at,
                        tensor=tensor,
                        count=len(ranks),
                        drawn=drawn,
                    )
        line = [rank for (rank,) in chain.from_iterable(owners)]
        yield from _uneven(case, line, num_ranks, drawn)


def _unlike_a_layout(given: object, sizes: tuple[int, ...], num_ranks: int) -> str:
    """Why this is no list of slices for each rank; "" if it is one."""
    if not isinstance(given, list | tuple) or len(given) != num_ranks:
        return say("the answer is a list with an entry per rank; got {given!r:.60}", given=given)
    for rank, slices in enumerate(given):
        for each in slices:
            if len(each) != 3 or not 0 <= each[0] < len(sizes):
                return say(
                    "a slice is (tensor, start, stop); rank {rank} has {each!r:.40}",
                    rank=rank,
                    each=each,
                )
            if not 0 <= each[1] < each[2] <= sizes[each[0]]:
                return say(
                    "rank {rank} has {each!r:.40}; that tensor has {size} elements",
                    rank=rank,
                    each=each,
                    size=sizes[each[0]],
                )
    return ""


def _owners(given: list, sizes: tuple[int, ...]) -> list[list[list[int]]]:
    """For each element of each tensor, the ranks that keep it."""
    owners: list[list[list[int]]] = []
    for size in sizes:
        owners.append([[] for _ in range(size)])
    for rank, slices in enumerate(given):
        for tensor, start, stop in slices:
            for at in range(start, stop):
                owners[tensor][at].append(rank)
    return owners


def _drawn(owners: list[list[list[int]]]) -> str:
    """Each tensor as a row of its elements: see ``_sign``."""
    lines = []
    for tensor, row in enumerate(owners):
        signs = "".join(map(_sign, row))
        lines.append(say("tensor {tensor}: {row}", tensor=tensor, row=signs))
    return "\n".join(lines)


def _sign(ranks: list[int]) -> str:
    """An element: the rank that keeps it, "." nobody, "+" several."""
    if len(ranks) == 1:
        return str(ranks[0])
    return "+" if ranks else "."


def _uneven(case: str, line: list[int], num_ranks: int, drawn: str) -> Iterator[tuple[str, str]]:
    """What is wrong with tensors laid end to end, of which each element has one rank."""
    share = -(-len(line) // num_ranks)
    for rank in range(num_ranks):
        held = line.count(rank)
        if held > share:
            yield over_budget(
                "{case}: rank {rank} keeps {held} elements, its share is {share}\n{drawn}",
                case=case,
                rank=rank,
                held=held,
                share=share,
                drawn=drawn,
            )
    if line != sorted(line):
        yield over_budget(
            "{case}: a rank's elements do not follow each other, so its part is not one piece of "
            "the line\n{drawn}",
            case=case,
            drawn=drawn,
        )


@exercise
def which_stage(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(payload, num_params, microbatches)`` is the stage that ran, 0 to 3: told from the
    bytes that a step of a DeepSpeed engine in bf16 handed to each collective, on one rank."""
    for stage in states.STAGES:
        for ranks, layers, microbatches in ((2, 1, 2), (4, 3, 3), (8, 2, 5)):
            step = Step(
                engine=f"zero{stage}", ranks=ranks, layers=layers, microbatches=microbatches
            )
            num_params = sum(unit.num_params for unit in step.units())
            yield from _told(answer, step.payload(), num_params, step)
    small = [
        Step(engine=f"zero{stage}", layers=1, dim=32, heads=2, seq_len=16) for stage in (3, 1, 2, 0)
    ]
    num_params = sum(unit.num_params for unit in small[0].units())
    payloads = on_ranks(2, trained_check.payloads, small, hang_s=25)[0]
    for each, payload in zip(small, payloads, strict=True):
        yield from _told(answer, payload, num_params, each)


def _told(
    answer: Callable, payload: dict[str, int], num_params: int, step: Step
) -> Iterator[tuple[str, str]]:
    """Whether the answer knows the stage of one step."""
    given = answer(dict(payload), num_params, step.microbatches)
    if given != int(step.engine[-1]):
        yield wrong(
            "{num_params:,} parameters, {microbatches} microbatches, payload {payload}: got stage "
            "{given}; it was stage {right}",
            num_params=num_params,
            microbatches=step.microbatches,
            payload=payload,
            given=given,
            right=step.engine[-1],
        )


@exercise
def choose_stage(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, ranks, room_bytes, link_bytes_per_s, tokens, microbatches)`` is the
    stage with the fastest step of those whose states have room, the lowest of equally fast ones;
    None if there is no such stage. A card computes at 150 TFLOP/s; see ``_exposed_s``."""
    for params, ranks, room, link, tokens, microbatches in _TO_CHOOSE:
        given = answer(params, ranks, room, link, tokens, microbatches)
        right = _chosen(params, ranks, room, link, tokens, microbatches)
        if given != right or isinstance(given, bool):
            yield wrong(
                "{params:.0f} B parameters, {ranks} ranks, room for {room:.0f} GB, {link:.0f} "
                "GB/s, {tokens} tokens, {microbatches} microbatches: got {given!r:.40}; it is "
                "{right}",
                params=params / 1e9,
                ranks=ranks,
                room=room / 1e9,
                link=link / 1e9,
                tokens=tokens,
                microbatches=microbatches,
                given=given,
                right=right,
            )


def _chosen(params: float, ranks: int, room: float, link: float, *work: int) -> int | None:
    """The fastest stage that fits: see ``choose_stage``."""
    exposed_s = _exposed_s(params, ranks, link, *work)
    fits = [
        stage
        for stage in states.STAGES
        if sum(states.state_bytes(params, ranks, stage).values()) <= room
    ]
    return min(fits, key=exposed_s.__getitem__, default=None)


def _exposed_s(
    params: float, ranks: int, link: float, tokens: int, microbatches: int
) -> list[float]:
    """By stage, how long a card sends in a step while it computes nothing. A backward hides
    reducing, and stage 3's forwards and backwards their gathers; nothing hides the gather of stages
    1 and 2. Stages 0 and 1 reduce in the last backward only."""
    once = 2 * params * (ranks - 1) / ranks / link
    forward = 2 * params * tokens / _FLOPS
    reducing = max(0.0, once - 2 * forward)
    whole = max(0.0, 2 * once - 2 * forward)
    gathering = max(0.0, once - forward)
    return [
        whole,
        reducing + once,
        microbatches * reducing + once,
        microbatches * (gathering + whole),
    ]


@exercise
def same_training(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_ranks, global_batch, micro_batch, learning_rate, weight_decay)`` is DeepSpeed's
    configuration, as a dict, for a ZeRO 3 training in fp32 that ends with the weights of torch's
    AdamW in one process."""
    num_ranks = 2
    global_batch = 8
    micro_batch = 2
    rate = 0.01
    decay = 0.1
    config = answer(num_ranks, global_batch, micro_batch, rate, decay)
    if not isinstance(config, dict):
        yield wrong("a configuration is a dict; got {config!r:.60}", config=config)
    case = say(
        "{num_ranks} ranks, batch {global_batch} in microbatches of {micro_batch}, rate {rate}, "
        "decay {decay}",
        num_ranks=num_ranks,
        global_batch=global_batch,
        micro_batch=micro_batch,
        rate=rate,
        decay=decay,
    )
    fault, batch, held, total = on_ranks(
        num_ranks, trained_check.zero3, config, global_batch, rate, decay, hang_s=25
    )[0]
    if batch != (global_batch, micro_batch):
        yield wrong(
            "{case}: the engine's batch is {batch}, its microbatch {micro_batch}",
            case=case,
            batch=batch[0],
            micro_batch=batch[1],
        )
    if held > 0.6 * total:
        yield wrong(
            "{case}: a rank keeps {held} bytes of parameters, of {total}; in stage 3 it keeps its "
            "part",
            case=case,
            held=held,
            total=total,
        )
    if fault:
        yield wrong("{case}: {fault}", case=case, fault=fault)
