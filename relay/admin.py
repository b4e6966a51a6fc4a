"""The admin HTTP server: /healthz, /readyz, /metrics.

1. /healthz says whether the loops turn, and nothing else: not Redis, not draining.
2. /readyz says whether new clients should be sent here.
3. It answers GET and HEAD, and serves at most CONNECTION_LIMIT at once; it is never on the packet path.
4. A client has IDLE_LIMIT_S to send each request and to take its answer, however slowly it does. When all places
   are taken, the one that has been waited for longest gives way to a newcomer: who opens connections and says or
   reads nothing keeps no probe out.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from relay.metrics import Health
from relay.wire.log import Logger

IDLE_LIMIT_S = 10.0
CONNECTION_LIMIT = 32


class AdminServer(ThreadingHTTPServer):
    """Serves on a listening socket that the supervisor bound."""

    daemon_threads = True

    def __init__(
        self, listener: socket.socket, health: Health, metrics: CollectorRegistry, log: Logger
    ) -> None:
        # The base class would make and bind a socket of its own; this one is taken over instead.
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.health = health
        self.registry = metrics
        self.log = log
        self._places = threading.Lock()
        self._owing_since_s: dict[socket.socket, float | None] = {}
        """Of each open connection, whose client is waited for; None while its answer is made."""

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a connection, while there is a place or one can be made."""
        with self._places:
            if len(self._owing_since_s) >= CONNECTION_LIMIT:
                self._make_place()
            has_place = len(self._owing_since_s) < CONNECTION_LIMIT
            if has_place:
                self._owing_since_s[request] = time.monotonic()
        if has_place:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._places:
                self._owing_since_s.pop(request, None)

    def note_turn(self, request: socket.socket, *, owes: bool) -> None:
        """Whether the client owes something from now on (a request, to take its answer), or we an answer."""
        with self._places:
            if request in self._owing_since_s:
                self._owing_since_s[request] = time.monotonic() if owes else None

    def service_actions(self) -> None:
        """A few times a second: hang up on those who are over their time."""
        limit_s = time.monotonic() - IDLE_LIMIT_S
        with self._places:
            for request, since_s in list(self._owing_since_s.items()):
                if since_s is not None and since_s < limit_s:
                    self._hang_up(request)

    def _make_place(self) -> None:
        owing = {
            request: since_s
            for request, since_s in self._owing_since_s.items()
            if since_s is not None
        }
        if owing:
            self._hang_up(min(owing, key=owing.__getitem__))

    def _hang_up(self, request: socket.socket) -> None:
        """Its thread wakes up, closes it and ends."""
        del self._owing_since_s[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event; a fault of ours is one line."""
        self.log.debug("admin_request_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: AdminServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_LIMIT_S

    def handle_one_request(self) -> None:
        self.server.note_turn(self.connection, owes=True)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.note_turn(self.connection, owes=False)
        if self._may_have_body():  # which nobody reads: it must not be taken for the next request
            self.close_connection = True
        path = self._path()
        if path == "/healthz":
            stalled = self.server.health.stalled()
            text = f"workers without progress: {stalled}" if stalled else None
            self._answer_state(text)
        elif path == "/readyz":
            self._answer_state(self.server.health.not_ready())
        elif path == "/metrics":
            encode, content_type = self._encoder()
            self._answer(200, content_type, encode(self.server.registry))
        else:
            self._answer(404, "text/plain; charset=utf-8", b"not found\n")

    def _may_have_body(self) -> bool:
        """Also when the head is cut short by a line that is no field: the fields behind it are unknown."""
        lengths = self.headers.get_all("Content-Length", [])
        says_so = "Transfer-Encoding" in self.headers or any(
            size.strip() != "0" for size in lengths
        )
        return says_so or bool(self.headers.defects)

    def _path(self) -> str:
        """Without the query; of a whole URL, which RFC 9112 3.2.2 has servers take, what comes behind the host."""
        path = self.path.partition("?")[0]
        if path.startswith("/"):
            return path
        return "/" + path.partition("://")[2].partition("/")[2]

    def _encoder(self) -> tuple[Callable[[CollectorRegistry], bytes], str]:
        """By the Accept header, if it makes sense."""
        try:
            return choose_encoder(self.headers.get("Accept", ""))
        except (ValueError, TypeError):  # a version that is none
            return choose_encoder("")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer_state(self, trouble: str | None) -> None:
        body = f"{trouble or 'ok'}\n".encode()
        self._answer(503 if trouble else 200, "text/plain; charset=utf-8", body)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.server.note_turn(self.connection, owes=True)
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "relay"

    def log_message(self, *_: object) -> None:
        """Requests are not logged: probes come every few seconds."""
