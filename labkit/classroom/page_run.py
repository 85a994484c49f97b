"""A board's page, served to the instructor alone: on loopback, to who has the token of its address.

The page is made at most once a second, however many ask. A browser that was sent here by another
site names another host, and is refused.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

HOST = "127.0.0.1"
FRESH_S = 1.0
"""how old a page may be"""
SILENT_S = 5.0
"""how long a connection may say nothing"""
MOST_CONNECTIONS = 32
"""at once; more are closed"""


class Site(ThreadingHTTPServer):
    """Serves what ``make`` makes. ``address`` has the token; ``serve_forever`` and ``shutdown`` are
    the standard library's."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 2 * MOST_CONNECTIONS

    def __init__(self, make: Callable[[], str], policy: str, port: int = 0) -> None:
        super().__init__((HOST, port), _Answer)
        self.policy = policy
        self.token = secrets.token_urlsafe(32)
        self._make = make
        self._page = b""
        self._made_s = float("-inf")
        self._alone = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def address(self) -> str:
        """What the instructor opens."""
        return f"http://{HOST}:{self.server_port}/?token={self.token}"

    def page(self) -> bytes:
        """The page, made anew where it is old."""
        with self._alone:
            if time.monotonic() - self._made_s > FRESH_S:
                self._page = self._make().encode()
                self._made_s = time.monotonic()
            return self._page

    def process_request(self, request: socket.socket, client_address: object) -> None:
        """Answers in a thread, as long as there are not too many."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: socket.socket, client_address: object) -> None:
        """A connection that breaks is nothing to tell."""


class _Answer(BaseHTTPRequestHandler):
    """One request; a site has one page."""

    timeout = SILENT_S
    server: Site
    server_version = "labkit"
    sys_version = ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        token = parse_qs(asked.query).get("token", [""])[0]
        hosts = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        if self.headers.get("Host") not in hosts or not self._is_right(token):
            self._send(403, b"The address that the board's command has printed opens this page.\n")
        elif asked.path != "/":
            self._send(404, b"There is one page here: /\n")
        else:
            self._send_page()

    def _send_page(self) -> None:
        try:
            page = self.server.page()
        except OSError as error:
            told = f"The board's folder can't be read now: {error.strerror}\n"
            self._send(503, told.encode())
        else:
            self._send(200, page, kind="text/html")

    def _is_right(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.server.token.encode())

    def _send(self, status: int, body: bytes, *, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        policy = f"{self.server.policy}; frame-ancestors 'none'"
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged: an address has the token."""
