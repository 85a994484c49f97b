"""Two counts of communication: what was asked for, exact, and what really crossed the wire. Each
has its name.

    with traffic.count() as counted:      # inside a rank
        loss.backward()
    counted.payload_bytes["all_reduce"], counted.sent_bytes

**Payload** is counted by the collective that was *called*: the bytes of the tensors handed in on
this rank. So an all-gather counts this rank's own part, a broadcast and a reduce the whole tensor
on every rank, an all-to-all what stays here too, a scatter all parts on the root and one elsewhere,
a receive what it receives, a barrier nothing. Whatever ends in torch's process groups is seen, on
any thread: plain calls, DDP's reducer and hooks, FSDP2, DTensor, functional collectives, DeepSpeed.
Objects (``all_gather_object``) count as the tensors of bytes they become.

**Wire** bytes are those that this process handed to TCP and got from it, by the system's own count:
gloo's headers included, TCP/IP's not. gloo runs reduce-scatter as an all-reduce and so sends twice
what a true one would; a broadcast sends from some ranks and not from others. Every TCP socket of
the process counts. Ranks that labkit starts have none besides gloo's (their store is a file); under
torchrun the TCPStore's counts too, some hundred bytes for each new group. NCCL moves data inside
one machine without TCP: then payload is the only count.
"""

import contextlib
import ctypes
import functools
import os
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

CALLS = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "allgather_": ("all_gather", 1),
    "_allgather_base_": ("all_gather", 1),
    "allgather_coalesced_": ("all_gather", 1),
    "allgather_into_tensor_coalesced_": ("all_gather", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
    "barrier": ("barrier", None),
    "monitored_barrier_": ("barrier", None),
}
"""torch's operators of communication: the collective, and the argument that holds what a rank hands
in."""
TCP_INFO = struct.Struct("=128x Q 8x I 52x Q Q")
"""Of Linux's struct tcp_info (4.19 and later): bytes_received, notsent_bytes, bytes_sent,
bytes_retrans."""
_LOCK, _watching = threading.Lock(), contextlib.ExitStack()
_BELOW = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_open: list["Counted"] = []


class Counted:
    """The traffic of one rank in one block. The numbers of the wire stand when the block has
    ended."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """how often each collective was called on this rank"""
        self.payload_bytes: Counter[str] = Counter()
        """bytes of the tensors handed in on this rank, by the collective called"""
        self.largest_bytes: Counter[str] = Counter()
        """of those, the bytes of the largest call"""
        self.order: list[tuple[str, int]] = []
        """each call as it was made: the collective, and its bytes"""
        self.peers: list[tuple[str, int | None]] = []
        """of each send and recv as it was posted: which, and the other rank; None for a receive
        from whoever comes"""
        self.sent_bytes: int | None = None
        """bytes handed to TCP; None where the system does not say (macOS)"""
        self.received_bytes: int | None = None
        """bytes that TCP received; None where the system does not say (macOS)"""

    def __repr__(self) -> str:
        calls = ", ".join(
            f"{name} {num} x, {self.payload_bytes[name]:,} bytes"
            for name, num in self.calls.items()
        )
        wire = (
            "no number"
            if self.sent_bytes is None
            else f"{self.sent_bytes:,} out, {self.received_bytes:,} in"
        )
        return f"Counted({calls or 'no calls'}; wire: {wire})"


@contextlib.contextmanager
def count() -> Iterator[Counted]:
    """Counts this process's communication while the block runs; blocks may stand inside each other.

    Costs some 15 us a call and nothing between calls. A call counts when it is made: wait for
    asynchronous ones inside the block, or their bytes on the wire are not all there yet. A socket
    opened inside counts from its first byte; one closed inside (``destroy_process_group``) takes
    its bytes with it.
    """
    counted, before = Counted(), _tcp_bytes()
    with _LOCK:
        if not _open:
            _watch()
        _open.append(counted)
    try:
        yield counted
    finally:
        with _LOCK:
            _open.remove(counted)
            if not _open:
                _watching.close()
        after = _tcp_bytes()
        if before is not None and after is not None:
            gained = [np.subtract(now, before.get(one, 0)) for one, now in after.items()]
            counted.sent_bytes, counted.received_bytes = (
                np.sum(gained, axis=0).tolist() if gained else (0, 0)
            )


def _watch() -> None:
    """Puts a counting kernel before each operator. All devices and threads pass here, hooks'
    callbacks included.

    A dispatch mode (torch's CommDebugMode) would see one thread only, and cost 5 us for every
    operator of the model.
    """
    library = _watching.enter_context(torch.library._scoped_library("c10d", "IMPL"))
    for operator, (name, position) in CALLS.items():
        kernel = functools.partial(
            _count_call, getattr(torch.ops.c10d, operator).default, name, position
        )
        library.impl(operator, kernel, "BackendSelect", with_keyset=True)


def _count_call(
    operator: Any, name: str, position: int | None, keys: Any, *args: Any, **kwargs: Any
) -> Any:
    num_bytes = 0 if position is None else _num_bytes(args[position])
    if (
        name == "scatter" and not num_bytes
    ):  # not the root: it hands in only where its part will lie
        num_bytes = _num_bytes(args[0])
    posted = [(name, _peer(*args[1:3]))] if name in ("send", "recv") else []
    with _LOCK:
        for counted in _open:
            counted.calls[name] += 1
            counted.peers += posted
            counted.order.append((name, num_bytes))
            counted.payload_bytes[name] += num_bytes
            counted.largest_bytes[name] = max(counted.largest_bytes[name], num_bytes)
    return operator.redispatch(keys & _BELOW, *args, **kwargs)


def _peer(group: Any, peer: int | None = None, *_: Any) -> int | None:
    """The rank of the world at the other end, from the group's own number for it; None where it is
    not named."""
    if peer is None:
        return None
    return torch.distributed.get_global_rank(torch.distributed.ProcessGroup.unbox(group), peer)


def _num_bytes(tensors: Any) -> int:
    if not isinstance(tensors, Tensor):
        return sum(map(_num_bytes, tensors))
    return (
        tensors._indices().nbytes + tensors._values().nbytes
        if tensors.is_sparse
        else tensors.nbytes
    )


def _tcp_bytes() -> dict[int, tuple[int, int]] | None:
    """Bytes sent and received by each TCP socket of this process, by its inode.

    What was handed over is what went out, less what went out twice, and what still waits.
    """
    if sys.platform != "linux":
        return None
    libc, info, found = ctypes.CDLL(None), ctypes.create_string_buffer(TCP_INFO.size), {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        size = ctypes.c_uint(TCP_INFO.size)
        if libc.getsockopt(fd, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size)) == 0:
            if size.value < TCP_INFO.size:
                return None
            received, waiting, sent, twice = TCP_INFO.unpack(info)
            with contextlib.suppress(OSError):  # another thread has just closed it
                found[os.fstat(fd).st_ino] = sent - twice + waiting, received
    return found
