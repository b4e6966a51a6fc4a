"""STUN for tests: the published vectors, a builder that may lie, and a slow reader to compare with.

Written from RFC 8489 with the standard library alone, apart from the code that it judges.
"""

from __future__ import annotations

import hmac
import re
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

COOKIE = 0x2112A442
PASSWORD = b"VOkJxbRl1RmTxUk/WvJxBt"
"""Of RFC 5769 2.1 to 2.3."""

_VECTORS = Path(__file__).resolve().parent.parent / "vectors" / "stun.txt"


def vectors() -> dict[str, bytes]:
    """The named messages of tests/vectors/stun.txt."""
    text = re.sub(r"#.*", "", _VECTORS.read_text())
    found = re.findall(r"^(\w+):\n((?: +[0-9a-f]+\n)+)", text, re.MULTILINE)
    return {name: bytes.fromhex(digits) for name, digits in found}


def attribute(
    number: int, value: bytes, *, pad: bytes = b"\0", claimed: int | None = None
) -> bytes:
    """One attribute, padded; `claimed` is written as its length instead of the true one."""
    length = len(value) if claimed is None else claimed
    return struct.pack("!HH", number, length) + value + pad * (-len(value) % 4)


def message(
    *attributes: bytes,
    kind: int = 0x0001,
    cookie: int = COOKIE,
    transaction_id: bytes = b"abcdefghijkl",
    claimed: int | None = None,
    key: bytes | None = None,
    fingerprint: bool = True,
) -> bytes:
    """A message of finished attributes; `claimed` is written as its length, not the true one."""

    def header(length: int) -> bytes:
        return struct.pack("!HHI12s", kind, length, cookie, transaction_id)

    body = b"".join(attributes)
    if key is not None:
        covered = header(len(body) + 24) + body
        body += attribute(0x0008, hmac.digest(key, covered, "sha1"))
    if fingerprint:
        crc = zlib.crc32(header(len(body) + 8) + body) ^ 0x5354554E
        body += attribute(0x8028, struct.pack("!I", crc))
    return header(len(body) if claimed is None else claimed) + body


@dataclass
class Slow:
    """What the slow reader finds."""

    status: str = "ok"
    method: int = 0
    stun_class: int = 0
    username: bytes | None = None
    priority: int | None = None
    tie_breaker: int = 0
    use_candidate: bool = False
    ice_controlling: bool = False
    ice_controlled: bool = False
    fingerprint: bool = False
    integrity_offset: int = 0


_SIZES = {0x0008: 20, 0x0024: 4, 0x0025: 0, 0x8029: 8, 0x802A: 8}


def read_slowly(data: bytes) -> Slow:
    """Reads a datagram by the rules of csrc/wire/stun.h, one attribute list at a time."""
    if len(data) < 20:
        return Slow("short")
    kind, length, cookie = struct.unpack_from("!HHI", data)
    if kind >= 0x4000 or cookie != COOKIE:
        return Slow("not_stun")
    if length % 4 or len(data) > 20 + length:
        return Slow("length")
    if len(data) < 20 + length:
        return Slow("short")
    bits = f"{kind:014b}"
    found = Slow(
        method=int(bits[:5] + bits[6:9] + bits[10:], 2), stun_class=int(bits[5] + bits[9], 2)
    )
    at, counts = 20, True
    while at < len(data):
        number, size = struct.unpack_from("!HH", data, at)
        value = data[at + 4 : at + 4 + size]
        following = at + 4 + size + -size % 4
        if following > len(data):
            return Slow("attribute")
        if number == 0x8028:
            right = struct.pack("!I", zlib.crc32(data[:at]) ^ 0x5354554E)
            if value != right or following != len(data):
                return Slow("fingerprint")
            found.fingerprint = True
        elif counts:
            if _SIZES.get(number, size) != size:
                return Slow("attribute")
            if number == 0x0006 and found.username is None and not 1 <= size <= 508:
                return Slow("username")
            _take(found, number, value, at)
            counts = number not in (0x0008, 0x001C)
        at = following
    return found


def _take(found: Slow, number: int, value: bytes, at: int) -> None:
    if number == 0x0006 and found.username is None:
        found.username = value
    elif number == 0x0008:
        found.integrity_offset = at
    elif number == 0x0024 and found.priority is None:
        found.priority = int.from_bytes(value, "big")
    elif number == 0x0025:
        found.use_candidate = True
    elif number in (0x8029, 0x802A):
        if not found.ice_controlled and not found.ice_controlling:
            found.tie_breaker = int.from_bytes(value, "big")
        found.ice_controlled |= number == 0x8029
        found.ice_controlling |= number == 0x802A
