"""One call: ICE, DTLS-SRTP, SCTP and a backend's conversation, from the offer to one end.

    new ──check──▶ connecting ──DTLS──▶ connected ──▶ closed          (closed from anywhere)

1. `close` is idempotent, never waits, and records the first reason only. It is the only way out.
2. Packets reach a call only through its validated paths; what they hold raises nothing.
3. Everything sent goes to the ICE session's media path; without one the call is paused.
4. On a connected, unpaused call something leaves at least every 400 ms: a report when there is
   no audio, so that a client can tell silence from death.
5. 15 s without connecting or 30 s without an authenticated packet end the call.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from .answer import Local
from .auth import Principal
from .backends.base import Backend, Conversation, Event, Silence, Sound
from .backends.bridge import error_event, event_id
from .dtls import Dtls, Identity, Phase, Sctp
from .ice import IceAgent, IceSession, Path, Source
from .limits import CallClock, Span
from .log import get_logger
from .media import MediaEngine
from .mux import Mux
from .offer import Codec, Offer
from .rtp import (
    AudioFrame,
    Outgoing,
    Received,
    ReceptionReport,
    SenderReport,
    Sent,
    is_rtcp,
    read_rtcp,
    read_rtp,
    write_rtp,
)

CONNECT_TIMEOUT_S = 15.0
REPORT_INTERVAL_S = 1.0
KEEPALIVE_S = 0.3  # with a tick of 50 ms this keeps rule 4
NEGOTIATED_CHANNEL_S = 0.5
MESSAGE_MAX_BYTES = 262_144
"""Of one event to a client that names no limit of its own (0 in RFC 8841 6.1)."""
LAST_WORDS_S = 0.3
"""Between a last event to the client and the end of the call, for the event to arrive."""

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


@dataclass(slots=True)
class Traffic:
    """RTP packets of a process since somebody last looked."""

    packets_in: int = 0
    packets_out: int = 0


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


@dataclass(frozen=True, slots=True)
class CallParts:
    """What a process lends to each of its calls."""

    agent: IceAgent
    mux: Mux
    identity: Identity
    traffic: Traffic
    clock: Callable[[], float]
    """Monotonic seconds."""
    on_stage: Callable[[str, float], None]
    """A stage of STAGES was reached, so many seconds after the offer."""
    on_state: Callable[[Call, CallState], None]
    """Called after a change, with the state before it."""
    engine: MediaEngine | None = None
    """Carries the calls; without one they go through agent and mux."""


class Call:
    """One call. It is the owner of its ICE session (PacketHandler) and its conversation's Line.

    Its packets go through the agent and the mux, in Python; engine_call.EngineCall overrides that.
    """

    ice: IceSession
    _conversation: Conversation

    def __init__(self, parts: CallParts, request: CallRequest, call_id: str, local: Local) -> None:
        offer = request.offer
        self._parts = parts
        self._call_id = call_id
        self._request = request
        self._clock = CallClock(request.span, request.offered_s)
        self._ending: tuple[float, str, str] | None = None
        self.offer = offer
        self.principal = request.principal
        self.state = CallState.NEW
        self.close_reason: str | None = None
        self.offered_s = request.offered_s
        self.timeline_ms: dict[str, float | None] = dict.fromkeys(STAGES)
        self.packets_in = self.packets_out = self.bytes_in = self.bytes_out = 0
        self._log = get_logger().bind(call_id=call_id)
        self._dtls = Dtls(
            parts.identity,
            "client" if offer.setup == "active" else "server",
            offer.fingerprints,
            self._transmit,
            exports_keys=parts.engine is not None,
        )
        self._sctp: Sctp | None = None
        self._max_message_bytes = MESSAGE_MAX_BYTES
        self._sctp_up_s: float | None = None
        rate_hz = offer.codec.clock_rate_hz
        self._outgoing = Outgoing(local.ssrc, offer.codec.payload_type, rate_hz)
        self._sent = Sent(local.ssrc, local.name, rate_hz)
        self._received: Received | None = None
        self._last_sent_s = self._last_report_s = self.offered_s
        self._last_path: Path | None = None
        self._open_transport(local)
        try:
            self._conversation = self._converse()
        except BaseException:
            self._close_transport()
            raise

    # Line: what the conversation may do

    @property
    def call_id(self) -> str:
        """See Line.call_id."""
        return self._call_id

    @property
    def codec(self) -> Codec:
        """See Line.codec."""
        return self.offer.codec

    def send_event(self, event: Event) -> bool:
        """See Line.send_event."""
        if self._sctp is None or self.state is not CallState.CONNECTED:
            return False
        if not self._sctp.channel_open:
            return False
        self._clock.active(self._parts.clock())
        text = json.dumps(event, separators=(",", ":"))
        if len(text) > self._max_message_bytes:  # ASCII: characters are bytes
            text = json.dumps(_too_large(event, len(text), self._max_message_bytes))
        if not self._sctp.send_text(text):
            self.close("event_backlog")
            return False
        return True

    def pass_through(self, frame: AudioFrame) -> None:
        """Sends a frame of the client back to it."""
        if self.state is not CallState.CONNECTED or not self.offer.sends:
            return
        now_s = self._parts.clock()
        packet = self._outgoing.packet(frame, now_s)
        datagram = self._dtls.protect(write_rtp(packet))
        if datagram is None or not self._transmit(datagram):
            return
        self._sent.add(packet, now_s)
        self._last_sent_s = now_s
        self.packets_out += 1
        self._parts.traffic.packets_out += 1
        self.bytes_out += len(packet.payload)
        self.mark("first_audio_out", now_s)

    def end(self, reason: str) -> None:
        """See Line.end. What was sent before still arrives: the end comes LAST_WORDS_S later."""
        if self._ending is None:
            known = reason if reason in CLOSE_REASONS else "backend"
            self._ending = (self._parts.clock() + LAST_WORDS_S, known, reason)

    # PacketHandler: what the socket brings

    def on_check(self, path: Path, now_s: float) -> None:
        """A check was answered."""
        self.on_validated(now_s)

    def on_validated(self, now_s: float) -> None:
        """The first check starts DTLS: browsers take a ClientHello before they nominate."""
        if self.state is CallState.NEW:
            self.mark("ice", now_s)
            self._become(CallState.CONNECTING)
            self._dtls.begin(now_s)
            self._follow_dtls(now_s)

    def on_dtls(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        """A DTLS datagram from a validated path."""

        def on_authentic() -> None:
            self._parts.agent.authenticated(path, source, now_s, media=True)

        return self.on_dtls_datagram(datagram, on_authentic, now_s)

    def on_dtls_datagram(
        self, datagram: bytes, on_authentic: Callable[[], None], now_s: float
    ) -> bool:
        """As `on_dtls`; `on_authentic` is called before anything is sent in reply."""
        authentic = self._dtls.receive(datagram, now_s, on_authentic)
        self._follow_dtls(now_s)
        return authentic

    def on_media(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        """An SRTP or SRTCP datagram from a validated path."""
        if is_rtcp(datagram):
            compound = self._dtls.unprotect_rtcp(datagram)
            if compound is None:
                return False
            self._parts.agent.authenticated(path, source, now_s, media=True)
            self._on_reports(compound, now_s)
            return True
        plain = self._dtls.unprotect(datagram)
        if plain is None:
            return False
        self._parts.agent.authenticated(path, source, now_s, media=True)
        packet = read_rtp(plain)
        if packet is None or packet.payload_type != self.codec.payload_type or not packet.payload:
            return True
        if self._received is None or self._received.ssrc != packet.ssrc:
            self._received = Received(packet, self.codec.clock_rate_hz)
        self._received.add(packet, now_s)
        self.packets_in += 1
        self._parts.traffic.packets_in += 1
        self.bytes_in += len(packet.payload)
        self.mark("first_audio_in", now_s)
        self.pass_through(
            AudioFrame(
                packet.payload, packet.timestamp, packet.sequence, packet.marker, packet.ssrc
            )
        )
        return True

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
            self._find_channel(now_s)
            self._keep_alive(now_s)
            self._conversation.on_wake(now_s)
            self._follow_clock(now_s)
        if not self._has_consent(now_s):
            self.close("consent_expired")

    def close(self, reason: str, *, detail: str = "") -> None:
        """Ends the call; the first reason stays. Says SCTP ABORT and DTLS close_notify."""
        if self.state is CallState.CLOSED:
            return
        before = self.state
        self.state = CallState.CLOSED
        self.close_reason = reason
        self._conversation.close()
        if self._sctp is not None:
            self._sctp.close()
        self._dtls.close()
        self._close_transport()
        self._log.info(
            "call_ended",
            reason=reason,
            detail=detail or None,
            seconds=round(self._parts.clock() - self.offered_s, 3),
            packets_in=self.packets_in,
            packets_out=self.packets_out,
        )
        self._parts.on_state(self, before)

    def mark(self, stage: str, now_s: float) -> None:
        """Notes when a stage was first reached."""
        if self.timeline_ms[stage] is None:
            elapsed_s = now_s - self.offered_s
            self.timeline_ms[stage] = round(elapsed_s * 1_000, 3)
            self._parts.on_stage(stage, elapsed_s)

    def stats(self) -> dict[str, object]:
        """The call's part of GET …/stats; its packets, its loss and where it is."""
        path = self._last_path
        received = self._received
        return {
            "id": self.call_id,
            "state": self.state.value,
            "close_reason": self.close_reason,
            "codec": self.codec.name,
            "timeline_ms": self.timeline_ms,
            "packets_in": self.packets_in,
            "packets_out": self.packets_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "flow": path and {"client": str(path.key.client), "proxy": str(path.key.proxy)},
            "rtt_ms": self._sent.rtt_ms and round(self._sent.rtt_ms, 3),
            "loss": received and round(received.loss, 4),
            "loss_out": self._sent.loss,
            "jitter_ms": received and round(received.jitter_ms, 3),
        }

    # How it is carried

    def _open_transport(self, local: Local) -> None:
        self.ice = self._parts.agent.open(
            local.ice_ufrag, local.ice_pwd, self.offer.ice_ufrag, self, self.offered_s
        )

    def _close_transport(self) -> None:
        self._parts.agent.close(self.ice)

    def _converse(self) -> Conversation:
        request = self._request
        return request.backend.converse(
            self, self._sound(), request.session, request.principal.updatable
        )

    def _sound(self) -> Sound:
        return Silence()

    def _has_consent(self, now_s: float) -> bool:
        return self.ice.has_consent(now_s)

    def _keep_alive(self, now_s: float) -> None:
        if (
            now_s - self._last_sent_s >= KEEPALIVE_S
            or now_s - self._last_report_s >= REPORT_INTERVAL_S
        ):
            self._send_report(now_s)

    def _on_keys(self) -> None:
        """The handshake is over: media may flow."""

    def _transmit(self, datagram: bytes) -> bool:
        path = self.ice.media_path(self._parts.clock())
        if path is None:
            return False
        self._last_path = path
        return self._parts.mux.send(path.source, path.key, datagram)

    # Inside

    def _become(self, state: CallState) -> None:
        before, self.state = self.state, state
        self._parts.on_state(self, before)

    def _follow_dtls(self, now_s: float) -> None:
        phase = self._dtls.phase
        if phase is Phase.CONNECTED:
            if self.state is CallState.CONNECTING:
                self._on_keys()
                self.mark("dtls", now_s)
                self._become(CallState.CONNECTED)
                self._log.info("call_connected", timeline_ms=self.timeline_ms)
                self._begin_sctp()
        elif phase is Phase.FAILED:
            self.close("dtls_failed", detail=self._dtls.failure)
        elif phase is Phase.CLOSED:
            self.close("dtls_close_notify")

    def _begin_sctp(self) -> None:
        if self.offer.data is None:
            return
        section = self.offer.sections[self.offer.data]
        self._sctp = Sctp(
            self._dtls,
            on_channel=self._on_channel,
            on_message=self._on_message,
            on_end=self.close,
        )
        if self._request.negotiated_channel:
            self._sctp.negotiate_channel()
        self._max_message_bytes = section.max_message_bytes or MESSAGE_MAX_BYTES
        self._sctp.begin(section.sctp_port, section.max_message_bytes)

    def _find_channel(self, now_s: float) -> None:
        """A client with a negotiated channel may wait in silence: it gets stream 0."""
        sctp = self._sctp
        if sctp is None or sctp.channel_open or not sctp.established:
            return
        if self._sctp_up_s is None:
            self._sctp_up_s = now_s
        elif now_s - self._sctp_up_s >= NEGOTIATED_CHANNEL_S:
            sctp.negotiate_channel()

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
            self.end("max_duration")
        elif due == "idle":
            self.send_event(error_event("session_idle", "The call had no events for too long."))
            self.end("idle")

    def _on_channel(self) -> None:
        self.mark("channel", self._parts.clock())
        self._conversation.on_open()

    def _on_reports(self, compound: bytes, now_s: float) -> None:
        for report in read_rtcp(compound):
            if isinstance(report, SenderReport):
                if self._received is not None and self._received.ssrc == report.ssrc:
                    self._received.note_sender_report(report.ntp_middle, now_s)
            elif isinstance(report, ReceptionReport) and report.ssrc == self._sent.ssrc:
                self._sent.note_reception(report, time.time())

    def _send_report(self, now_s: float) -> None:
        report = self._sent.write_report(self._received, now_s, time.time())
        datagram = self._dtls.protect_rtcp(report)
        if datagram is not None and self._transmit(datagram):
            self._last_sent_s = self._last_report_s = now_s


def _too_large(event: Event, size_bytes: int, limit_bytes: int) -> Event:
    """What a client hears of an event that its channel does not take."""
    kind = str(event.get("type"))[:100]
    message = f"An event of type {kind} has {size_bytes} bytes; the channel takes {limit_bytes}."
    return error_event("event_too_large", message)
