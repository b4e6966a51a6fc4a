"""STUN messages as Python sees them (RFC 8489): read one, verify it, answer it.

1. Reading is csrc/wire/stun.c; a message that it refuses raises StunError here.
2. `Message.verify` is the only place where MESSAGE-INTEGRITY is checked, in constant time.
3. Answers carry MESSAGE-INTEGRITY and FINGERPRINT, as ICE asks (RFC 8445 7.2.2, 7.3).
4. SHA-1 is what ICE agents speak; MESSAGE-INTEGRITY-SHA256 is neither read nor written.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from relay.wire._codec import StunClass, StunReader, StunStatus, crc32
from relay.wire.address import Endpoint

BINDING = 0x001

USERNAME = 0x0006
MESSAGE_INTEGRITY = 0x0008
ERROR_CODE = 0x0009
XOR_MAPPED_ADDRESS = 0x0020
PRIORITY = 0x0024
USE_CANDIDATE = 0x0025
FINGERPRINT = 0x8028
ICE_CONTROLLED = 0x8029
ICE_CONTROLLING = 0x802A

ROLE_CONFLICT = 487
"""RFC 8445 7.3.1.1: both agents believe that they have the same role."""

_COOKIE = 0x2112A442
_HEADER_BYTES = 20
_INTEGRITY_BYTES = 24
_FINGERPRINT_BYTES = 8
_FINGERPRINT_XOR = 0x5354554E


class StunError(ValueError):
    """A datagram that is not a well-formed STUN message."""

    def __init__(self, status: StunStatus) -> None:
        super().__init__(status.name.lower())
        self.status = status


@dataclass(frozen=True, slots=True)
class Message:
    """One message, read and found well-formed; attributes after MESSAGE-INTEGRITY do not count."""

    datagram: bytes = field(repr=False)
    method: int
    stun_class: StunClass
    transaction_id: bytes
    """12 bytes."""
    username: bytes | None
    local_ufrag: bytes
    """USERNAME before its first colon; empty unless there is something on both sides of it."""
    priority: int | None
    tie_breaker: int
    use_candidate: bool
    ice_controlling: bool
    ice_controlled: bool
    fingerprint: bool
    """FINGERPRINT is present (a wrong one does not get here)."""
    integrity_offset: int
    """Where MESSAGE-INTEGRITY starts; 0 when absent."""

    @classmethod
    def read(cls, datagram: bytes) -> Self:
        """Reads one datagram. Raises StunError."""
        reader = StunReader(datagram)
        status = reader.read(len(datagram))
        if status:
            raise StunError(status)
        return cls(
            datagram,
            reader.method,
            reader.stun_class,
            reader.transaction_id,
            reader.username,
            reader.local_ufrag,
            reader.priority,
            reader.tie_breaker,
            reader.has_use_candidate,
            reader.has_ice_controlling,
            reader.has_ice_controlled,
            reader.has_fingerprint,
            reader.integrity_offset,
        )

    @property
    def is_binding_request(self) -> bool:
        """Whether this can be a connectivity check."""
        return self.stun_class == StunClass.REQUEST and self.method == BINDING

    def verify(self, key: bytes) -> bool:
        """Whether MESSAGE-INTEGRITY is there and holds under `key`: the ICE password's bytes
        (RFC 8489 9.1.1). What follows it is not covered.
        """
        start = self.integrity_offset
        if start == 0:
            return False
        end = start + _INTEGRITY_BYTES
        found = self.datagram[start + 4 : end]
        return hmac.compare_digest(found, _integrity(key, self.datagram[:start]))


def encode(
    stun_class: StunClass,
    transaction_id: bytes,
    attributes: Iterable[tuple[int, bytes]],
    *,
    key: bytes | None = None,
    fingerprint: bool = True,
    method: int = BINDING,
) -> bytes:
    """A message of these attributes, MESSAGE-INTEGRITY under `key` if any, and FINGERPRINT."""
    message_type = (
        (method & 0xF80) << 2
        | (method & 0x070) << 1
        | method & 0x00F
        | (stun_class & 2) << 7
        | (stun_class & 1) << 4
    )
    body = b"".join(_attribute(number, value) for number, value in attributes)
    head = message_type.to_bytes(2, "big") + bytes(2) + _COOKIE.to_bytes(4, "big")
    message = _with_length(head + transaction_id + body, 0)
    if key is not None:
        message = _with_length(message + _attribute(MESSAGE_INTEGRITY, _integrity(key, message)), 0)
    if fingerprint:
        message = _with_length(message, _FINGERPRINT_BYTES)
        checksum = crc32(message) ^ _FINGERPRINT_XOR
        message += _attribute(FINGERPRINT, checksum.to_bytes(4, "big"))
    return message


def success(request: Message, source: Endpoint, key: bytes) -> bytes:
    """The Binding success for a check that came from `source` (RFC 8445 7.3.1.2)."""
    cookie_and_tid = _COOKIE.to_bytes(4, "big") + request.transaction_id
    packed = source.ip.packed
    mask = int.from_bytes(cookie_and_tid[: len(packed)], "big")
    address = int.from_bytes(packed, "big") ^ mask
    value = (
        (b"\x00\x01" if len(packed) == 4 else b"\x00\x02")
        + (source.port ^ _COOKIE >> 16).to_bytes(2, "big")
        + address.to_bytes(len(packed), "big")
    )
    return encode(StunClass.SUCCESS, request.transaction_id, [(XOR_MAPPED_ADDRESS, value)], key=key)


def error(request: Message, code: int, reason: str, key: bytes) -> bytes:
    """The Binding error `code` (300..699) for a check, such as ROLE_CONFLICT (RFC 8489 14.8)."""
    value = bytes((0, 0, code // 100, code % 100)) + reason.encode()
    return encode(StunClass.ERROR, request.transaction_id, [(ERROR_CODE, value)], key=key)


def _attribute(number: int, value: bytes) -> bytes:
    return (
        number.to_bytes(2, "big") + len(value).to_bytes(2, "big") + value + bytes(-len(value) % 4)
    )


def _with_length(message: bytes, extra_bytes: int) -> bytes:
    length = len(message) - _HEADER_BYTES + extra_bytes
    return message[:2] + length.to_bytes(2, "big") + message[4:]


def _integrity(key: bytes, covered: bytes) -> bytes:
    """HMAC-SHA1 over what precedes the attribute, the length ending with it (RFC 8489 14.5)."""
    return hmac.digest(key, _with_length(covered, _INTEGRITY_BYTES), "sha1")
