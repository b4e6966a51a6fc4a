"""The seam between a call and what answers it.

1. A Backend makes one Conversation a call, before the answer is sent, so that it can connect
   while the client does.
2. Both sides run on the process's event loop and never block. Methods without `async` return at
   once and do not raise.
3. The call owns sound and events on the wire; the conversation owns what they say. A conversation
   that fails ends its own call (`Line.end`) and nobody else's.
4. Sound crosses as PCM: 16-bit little-endian mono at the backend's rate. A backend without a rate gets
   none: its calls are passed through, packet by packet, without a codec. A FrameBackend has no rate either; it
   gets and gives the packets' payloads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from ..media import Frame
from .playout import AudioSink

Event = dict[str, Any]
"""One event of the Realtime protocol: a JSON object with a `type`."""


class Sound(AudioSink, Protocol):
    """What the client of one call hears."""

    def queued_ms(self) -> float:
        """Milliseconds written and not yet played."""


class Line(Protocol):
    """What a conversation may do to its call."""

    @property
    def call_id(self) -> str:
        """The call's public id."""

    def send_event(self, event: Event) -> bool:
        """Sends an event to the client, in order. False when there is no open channel, or its
        backlog is full (the call then ends by itself).
        """

    def end(self, reason: str) -> None:
        """Ends the call with this recorded reason, once what was said before has reached the client."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a conversation has counted since its call began."""

    interruptions: int = 0
    """Times that the model's sound was cut, by the user's voice or by the client."""
    reconnects: int = 0
    """Connections to the backend after the first."""
    talk_ms: float = 0.0
    """Sound of the model that went out."""
    listen_ms: float = 0.0
    """The user's turns, as the backend's turn detection or the client's commits bound them."""
    dropped_in_ms: float = 0.0
    """The user's sound that the backend was too slow for."""
    dropped_out_ms: float = 0.0
    """The model's sound that found no room."""
    garbage: int = 0
    """Messages of the backend that were no events."""
    forgotten: int = 0
    """Events beyond what is kept to tell a backend again, or to wait for the client's channel."""


class Conversation(Protocol):
    """The backend's end of one call."""

    def on_open(self) -> None:
        """The event channel is open: the time to send `session.created`."""

    def on_event(self, message: str | bytes) -> None:
        """A message from the client, as it came: it may be anything."""

    def on_sound(self, pcm: bytes) -> None:
        """The client's next samples, silence included; never without a rate."""

    def on_digit(self, digit: str) -> None:
        """The client pressed a key: one of 0-9, *, #, A-D."""

    def on_wake(self, now_s: float) -> None:
        """Time has passed (at least every 50 ms while connected); `now_s` is monotonic."""

    def tally(self) -> Tally:
        """What it has counted; also after its end."""

    def close(self) -> None:
        """The call has ended; called once, and only `tally` afterwards."""


class Backend(Protocol):
    """Makes conversations."""

    @property
    def name(self) -> str:
        """For logs and the demo page: `echo`, or an address without secrets."""

    @property
    def rate_hz(self) -> int | None:
        """Samples a second of the PCM, both ways: 8000, 16000, 24000 or 48000; None: pass-through."""

    def converse(
        self, line: Line, sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> Conversation:
        """Starts the conversation of a new call. `session` is what the call is to start with, or
        empty; `updatable` names what its client may change (None: everything).
        """


@runtime_checkable
class FrameSound(Sound, Protocol):
    """What a FrameBackend's `converse` gets as `sound`; its `write` takes nothing."""

    def write_frames(self, payloads: Iterable[bytes]) -> int:
        """Queues payloads of the call's codec; see MediaSession.write_frames."""


@runtime_checkable
class FrameConversation(Conversation, Protocol):
    """A conversation of a FrameBackend."""

    def on_frames(self, frames: list[Frame]) -> None:
        """The client's next frames, in the order of their arrival; lost ones are missing."""


@runtime_checkable
class FrameBackend(Backend, Protocol):
    """A backend that wants the client's codec as it is: a model that speaks Opus, a bridge, a recorder.

    Its `rate_hz` is None, its conversations are FrameConversations, and the codec is `Line.codec`'s.
    """

    wants_frames: Literal[True]
