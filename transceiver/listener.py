"""Who gets in: the public HTTP sockets of a pool, as one of its processes serves them.

1. The supervisor opens one listening socket a process and keeps them all, so a process that ends
   resets nobody who waits in its queue.
2. Each process accepts from its own. It accepts from another's as well while that one is gone or
   its loop stands still: no client hangs on a process that is stuck.
3. Connections are bounded, from accept(2) on. A newcomer beyond the bound, or beyond the descriptors,
   takes the place of the one that has waited longest for its client: for TLS's handshake, a head, a
   body, another request. Where all requests have come whole, it is the newcomer who goes. Each is counted.
4. The end (`close`): no SYN gets in any more, the queues are emptied, and everybody who is in gets an
   answer, which ends his connection. Nobody is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Sequence

from aiohttp import web

from relay.wire.log import get_logger

from .board import Board, Serving
from .connection import Connection
from .sockets import is_listening, refuse_new

BACKLOG = 512
CONNECTIONS_MAX = 4_096
CONNECTIONS_MIN = 64
HANDSHAKE_TIMEOUT_S = 10.0
"""Of TLS."""
WATCH_S = 0.25
STUCK_S = 1.0
"""Without a heartbeat for so long, a process's clients are taken over."""
RETRY_S = 0.1
"""After a connection could not be accepted."""
SHORTAGE_LOGGED_S = 60.0
LAST_CALLS_S = 0.25
"""For handshakes under way when the end comes: a round trip over half the globe."""
LAST_ANSWERS_S = 2.0

_ALIVE = (Serving.SERVING, Serving.DRAINING, Serving.DRAINED)
_GONE = (Serving.RESTARTING, Serving.ENDED)


class Listener:
    """See the module. One event loop, one thread."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        server: web.Server,
        board: Board,
        row: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        """`sockets` are the pool's, by process; `server` makes what an AppRunner's does."""
        self._sockets = sockets
        self._server = server
        self._board = board
        self._row = row
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._accepting: set[socket.socket] = set()
        self._open: set[Connection] = set()
        self._welcomes: set[asyncio.Task[None]] = set()
        self._limit = _connection_limit()
        self._short_logged_s = -SHORTAGE_LOGGED_S
        self._watcher: asyncio.Task[None] | None = None
        self._is_closed = False
        self.draining = False
        """Whether every answer ends its connection."""
        handle = server.request_handler

        async def handle_and_note(request: web.BaseRequest) -> web.StreamResponse:
            if isinstance(request.protocol, Connection):
                request.protocol.began(request.content)
            return await handle(request)

        server.request_handler = handle_and_note

    def start(self) -> None:
        """Clients may come."""
        own = self._sockets[self._row]
        own.listen(BACKLOG)
        self._accept_from(own)
        self._watcher = self._loop.create_task(self._watch())

    async def close(self) -> None:
        """See rule 4."""
        self.draining = True
        for listening in self._sockets:
            refuse_new(listening)
        await asyncio.sleep(LAST_CALLS_S)
        self._is_closed = True
        if self._watcher is not None:
            self._watcher.cancel()
        for listening in list(self._accepting):
            self._leave(listening)
        give_up_s = self._loop.time() + LAST_ANSWERS_S
        while self._is_owing():
            if self._loop.time() >= give_up_s:
                break
            await asyncio.sleep(0.01)

    def _is_owing(self) -> bool:
        return bool(self._welcomes) or any(one.is_owed_an_answer() for one in self._open)

    async def _watch(self) -> None:
        while True:
            now_s = self._loop.time()
            for connection in [one for one in self._open if one.is_overdue(now_s)]:
                if connection.is_owed_an_answer():
                    self._count("overdue")
                self._cut(connection)
            for row, listening in enumerate(self._sockets):
                if row != self._row:
                    self._stand_in(row, listening)
            await asyncio.sleep(WATCH_S)

    def _stand_in(self, row: int, listening: socket.socket) -> None:
        if self._is_served(row):
            self._leave(listening)
        elif is_listening(listening):
            self._accept_from(listening)

    def _is_served(self, row: int) -> bool:
        serving = self._board.get(row, "serving")
        if serving in _ALIVE:
            silent_s = self._loop.time() - self._board.get(row, "heartbeat_ns") / 1e9
            return silent_s < STUCK_S
        return serving not in _GONE

    def _accept_from(self, listening: socket.socket) -> None:
        if listening not in self._accepting and not self._is_closed:
            self._accepting.add(listening)
            self._loop.add_reader(listening, self._accept, listening)

    def _leave(self, listening: socket.socket) -> None:
        if listening in self._accepting:
            self._accepting.discard(listening)
            self._loop.remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        # One at a time: what comes in a burst is shared out between those who accept.
        try:
            client, _ = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._fall_short(listening, error)
            return
        if len(self._open) >= self._limit and not self._make_room():
            self._count("refused")
            client.close()
            return
        client.setblocking(False)
        connection = Connection(
            self._server, client, is_last=lambda: self.draining, on_lost=self._open.discard
        )
        self._open.add(connection)
        task = self._loop.create_task(self._welcome(connection, client))
        self._welcomes.add(task)
        task.add_done_callback(self._welcomes.discard)

    async def _welcome(self, connection: Connection, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                client,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_TIMEOUT_S,
            )
        except OSError:
            self._open.discard(connection)
            client.close()

    def _fall_short(self, listening: socket.socket, error: OSError) -> None:
        """accept(2) failed for want of descriptors or memory; the client still waits."""
        now_s = self._loop.time()
        if now_s - self._short_logged_s >= SHORTAGE_LOGGED_S:
            self._short_logged_s = now_s
            get_logger().error("accept_failed", reason=error.strerror, connections=len(self._open))
        self._make_room()
        self._leave(listening)
        self._loop.call_later(RETRY_S, self._retry, listening)

    def _retry(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if is_listening(listening):
                self._accept_from(listening)

    def _make_room(self) -> bool:
        """Whether there was anybody to cut."""
        waiting = [one for one in self._open if one.waits_for_client()]
        if not waiting:
            return False
        self._count("displaced")
        self._cut(min(waiting, key=lambda one: one.since_s))
        return True

    def _count(self, reason: str) -> None:
        """One of metrics.HTTP_CUTS."""
        self._board.add(self._row, f"http_cut.{reason}")

    def _cut(self, connection: Connection) -> None:
        # It is lost a moment later; whoever makes room meanwhile needs another one.
        self._open.discard(connection)
        connection.cut()


def _connection_limit() -> int:
    """A quarter of the descriptors that this process may have, within bounds."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, descriptors // 4))
