"""RTP and SRTP of a test's client, apart from the code that it judges: libsrtp, and a reader of RTP."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pylibsrtp

from transceiver.dtls import Dtls, Phase
from transceiver.media import SrtpKeys

PROFILES = {
    0x0001: pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_80,
    0x0007: pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_128_GCM,
    0x0008: pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM,
}

_HEADER = struct.Struct("!BBHII")


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


def is_rtcp(datagram: bytes) -> bool:
    """Whether an SRTP or RTP datagram is RTCP (RFC 5761 4)."""
    return len(datagram) >= 2 and 192 <= datagram[1] <= 223


def read_rtp(packet: bytes) -> RtpPacket:
    """Reads what our server writes, which has no optional parts."""
    flags, second, sequence, timestamp, ssrc = _HEADER.unpack_from(packet)
    assert flags == 0x80
    return RtpPacket(second & 0x7F, bool(second & 0x80), sequence, timestamp, ssrc, packet[12:])


def write_rtp(packet: RtpPacket) -> bytes:
    """The bytes of a packet."""
    second = packet.payload_type | (0x80 if packet.marker else 0)
    head = _HEADER.pack(0x80, second, packet.sequence, packet.timestamp, packet.ssrc)
    return head + packet.payload


class Srtp:
    """Both directions of one association, by the keys of this end."""

    def __init__(self, keys: SrtpKeys) -> None:
        def session(key: bytes, salt: bytes, ssrc_type: int) -> pylibsrtp.Session:
            policy = pylibsrtp.Policy(key + salt, ssrc_type, srtp_profile=PROFILES[keys.profile])
            return pylibsrtp.Session(policy)

        inbound, outbound = pylibsrtp.Policy.SSRC_ANY_INBOUND, pylibsrtp.Policy.SSRC_ANY_OUTBOUND
        self.rx = session(keys.receive_key, keys.receive_salt, inbound)
        self.tx = session(keys.send_key, keys.send_salt, outbound)


class SrtpDtls(Dtls):
    """A client's DTLS whose keys protect packets here."""

    _srtp: Srtp | None = None

    def protect(self, packet: bytes) -> bytes | None:
        """SRTP of one RTP packet; None when not connected."""
        srtp = self._connected()
        return None if srtp is None else bytes(srtp.tx.protect(packet))

    def unprotect(self, datagram: bytes) -> bytes | None:
        """The RTP packet, or None when it is not authentic."""
        return self._opened(datagram, "unprotect")

    def unprotect_rtcp(self, datagram: bytes) -> bytes | None:
        """The RTCP packet, or None when it is not authentic."""
        return self._opened(datagram, "unprotect_rtcp")

    def _opened(self, datagram: bytes, method: str) -> bytes | None:
        srtp = self._connected()
        try:
            return None if srtp is None else bytes(getattr(srtp.rx, method)(datagram))
        except (pylibsrtp.Error, ValueError):
            return None

    def _connected(self) -> Srtp | None:
        if self.phase is not Phase.CONNECTED:
            return None
        if self._srtp is None and self.srtp_keys is not None:
            self._srtp = Srtp(self.srtp_keys)
        return self._srtp
