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
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

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
_WITH_PEER = ("send", "recv_")
"""torch's operators that name the rank at the other end."""


class TcpInfo(ctypes.Structure):
    """Linux's ``struct tcp_info`` as far as it is read here (linux/tcp.h, 4.19 and later: fields
    are only ever added at its end)."""

    _fields_ = (
        ("state_and_timing", ctypes.c_uint8 * 104),
        ("pacing_rate", ctypes.c_uint64),
        ("max_pacing_rate", ctypes.c_uint64),
        ("bytes_acked", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("segs_out", ctypes.c_uint32),
        ("segs_in", ctypes.c_uint32),
        ("notsent_bytes", ctypes.c_uint32),
        ("min_rtt", ctypes.c_uint32),
        ("data_segs_in", ctypes.c_uint32),
        ("data_segs_out", ctypes.c_uint32),
        ("delivery_rate", ctypes.c_uint64),
        ("busy_time", ctypes.c_uint64),
        ("rwnd_limited", ctypes.c_uint64),
        ("sndbuf_limited", ctypes.c_uint64),
        ("delivered", ctypes.c_uint32),
        ("delivered_ce", ctypes.c_uint32),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_retrans", ctypes.c_uint64),
    )


_BELOW_BACKEND_SELECT = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
"""What torch's dispatcher asks after the counting kernel: the backend itself."""
_LOCK = threading.Lock()
_watching = contextlib.ExitStack()  # holds the counting kernels while a block is open
_open: list["Counted"] = []  # the blocks that are open now
_carrier: "Carrier | None" = None  # whoever carries the messages now


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
        self.groups: list[tuple[int, ...]] = []
        """of each call the ranks of the world among whom it was made, in the group's order"""
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
        wire = "no number"
        if self.sent_bytes is not None:
            wire = f"{self.sent_bytes:,} out, {self.received_bytes:,} in"
        return f"Counted({calls or 'no calls'}; wire: {wire})"

    def _add(self, message: "Message") -> None:
        """One call more."""
        name, num_bytes = message.name, message.num_bytes
        self.calls[name] += 1
        self.order.append((name, num_bytes))
        self.groups.append(message.ranks)
        self.payload_bytes[name] += num_bytes
        self.largest_bytes[name] = max(self.largest_bytes[name], num_bytes)
        if name in ("send", "recv"):
            self.peers.append((name, message.peer))


@dataclass(frozen=True, kw_only=True)
class Message:
    """One call of torch's communication on this rank."""

    name: str
    """the collective called, or "send", or "recv", as ``CALLS`` has it"""
    num_bytes: int
    """what this rank hands in"""
    group: Any
    """torch's process group"""
    ranks: tuple[int, ...]
    """the ranks of the world in it, in its order; empty for a group that torch does not list"""
    peer: int | None
    """of a send or recv the other rank of the world; None for a receive from whoever comes"""


Carrier = Callable[[Message, Callable[[], Any]], Any]
"""Stands before a call: is given what it is and a function that makes it, returns what that one
returns (or something of its kind)."""


@contextlib.contextmanager
def count() -> Iterator[Counted]:
    """Counts this process's communication while the block runs; blocks may stand inside each other.

    Costs some 15 us a call and nothing between calls. A call counts when it is made: wait for
    asynchronous ones inside the block, or their bytes on the wire are not all there yet. A socket
    opened inside counts from its first byte; one closed inside (``destroy_process_group``) takes
    its bytes with it.
    """
    counted = Counted()
    before = _tcp_bytes()
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
            counted.sent_bytes = 0
            counted.received_bytes = 0
            for socket_id, (sent, received) in after.items():
                sent_before, received_before = before.get(socket_id, (0, 0))
                counted.sent_bytes += sent - sent_before
                counted.received_bytes += received - received_before


@contextlib.contextmanager
def carried(carrier: Carrier) -> Iterator[None]:
    """Hands each communication of this process to ``carrier`` while the block runs, on whichever
    thread it is called. One at a time: raises ValueError inside another."""
    global _carrier

    if _carrier is not None:
        raise ValueError("one block at a time carries messages; this one stands inside another")
    with count():
        _carrier = carrier
        try:
            yield
        finally:
            _carrier = None


def _watch() -> None:
    """Puts a counting kernel before each operator. All devices and threads pass here, hooks'
    callbacks included.

    A dispatch mode (torch's CommDebugMode) would see one thread only, and cost 5 us for every
    operator of the model.
    """
    library = _watching.enter_context(torch.library._scoped_library("c10d", "IMPL"))
    for operator, (name, position) in CALLS.items():
        below = getattr(torch.ops.c10d, operator).default
        kernel = functools.partial(_count_call, below, name, position, operator in _WITH_PEER)
        library.impl(operator, kernel, "BackendSelect", with_keyset=True)


def _count_call(
    operator: Any,
    name: str,
    position: int | None,
    with_peer: bool,
    keys: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Stands before one of torch's operators: counts the call and hands it on."""
    num_bytes = 0 if position is None else _num_bytes(args[position])
    if name == "scatter" and not num_bytes:
        num_bytes = _num_bytes(args[0])  # not the root: it hands in only where its part will lie
    group = torch.distributed.ProcessGroup.unbox(args[1 if position is None else position + 1])
    ranks = _ranks(group)
    message = Message(
        name=name,
        num_bytes=num_bytes,
        group=group,
        ranks=ranks,
        peer=ranks[args[2]] if with_peer and ranks else None,
    )
    with _LOCK:
        for counted in _open:
            counted._add(message)
    call = functools.partial(operator.redispatch, keys & _BELOW_BACKEND_SELECT, *args, **kwargs)
    return _carrier(message, call) if _carrier else call()


def _ranks(group: Any) -> tuple[int, ...]:
    """A group's ranks of the world, in its order."""
    try:
        return tuple(torch.distributed.get_process_group_ranks(group))
    except KeyError:
        return ()


def _num_bytes(tensors: Any) -> int:
    if not isinstance(tensors, Tensor):
        return sum(map(_num_bytes, tensors))
    if tensors.is_sparse:
        return tensors._indices().nbytes + tensors._values().nbytes
    return tensors.nbytes


def _tcp_bytes() -> dict[int, tuple[int, int]] | None:
    """Bytes sent and received by each TCP socket of this process, by its inode.

    What was handed over is what went out, less what went out twice, and what still waits.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        info = TcpInfo()
        size = ctypes.c_uint(ctypes.sizeof(info))
        failed = libc.getsockopt(
            fd, socket.IPPROTO_TCP, socket.TCP_INFO, ctypes.byref(info), ctypes.byref(size)
        )
        if failed:  # no TCP socket
            continue
        if size.value < ctypes.sizeof(info):  # an older system, that does not count them
            return None
        handed_over = info.bytes_sent - info.bytes_retrans + info.notsent_bytes
        with contextlib.suppress(OSError):  # another thread has just closed it
            found[os.fstat(fd).st_ino] = (handed_over, info.bytes_received)
    return found
