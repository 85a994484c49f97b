"""What a launch does where it is not told: set once for a whole notebook, by ``lab.begin``. What a
launch itself is told wins."""

from dataclasses import dataclass, replace

from labkit.units import check_real, check_whole


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The defaults of a launch."""

    ranks: int = 2
    """how many processes there are"""
    seed: int = 0
    """where the random numbers of rank 0 start"""
    timeout_s: float = 600.0
    """how long a run may take"""
    hang_s: float = 60.0
    """how long it may be silent"""

    def __post_init__(self) -> None:
        check_whole(1, 10**6, ranks=self.ranks)
        check_whole(0, 2**63 - 1, seed=self.seed)
        check_real(1e-3, 1e9, timeout_s=self.timeout_s, hang_s=self.hang_s)


_current = Settings()


def current() -> Settings:
    """The defaults now."""
    return _current


def filled(**told: float | None) -> Settings:
    """The defaults, but for what a launch is told; None is nothing. Raises ValueError as ``change``
    does."""
    return replace(_current, **{name: value for name, value in told.items() if value is not None})


def change(**fields: float) -> Settings:
    """Sets some of the defaults; returns all of them. Raises ValueError for what can be none."""
    global _current
    _current = replace(_current, **fields)
    return _current


def reset() -> None:
    """The defaults as they are before anybody has changed them."""
    change(**vars(Settings()))
