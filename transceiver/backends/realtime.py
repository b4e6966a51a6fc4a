"""The backend over a WebSocket: any server that speaks the Realtime events, one connection a call.

1. The connection is opened while the client still connects; the user's sound waits until the session is configured.
2. The session of the call is the server's, then the client secret's, then the one posted with the offer.
3. The key goes into a header, from a file or the environment, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from relay.wire.log import get_logger

from . import g711
from .base import Event, Line, Sound
from .bridge import Bridge
from .dialect import Dialect
from .link import Link, LinkConfig
from .session_record import merge
from .talk import Talk

Transcode = Callable[[bytes], bytes]

_TRANSCODERS: Final[dict[str, tuple[Transcode, Transcode]]] = {
    "audio/pcm": (bytes, bytes),
    "audio/pcmu": (g711.from_ulaw, g711.to_ulaw),
    "audio/pcma": (g711.from_alaw, g711.to_alaw),
}


@dataclass(frozen=True)
class RealtimeConfig:
    """One backend, as configured."""

    link: LinkConfig
    dialect: Dialect = field(default_factory=Dialect)
    session: Event = field(default_factory=dict)
    """What every call's session starts with."""


class RealtimeBackend:
    """Makes talks; see the module."""

    def __init__(self, config: RealtimeConfig, http: aiohttp.ClientSession) -> None:
        self._config = config
        self._http = http
        self.name = config.link.shown

    @property
    def rate_hz(self) -> int:
        """Samples a second of the sound that its talks take and give."""
        return self._config.dialect.format.rate_hz

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> Talk:
        """Starts a call: the connection is on its way when this returns."""
        dialect = self._config.dialect
        decode, encode = _TRANSCODERS[dialect.format.ga_type]
        bridge = Bridge(dialect, sound, decode=decode, encode=encode, updatable=updatable)
        talk = Talk(line, sound, bridge)
        peer = WebSocketPeer(talk, self._config, merge(self._config.session, session), self._http)
        talk.attach(peer)
        return talk


class WebSocketPeer:
    """The far end of one talk (Peer and LinkOwner)."""

    def __init__(
        self, talk: Talk, config: RealtimeConfig, session: Event, http: aiohttp.ClientSession
    ) -> None:
        self._talk = talk
        self._session = session
        self._log = get_logger().bind(call_id=talk.call_id, backend=config.link.shown)
        self._link = Link(config.link, http, self)
        self._lost = 0
        self._task = asyncio.create_task(self._link.run())
        self._task.add_done_callback(self._finished)

    @property
    def reconnects(self) -> int:
        """Connections after the first."""
        return max(0, self._link.connections - 1)

    @property
    def sound_dropped_ms(self) -> float:
        """See Peer.sound_dropped_ms."""
        return self._link.audio_dropped_ms

    @property
    def silent_s(self) -> float:
        """See Peer.silent_s."""
        return self._link.silent_s

    # Peer

    def send(self, event: Event) -> None:
        """See Peer.send."""
        self._link.send(event)

    def send_sound(self, pcm: bytes) -> None:
        """See Peer.send_sound."""
        self._link.send_audio(self._talk.bridge.microphone(pcm), self._talk.bridge.duration_ms(pcm))

    def release(self) -> None:
        """See Peer.release."""
        self._link.release()

    def close(self) -> None:
        """See Peer.close."""
        self._task.cancel()

    # LinkOwner

    def on_connected(self, again: bool) -> list[Event]:
        """See LinkOwner.on_connected."""
        self._log.info("backend_connected", again=again)
        bridge = self._talk.bridge
        if not again:
            first = [bridge.configure(self._session)]
        else:
            out = bridge.reconnected(self._link.unsent())
            first, out.to_backend = out.to_backend, []
            self._talk.on_backend(out)
        if bridge.configured:
            self._link.release()
        return first

    def on_broken(self, reason: str) -> None:
        """See LinkOwner.on_broken."""
        self._log.warning("backend_connection_lost", reason=reason)
        if self._link.connections > self._lost:
            self._lost = self._link.connections
            self._talk.on_broken(reason)

    def on_message(self, message: str | bytes) -> None:
        """See LinkOwner.on_message."""
        bridge = self._talk.bridge
        refused = bridge.refused_sessions
        self._talk.on_backend(bridge.from_backend(message))
        if bridge.refused_sessions > refused:
            self._log.warning("backend_refused_session")
            # With the session went its formats, without which all sound is noise.
            self._link.send_first(bridge.configure({}))

    def on_gone(self, reason: str) -> None:
        """See LinkOwner.on_gone."""
        self._log.error("backend_gone", reason=reason)
        self._talk.on_gone(reason)

    async def room(self) -> None:
        """See LinkOwner.room."""
        await self._talk.room()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        # A fault of ours must not leave a call that nobody answers.
        if not task.cancelled() and task.exception() is not None:
            self._talk.on_gone("an internal error")
            raise task.exception() or AssertionError
