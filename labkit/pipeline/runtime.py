"""What torch's pipeline runtime can run, as far as one knows without it: which class runs a
schedule, which configurations it refuses, and what stated times cost."""

from labkit.pipeline.schedules import SCHEDULES
from labkit.pipeline.simulation import Cost
from labkit.units import check_whole

TORCH_CLASSES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "zb_h1": "ScheduleInterleavedZeroBubble",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
}
"""The schedule classes of torch; any other order is given to the runtime that interprets orders."""


def cost(
    num_chunks: int,
    *,
    forward_us: float,
    backward_ratio: float = 2.0,
    input_share: float = 0.5,
    message_us: float = 0.0,
    gap_us: float = 0.0,
    post_us: float = 0.0,
) -> Cost:
    """The stated times of ``run.launch`` as simulate takes them: per stage, of which a rank holds
    ``num_chunks``."""
    check_whole(num_chunks=num_chunks)
    stage_us = forward_us / num_chunks
    backward_us = backward_ratio * stage_us
    return Cost(
        forward_us=stage_us,
        backward_us=backward_us,
        input_us=input_share * backward_us,
        weight_us=(1 - input_share) * backward_us,
        message_us=message_us,
        gap_us=gap_us,
        post_us=post_us,
    )


def refusal(name: str, num_ranks: int, num_microbatches: int, num_chunks: int = 2) -> str | None:
    """Why torch's runtime will not run this configuration, in plain words; None where it will."""
    if name not in SCHEDULES:
        return f"a schedule is one of {', '.join(SCHEDULES)}; got {name!r}"
    counts = {
        "num_ranks": num_ranks,
        "num_microbatches": num_microbatches,
        "num_chunks": num_chunks,
    }
    try:
        check_whole(1, 100_000, **counts)
    except ValueError as error:
        return str(error)
    if name == "1f1b" and num_microbatches < num_ranks:
        return (
            f"torch's 1F1B wants a microbatch for every stage; {num_microbatches} microbatches "
            f"are fewer than {num_ranks} stages. Take {num_ranks} or more, or GPipe"
        )
    rounds = max(1, num_microbatches // num_ranks)
    if name in ("interleaved_1f1b", "interleaved_zb", "zb_h1") and num_microbatches % rounds:
        return (
            f"torch runs this schedule in m // p = {rounds} equal rounds; {num_microbatches} "
            f"microbatches do not divide by {rounds}. Take a multiple of {num_ranks}"
        )
    return None
