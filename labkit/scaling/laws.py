"""Theory of scaling: what more ranks could bring at most, and how much of it came.

Times are those of one step, in microseconds. *Strong*: the batch of all ranks together stays, so
that a step should take 1/N of the time. *Weak*: the batch of each rank stays, so that a step should
take as long as before and process N times as much.
"""

from labkit.units import MOST_RANKS, check_real, check_whole, check_word

KINDS = ("strong", "weak")
SMALLEST = 1e-12
"""what is less counts as nothing"""


def speedup(one_us: float, many_us: float, ranks: int, kind: str = "strong") -> float:
    """How many times the samples per second of one rank: the actual speedup.

    ``one_us`` is a step on one rank, ``many_us`` one on ``ranks``. Under weak scaling that step
    processes ``ranks`` times as many samples. Raises ValueError for times that are not positive.
    """
    check_word(kind, KINDS, "a kind of scaling")
    check_real(SMALLEST, 1e18, one_us=one_us, many_us=many_us)
    check_whole(1, MOST_RANKS, ranks=ranks)
    samples = ranks if kind == "weak" else 1
    return samples * one_us / many_us


def efficiency(one_us: float, many_us: float, ranks: int, kind: str = "strong") -> float:
    """Actual over theoretical speedup, where N ranks are N times as fast in theory: 1 is perfect.

    Raises ValueError as ``speedup`` does.
    """
    return speedup(one_us, many_us, ranks, kind) / ranks


def amdahl(ranks: int, serial: float) -> float:
    """The most that N ranks speed up work of which the share ``serial`` can't be divided:
    1 / (s + (1 - s) / N) (Amdahl 1967). The share is of the time on one rank."""
    check_whole(1, MOST_RANKS, ranks=ranks)
    check_real(0, 1, serial=serial)
    return 1 / (serial + (1 - serial) / ranks)


def gustafson(ranks: int, serial: float) -> float:
    """How many times the work N ranks do in the same time, where the work grows with them:
    s + (1 - s) N (Gustafson 1988). The share ``serial`` is of the time on N ranks."""
    check_whole(1, MOST_RANKS, ranks=ranks)
    check_real(0, 1, serial=serial)
    return serial + (1 - serial) * ranks


def karp_flatt(speedup: float, ranks: int) -> float:
    """The serial share that a measured strong speedup shows: (1/S - 1/N) / (1 - 1/N) (Karp and
    Flatt 1990, equation 2). Where it grows with N, something grows with it: communication, waiting.

    Raises ValueError for one rank, which shows nothing.
    """
    check_whole(2, MOST_RANKS, ranks=ranks)
    check_real(SMALLEST, 1e18, speedup=speedup)
    return (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


def training_flops(
    parameters: int, tokens: float, *, layers: int = 0, hidden: int = 0, sequence: int = 0
) -> float:
    """Floating-point operations that training on so many tokens needs: 6 P each, 2 P in the forward
    and 4 P in the backward, and 12 L h s more for attention's own products, where layers, hidden
    and sequence are given (Chowdhery et al. 2022, appendix B). What is computed again counts once.
    """
    check_whole(0, 10**15, parameters=parameters, layers=layers, hidden=hidden, sequence=sequence)
    check_real(0, 1e18, tokens=tokens)
    return tokens * (6 * parameters + 12 * layers * hidden * sequence)


def mfu(flops: float, time_us: float, peak_flops_per_s: float, devices: int = 1) -> float:
    """Model FLOP/s utilization: the operations that a step needs, over those that its devices could
    have done in its time (Chowdhery et al. 2022, appendix B).

    ``flops`` are those of the step, of all devices together; ``peak_flops_per_s`` is of one.
    """
    check_real(0, 1e30, flops=flops)
    check_real(SMALLEST, 1e18, time_us=time_us, peak_flops_per_s=peak_flops_per_s)
    check_whole(1, MOST_RANKS, devices=devices)
    return flops / (1e-6 * time_us * peak_flops_per_s * devices)
