"""Messages between the notebook, the zygote and the ranks: one JSON object behind its length, over
a local socket."""

import json
import socket
import struct

_LENGTH = struct.Struct("!I")
_MAX_FDS = 250  # Linux passes at most 253 file descriptors in one message


def send(sock: socket.socket, message: dict, fds: tuple[int, ...] = ()) -> None:
    """Sends one message, with open file descriptors if given. Raises OSError when the other side is
    gone."""
    body = json.dumps(message).encode()
    head = _LENGTH.pack(len(body))
    if fds:
        socket.send_fds(sock, [head], list(fds))
        sock.sendall(body)
    else:
        sock.sendall(head + body)


def receive(sock: socket.socket) -> tuple[dict | None, list[int]]:
    """The next message and its file descriptors; (None, []) when the other side is gone. Blocks
    until it is whole."""
    try:
        head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, _MAX_FDS)
        head += _exactly(sock, _LENGTH.size - len(head)) if head else b""
        if len(head) < _LENGTH.size:
            return None, fds
        (length,) = _LENGTH.unpack(head)
        body = _exactly(sock, length)
    except OSError:
        return None, []
    return (json.loads(body), fds) if len(body) == length else (None, fds)


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    parts = []
    while num_bytes:
        part = sock.recv(min(num_bytes, 1 << 20))
        if not part:
            break
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
