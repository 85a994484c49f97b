"""How often to save: what saving and failing cost together, and the interval that costs least."""

from math import exp, expm1

from labkit.units import check_real, check_whole

GPU_HOURS = 16_384 * 54 * 24 / 419
"""GPU-hours between two failures: Llama 3's training was interrupted 419 times unexpectedly in 54
days on 16,384 GPUs (Llama Team 2024, The Llama 3 Herd of Models, section 3.3.4)"""


def mtbf_s(num_gpus: int) -> float:
    """Seconds between two failures of so many GPUs, each as reliable as Llama 3's."""
    check_whole(1, num_gpus=num_gpus)
    return 3600 * GPU_HOURS / num_gpus


def slowdown(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """Wall time over useful time for one checkpoint every ``interval_s``, failures at random (Daly
    2006, the complete cost function): M e^(R/M) (e^((T+C)/M) - 1) / T."""
    check_real(1e-9, interval_s=interval_s, mtbf_s=mtbf_s)
    check_real(0.0, save_s=save_s, restart_s=restart_s)
    if (interval_s + save_s + restart_s) / mtbf_s > 600:
        return float("inf")
    return mtbf_s * exp(restart_s / mtbf_s) * expm1((interval_s + save_s) / mtbf_s) / interval_s


def lost_share(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """The share of all time that is no training: saves, what failures undo, restarts."""
    return 1 - 1 / slowdown(interval_s, save_s, mtbf_s, restart_s)


def cheapest_s(save_s: float, mtbf_s: float) -> float:
    """The interval with the least ``slowdown``, by cutting down the part of the axis that must hold
    it. The time to restart does not move it."""
    check_real(0.0, save_s=save_s)
    check_real(1e-9, mtbf_s=mtbf_s)
    low = 1e-6 * mtbf_s
    high = 2 * mtbf_s
    for _ in range(200):
        third = (high - low) / 3
        if slowdown(low + third, save_s, mtbf_s) < slowdown(high - third, save_s, mtbf_s):
            high -= third
        else:
            low += third
    return low
