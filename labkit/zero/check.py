"""The exercises of chapter 06, ZeRO. Real ranks, live bytes and DeepSpeed's own engine are the
judges."""

from collections.abc import Callable, Iterator

from labkit.check import exercise, hint, on_ranks, over_budget, status, wrong
from labkit.sharding import states
from labkit.words import say
from labkit.zero import trained_check

__all__ = [
    "correct_the_textbook",
    "fit",
    "hint",
    "same_training",
    "shard_adamw",
    "status",
]

GB = 1e9
_FITTING = (  # billions of parameters, GB of a device, GB that are taken, ranks
    (7, 80, 10, 64),
    (70, 80, 10, 64),
    (1.3, 24, 2, 8),
    (13, 40, 5, 16),
    (175, 80, 20, 16),
    (3, 80, 8, 4),
    (175, 80, 0, 64),
    (2, 40, 8, 1),
    (40, 79, 79, 8),
)


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
def fit(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, device_bytes, other_bytes, most_ranks)`` is (num_ranks, stage), or None.

    The fewest ranks on which some stage fits (16 bytes per parameter, and ``other_bytes`` on each
    rank); of the stages that fit there, the lowest.
    """
    for billions, device_gb, other_gb, most in _FITTING:
        num_params = billions * GB
        right = _fewest(num_params, device_gb * GB, other_gb * GB, most)
        given = answer(num_params, device_gb * GB, other_gb * GB, most)
        given = tuple(given) if isinstance(given, list | tuple) else given
        case = say(
            "{billions:g}B parameters, devices of {device_gb} GB, {other_gb} GB of them taken, "
            "{most} ranks",
            billions=billions,
            device_gb=device_gb,
            other_gb=other_gb,
            most=most,
        )
        if given == right:
            continue
        if right is None or given is None or len(given) != 2 or given[1] not in states.STAGES:
            truth = say("nothing fits") if right is None else say("something does fit")
            yield wrong("{case}: got {given}; {truth}", case=case, given=given, truth=truth)
        num_ranks, stage = given
        mine = say("{num_ranks} ranks at stage {stage}", num_ranks=num_ranks, stage=stage)
        need = sum(states.state_bytes(num_params, num_ranks, stage).values()) / GB + other_gb
        if num_ranks > most:
            yield wrong("{case}: got {num_ranks} ranks", case=case, num_ranks=num_ranks)
        if need > device_gb:
            yield wrong("{case}: {mine} need {need:.1f} GB each", case=case, mine=mine, need=need)
        better = say("stage {stage}", stage=right[1])
        if right[0] < num_ranks:
            better = say("{num_ranks} ranks", num_ranks=right[0])
        yield over_budget(
            "{case}: {mine} fit ({need:.1f} GB each); so do {better}",
            case=case,
            mine=mine,
            need=need,
            better=better,
        )


@exercise
def correct_the_textbook(answer: Callable) -> Iterator[tuple[str, str]]:
    """``answer(num_params, num_ranks, stage)`` is the bytes of model states per rank: those of a
    live DeepSpeed engine, averaged over its ranks, what it pads and keeps without need left out."""
    for num_ranks, stage in ((4, 0), (4, 1), (4, 2), (4, 3), (8, 1), (64, 2), (1, 3), (3, 1)):
        mine = float(answer(7e9, num_ranks, stage))
        right = sum(states.state_bytes(7e9, num_ranks, stage).values())
        if abs(mine - right) > 1e-6 * right:
            yield wrong(
                "7B, {num_ranks} ranks, stage {stage}: got {mine:.2f} GB, not {right:.2f}",
                num_ranks=num_ranks,
                stage=stage,
                mine=mine / GB,
                right=right / GB,
            )
    names = ("zero1", "zero2", "zero3")
    num_params, live = on_ranks(2, trained_check.live_engines, *names, hang_s=25)[0]
    for stage, num_bytes in live.items():
        mine = float(answer(num_params, 2, stage))
        if abs(mine - num_bytes) > 1e-3 * num_bytes:
            yield wrong(
                "{num_params:,} parameters, 2 ranks, stage {stage}: got {mine:,.0f} bytes; a live "
                "DeepSpeed engine holds {num_bytes:,.0f}",
                num_params=num_params,
                stage=stage,
                mine=mine,
                num_bytes=num_bytes,
            )


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


def _fewest(
    num_params: float, device_bytes: float, other_bytes: float, most: int
) -> tuple[int, int] | None:
    """The right answer of ``fit``."""
    options = []
    for stage in states.STAGES:
        num_ranks = states.ranks_needed(
            num_params, device_bytes, stage, extra_bytes=other_bytes, most=most
        )
        if num_ranks is not None:
            options.append((num_ranks, stage))
    return min(options, default=None)
