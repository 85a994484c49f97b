"""Two backends of torch.distributed that let ranks on devices communicate by gloo, through the
host: "pretend" for pretend devices, "shared" for ranks that share a GPU (which NCCL refuses).

Of a pretend device, whose bytes lie in host memory, gloo gets the same bytes; of a GPU, copies.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from labkit.devices import library
from labkit.units import check_word

if TYPE_CHECKING:
    from torch.distributed import Backend


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """What one of the backends carries, and how."""

    device: str
    """the type of its tensors' device, as torch names it"""
    copies: bool
    """whether gloo gets copies of their bytes, or the bytes themselves"""


CARRIERS = {
    "pretend": Carrier(device="pretend", copies=False),
    "shared": Carrier(device="cuda", copies=True),
}


def register(name: str, carrier: Carrier | None = None) -> None:
    """Makes a backend known to torch.distributed by its name in CARRIERS, once per process; before
    ``init_process_group``, and after its device is there. A test may give a ``carrier`` of its own.

    Raises ValueError for a name that is none, and where the library ``through_host`` is not built.
    """
    import torch.distributed as dist

    check_word(name, CARRIERS, "a backend of ours")
    if name in dist.Backend.backend_list:
        return
    carrier = carrier or CARRIERS[name]
    library.load("through_host")  # here, where one can still say that it is missing

    def create(options: object, _: object) -> "Backend":
        return _around_gloo(name, carrier, options)

    dist.Backend.register_backend(name, create, extended_api=True, devices=[carrier.device])


def _around_gloo(name: str, carrier: Carrier, options: object) -> "Backend":
    """A group's backend: gloo, set up as torch sets it up for a group of its own, so that sequence
    numbers count and the flight recorder knows the group; and around it, ours."""
    import torch
    from torch.distributed import ProcessGroupGloo

    gloo = ProcessGroupGloo(
        options.store, options.group_rank, options.group_size, timeout=options.timeout
    )
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    native = library.load("through_host")
    device = torch.device(carrier.device)
    return native.backend(gloo, name, device, carrier.copies, options.group_id)
