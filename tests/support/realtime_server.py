"""A Realtime server that does what a test tells it: real WebSocket, real events, one script a connection.

1. It records every event that each connection receives; audio is kept apart, decoded.
2. Without a script it greets, acknowledges session updates and listens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import ssl
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

RATE_HZ = 24_000

Event = dict[str, Any]


def tone(duration_ms: int, hertz: float = 600.0) -> bytes:
    """A loud tone as 24 kHz PCM."""
    step = 2 * math.pi * hertz / RATE_HZ
    samples = RATE_HZ * duration_ms // 1_000
    return array("h", (int(14_000 * math.sin(i * step)) for i in range(samples))).tobytes()


@dataclass
class Connection:
    """One call of the transceiver."""

    websocket: web.WebSocketResponse
    headers: dict[str, str]
    query: dict[str, str]
    events: list[Event] = field(default_factory=list)
    """What came, audio aside."""
    audio: bytearray = field(default_factory=bytearray)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    acknowledges: bool = True

    async def send(self, kind: str, **fields: Any) -> None:
        """Sends one event."""
        await self.websocket.send_json({"type": kind, "event_id": "event_x", **fields})

    async def say(self, pcm: bytes, response: str = "resp_1", item: str = "item_1") -> None:
        """Sends a response of this sound, all at once."""
        where = {"response_id": response, "item_id": item, "output_index": 0, "content_index": 0}
        await self.send("response.created", response={"id": response, "status": "in_progress"})
        for at in range(0, len(pcm), RATE_HZ // 5 * 2):
            delta = base64.b64encode(pcm[at : at + RATE_HZ // 5 * 2]).decode()
            await self.send("response.output_audio.delta", delta=delta, **where)
        await self.send("response.output_audio.done", **where)
        await self.send("response.done", response={"id": response, "status": "completed"})

    def of(self, kind: str) -> list[Event]:
        """The events of a type so far."""
        return [event for event in self.events if event["type"] == kind]

    def abort(self) -> None:
        """Breaks the connection without a close frame."""
        request: Any = self.websocket._req
        request.transport.abort()


Script = Callable[[Connection], Awaitable[None]]
Reaction = Callable[[Event], Awaitable[None]]


async def _nothing(_connection: Connection) -> None:
    pass


@dataclass
class RealtimeServer:
    """The server and its connections, newest last."""

    script: Script = _nothing
    """Runs once a connection is greeted, beside the listening."""
    react: Callable[[Connection], Reaction] | None = None
    """Makes what each connection's events are handed to, sound aside, once they are recorded."""
    greets: bool = True
    """False: it takes connections and says nothing by itself."""
    status: int = 101
    """Another one refuses the upgrade."""
    url: str = ""
    connections: list[Connection] = field(default_factory=list)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One connection's life."""
        if self.status != 101:
            return web.Response(status=self.status)
        websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        connection = Connection(websocket, dict(request.headers), dict(request.query))
        self.connections.append(connection)
        scripted = asyncio.create_task(self._run_script(connection))
        try:
            await self._listen(connection, self.react and self.react(connection))
        finally:
            connection.closed.set()
            scripted.cancel()
            await asyncio.gather(scripted, return_exceptions=True)
        return websocket

    async def _run_script(self, connection: Connection) -> None:
        with suppress(ConnectionError):
            if self.greets:
                session = {"id": "sess_1", "type": "realtime"}
                await connection.send("session.created", session=session)
            await self.script(connection)

    async def _listen(self, connection: Connection, react: Reaction | None) -> None:
        async for message in connection.websocket:
            if message.type is not WSMsgType.TEXT:
                continue
            event = json.loads(message.data)
            if event["type"] == "input_audio_buffer.append":
                connection.audio += base64.b64decode(event["audio"])
                continue
            connection.events.append(event)
            if event["type"] == "session.update" and connection.acknowledges and self.greets:
                await connection.send("session.updated", session=event["session"])
            if react is not None:
                await react(event)

    def app(self) -> web.Application:
        """The HTTP side."""
        app = web.Application()
        app.router.add_get("/v1/realtime", self.serve)
        return app


@asynccontextmanager
async def realtime_server(
    *, receive_buffer_bytes: int | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RealtimeServer]:
    """A server on a free port of loopback, with TLS where `tls` has its certificate.

    `receive_buffer_bytes` bounds the kernel's buffer, which else grows to megabytes and hides what is not read.
    """
    server = RealtimeServer()
    runner = web.AppRunner(server.app(), shutdown_timeout=0.2)
    await runner.setup()
    listener = socket.socket()
    if receive_buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    listener.bind(("127.0.0.1", 0))
    await web.SockSite(runner, listener, backlog=512, ssl_context=tls).start()
    host, port = listener.getsockname()
    server.url = f"{'ws' if tls is None else 'wss'}://{host}:{port}/v1/realtime"
    try:
        yield server
    finally:
        await runner.cleanup()
