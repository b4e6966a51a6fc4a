"""One WebSocket to a Realtime backend, kept open for the length of a call.

1. Nothing here waits for the backend: `send` and `send_audio` queue and return.
2. What a connection is told first (the owner's `on_connected`) goes ahead of everything queued; the rest is held back until
   `release`, so that no sound arrives in a wrong format.
3. Audio is bounded in bytes, the oldest goes first, counted. Control events are never dropped: a backend that lets them pile
   up is gone.
4. A connection that breaks is made again, with back-off and jitter, for at most `give_up_s`; then `on_gone`, once.
5. A refused key (401, 403), a missing address (404) or a certificate that is not trusted is not tried again.
6. A redirect is not followed: the key would go where it points.
7. Neither headers nor the query of the URL are ever logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import aiohttp
from yarl import URL

from .dialect import Event

MESSAGE_MAX_BYTES: Final = 16 * 1024 * 1024
AUDIO_MAX_CHARS: Final = 384 * 1024
"""Queued audio events, as sent: about 5.5 s of 24 kHz PCM in base64."""
CONTROL_MAX_CHARS: Final = 2 * 1024 * 1024
SEND_BUFFER_BYTES: Final = 64 * 1024
"""Of the kernel: what lies there can no longer be dropped when the backend stalls."""
HEARTBEAT_S: Final = 60.0
STEADY_S: Final = 5.0
"""A connection that stood this long ends a row of failures; tries that take as long do not."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 2.0
FINAL_STATUSES: Final = frozenset({400, 401, 403, 404})


@dataclass(frozen=True)
class LinkConfig:
    """Where a backend is and how long it may take."""

    url: URL
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float = 5.0
    """For TCP, TLS and the upgrade of one try."""
    give_up_s: float = 10.0
    """From the first failure in a row to `on_gone`."""

    @property
    def shown(self) -> str:
        """The address without user, password and query."""
        return str(self.url.with_user(None).with_query(None).with_fragment(None))


class RedirectedError(aiohttp.ClientError):
    """The backend sends us elsewhere, where our headers have no business."""


def refuse_redirects() -> aiohttp.TraceConfig:
    """For the client session of links: a redirect ends the request before it is followed."""

    async def refuse(_session: object, _context: object, _params: object) -> None:
        raise RedirectedError

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace


class LinkOwner(Protocol):
    """Who has the call."""

    def on_connected(self, again: bool) -> list[Event]:
        """A connection stands; returns what the backend is told first."""

    def on_broken(self, reason: str) -> None:
        """A connection ended, or could not be made; another try follows."""

    def on_message(self, message: str | bytes) -> None:
        """A message of the backend, of up to MESSAGE_MAX_BYTES; it may be anything."""

    def on_gone(self, reason: str) -> None:
        """There is no backend any more; `reason` may be shown to the client."""

    async def room(self) -> None:
        """Returns when the owner can take another message; until then the backend is not read."""


class _Queued(NamedTuple):
    text: str
    audio_ms: float | None
    """Of sound; None for a control event."""
    event_id: str | None


class Link:
    """See the module. `run` is the task; one owner."""

    def __init__(self, config: LinkConfig, http: aiohttp.ClientSession, owner: LinkOwner) -> None:
        self._config = config
        self._http = http
        self._owner = owner
        self._first: deque[str] = deque()
        self._queue: deque[_Queued] = deque()
        self._audio_chars = 0
        self._control_chars = 0
        self._released = False
        self._wake = asyncio.Event()
        self._stalled = asyncio.Event()
        self._stands_since_s = math.inf
        self._speechless_since_s: float | None = None
        self.audio_dropped_ms = 0.0
        """Sound dropped since the call began."""
        self.connections = 0
        """Connections made since the call began."""

    @property
    def silent_s(self) -> float:
        """How long a connection has stood over which nothing has come yet; else 0."""
        since_s = self._speechless_since_s
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def send(self, event: Event) -> None:
        """Queues a control event behind everything sent before."""
        text = json.dumps(event)
        self._control_chars += len(text)
        name = event.get("event_id")
        self._queue.append(_Queued(text, None, name if isinstance(name, str) else None))
        if self._control_chars > CONTROL_MAX_CHARS:
            self._stalled.set()
        self._wake.set()

    def send_first(self, event: Event) -> None:
        """Sends a control event ahead of everything queued, released or not."""
        self._first.append(json.dumps(event))
        self._wake.set()

    def send_audio(self, text: str, duration_ms: float) -> None:
        """Queues the message of an audio event of so much sound; the oldest ones give way."""
        self._audio_chars += len(text)
        self._queue.append(_Queued(text, duration_ms, None))
        if self._audio_chars > AUDIO_MAX_CHARS:
            self._drop_oldest_audio()
        self._wake.set()

    def unsent(self) -> frozenset[str]:
        """The ids of control events that no connection has carried yet."""
        return frozenset(queued.event_id for queued in self._queue if queued.event_id is not None)

    def release(self) -> None:
        """The backend is configured: what was queued may go. Idempotent."""
        if not self._released:
            self._released = True
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or `on_gone`."""
        loop = asyncio.get_running_loop()
        backoff_s, failing_since_s = BACKOFF_FIRST_S, loop.time()
        while True:
            self._stands_since_s = math.inf
            reason, final = await self._one_connection()
            now_s = loop.time()
            if now_s - self._stands_since_s >= STEADY_S:
                backoff_s, failing_since_s = BACKOFF_FIRST_S, now_s
            if final or now_s - failing_since_s >= self._config.give_up_s:
                self._owner.on_gone(reason)
                return
            self._owner.on_broken(reason)
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(backoff_s * 3, BACKOFF_MAX_S)

    async def _one_connection(self) -> tuple[str, bool]:
        """Lives as long as the connection does; why it ended, and whether another try is useless."""
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                websocket = await self._http.ws_connect(
                    self._config.url,
                    headers=self._config.headers,
                    max_msg_size=MESSAGE_MAX_BYTES,
                    heartbeat=HEARTBEAT_S,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except RedirectedError:
            return "the backend answers with a redirect; configure its final address", True
        except aiohttp.WSServerHandshakeError as error:
            reason = f"the backend refused the connection with status {error.status}"
            return reason, error.status in FINAL_STATUSES
        except aiohttp.ClientConnectorCertificateError as error:
            return f"the backend's certificate is not trusted ({_fault_of(error)})", True
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"the backend cannot be reached ({type(error).__name__})", False
        _limit_kernel_buffer(websocket)
        self._released = False
        self._first = deque(json.dumps(e) for e in self._owner.on_connected(self.connections > 0))
        self.connections += 1
        self._stands_since_s = self._speechless_since_s = asyncio.get_running_loop().time()
        tasks = [
            asyncio.create_task(part)
            for part in (self._write(websocket), self._read(websocket), self._stall())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            self._speechless_since_s = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _close(websocket)

    async def _stall(self) -> tuple[str, bool]:
        await self._stalled.wait()
        return "the backend does not read what it is sent", True

    async def _read(self, websocket: aiohttp.ClientWebSocketResponse) -> tuple[str, bool]:
        while True:
            await self._owner.room()
            try:
                message = await websocket.receive()
            except (aiohttp.ClientError, OSError) as error:  # it answers pings
                return _failed(error)
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                self._speechless_since_s = None
                self._owner.on_message(message.data)
            elif message.type is aiohttp.WSMsgType.ERROR:
                return _failed(message.data)
            elif message.type in (
                aiohttp.WSMsgType.CLOSE,
                aiohttp.WSMsgType.CLOSING,
                aiohttp.WSMsgType.CLOSED,
            ):
                return f"the backend closed the connection (code {websocket.close_code})", False

    async def _write(self, websocket: aiohttp.ClientWebSocketResponse) -> tuple[str, bool]:
        while True:
            while (text := self._next()) is not None:
                try:
                    await websocket.send_str(text)
                except (aiohttp.ClientError, OSError) as error:
                    return _failed(error)
            self._wake.clear()
            await self._wake.wait()

    def _next(self) -> str | None:
        if self._first:
            return self._first.popleft()
        if not self._queue or not self._released:
            return None
        queued = self._queue.popleft()
        if queued.audio_ms is None:
            self._control_chars -= len(queued.text)
        else:
            self._audio_chars -= len(queued.text)
        return queued.text

    def _drop_oldest_audio(self) -> None:
        for position, queued in enumerate(self._queue):
            if queued.audio_ms is not None:
                del self._queue[position]
                self._audio_chars -= len(queued.text)
                self.audio_dropped_ms += queued.audio_ms
                return


def _failed(error: BaseException) -> tuple[str, bool]:
    return f"the backend's connection failed ({type(error).__name__})", False


def _fault_of(error: aiohttp.ClientConnectorCertificateError) -> str:
    """OpenSSL's word for it, without the name or address that a mismatch quotes behind a comma."""
    fault = error.certificate_error
    message = fault.verify_message if isinstance(fault, ssl.SSLCertVerificationError) else ""
    return message.partition(",")[0] or type(fault).__name__


def _limit_kernel_buffer(websocket: aiohttp.ClientWebSocketResponse) -> None:
    sock = websocket.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


async def _close(websocket: aiohttp.ClientWebSocketResponse) -> None:
    """Says goodbye for a second; a peer that does not read is left without it."""
    sock = websocket.get_extra_info("socket")
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(1.5):
            await websocket.close()
    if sock is not None:
        with contextlib.suppress(OSError):
            # A transport closes when its buffer is empty, which a peer that does not read puts off for ever.
            sock.shutdown(socket.SHUT_RDWR)
