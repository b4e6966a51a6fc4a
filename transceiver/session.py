"""One call: ICE, DTLS-SRTP, SCTP and a backend's conversation, from the offer to one end.

    new ──check──▶ connecting ──DTLS──▶ connected ──▶ closed          (closed from anywhere)

1. `close` is idempotent, never waits, and records the first reason only. It is the only way out.
2. The media engine carries the call: the rules of the socket (csrc/media/ice.h), SRTP, reports and the
   clock of the sound are its. Python sees DTLS, events and PCM, and no RTP.
3. A backend with a rate talks in PCM at that rate; one without is a pass-through: what the client
   sends goes back to it as it is, or to a FrameBackend.
4. 15 s without connecting end the call here; 30 s without an authenticated packet end it there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.wire.log import get_logger
from relay.wire.spp import FlowKey

from .answer import Local
from .auth import Principal
from .backends.base import Backend, Conversation, Event, FrameBackend, FrameConversation, Tally
from .backends.made import error_event, event_id
from .channel import EventChannel
from .dtls import Dtls, Identity, Phase
from .entry import Entry
from .formats import Codec
from .limits import CallClock, Span
from .media import Frame, MediaConfig, MediaEngine, MediaSession
from .offer import Offer
from .recording import Recorder

CONNECT_TIMEOUT_S = 15.0
LAST_WORDS_S = 0.3
"""Between a last event to the client and the end of the call, for the event to arrive."""
PCM_RATE_HZ = 24_000
"""Of a call without PCM: it must have one."""

STAGES = ("answer", "ice", "dtls", "channel", "first_audio_in", "first_audio_out")
CLOSE_REASONS = (
    "client_close",
    "hangup",
    "dtls_close_notify",
    "dtls_failed",
    "sctp_abort",
    "sctp_overrun",
    "channel_closed",
    "event_backlog",
    "consent_expired",
    "connect_timeout",
    "max_duration",
    "idle",
    "backend",
    "shutdown",
)


class CallState(enum.Enum):
    """See the picture above."""

    NEW = "new"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """What a client asked for."""

    offer: Offer
    principal: Principal
    session: Event
    """What its session starts with, or empty."""
    backend: Backend
    """Who answers."""
    span: Span
    """How long it may last."""
    negotiated_channel: bool
    """It has agreed on stream 0 for its events (`?dcid=0`)."""
    offered_s: float
    """When its offer came, on the monotonic clock."""
    entry: Entry
    """The ways in that its answer names."""


@dataclass(frozen=True, slots=True)
class CallParts:
    """What a process lends to each of its calls."""

    engine: MediaEngine
    identity: Identity
    clock: Callable[[], float]
    """Monotonic seconds: the engine's clock."""
    on_stage: Callable[[str, float], None]
    """A stage of STAGES was reached, so many seconds after the offer."""
    on_state: Callable[[Call, CallState], None]
    """Called after a change, with the state before it."""
    recorder: Recorder | None = None
    """Keeps the sound of every call that has any."""


class Call:
    """One call. It is its conversation's Line, and the MediaHandler of its place in the engine."""

    _conversation: Conversation

    def __init__(self, parts: CallParts, request: CallRequest, call_id: str, local: Local) -> None:
        """Raises what MediaEngine.open raises, and what the backend does."""
        offer = request.offer
        self._parts = parts
        self._call_id = call_id
        self._request = request
        self._clock = CallClock(request.span, request.offered_s)
        self._ending: tuple[float, str, str] | None = None
        self._channel: EventChannel | None = None
        self._flow: FlowKey | None = None
        self._log = get_logger().bind(call_id=call_id)
        self.offer = offer
        self.principal = request.principal
        self.state = CallState.NEW
        self.close_reason: str | None = None
        self.offered_s = request.offered_s
        self._ended_s: float | None = None
        self.ice_ufrag = local.ice_ufrag
        self.timeline_ms: dict[str, float | None] = dict.fromkeys(STAGES)
        self._dtls = Dtls(
            parts.identity,
            "client" if offer.setup == "active" else "server",
            offer.fingerprints,
            self._transmit,
        )
        self.media: MediaSession = parts.engine.open(
            local.ice_ufrag, local.ice_pwd, offer.ice_ufrag, self._media_config(local), self
        )
        try:
            self._conversation = request.backend.converse(
                self, self.media, request.session, request.principal.updatable
            )
        except BaseException:
            parts.engine.close(self.media)
            raise
        # Decided once: asking a runtime Protocol costs more than the frames of a wake-up do.
        self._frame_conversation = (
            self._conversation if isinstance(self._conversation, FrameConversation) else None
        )

    # Line: what the conversation may do

    @property
    def call_id(self) -> str:
        """See Line.call_id."""
        return self._call_id

    @property
    def codec(self) -> Codec:
        """What the client speaks, and hears."""
        return self.offer.codec

    def send_event(self, event: Event) -> bool:
        """See Line.send_event."""
        channel = self._channel
        if channel is None or self.state is not CallState.CONNECTED or not channel.is_open:
            return False
        self._clock.active(self._parts.clock())
        if not channel.send(event):
            self.close("event_backlog")
            return False
        return True

    def end(self, reason: str) -> None:
        """See Line.end. What was said before still arrives: the end comes LAST_WORDS_S later, or as long
        after the channel has opened of a client that may still open one.
        """
        known = reason if reason in CLOSE_REASONS else "backend"
        due_s = self._parts.clock() + LAST_WORDS_S
        if self.offer.data is not None and self.timeline_ms["channel"] is None:
            due_s = max(due_s, self.offered_s + CONNECT_TIMEOUT_S)
        self._end_at(due_s, known, reason)

    def _end_at(self, due_s: float, known: str, detail: str) -> None:
        if self._ending is None:
            self._ending = (due_s, known, detail)

    # MediaHandler: what the engine brings

    def on_check(self, now_s: float) -> None:
        """The first check starts DTLS: browsers take a ClientHello before they nominate."""
        if self.state is CallState.NEW:
            self.mark("ice", now_s)
            self._become(CallState.CONNECTING)
            self._dtls.begin(now_s)
            self._follow_dtls(now_s)

    def on_dtls(self, datagram: bytes, on_authentic: Callable[[], None], now_s: float) -> None:
        """See MediaHandler.on_dtls."""
        self._dtls.receive(datagram, now_s, on_authentic)
        self._follow_dtls(now_s)

    def on_sound(self, pcm: bytes) -> None:
        """See MediaHandler.on_sound."""
        self._conversation.on_sound(pcm)

    def on_frames(self, frames: list[Frame]) -> None:
        """See MediaHandler.on_frames."""
        if self._frame_conversation is not None:
            self._frame_conversation.on_frames(frames)

    def on_digit(self, digit: str) -> None:
        """See MediaHandler.on_digit."""
        self._conversation.on_digit(digit)

    def on_expired(self) -> None:
        """See MediaHandler.on_expired."""
        self.close("consent_expired")

    # Time and end

    def tick(self, now_s: float) -> None:
        """Does what is due. Call every 50 ms."""
        if self._ending is not None and now_s >= self._ending[0]:
            self.close(self._ending[1], detail=self._ending[2])
        elif self.state in (CallState.NEW, CallState.CONNECTING):
            self._dtls.poll(now_s)
            self._follow_dtls(now_s)
            if now_s - self.offered_s >= CONNECT_TIMEOUT_S:
                self.close("connect_timeout")
        elif self.state is CallState.CONNECTED:
            if self._channel is not None:
                self._channel.tick(now_s)
            self._conversation.on_wake(now_s)
            self._follow_clock(now_s)
            self._follow_media()

    def close(self, reason: str, *, detail: str = "") -> None:
        """Ends the call; the first reason stays. Says SCTP ABORT, DTLS close_notify and RTCP BYE."""
        if self.state is CallState.CLOSED:
            return
        before = self.state
        self.state = CallState.CLOSED
        self.close_reason = reason
        self._ended_s = self._parts.clock()
        self._conversation.close()
        if self._channel is not None:
            self._channel.close()
        self._dtls.close()
        self._follow_media()
        self._flow = self.media.path()
        if self._parts.recorder is not None:
            self._parts.recorder.stop(self.media)
        self._parts.engine.close(self.media)
        numbers = self.media.stats()
        self._log.info(
            "call_ended",
            reason=reason,
            detail=detail or None,
            seconds=round(self._ended_s - self.offered_s, 3),
            packets_in=numbers["packets_in"],
            packets_out=numbers["packets_out"],
            timeline_ms=self.timeline_ms,
        )
        self._parts.on_state(self, before)

    # Numbers

    def mark(self, stage: str, now_s: float) -> None:
        """Notes when a stage was first reached."""
        if self.timeline_ms[stage] is None:
            elapsed_s = now_s - self.offered_s
            self.timeline_ms[stage] = round(elapsed_s * 1_000, 3)
            self._parts.on_stage(stage, elapsed_s)

    def stats(self) -> dict[str, object]:
        """The call's part of GET …/stats; its packets, its loss and where it is."""
        flow = self.media.path() or self._flow
        return {
            "id": self.call_id,
            "state": self.state.value,
            "close_reason": self.close_reason,
            "codec": self.codec.name,
            "timeline_ms": self.timeline_ms,
            "seconds": round((self._ended_s or self._parts.clock()) - self.offered_s, 3),
            "flow": flow and {"client": str(flow.client), "proxy": str(flow.proxy)},
            "ingress": self._request.entry.about(None if flow is None else flow.proxy),
            **_media_stats(self.media.stats()),
            **_talk_stats(self._conversation.tally()),
        }

    # Inside

    def _media_config(self, local: Local) -> MediaConfig:
        codec, rate_hz = self.codec.name.lower(), self._request.backend.rate_hz
        events = self.offer.events
        has_frames = isinstance(self._request.backend, FrameBackend)
        return MediaConfig(
            codec=codec,
            payload_types={codec: self.codec.payload_type},
            event_payload_type=None if events is None else events.payload_type,
            ssrc=local.ssrc,
            cname=local.name,
            echo=rate_hz is None and not has_frames,
            frames=has_frames,
            sends=self.offer.sends,
            rate_hz=rate_hz or PCM_RATE_HZ,
            tap=self._parts.recorder is not None,
        )

    def _transmit(self, datagram: bytes) -> bool:
        return self.media.send(datagram)

    def _become(self, state: CallState) -> None:
        before, self.state = self.state, state
        self._parts.on_state(self, before)

    def _follow_dtls(self, now_s: float) -> None:
        phase = self._dtls.phase
        if phase is Phase.CONNECTED:
            if self.state is CallState.CONNECTING:
                self._connected(now_s)
        elif phase is Phase.FAILED:
            self.close("dtls_failed", detail=self._dtls.failure)
        elif phase is Phase.CLOSED:
            self.close("dtls_close_notify")

    def _connected(self, now_s: float) -> None:
        assert self._dtls.srtp_keys is not None
        self.media.set_keys(self._dtls.srtp_keys)
        if self._parts.recorder is not None:
            passed = self._request.backend.rate_hz is None
            self._parts.recorder.begin(
                self.media, self.call_id, self.codec.name.lower() if passed else None
            )
        self.mark("dtls", now_s)
        self._become(CallState.CONNECTED)
        self._log.info("call_connected", timeline_ms=self.timeline_ms)
        if self.offer.data is not None:
            self._channel = EventChannel(
                self._dtls,
                self.offer.sections[self.offer.data],
                on_open=self._on_channel,
                on_message=self._on_message,
                on_end=self.close,
            )
            self._channel.begin(negotiated=self._request.negotiated_channel)

    def _on_channel(self) -> None:
        now_s = self._parts.clock()
        self.mark("channel", now_s)
        self._conversation.on_open()
        if self._ending is not None:
            due_s, known, detail = self._ending
            self._ending = (min(due_s, now_s + LAST_WORDS_S), known, detail)

    def _on_message(self, message: str | bytes) -> None:
        self._clock.active(self._parts.clock())
        self._conversation.on_event(message)

    def _follow_clock(self, now_s: float) -> None:
        due = None if self._ending is not None else self._clock.due(now_s)
        if due == "warn":
            left_ms = round(self._clock.left_s(now_s) * 1_000)
            warning = {"type": "session.expiring", "event_id": event_id()}
            self.send_event({**warning, "expires_in_ms": left_ms})
        elif due == "expired":
            self.send_event(
                error_event("session_expired", "The call has reached its maximum length.")
            )
            self._end_at(now_s + LAST_WORDS_S, "max_duration", "max_duration")
        elif due == "idle":
            self.send_event(error_event("session_idle", "The call had no events for too long."))
            self._end_at(now_s + LAST_WORDS_S, "idle", "idle")

    def _follow_media(self) -> None:
        first_in_s, first_out_s = self.media.marks()
        if first_in_s is not None:
            self.mark("first_audio_in", first_in_s)
        if first_out_s is not None:
            self.mark("first_audio_out", first_out_s)


def _talk_stats(tally: Tally) -> dict[str, object]:
    """What a call's client learns of its conversation."""
    return {
        "talk_ms": round(tally.talk_ms),
        "listen_ms": round(tally.listen_ms),
        "interruptions": tally.interruptions,
        "reconnects": tally.reconnects,
        "dropped_ms": {"in": round(tally.dropped_in_ms), "out": round(tally.dropped_out_ms)},
        "backend_garbage": tally.garbage,
        "forgotten_events": tally.forgotten,
    }


def _media_stats(numbers: dict[str, Any]) -> dict[str, object]:
    """What a call's client learns of MediaSession.stats."""
    expected = numbers["packets_in"] + numbers["lost_in"]
    samples = numbers["samples"]
    return {
        "packets_in": numbers["packets_in"],
        "packets_out": numbers["packets_out"],
        "bytes_in": numbers["bytes_in"],
        "bytes_out": numbers["bytes_out"],
        "rtt_ms": round(numbers["round_trip_ns"] / 1e6, 3) or None,
        "loss": round(numbers["lost_in"] / expected, 4) if expected else None,
        "loss_out": numbers["fraction_lost_out"] if numbers["verdicts_in"] else None,
        "jitter_ms": round(numbers["jitter_in_ms"], 3) if expected else None,
        "playout_delay_ms": numbers["target_ms"] if samples else None,
        "sound": None
        if not samples
        else {
            # what became of the client's sound, as shares of its time
            "concealed": round(numbers["concealed_samples"] / samples, 4),
            "recovered": round(numbers["recovered_samples"] / samples, 4),
            "silence": round(numbers["silence_samples"] / samples, 4),
        },
    }
