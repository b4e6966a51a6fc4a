"""RTP and RTCP as far as a call needs them: read one packet, write one, count and report (RFC 3550).

1. Reading is bounds-safe and returns None for what is malformed; nothing raises.
2. Header extensions, CSRCs and padding are skipped, never kept.
3. Arithmetic on sequence numbers and timestamps is modulo 2^16 and 2^32.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from typing import NamedTuple

NTP_EPOCH_S = 2_208_988_800  # 1900 to 1970

_RTP = struct.Struct("!BBHII")
_RTCP = struct.Struct("!BBHI")
_SENDER_INFO = struct.Struct("!IIIII")
_REPORT_BLOCK = struct.Struct("!IIIIII")

_SR, _RR, _SDES = 200, 201, 202
_MAX_DROPOUT = 3_000  # RFC 3550 A.1
_MAX_STEP = 500  # under half of SRTP's replay window of 1,024


class RtpPacket(NamedTuple):
    """One RTP packet without CSRCs, extensions and padding."""

    payload_type: int
    marker: bool
    sequence: int
    """16 bits"""
    timestamp: int
    """32 bits"""
    ssrc: int
    payload: bytes


class AudioFrame(NamedTuple):
    """One frame of the call's codec, to be passed through."""

    payload: bytes
    timestamp: int
    """In units of the codec's clock, 32 bits, the sender's own origin."""
    sequence: int
    """16 bits; a gap is a loss."""
    marker: bool
    """First frame of a talkspurt."""
    stream: int
    """The sender's SSRC: another one has other origins."""


class SenderReport(NamedTuple):
    """The sender part of an SR."""

    ssrc: int
    ntp_middle: int
    """The middle 32 bits of its NTP time."""


class ReceptionReport(NamedTuple):
    """One report block: what the peer received of `ssrc`."""

    ssrc: int
    fraction_lost: float
    """0..1, since the report before."""
    jitter: int
    """In timestamp units."""
    last_sr: int
    """0 when it has had none."""
    delay_since_last_sr: int
    """In 1/65536 s."""


def is_rtcp(datagram: bytes) -> bool:
    """Whether an SRTP or RTP datagram is RTCP (RFC 5761 4)."""
    return len(datagram) >= 2 and 192 <= datagram[1] <= 223


def read_rtp(packet: bytes) -> RtpPacket | None:
    """Reads one RTP packet; None when it is malformed."""
    if len(packet) < 12 or packet[0] >> 6 != 2:
        return None
    flags, second, sequence, timestamp, ssrc = _RTP.unpack_from(packet)
    start = 12 + 4 * (flags & 0x0F)
    end = len(packet)
    if flags & 0x10:
        if start + 4 > end:
            return None
        start += 4 + 4 * int.from_bytes(packet[start + 2 : start + 4])
    if flags & 0x20:
        padding = packet[-1]
        if padding == 0:
            return None
        end -= padding
    if start > end:
        return None
    return RtpPacket(
        second & 0x7F, bool(second & 0x80), sequence, timestamp, ssrc, packet[start:end]
    )


def write_rtp(packet: RtpPacket) -> bytes:
    """The bytes of a packet."""
    second = packet.payload_type | (0x80 if packet.marker else 0)
    return _RTP.pack(0x80, second, packet.sequence, packet.timestamp, packet.ssrc) + packet.payload


def read_rtcp(compound: bytes) -> Iterator[SenderReport | ReceptionReport]:
    """The reports in a compound packet, as far as it is well-formed."""
    position = 0
    while position + 8 <= len(compound):
        flags, kind, words, ssrc = _RTCP.unpack_from(compound, position)
        end = position + 4 * (words + 1)
        if flags >> 6 != 2 or end > len(compound):
            return
        block = position + 8
        if kind == _SR:
            if block + _SENDER_INFO.size > end:
                return
            high, low, *_ = _SENDER_INFO.unpack_from(compound, block)
            yield SenderReport(ssrc, (high << 16 | low >> 16) & 0xFFFFFFFF)
            block += _SENDER_INFO.size
        if kind in (_SR, _RR):
            for _ in range(flags & 0x1F):
                if block + _REPORT_BLOCK.size > end:
                    return
                about, lost, _, jitter, last_sr, delay = _REPORT_BLOCK.unpack_from(compound, block)
                yield ReceptionReport(about, (lost >> 24) / 256, jitter, last_sr, delay)
                block += _REPORT_BLOCK.size
        position = end


class Received:
    """What came in of one SSRC: loss and jitter (RFC 3550 A.1, A.3, A.8)."""

    def __init__(self, packet: RtpPacket, clock_rate_hz: int) -> None:
        self.ssrc = packet.ssrc
        self._clock_rate_hz = clock_rate_hz
        self._jitter = 0.0
        self._last_sr = 0
        self._last_sr_s = 0.0
        self._start(packet.sequence)

    def _start(self, sequence: int) -> None:
        self.packets = 0
        self._first = sequence
        self._highest = sequence
        self._cycles = 0
        self._transit: float | None = None
        self._expected_before = 0
        self._packets_before = 0

    @property
    def expected(self) -> int:
        """Packets the sender must have sent."""
        return self._cycles + self._highest - self._first + 1

    @property
    def loss(self) -> float:
        """0..1, of the whole call."""
        return max(0, self.expected - self.packets) / max(1, self.expected)

    @property
    def jitter_ms(self) -> float:
        """Interarrival jitter."""
        return 1_000 * self._jitter / self._clock_rate_hz

    def add(self, packet: RtpPacket, now_s: float) -> None:
        """Counts one packet."""
        step = packet.sequence - self._highest & 0xFFFF
        if step < _MAX_DROPOUT:
            if packet.sequence < self._highest:
                self._cycles += 0x10000
            self._highest = packet.sequence
        elif step < 0xFFFF - _MAX_DROPOUT:
            # The sender has started anew (RFC 3550 A.1)
            self._start(packet.sequence)
        self.packets += 1
        transit = now_s * self._clock_rate_hz - packet.timestamp
        if self._transit is not None:
            difference = abs((transit - self._transit + 0x8000_0000) % 2**32 - 0x8000_0000)
            self._jitter += (difference - self._jitter) / 16
        self._transit = transit

    def note_sender_report(self, ntp_middle: int, now_s: float) -> None:
        """Remembers when the peer's last SR came, for its round-trip time."""
        self._last_sr, self._last_sr_s = ntp_middle, now_s

    def report_block(self, now_s: float) -> bytes:
        """The next report block; starts a new interval."""
        expected, packets = self.expected, self.packets
        lost = min(max(expected - packets, 0), 0x7FFFFF)
        expected_now = expected - self._expected_before
        lost_now = expected_now - (packets - self._packets_before)
        self._expected_before, self._packets_before = expected, packets
        fraction = 0
        if expected_now > 0 and lost_now > 0:
            fraction = min(255, 256 * lost_now // expected_now)
        delay = int((now_s - self._last_sr_s) * 65_536) & 0xFFFFFFFF if self._last_sr else 0
        return _REPORT_BLOCK.pack(
            self.ssrc,
            fraction << 24 | lost,
            (self._cycles + self._highest) & 0xFFFFFFFF,
            int(self._jitter) & 0xFFFFFFFF,
            self._last_sr,
            delay,
        )


class Sent:
    """What went out of our one SSRC, and how the peer says it fared."""

    def __init__(self, ssrc: int, cname: str, clock_rate_hz: int) -> None:
        self.ssrc = ssrc
        self.packets = 0
        self.payload_bytes = 0
        self.rtt_ms: float | None = None
        self.loss: float | None = None
        self._clock_rate_hz = clock_rate_hz
        self._timestamp = 0
        self._sent_s = 0.0
        self._sdes = _sdes(ssrc, cname)

    def add(self, packet: RtpPacket, now_s: float) -> None:
        """Counts one packet."""
        self.packets += 1
        self.payload_bytes += len(packet.payload)
        self._timestamp, self._sent_s = packet.timestamp, now_s

    def note_reception(self, report: ReceptionReport, wall_s: float) -> None:
        """Takes the peer's report on our stream (RFC 3550 6.4.1: RTT = A - LSR - DLSR)."""
        self.loss = report.fraction_lost
        if report.last_sr:
            rtt = _ntp_middle(wall_s) - report.last_sr - report.delay_since_last_sr & 0xFFFFFFFF
            if rtt < 10 * 65_536:
                self.rtt_ms = rtt * 1_000 / 65_536

    def write_report(self, received: Received | None, now_s: float, wall_s: float) -> bytes:
        """A compound packet: SR (RR before anything was sent), then SDES with our CNAME."""
        blocks = b"" if received is None else received.report_block(now_s)
        flags = 0x80 | (1 if blocks else 0)
        if self.packets == 0:
            head = _RTCP.pack(flags, _RR, 1 + len(blocks) // 4, self.ssrc)
            return head + blocks + self._sdes
        elapsed = int((now_s - self._sent_s) * self._clock_rate_hz)
        seconds, fraction = divmod(wall_s + NTP_EPOCH_S, 1)
        info = _SENDER_INFO.pack(
            int(seconds) & 0xFFFFFFFF,
            int(fraction * 2**32),
            self._timestamp + elapsed & 0xFFFFFFFF,
            self.packets & 0xFFFFFFFF,
            self.payload_bytes & 0xFFFFFFFF,
        )
        head = _RTCP.pack(flags, _SR, 6 + len(blocks) // 4, self.ssrc)
        return head + info + blocks + self._sdes


class Outgoing:
    """Turns frames of changing origins into one continuous RTP stream of our own.

    Losses and reorderings of a stream are kept, so that the client conceals them; another stream,
    or a jump that SRTP's 16-bit index cannot follow (RFC 3711 3.3.1), continues where the last
    frame ended.
    """

    def __init__(self, ssrc: int, payload_type: int, clock_rate_hz: int) -> None:
        self._ssrc = ssrc
        self._payload_type = payload_type
        self._clock_rate_hz = clock_rate_hz
        self._stream: int | None = None
        # RFC 3550 5.1: random origins; the low half leaves SRTP's first rollover far away
        self._last_sequence = secrets.randbelow(0x8000)
        self._last_timestamp = secrets.randbelow(2**32)
        self._last_s = 0.0
        self._sequence_offset = 0
        self._timestamp_offset = 0

    def packet(self, frame: AudioFrame, now_s: float) -> RtpPacket:
        """The packet that carries a frame."""
        sequence = frame.sequence + self._sequence_offset & 0xFFFF
        step = (sequence - self._last_sequence + 0x8000 & 0xFFFF) - 0x8000
        if frame.stream != self._stream or abs(step) > _MAX_STEP:
            self._rebase(frame, now_s)
            sequence, step = frame.sequence + self._sequence_offset & 0xFFFF, 1
        timestamp = frame.timestamp + self._timestamp_offset & 0xFFFFFFFF
        if step > 0:
            self._last_sequence, self._last_timestamp, self._last_s = sequence, timestamp, now_s
        return RtpPacket(
            self._payload_type, frame.marker, sequence, timestamp, self._ssrc, frame.payload
        )

    def _rebase(self, frame: AudioFrame, now_s: float) -> None:
        elapsed_s = now_s - self._last_s if self._stream is not None else 0.0
        elapsed = max(int(elapsed_s * self._clock_rate_hz), self._clock_rate_hz // 50)
        self._stream = frame.stream
        self._sequence_offset = self._last_sequence + 1 - frame.sequence
        self._timestamp_offset = self._last_timestamp + elapsed - frame.timestamp


def _ntp_middle(wall_s: float) -> int:
    return int((wall_s + NTP_EPOCH_S) * 65_536) & 0xFFFFFFFF


def _sdes(ssrc: int, cname: str) -> bytes:
    """An SDES packet with one chunk, CNAME only (RFC 3550 6.5)."""
    item = b"\x01" + bytes([len(cname)]) + cname.encode()
    chunk = item + bytes(4 - len(item) % 4)
    return _RTCP.pack(0x81, _SDES, 1 + len(chunk) // 4, ssrc) + chunk
