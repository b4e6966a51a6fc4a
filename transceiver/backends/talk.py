"""One call's conversation with a Realtime backend: the bridge, the sound and whoever answers, put together.

1. A Talk is a Conversation (base.py) whose sound is PCM: `on_sound` brings the user's, `Sound` takes the backend's.
2. Events for the client wait until its channel is open, bounded in bytes: beyond that the oldest are lost, counted, and
   the client is told when it opens its channel.
3. A backend that is gone ends its own call, and the client is told first; so it is of one that is silent, slow, sends
   garbage or was connected again (complaints.py).
4. All methods run on the process's event loop and return at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final, Protocol

from .base import Event, Line, Sound, Tally
from .bridge import Bridge, Outgoing
from .complaints import Complaints
from .made import digit_event, error_event
from .sized import size_of

WAITING_MAX_BYTES: Final = 1_048_576
AHEAD_MAX_MS: Final = 240_000.0
"""Sound of the backend that may wait to be played; beyond it the backend is not read, nor then its word that the user
interrupts. So it is more than the longest answer of hosted models: 4,096 tokens of 50 ms make 205 s. 11 MiB at 24 kHz.
"""


class Peer(Protocol):
    """Whoever answers: a WebSocket to a backend, or a model in this process."""

    @property
    def reconnects(self) -> int:
        """Connections after the first."""

    @property
    def sound_dropped_ms(self) -> float:
        """The user's sound that the peer was too slow for."""

    @property
    def silent_s(self) -> float:
        """How long it has been there without having said a word; 0 once it has, or while it is not there."""

    def send(self, event: Event) -> None:
        """Takes a client event in the backend's dialect; never waits."""

    def send_sound(self, pcm: bytes) -> None:
        """Takes the user's next samples; never waits, may drop the oldest."""

    def release(self) -> None:
        """The session is configured: sound may go."""

    def close(self) -> None:
        """The call has ended; nothing is sent or delivered afterwards."""


class Talk:
    """See the module. Made before its peer, which `attach` brings."""

    def __init__(self, line: Line, sound: Sound, bridge: Bridge) -> None:
        self._line = line
        self._sound = sound
        self._peer: Peer | None = None
        self._open = False
        self._ended = False
        self._waiting: deque[tuple[Event, int]] = deque()
        self._waiting_bytes = 0
        self._lost_waiting = 0
        self._room = asyncio.Event()
        self._room.set()
        self._last_tally: Tally | None = None
        self._complaints = Complaints()
        self.bridge = bridge

    @property
    def call_id(self) -> str:
        """The call's public id, for logs."""
        return self._line.call_id

    def attach(self, peer: Peer) -> None:
        """Whoever answers is there; called once, before anything else."""
        self._peer = peer

    # Conversation

    def on_open(self) -> None:
        """See Conversation.on_open."""
        self._open = True
        while self._waiting:
            self._line.send_event(self._waiting.popleft()[0])
        if self._lost_waiting:
            message = (
                f"{self._lost_waiting} events before the channel opened were too much to keep."
            )
            self._tell(error_event("backend_events_lost", message))

    def on_event(self, message: str | bytes) -> None:
        """See Conversation.on_event."""
        self._carry(self.bridge.from_client(message))

    def on_sound(self, pcm: bytes) -> None:
        """See Conversation.on_sound."""
        if self._peer is not None and not self._ended:
            self._peer.send_sound(pcm)

    def on_digit(self, digit: str) -> None:
        """See Conversation.on_digit."""
        self._tell(digit_event(digit, time.time()))

    def on_wake(self, now_s: float) -> None:
        """See Conversation.on_wake."""
        self._carry(self.bridge.advance(now_s))
        if self._peer is not None:
            peer = self._peer
            garbage = self.bridge.backend_garbage
            for event in self._complaints.due(peer.silent_s, peer.sound_dropped_ms, garbage, now_s):
                self._tell(event)
        self._follow()

    def tally(self) -> Tally:
        """See Conversation.tally."""
        if self._last_tally is not None:
            return self._last_tally
        bridge, peer = self.bridge, self._peer
        return Tally(
            interruptions=bridge.interruptions,
            reconnects=0 if peer is None else peer.reconnects,
            talk_ms=bridge.talk_ms,
            listen_ms=bridge.listen_ms,
            dropped_in_ms=0.0 if peer is None else peer.sound_dropped_ms,
            dropped_out_ms=bridge.excess_audio_ms,
            garbage=bridge.backend_garbage,
            forgotten=bridge.forgotten + self._lost_waiting,
        )

    def close(self) -> None:
        """See Conversation.close."""
        self._last_tally = self.tally()  # the sound's account ends with the call
        self._ended = True
        self._room.set()
        if self._peer is not None:
            self._peer.close()

    # What the peer calls

    def on_backend(self, out: Outgoing) -> None:
        """What the bridge made of a backend's message."""
        self._carry(out)
        self._follow()

    def on_broken(self, reason: str) -> None:
        """The connection that stood is gone; another one is made."""
        self._tell(self._complaints.broken(reason))

    def on_gone(self, reason: str) -> None:
        """There is no backend any more."""
        if not self._ended:
            self._tell(error_event("backend_lost", f"The call ends: {reason}."))
            self._line.end("backend")

    async def room(self) -> None:
        """Returns when more of the backend's sound may come."""
        await self._room.wait()

    # Inside

    def _carry(self, out: Outgoing) -> None:
        # The client first: a model in this process answers before `send` returns.
        for event in out.to_client:
            self._tell(event)
        for event in out.to_backend:
            if self._peer is not None:
                self._peer.send(event)

    def _tell(self, event: Event) -> None:
        if self._ended:
            return
        if self._open:
            self._line.send_event(event)
        else:
            self._wait(event)

    def _wait(self, event: Event) -> None:
        size_bytes = size_of(event)
        self._waiting.append((event, size_bytes))
        self._waiting_bytes += size_bytes
        while self._waiting_bytes > WAITING_MAX_BYTES:
            # The first one is `session.created`, without which no client begins.
            index = 1 if len(self._waiting) > 1 else 0
            self._waiting_bytes -= self._waiting[index][1]
            del self._waiting[index]
            self._lost_waiting += 1

    def _follow(self) -> None:
        if self.bridge.configured and self._peer is not None:
            self._peer.release()
        if self._ended or self._sound.queued_ms() < AHEAD_MAX_MS:
            self._room.set()
        else:
            self._room.clear()
