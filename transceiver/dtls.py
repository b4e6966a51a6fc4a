"""DTLS and SCTP of one call: aiortc's parts, driven without its peer connection.

1. This is the only file that knows a private name of aiortc, hence its length. The versions are
   pinned and the names asserted at import, so an upgrade fails at start and not in a call.
2. Nothing here waits: datagrams go in, datagrams go out through `send`, time is an argument.
   aiortc's coroutines never suspend on this transport, so they are run to their end in place.
3. `receive` tells whether the datagram was authentic, for the rules of the socket. What a peer sends
   raises nothing.
4. No datagram sent is over MAX_DATAGRAM_BYTES. A flight that gets no reply is sent again after
   150 ms, 300 ms, ..., byte for byte; OpenSSL writes it anew after 1 s, 2 s, .... The handshake
   has 10 s.
5. The one loss that costs 1 s is that of a server's last flight: it has our Finished and takes a
   replay for what it is (RFC 6347 4.1.2.6). Only OpenSSL can write the Finished anew, and pyOpenSSL
   has no way to set its timer. As server we repeat ours with each Finished that is written anew.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from aiortc import rtcdtlstransport, rtcsctptransport
from aiortc.rtcdatachannel import RTCDataChannel, RTCDataChannelParameters
from aiortc.rtcdtlstransport import RTCCertificate, RTCDtlsTransport, State
from aiortc.rtcsctptransport import RTCSctpCapabilities, RTCSctpTransport
from OpenSSL import SSL

from .media import SrtpKeys
from .offer import Fingerprint
from .records import MAX_DATAGRAM_BYTES, PROTECTED_RECORD_BYTES, split_records
from .sctp_check import is_readable

# As DTLS client we meet certificates of both kinds: aiortc's own list would refuse RSA ones.
CIPHERS = (
    b"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:"
    b"ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:"
    b"ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:"
    b"ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA"
)
HANDSHAKE_DEADLINE_S = 10.0
EARLY_RESEND_S = 0.15

MAX_STREAMS = 16
MAX_WAITING_CHUNKS = 1_024
MAX_SEND_BACKLOG_BYTES = 4 * 1_048_576

_SCTP_HEADERS_BYTES = 12 + 16  # common header, DATA chunk header (RFC 9260 3)

_PROFILE_NUMBERS = {  # RFC 5764 4.1.2, RFC 7714 14.2
    b"SRTP_AES128_CM_SHA1_80": 0x0001,
    b"SRTP_AEAD_AES_128_GCM": 0x0007,
    b"SRTP_AEAD_AES_256_GCM": 0x0008,
}

_PINNED = {"aiortc": "1.16.0", "aioice": "0.13.0"}
_PRIVATE_NAMES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (RTCCertificate, ("_create_ssl_context",)),
    (RTCDtlsTransport, ("_set_role", "_set_state", "_send_data")),
    (RTCSctpTransport, ("_handle_data", "_receive", "_set_state", "_data_channel_flush")),
    (rtcdtlstransport, ("SRTP_PROFILES", "certificate_digest")),
    (rtcsctptransport, ("USERDATA_MAX_LENGTH", "SCTP_RTO_MIN", "WEBRTC_DCEP")),
)
_PRIVATE_ATTRIBUTES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (RTCDtlsTransport, ("_ssl", "_role", "_data_receiver")),
    (
        RTCSctpTransport,
        ("_rto", "_association_state", "_advertised_rwnd", "_inbound_streams", "_sack_misordered",
         "_data_channels", "_data_channel_queue"),
    ),
)  # fmt: skip


def _assert_aiortc() -> None:
    for name, pinned in _PINNED.items():
        if version(name) != pinned:
            raise ImportError(f"{name} {pinned} is needed, {version(name)} is installed")
    for owner, names in _PRIVATE_NAMES:
        for name in names:
            if not hasattr(owner, name):
                raise ImportError(f"{owner!r} has no {name}: aiortc has changed")
    for owner, names in _PRIVATE_ATTRIBUTES:
        for name in names:
            if name not in owner.__init__.__code__.co_names:
                raise ImportError(f"{owner!r} sets no {name}: aiortc has changed")


_assert_aiortc()

# A full DATA chunk of aiortc makes a 1,226-byte datagram; SPP adds 38 and tunnels eat more.
rtcsctptransport.USERDATA_MAX_LENGTH = (
    MAX_DATAGRAM_BYTES - PROTECTED_RECORD_BYTES - _SCTP_HEADERS_BYTES
) & ~3
# RFC 9260 allows less than its recommended 1 s: a lost event must not stall a conversation.
rtcsctptransport.SCTP_RTO_MIN = 0.4  # type: ignore[assignment]


class Phase(enum.Enum):
    """The life of a DTLS transport; it only moves down this list."""

    NEW = "new"
    HANDSHAKING = "handshaking"
    CONNECTED = "connected"
    CLOSED = "closed"
    """By the peer's close_notify or by `close`."""
    FAILED = "failed"
    """`failure` says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The certificate of a pool, and the TLS context every handshake shares."""

    certificate: RTCCertificate
    context: SSL.Context
    fingerprint_sha256: str

    @classmethod
    def generate(cls) -> Identity:
        """A new self-signed ECDSA P-256 certificate: 344 bytes, far from any MTU."""
        certificate = RTCCertificate.generateCertificate()
        context = certificate._create_ssl_context(rtcdtlstransport.SRTP_PROFILES)
        context.set_options(SSL.OP_NO_QUERY_MTU)
        context.set_cipher_list(CIPHERS)
        digest = next(
            item.value for item in certificate.getFingerprints() if item.algorithm == "sha-256"
        )
        return cls(certificate, context, digest)


class _NoIce:
    """What RTCDtlsTransport keeps of an ICE transport: here, nothing is asked of it."""

    role = "controlled"
    state = "completed"


class Dtls(RTCDtlsTransport):
    """One DTLS association, which makes the keys of SRTP.

    `role` is `client` (setup:active) or `server`; `send` takes one datagram and must not raise.
    `close` may be called at any time, also from within `send` or a handler of SCTP.
    """

    _ssl: Any

    def __init__(
        self,
        identity: Identity,
        role: str,
        fingerprints: Sequence[Fingerprint],
        send: Callable[[bytes], object],
    ) -> None:
        super().__init__(_NoIce(), [identity.certificate])  # type: ignore[arg-type]
        self._set_role(role)
        self.phase = Phase.NEW
        self.failure = ""
        self.srtp_keys: SrtpKeys | None = None
        """Once connected: the media engine's. Nothing is protected here."""
        self._identity = identity
        self._fingerprints = fingerprints
        self._send = send
        self._flight: list[bytes] = []
        self._resend_at_s = 0.0
        self._resend_after_s = EARLY_RESEND_S
        self._deadline_s = 0.0

    def begin(self, now_s: float) -> None:
        """Starts the handshake; as client the ClientHello leaves at once."""
        self._ssl = SSL.Connection(self._identity.context)
        self._ssl.set_ciphertext_mtu(MAX_DATAGRAM_BYTES)
        if self._role == "client":
            self._ssl.set_connect_state()
        else:
            self._ssl.set_accept_state()
        self.phase = Phase.HANDSHAKING
        self._set_state(State.CONNECTING)
        self._deadline_s = now_s + HANDSHAKE_DEADLINE_S
        self._handshake(now_s)

    def receive(
        self, datagram: bytes, now_s: float, on_authentic: Callable[[], None] = lambda: None
    ) -> bool:
        """Takes one DTLS datagram. Returns whether it held a record that was decrypted; during
        the handshake whether it was taken at all (the caller vouches for its flow key).
        `on_authentic` is called as soon as that is known, before anything is sent in reply.
        """
        if self.phase is Phase.HANDSHAKING:
            on_authentic()
            self._ssl.bio_write(datagram)
            self._handshake(now_s)
            self._drain(lambda: None)
            return True
        if self.phase is Phase.CONNECTED:
            self._ssl.bio_write(datagram)
            return self._drain(on_authentic)
        return False

    def poll(self, now_s: float) -> None:
        """Sends a flight again when its reply is late; ends a handshake over its deadline."""
        if self.phase is not Phase.HANDSHAKING:
            return
        timeout_s = self._ssl.DTLSv1_get_timeout()
        if now_s >= self._deadline_s:
            self._fail("handshake deadline")
        elif timeout_s is not None and timeout_s <= 0:
            # Written anew, under new record numbers: a peer that has this flight and lost only its
            # own last one ignores replays, and repeats itself for nothing less.
            self._ssl.DTLSv1_handle_timeout()
            self._flight = self._flush() or self._flight
        elif now_s >= self._resend_at_s:
            self._resend_after_s *= 2
            self._resend_at_s = now_s + self._resend_after_s
            for datagram in self._flight:
                self._send(datagram)

    def close(self) -> None:
        """Says close_notify when there is somebody to say it to, and forgets all keys."""
        if self.phase in (Phase.HANDSHAKING, Phase.CONNECTED):
            try:
                self._ssl.shutdown()
            except SSL.Error:
                pass
            self._flush()
            self.phase = Phase.CLOSED
        self._set_state(State.CLOSED)
        self._flight = []
        self.srtp_keys = None
        self._ssl = None
        self.remove_all_listeners()

    def _handshake(self, now_s: float) -> None:
        try:
            self._ssl.do_handshake()
        except SSL.WantReadError:
            flight = self._flush()
            if flight:
                self._flight = flight
                self._resend_after_s = EARLY_RESEND_S
                self._resend_at_s = now_s + EARLY_RESEND_S
            return
        except SSL.Error as error:
            self._flush()
            self._fail(f"handshake: {_reason(error)}")
            return
        self._flush()
        self._flight = []
        if not self._peer_is_known():
            self._fail("fingerprint mismatch")
            return
        self._set_state(State.CONNECTED)
        self.srtp_keys = self._export_srtp_keys()
        if self.srtp_keys is None:
            self._fail("no common SRTP profile")
            return
        self.phase = Phase.CONNECTED

    def _export_srtp_keys(self) -> SrtpKeys | None:
        """RFC 5764 4.2: client key, server key, client salt, server salt, of the profile chosen."""
        selected = self._ssl.get_selected_srtp_profile()
        for profile in rtcdtlstransport.SRTP_PROFILES:
            if profile.openssl_profile == selected:
                break
        else:
            return None
        key, salt = profile.key_length, profile.salt_length
        material = self._ssl.export_keying_material(b"EXTRACTOR-dtls_srtp", 2 * (key + salt))
        client = material[:key], material[2 * key : 2 * key + salt]
        server = material[key : 2 * key], material[2 * key + salt :]
        receive, send = (client, server) if self._role == "server" else (server, client)
        return SrtpKeys(_PROFILE_NUMBERS[selected], *receive, *send)

    def _peer_is_known(self) -> bool:
        """RFC 8122 5: the certificate has one of the offered fingerprints."""
        certificate = self._ssl.get_peer_certificate(as_cryptography=True)
        return certificate is not None and any(
            rtcdtlstransport.certificate_digest(certificate, item.algorithm) == item.value
            for item in self._fingerprints
        )

    def _drain(self, on_authentic: Callable[[], None]) -> bool:
        """Reads every record that OpenSSL holds; True when one of them was decrypted."""
        authenticated = False
        while self.phase is Phase.CONNECTED:
            try:
                data = self._ssl.recv(65_536)
            except SSL.ZeroReturnError:
                on_authentic()
                authenticated = True
                self.phase = Phase.CLOSED
                break
            except SSL.Error:
                break
            on_authentic()
            authenticated = True
            if self._data_receiver is not None:
                run(self._data_receiver._handle_data(data))
        self._flush()
        return authenticated

    def _fail(self, failure: str) -> None:
        self.failure = failure
        self.phase = Phase.FAILED
        self._set_state(State.FAILED)

    def _flush(self) -> list[bytes]:
        """Sends what OpenSSL has written, cut at record boundaries."""
        datagrams: list[bytes] = []
        try:
            while self._ssl is not None:
                datagrams += split_records(self._ssl.bio_read(65_536))
        except SSL.Error:
            pass
        for datagram in datagrams:
            self._send(datagram)
        return datagrams

    async def _send_data(self, data: bytes) -> None:
        # A timer of SCTP may still fire after the close.
        if self.phase is Phase.CONNECTED:
            self._ssl.send(data)
            self._flush()


class Sctp(RTCSctpTransport):
    """The SCTP association of one call with its one data channel for events.

    `on_channel(channel)` is called for the channel in use: the first one the client opens, or
    stream 0 when the client has agreed on it without saying so. `on_message(text)` gets its
    messages. `on_end(reason)` is called once: `sctp_abort`, `channel_closed` or `sctp_overrun`.
    """

    def __init__(
        self,
        dtls: Dtls,
        *,
        on_channel: Callable[[], None],
        on_message: Callable[[str | bytes], None],
        on_end: Callable[[str], None],
    ) -> None:
        super().__init__(dtls)
        # aiortc waits 3 s for the first reply; nobody does on a path that has just done DTLS.
        self._rto = 0.4
        self._on_channel = on_channel
        self._on_message = on_message
        self._on_end: Callable[[str], None] | None = on_end
        self._channel: RTCDataChannel | None = None
        self._acknowledged = False
        self.on("datachannel", self._adopt)

    @property
    def established(self) -> bool:
        """Whether the association is up."""
        return self._association_state == self.State.ESTABLISHED

    @property
    def channel_open(self) -> bool:
        """Whether events can be sent."""
        return self._channel is not None and self._channel.readyState == "open"

    def begin(self, remote_port: int, remote_max_message_bytes: int) -> None:
        """Sends INIT. The DTLS association must be connected."""
        run(self.start(RTCSctpCapabilities(remote_max_message_bytes), remote_port))

    def negotiate_channel(self) -> None:
        """Uses stream 0 as a channel negotiated out of band, if no channel is there yet."""
        if self._channel is None and 0 not in self._data_channels:
            self._adopt(
                RTCDataChannel(
                    self,
                    RTCDataChannelParameters(label="oai-events", negotiated=True, id=0),
                )
            )

    def send_text(self, text: str) -> bool:
        """Queues one message. False when there is no open channel or its backlog is full."""
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return False
        if channel.bufferedAmount > MAX_SEND_BACKLOG_BYTES:
            return False
        channel.send(text)
        return True

    def close(self) -> None:
        """Aborts the association; says so to the peer while DTLS is connected."""
        self._on_end = None
        run(self.stop())
        self._channel = None

    def _adopt(self, channel: RTCDataChannel) -> None:
        channel.on("message", lambda message: self._heard(channel, message))
        channel.on("close", lambda: self._closed(channel))
        if self._channel is not None and not self._channel.negotiated:
            return
        self._channel = channel
        if channel.readyState == "open":
            self._on_channel()
        else:
            channel.on("open", self._on_channel)

    def _heard(self, channel: RTCDataChannel, message: str | bytes) -> None:
        if channel is self._channel:
            self._on_message(message)

    def _closed(self, channel: RTCDataChannel) -> None:
        if channel is self._channel:
            self._finish("channel_closed")

    def _finish(self, reason: str) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(reason)

    async def _handle_data(self, data: bytes) -> None:
        if not is_readable(data):
            return
        try:
            await super()._handle_data(data)
        except Exception:
            # aiortc asserts on, or stumbles over, chunks that no honest peer sends. The packet
            # is authentic, so the sender harms its own call only.
            return
        # A peer that ignores the window, or sends crumbs, would fill our memory.
        streams = self._inbound_streams
        if (
            self._advertised_rwnd < 0
            or len(streams) > MAX_STREAMS
            or len(self._data_channels) > MAX_STREAMS
            or len(self._sack_misordered) > MAX_WAITING_CHUNKS
            or sum(len(stream.reassembly) for stream in streams.values()) > MAX_WAITING_CHUNKS
        ):
            self._finish("sctp_overrun")

    async def _receive(self, stream_id: int, pp_id: int, data: bytes) -> None:
        if pp_id == rtcsctptransport.WEBRTC_DCEP:
            if data[:1] == b"\x03" and stream_id in self._data_channels:
                # RFC 8832 6: a channel that was already taken for negotiated; its opener waits for the word.
                if not self._acknowledged:
                    self._acknowledged = True
                    channel = self._data_channels[stream_id]
                    ack = (channel, rtcsctptransport.WEBRTC_DCEP, b"\x02")
                    self._data_channel_queue.append(ack)
                    await self._data_channel_flush()
                return
        elif stream_id == 0:
            self.negotiate_channel()
        await super()._receive(stream_id, pp_id, data)

    def _set_state(self, state: RTCSctpTransport.State) -> None:
        ended = state == self.State.CLOSED and self._association_state != state
        if ended:
            self._finish("sctp_abort")
        super()._set_state(state)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine that never suspends; RuntimeError when it does."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("a coroutine of aiortc waited for something")


def _reason(error: SSL.Error) -> str:
    """OpenSSL's words for an error, which hold nothing of the peer's bytes."""
    if error.args and isinstance(error.args[0], list) and error.args[0]:
        return str(error.args[0][0][-1])
    return type(error).__name__
