"""How long a step with offload takes, phase by phase: the device computes, the link carries, the
host updates. What hides behind what is Ren et al. 2021 (ZeRO-Offload), section 5: copies run beside
the backward, and the updated parameters return while the host updates the next ones."""

from collections.abc import Sequence
from reprlib import repr as brief
from typing import NamedTuple

from labkit.sharding.states import Transfer
from labkit.units import check_real, check_whole

PHASES = ("forward", "backward", "step")
FLOPS = {"forward": 2, "backward": 4}
"""Operations of a dense layer per parameter and token: one multiply and one add forward, twice that
backward (Kaplan et al. 2020, section 2.1)"""
ADAM_BYTES = 30
"""What Adam on the host moves per parameter: it reads gradient, parameter and two moments (fp32, 16
bytes), and writes the last three and a 16-bit copy (14 bytes). It is bound by them, not by its
arithmetic."""


class Phase(NamedTuple):
    """A phase of the step on one rank."""

    name: str
    """one of PHASES"""
    device_us: float
    """the device computes"""
    link_us: float
    """its link to the host carries"""
    host_us: float
    """the host updates"""

    @property
    def in_turn_us(self) -> float:
        """How long it takes if each waits for the other."""
        return self.device_us + self.link_us + self.host_us

    @property
    def hidden_us(self) -> float:
        """How long it takes if all go on at once: nothing can be faster."""
        return max(self.device_us, self.link_us, self.host_us)


def phases(
    transfers: Sequence[Transfer],
    num_params: float,
    num_ranks: int,
    *,
    tokens: float,
    tflops: float,
    gb_per_s: float,
    host_gb_per_s: float,
) -> list[Phase]:
    """The three phases of one rank's step. ``tokens``: of a rank and step; ``tflops``: what the
    device really does (1e12 a second); ``gb_per_s``: its link; ``host_gb_per_s``: the memory of
    the host, a rank's share of it."""
    check_real(num_params=num_params, tokens=tokens)
    check_whole(1, num_ranks=num_ranks)
    check_real(1e-9, 1e12, tflops=tflops, gb_per_s=gb_per_s, host_gb_per_s=host_gb_per_s)
    found = []
    for name in PHASES:
        flops = FLOPS.get(name, 0) * num_params * tokens
        num_bytes = sum(each.num_bytes for each in transfers if each.phase == name)
        updated_bytes = ADAM_BYTES * num_params / num_ranks if name == "step" else 0.0
        found.append(
            Phase(
                name,
                flops / tflops / 1e6,
                num_bytes / gb_per_s / 1e3,
                updated_bytes / host_gb_per_s / 1e3,
            )
        )
    return found


def tokens_that_hide(found: Sequence[Phase], tokens: float) -> float:
    """From how many tokens on the transfers hide behind the device's computing: where the slowest
    of forward and backward is even. ``tokens``: what ``found`` was made for. Raises ValueError
    where no phase computes."""
    check_real(1e-9, tokens=tokens)
    computing = [each for each in found if each.device_us > 0]
    if not computing:
        raise ValueError(
            "transfers hide behind what the device computes; no phase of these computes: "
            f"{brief(list(found))}"
        )
    return max(tokens * each.link_us / each.device_us for each in computing)
