"""What the order of FSDP's moves takes where messages run beside the computation.

``moves.order`` reads an order out of a recording; ``hiding.replay`` lays the same moves on a GPU's
two queues, one of computation and one of messages, at stated durations.
"""

import re
from collections.abc import Sequence

from labkit.timeline import COMM, COMPUTE, Timeline, from_rows
from labkit.units import check_real

MOVE = re.compile(r"([gFBr])(\d+)")
KINDS = {"g": "all_gather", "F": "forward", "B": "backward", "r": "reduce_scatter"}


def replay(order: Sequence[str], *, forward_us: float, message_us: float) -> Timeline:
    """The moves ("g0", "F0", ...; as ``fsdp.order`` gives them) on two queues, by theory.

    Each queue does its moves one at a time, in order; a backward takes two forwards. A layer
    computes when its gather is there, a reduce begins when its backward has ended. In the forward
    two buffers take turns: a gather begins no earlier than the forward of the layer gathered two
    before it, which is copied out of its buffer then (``FSDPParamGroup.wait_for_unshard``, torch
    2.13). In the backward it begins no earlier than the computation before it in ``order``, and
    than the end of the layer's forward, which frees it. Raises ValueError for what is no order of
    FSDP.
    """
    check_real(0, 1e12, forward_us=forward_us, message_us=message_us)
    takes_us = {"F": forward_us, "B": 2 * forward_us, "g": message_us, "r": message_us}
    free_us = {COMPUTE: 0.0, COMM: 0.0}
    ready_us: dict[str, float] = {}  # move -> when it last ended
    begun_us: dict[str, float] = {"": 0.0}  # move -> when it last began
    computed = ""  # the last computation
    gathered = ["", ""]  # forwards of the layers gathered for the first time
    rows = []
    for move in order:
        letter, layer = _parts(move)
        if letter in "FB" and f"g{layer}" not in ready_us:
            raise ValueError(f"a layer is gathered (g{layer}) before it computes; got {move} first")
        lane = COMPUTE if letter in "FB" else COMM
        needed = {"g": f"F{layer}", "r": f"B{layer}"}.get(letter, f"g{layer}")
        after = ""
        if letter == "g":
            is_forward = f"F{layer}" not in ready_us
            after = gathered[-2] if is_forward else computed
            gathered.append(f"F{layer}")
        start_us = max(free_us[lane], ready_us.get(needed, 0.0), begun_us.get(after, 0.0))
        begun_us[move] = start_us
        free_us[lane] = ready_us[move] = start_us + takes_us[letter]
        if lane == COMPUTE:
            computed = move
        rows.append((0, lane, KINDS[letter], move, start_us, free_us[lane], 0))
    return from_rows(rows, num_ranks=1, origin="simulated")


def _parts(move: str) -> tuple[str, str]:
    """Its letter and its layer."""
    found = MOVE.fullmatch(move)
    if not found:
        raise ValueError(
            'a move of FSDP is g, F, B or r and a layer ("g3"), as fsdp.order gives them; '
            f"got {move!r}"
        )
    letter, layer = found.groups()
    return letter, layer
