"""The seam between a call and what answers it.

1. A Backend makes one Conversation a call, before the answer is sent, so that it can connect
   while the client does.
2. Both sides run on the process's event loop and never block. Methods without `async` return at
   once and do not raise.
3. The call owns sound and events on the wire; the conversation owns what they say. A conversation
   that fails ends its own call (`Line.end`) and nobody else's.
4. Audio crosses as the frames of the call's codec, as they are on the wire.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..offer import Codec

Event = dict[str, Any]
"""One event of the Realtime protocol: a JSON object with a `type`."""


class AudioFrame(NamedTuple):
    """One frame of the call's codec."""

    payload: bytes
    timestamp: int
    """In units of the codec's clock, 32 bits, the sender's own origin."""
    sequence: int
    """16 bits; a gap is a loss."""
    marker: bool
    """First frame of a talkspurt."""
    stream: int
    """The sender's SSRC: another one has other origins."""


class Line(Protocol):
    """What a conversation may do to its call."""

    @property
    def call_id(self) -> str:
        """The call's public id."""

    @property
    def codec(self) -> Codec:
        """The format of every frame, both ways."""

    def send_event(self, event: Event) -> bool:
        """Sends an event to the client, in order. False when there is no open channel, or its
        backlog is full (the call then ends by itself).
        """

    def send_audio(self, frame: AudioFrame) -> None:
        """Sends a frame to the client now. Sequence and timestamp may start anywhere; a changed
        `stream` starts anew.
        """

    def end(self, reason: str) -> None:
        """Ends the call with this recorded reason."""


class Conversation(Protocol):
    """The backend's end of one call."""

    def on_open(self) -> None:
        """The event channel is open: the time to send `session.created`."""

    def on_event(self, message: str | bytes) -> None:
        """A message from the client, as it came: it may be anything."""

    def on_audio(self, frame: AudioFrame) -> None:
        """A frame from the client, authentic and of the call's codec; the payload may be garbage."""

    def close(self) -> None:
        """The call has ended; called once, nothing is called afterwards."""


class Backend(Protocol):
    """Makes conversations."""

    name: str
    """For logs and the demo page: `echo`, or an address without secrets."""

    def converse(self, line: Line, session: Event) -> Conversation:
        """Starts the conversation of a new call. `session` is what the client asked for with its
        offer, or empty.
        """
