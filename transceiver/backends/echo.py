"""The built-in backend: what the user says comes back when the turn is over.

1. The model (parrot.py) is in this process and answers at once; nothing is queued and nothing lost.
2. It is told the session like any backend, so that the same path is tried.
"""

from __future__ import annotations

from collections.abc import Iterable

from .base import Event, Line, Sound
from .bridge import Bridge
from .dialect import FORMATS, Dialect
from .parrot import Parrot
from .talk import Talk


class EchoBackend:
    """Makes talks with a Parrot each: what the user says comes back when the turn is over."""

    name = "echo"
    rate_hz = FORMATS["pcm24"].rate_hz

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> Talk:
        """See Backend.converse."""
        talk = Talk(line, sound, Bridge(Dialect(), sound, updatable=updatable))
        peer = ParrotPeer(talk, Parrot(self.rate_hz))
        talk.attach(peer)
        peer.begin(session)
        return talk


class ParrotPeer:
    """Peer of one talk; see talk.Peer."""

    def __init__(self, talk: Talk, parrot: Parrot) -> None:
        self._talk = talk
        self._parrot = parrot
        self._closed = False

    @property
    def reconnects(self) -> int:
        """None: there is no connection."""
        return 0

    @property
    def sound_dropped_ms(self) -> float:
        """None: it is taken at once."""
        return 0.0

    @property
    def silent_s(self) -> float:
        """None: it answers at once."""
        return 0.0

    def begin(self, session: Event) -> None:
        """Says hello and applies the session that the call was made with."""
        self._deliver(self._parrot.hello())
        if session:
            self.send(self._talk.bridge.configure(session))

    def send(self, event: Event) -> None:
        """See Peer.send."""
        if not self._closed:
            self._deliver(self._parrot.handle(event))

    def send_sound(self, pcm: bytes) -> None:
        """See Peer.send_sound."""
        if not self._closed:
            self._deliver(self._parrot.hear(pcm))

    def release(self) -> None:
        """See Peer.release."""

    def close(self) -> None:
        """See Peer.close."""
        self._closed = True

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self._talk.on_backend(self._talk.bridge.from_model(event))
