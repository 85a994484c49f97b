"""Messages between the notebook, the zygote and the ranks: what they say, and how they travel.

A message is one of the frozen dataclasses below. It travels over a local socket as a JSON object
behind its length. What is no message, or not whole, is refused.
"""

import json
import multiprocessing.connection
import socket
import struct
import time
from dataclasses import dataclass, field, fields
from reprlib import repr as brief

from labkit.units import check_word

_LENGTH = struct.Struct("!I")
_MAX_FDS = 250  # Linux passes at most 253 file descriptors in one message


class Message:
    """Anything that is sent."""


@dataclass(frozen=True, kw_only=True)
class Ready(Message):
    """The zygote, to the notebook: it has imported torch, and forks from now on."""


@dataclass(frozen=True, kw_only=True)
class Complete(Message):
    """The zygote, to the notebook: it has imported everything that ranks may need."""


@dataclass(frozen=True, kw_only=True)
class Expect(Message):
    """The notebook, to the zygote: ranks will need these modules, too."""

    modules: tuple
    """their names"""


@dataclass(frozen=True, kw_only=True)
class Launch(Message):
    """The notebook, to the zygote: start a run. With it go open sockets: the run's own, then one
    per rank."""

    request: dict
    """what the ranks are asked to do: ``Request.to_json``"""


@dataclass(frozen=True, kw_only=True)
class Forked(Message):
    """The zygote, over a run's socket: the ranks are there."""

    pids: tuple
    """process ids by rank; fewer than ranks where the system had no room for another process"""


@dataclass(frozen=True, kw_only=True)
class Exited(Message):
    """The zygote, over a run's socket: a rank's process has ended."""

    rank: int
    """which rank"""
    status: int
    """its exit code, negative for a signal"""


@dataclass(frozen=True, kw_only=True)
class Kill(Message):
    """The notebook, over a run's socket: send some ranks a signal."""

    signal: int
    """the signal's number"""
    ranks: tuple
    """which ranks"""


@dataclass(frozen=True, kw_only=True)
class Order(Message):
    """The zygote, to a spare process, with its socket to the notebook: be this rank."""

    rank: int
    """which rank"""
    request: dict
    """what it is asked to do: ``Request.to_json``"""


@dataclass(frozen=True, kw_only=True)
class Ask(Message):
    """The notebook, to a rank: where are you? It answers with a Report."""


@dataclass(frozen=True, kw_only=True)
class Bye(Message):
    """The notebook, to a rank: everything has arrived, leave."""


@dataclass(frozen=True, kw_only=True)
class RankMessage(Message):
    """Anything that a rank tells the notebook."""

    at: float = field(default_factory=time.monotonic)
    """when, in seconds of the machine's monotonic clock"""


@dataclass(frozen=True, kw_only=True)
class Started(RankMessage):
    """Its process group is up; it now calls the function."""


@dataclass(frozen=True, kw_only=True)
class Progress(RankMessage):
    """How far it is, as its function told."""

    step: int | None
    """the step it is at"""
    loss: float | None
    """the loss it sees"""


@dataclass(frozen=True, kw_only=True)
class Returned(RankMessage):
    """Its function has returned, and the result lies in its file."""

    notes: tuple
    """words that must stand beside every number of the run"""
    peak_rss_bytes: int
    """the largest resident memory of its process"""
    last: dict | None
    """the last sequence number of each of its groups; None if it has no process group"""


@dataclass(frozen=True, kw_only=True)
class Failed(RankMessage):
    """Its function has raised an exception."""

    type: str
    """the exception's type"""
    message: str
    """what it says"""
    traceback: str
    """the learner's own frames and the last one"""
    where: dict
    """file, line, function and text of the innermost own frame; empty where there is none"""


@dataclass(frozen=True, kw_only=True)
class Report(RankMessage):
    """Where it is: the answer to Ask."""

    where: dict
    """call, peer (of a send or recv), file, line, function, text"""
    pending: tuple
    """collectives under way, each a dict of group, seq, op, shapes, dtypes"""
    groups: dict
    """its process groups: name -> ranks"""
    last: dict | None
    """the last sequence number of each of them; None if it has no process group"""


_KINDS = {
    kind.__name__: kind
    for kind in (
        *(Ready, Complete, Expect, Launch, Forked, Exited, Kill, Order, Ask, Bye),
        *(Started, Progress, Returned, Failed, Report),
    )
}


def encode(message: Message) -> dict:
    """A message as JSON has it."""
    return {"kind": type(message).__name__, "parts": vars(message)}


def decode(content: object) -> Message:
    """The message that ``encode`` wrote. Raises ValueError for anything else: an unknown name, a
    part that is missing, strange, or of another type."""
    if not isinstance(content, dict) or content.keys() != {"kind", "parts"}:
        raise ValueError(f"a message has a kind and parts; got {brief(content)}")
    name = content["kind"]
    check_word(name, _KINDS, "the kind of a message")
    kind = _KINDS[name]
    expected = {each.name: each.type for each in fields(kind)}
    if not isinstance(content["parts"], dict) or content["parts"].keys() != expected.keys():
        raise ValueError(f"{name} has {', '.join(expected)}; got {brief(content['parts'])}")
    parts = dict(content["parts"])
    for part, value in parts.items():
        if expected[part] is tuple and isinstance(value, list):
            parts[part] = tuple(value)  # JSON has no tuples
        elif not isinstance(value, expected[part]):
            raise ValueError(f"{part} of {name} is a {expected[part]}; got {brief(value)}")
    return kind(**parts)


def send(sock: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Sends one message, with open file descriptors if given. Raises OSError when the other side is
    gone."""
    body = json.dumps(encode(message)).encode()
    head = _LENGTH.pack(len(body))
    if fds:
        socket.send_fds(sock, [head], list(fds))
        sock.sendall(body)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """The next message and its file descriptors; (None, []) when the other side is gone. Blocks
    until it is whole. Raises ValueError for what is no message."""
    try:
        head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, _MAX_FDS)
        if head:
            head += _exactly(sock, _LENGTH.size - len(head))
        if len(head) < _LENGTH.size:
            return None, fds
        (length,) = _LENGTH.unpack(head)
        body = _exactly(sock, length)
    except OSError:
        return None, []
    if len(body) < length:
        return None, fds
    return decode(json.loads(body)), fds


def is_readable(sock: socket.socket, timeout_s: float = 0.0) -> bool:
    """Whether there is something to receive, or the other side is gone; waits for it at most so
    many seconds."""
    return bool(multiprocessing.connection.wait([sock], timeout=max(0.0, timeout_s)))


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    """So many bytes; fewer when the other side is gone."""
    parts = []
    while num_bytes:
        part = sock.recv(min(num_bytes, 1 << 20))
        if not part:
            break
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
