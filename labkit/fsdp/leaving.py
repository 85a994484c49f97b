"""What of a rank's messages would leave a machine, if its ranks stood in several: by formula."""

from collections.abc import Mapping

from labkit.units import check_whole


def leaving_bytes(
    payload: Mapping[str, int], *, shard: int, per_machine: int, replicate: int = 1
) -> float:
    """Bytes that leave a machine of ``per_machine`` ranks in a step of FSDP, on rings.

    ``payload``: collective -> bytes that a rank handed in, as ``traffic.count`` has them. A unit is
    cut among ``shard`` ranks, and there are ``replicate`` copies of it, neighbours in a copy. A
    ring leaves a machine once, and that hop carries what one rank sends. A shard's ring leaves it
    only if it is longer than the machine; of the rings between copies each rank of a machine that
    has another slice has its own. Raises ValueError for sizes that are none.
    """
    check_whole(1, 1_000_000, shard=shard, per_machine=per_machine, replicate=replicate)
    check_whole(**{f"bytes of {name}": num_bytes for name, num_bytes in dict(payload).items()})
    found = 0.0
    if shard > per_machine:
        found += (shard - 1) * payload.get("all_gather", 0)  # handed one slice
        found += (shard - 1) / shard * payload.get("reduce_scatter", 0)
    rings = min(shard, per_machine)
    return found + rings * 2 * (replicate - 1) / replicate * payload.get("all_reduce", 0)
