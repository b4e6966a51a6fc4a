"""Call ids: 128 random bits and the sealed owner of the call, so that any process finds it without asking.

    "rtc_" + base32, 80 characters, of: nonce 16 | owner 22, encrypted | MAC 12
    owner: cluster 2 | host address 16 | host port 2 | process 2

1. The key comes from the pool, never from the keyring: a ufrag travels in clear STUN.
2. The MAC is checked before anything else is done with an id; a forged one opens to None.
3. One owner and nonce have one spelling, so an id can be compared as text.
4. An id is logged and is no secret: hangup and stats also need the caller's principal.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import struct
from dataclasses import dataclass

from relay.wire.address import Endpoint, pack_ip, unpack_ip

PREFIX = "rtc_"
CALL_ID_CHARS = len(PREFIX) + 80
KEY_BYTES = 32

_NONCE_BYTES = 16
_MAC_BYTES = 12
_OWNER = struct.Struct("!H16sHH")
NOWHERE = Endpoint(ipaddress.IPv4Address(0), 0)


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds a call."""

    cluster_id: int
    process: int
    host: Endpoint = NOWHERE
    """Where other hosts reach this host's process 0; 0.0.0.0:0 without such a place."""


def derive_key(auth_secret: bytes) -> bytes:
    """The key of all pools that share this secret."""
    return hmac.digest(auth_secret, b"call ids", "sha256")


class CallIds:
    """Draws and opens call ids under one pool's key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a call id key has {KEY_BYTES} bytes, not {len(key)}")
        self._pad_key = hmac.digest(key, b"call id owner", "sha256")
        self._mac_key = hmac.digest(key, b"call id mac", "sha256")

    def draw(self, owner: Owner) -> str:
        """A new id."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        plain = _OWNER.pack(
            owner.cluster_id, pack_ip(owner.host.ip), owner.host.port, owner.process
        )
        sealed = nonce + self._crypt(nonce, plain)
        text = base64.b32encode(sealed + self._mac(sealed)).decode("ascii")
        return PREFIX + text.lower()

    def open(self, call_id: str) -> Owner | None:
        """The owner, or None for an id that this pool did not draw."""
        if len(call_id) != CALL_ID_CHARS or not call_id.startswith(PREFIX):
            return None
        text = call_id[len(PREFIX) :]
        if text != text.lower():
            return None
        try:
            data = base64.b32decode(text.upper())
        except ValueError:
            return None
        sealed, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(sealed)):
            return None
        nonce = sealed[:_NONCE_BYTES]
        cluster_id, ip, port, process = _OWNER.unpack(self._crypt(nonce, sealed[_NONCE_BYTES:]))
        return Owner(cluster_id, process, Endpoint(unpack_ip(ip), port))

    def _mac(self, sealed: bytes) -> bytes:
        return hmac.digest(self._mac_key, sealed, "sha256")[:_MAC_BYTES]

    def _crypt(self, nonce: bytes, owner: bytes) -> bytes:
        """XOR with a keyed hash of the nonce, which is drawn anew for each id."""
        pad = hmac.digest(self._pad_key, nonce, hashlib.sha256)[: len(owner)]
        return bytes(a ^ b for a, b in zip(owner, pad, strict=True))
