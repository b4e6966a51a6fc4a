"""The admin HTTP server: /healthz, /readyz, /metrics.

1. /healthz says whether the loops turn, and nothing else: not Redis, not draining.
2. /readyz says whether new clients should be sent here.
3. It answers GET and HEAD, keeps no connection longer than IDLE_LIMIT_S, and serves at most
   CONNECTION_LIMIT at once; it is never on the packet path.
"""

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from relay.log import Logger
from relay.metrics import Health

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
        self._free = threading.BoundedSemaphore(CONNECTION_LIMIT)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread a connection, up to the limit; what is above it is closed."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In the connection's thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no event; a fault of ours is one line."""
        self.log.debug("admin_request_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: AdminServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_LIMIT_S

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/healthz":
            stalled = self.server.health.stalled()
            text = f"workers without progress: {stalled}" if stalled else None
            self._answer_state(text)
        elif path == "/readyz":
            self._answer_state(self.server.health.not_ready())
        elif path == "/metrics":
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, content_type, encode(self.server.registry))
        else:
            self._answer(404, "text/plain; charset=utf-8", b"not found\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer_state(self, trouble: str | None) -> None:
        body = f"{trouble or 'ok'}\n".encode()
        self._answer(503 if trouble else 200, "text/plain; charset=utf-8", body)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "relay"

    def log_message(self, *_: object) -> None:
        """Requests are not logged: probes come every few seconds."""
