"""Jobs that share a link: what they lose when they send at the same time, and win when they take
turns (CASSINI, Rajasekaran et al. 2023, arXiv 2308.00852)."""

from collections.abc import Sequence

from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_real, check_whole


def shared_link(
    starts_ms: Sequence[float],
    *,
    compute_ms: float = 30.0,
    send_ms: float = 20.0,
    num_steps: int = 4,
) -> Timeline:
    """Jobs that compute and then send, step by step, over one link, simulated; a rank stands for a
    job. ``send_ms`` is what a job's message takes if it has the link to itself; those that send at
    the same time have equal parts of it. Raises ValueError for times below 0 or no job.
    """
    check_real(0.0, 1e9, compute_ms=compute_ms, send_ms=send_ms)
    check_whole(1, 10_000, num_steps=num_steps, jobs=len(starts_ms))
    for start_ms in starts_ms:
        check_real(0.0, 1e9, start_ms=start_ms)
    rows = []
    computed_ms = {job: start_ms + compute_ms for job, start_ms in enumerate(starts_ms)}
    left_ms: dict[int, float] = {}
    began_ms: dict[int, float] = {}
    steps = dict.fromkeys(computed_ms, 0)
    now_ms = 0.0
    for job, start_ms in enumerate(starts_ms):
        rows.append(_row(job, COMPUTE, 0, start_ms, start_ms + compute_ms))
    while computed_ms or left_ms:
        ends_ms = [now_ms + each * len(left_ms) for each in left_ms.values()]
        next_ms = min([*ends_ms, *computed_ms.values()])
        if left_ms:
            for job in left_ms:
                left_ms[job] -= (next_ms - now_ms) / len(left_ms)
        now_ms = next_ms
        for job in [job for job, left in left_ms.items() if left <= 1e-9 * send_ms]:
            del left_ms[job]
            rows.append(_row(job, COMM, steps[job], began_ms[job], now_ms))
            steps[job] += 1
            if steps[job] < num_steps:
                computed_ms[job] = now_ms + compute_ms
                rows.append(_row(job, COMPUTE, steps[job], now_ms, computed_ms[job]))
        for job in [job for job, at_ms in computed_ms.items() if at_ms <= now_ms]:
            del computed_ms[job]
            left_ms[job] = send_ms
            began_ms[job] = now_ms
    return from_rows(rows, num_ranks=len(starts_ms), origin="simulated")


def _row(job: int, lane: str, step: int, start_ms: float, end_ms: float) -> tuple:
    """A span of a job: it computes, or it sends."""
    kind = "compute" if lane == COMPUTE else "all_reduce"
    return job, lane, kind, str(step), 1e3 * start_ms, 1e3 * end_ms, 0
