"""The events of one call: an SCTP association over its DTLS, with one data channel.

1. The channel is the first one that the client opens, or stream 0 when the client has agreed on it:
   with its offer, by its first message there, or by half a second of silence.
2. An event over the client's limit (RFC 8841 6.1), or over EVENT_MAX_BYTES, goes without the sound of its item: stock
   clients retrieve each turn of the user for its words. Else it is replaced by an error that says so, and left out where
   that is over the limit, too: the call goes on without events.
3. A client that does not read fills its backlog; `send` says so, and its call is to end.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from .backends.base import Event
from .backends.made import error_event, without_sound
from .dtls import Dtls, Sctp
from .offer import Section

NEGOTIATED_CHANNEL_S = 0.5
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
        self._sctp = Sctp(dtls, on_channel=on_open, on_message=on_message, on_end=on_end)

    @property
    def is_open(self) -> bool:
        """Whether events can be sent."""
        return self._sctp.channel_open

    def begin(self, *, negotiated: bool) -> None:
        """Sends INIT; `negotiated`: the client has agreed on stream 0."""
        if negotiated:
            self._sctp.negotiate_channel()
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
        return self._sctp.send_text(text)

    def tick(self, now_s: float) -> None:
        """Call it every 50 ms."""
        if self._sctp.channel_open or not self._sctp.established:
            return
        if self._established_s is None:
            self._established_s = now_s
        elif now_s - self._established_s >= NEGOTIATED_CHANNEL_S:
            self._sctp.negotiate_channel()

    def close(self) -> None:
        """Aborts the association."""
        self._sctp.close()


def _too_large(event: Event, size_bytes: int, limit_bytes: int) -> Event:
    """What a client hears of an event that its channel does not take."""
    kind = str(event.get("type"))[:100]
    message = f"An event of type {kind} has {size_bytes} bytes; the channel takes {limit_bytes}."
    return error_event("event_too_large", message)
