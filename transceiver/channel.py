"""The events of one call: an SCTP association over its DTLS, with one data channel.

1. The channel is the first one that the client opens, or stream 0 when the client has agreed on it:
   with its offer, by its first message there, or by half a second of silence.
2. An event over the client's limit (RFC 8841 6.1), or over EVENT_MAX_BYTES, goes without the sound of its item: stock
   clients retrieve each turn of the user for its words. Else it is replaced by an error that says so, and left out where
   that is over the limit, too: the call goes on without events.
3. Stream 0 is a guess until the client says something there: a channel that opens later, as the packet that opened it was
   lost, gets what was sent there until then once more, and is not told of as another one.
4. A client that does not read fills its backlog; `send` says so, and its call is to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from .backends.base import Event
from .backends.made import error_event, without_sound
from .dtls import Dtls, Sctp
from .offer import Section

NEGOTIATED_CHANNEL_S = 0.5
GUESSED_MAX_BYTES = 65_536
"""Of what is kept of the events to a client that has said nothing; beyond it nothing is sent again."""
MESSAGE_MAX_BYTES = 262_144
"""Of one event to a client that names no limit of its own (0 in RFC 8841 6.1)."""
EVENT_MAX_BYTES = 1_048_576
"""Of one event to any client: some name a gigabyte, and one event must not be their whole backlog."""


class EventChannel:
    """See the module. `dtls` is connected, `section` the offer's for data."""

    def __init__(
        self,
        dtls: Dtls,
        section: Section,
        *,
        on_open: Callable[[], None],
        on_message: Callable[[str | bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        """`on_end(reason)` is called once, when the client ends it (see Sctp)."""
        self._section = section
        limit_bytes = section.max_message_bytes or MESSAGE_MAX_BYTES
        self._max_message_bytes = min(limit_bytes, EVENT_MAX_BYTES)
        self._established_s: float | None = None
        self._on_open = on_open
        self._on_message = on_message
        self._was_open = False
        self._guessed: list[str] | None = None
        self._sctp = Sctp(dtls, on_channel=self._opened, on_message=self._heard, on_end=on_end)

    @property
    def is_open(self) -> bool:
        """Whether events can be sent."""
        return self._sctp.channel_open

    def begin(self, *, negotiated: bool) -> None:
        """Sends INIT; `negotiated`: the client has agreed on stream 0."""
        if negotiated:
            self._guess()
        self._sctp.begin(self._section.sctp_port, self._section.max_message_bytes)

    def send(self, event: Event) -> bool:
        """Queues an event. False when the channel is not open, or its backlog full."""
        text = json.dumps(event, separators=(",", ":"))
        if len(text) > self._max_message_bytes:  # ASCII: characters are bytes
            text = json.dumps(without_sound(event), separators=(",", ":"))
        if len(text) > self._max_message_bytes:
            text = json.dumps(_too_large(event, len(text), self._max_message_bytes))
            if len(text) > self._max_message_bytes:
                return self.is_open
        if self._guessed is not None:
            self._guessed.append(text)
            if sum(map(len, self._guessed)) > GUESSED_MAX_BYTES:
                self._guessed = None
        return self._sctp.send_text(text)

    def tick(self, now_s: float) -> None:
        """Call it every 50 ms."""
        if self._sctp.channel_open or not self._sctp.established:
            return
        if self._established_s is None:
            self._established_s = now_s
        elif now_s - self._established_s >= NEGOTIATED_CHANNEL_S:
            self._guess()

    def close(self) -> None:
        """Aborts the association."""
        self._sctp.close()

    def _guess(self) -> None:
        self._guessed = []
        self._sctp.negotiate_channel()

    def _opened(self) -> None:
        again, self._was_open = self._was_open, True
        if not again:
            self._on_open()
            return
        sent, self._guessed = self._guessed or [], None
        for text in sent:
            self._sctp.send_text(text)

    def _heard(self, message: str | bytes) -> None:
        self._guessed = None
        self._on_message(message)


def _too_large(event: Event, size_bytes: int, limit_bytes: int) -> Event:
    """What a client hears of an event that its channel does not take."""
    kind = str(event.get("type"))[:100]
    message = f"An event of type {kind} has {size_bytes} bytes; the channel takes {limit_bytes}."
    return error_event("event_too_large", message)
