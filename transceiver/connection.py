"""One client's HTTP connection: aiohttp's, which also knows what it waits for and since when.

1. What is overdue is closed: a head after HEAD_TIMEOUT_S, an answer after REQUEST_TIMEOUT_S, a next
   request after KEEPALIVE_S. Bodies have their own time (body.py).
2. A client that has said its last (a half-closed connection) still gets its answer.
3. What is refused before a handler runs (no HTTP, long headers) gets its error in OpenAI's shape, and
   no log line.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import StreamReader

from .replies import add_common_headers, error_of_status, error_response, http_error_response

HEAD_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
KEEPALIVE_S = 75.0
"""Longer than the 60 s for which proxies keep a connection to use it again."""
LINGER_S = 2.0
"""For the rest of a body that nobody wanted, so that its sender reads the answer."""


class Phase(enum.Enum):
    """What a connection waits for."""

    NEW = "new"
    """A first byte."""
    HEAD = "head"
    """The rest of a request's head."""
    BUSY = "busy"
    """The rest of a body, or the answer."""
    IDLE = "idle"
    """Another request, after an answer."""


_LIMIT_S = {
    Phase.NEW: HEAD_TIMEOUT_S,
    Phase.HEAD: HEAD_TIMEOUT_S,
    Phase.BUSY: REQUEST_TIMEOUT_S,
    Phase.IDLE: KEEPALIVE_S,
}


class Connection(web.RequestHandler):
    """See the module. The server's request handler must call `began`."""

    __slots__ = (
        "_body",
        "_client",
        "_is_cut",
        "_is_last",
        "_on_lost",
        "_said_all",
        "phase",
        "since_s",
    )

    def __init__(
        self,
        server: web.Server,
        client: socket.socket,
        *,
        is_last: Callable[[], bool],
        on_lost: Callable[[Connection], None],
    ) -> None:
        """`client` is the socket that its transport will have; `is_last`: whether the answers given
        now end their connections.
        """
        # The parser must not inflate a body that nobody has asked for yet.
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            auto_decompress=False,
            lingering_time=LINGER_S,
        )
        self._client = client
        self._is_last = is_last
        self._on_lost = on_lost
        self._body: StreamReader | None = None
        self._is_cut = False
        self._said_all = False
        self.phase = Phase.NEW
        self.since_s = self._now_s()

    def is_overdue(self, now_s: float) -> bool:
        """Whether it has waited too long; `now_s` is the loop's time."""
        return now_s - self.since_s > _LIMIT_S[self.phase]

    def waits_for_client(self) -> bool:
        """Whether it is the client's turn, since `since_s`; not while a request that has come
        whole is handled.
        """
        return self._body is None or not self._body.is_eof()

    def is_owed_an_answer(self) -> bool:
        """Whether closing it now might lose a request."""
        return self.phase is not Phase.IDLE

    def began(self, body: StreamReader) -> None:
        """A request is handled, whose body may still come."""
        self._body = body
        self._become(Phase.BUSY)

    def cut(self) -> None:
        """Ends it now, whatever its client has not read."""
        self._is_cut = True
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()
        else:
            # TLS's handshake sees the end of its client, and closes the socket.
            with contextlib.suppress(OSError):
                self._client.shutdown(socket.SHUT_RDWR)

    # asyncio.Protocol and aiohttp's RequestHandler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It can be read."""
        super().connection_made(transport)
        if self._is_cut:
            self.cut()

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        if self.phase in (Phase.NEW, Phase.IDLE):
            self._become(Phase.HEAD)
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client will send no more; True keeps the connection open for what it is owed."""
        self._said_all = True
        # TLS has no half-closed connections (asyncio.Protocol.eof_received).
        return self.phase is not Phase.IDLE and self.ssl_context is None

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._on_lost(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Sends an answer, whoever made it."""
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp = http_error_response(resp)
        add_common_headers(resp)
        if self._said_all or self._is_last():
            resp.force_close()
        finished = await super().finish_response(request, resp, start_time)
        self._body = None
        self._become(Phase.IDLE)
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what no handler saw, or failed at."""
        if isinstance(exc, LineTooLong):
            status, text = 431, "The request's line or one of its headers is too long."
        elif status < 500:
            text = "The request is not valid HTTP."
        else:
            text = "The server failed to handle the request."
        response = error_response(error_of_status(status, text))
        response.force_close()
        return response

    def _become(self, phase: Phase) -> None:
        self.phase, self.since_s = phase, self._now_s()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
