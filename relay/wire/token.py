"""The routing token: the server's ICE ufrag, 28 characters that say where a session lives.

1. The C of csrc/wire/token.c seals and opens; this file turns addresses into fields and back.
2. An IPv6 address travels as 64 bits under an indexed /64 that only its own cluster knows, so a
   token of another cluster opens without an address.
3. Nonces come from the operating system. A caller that needs a ufrag nobody else has alive
   compares and draws again.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from types import MappingProxyType

from relay.wire._codec import TokenCipher, TokenStatus
from relay.wire.keyring import Keyring

PREFIX_INDEX_MAX = 15

_RANDOM_BYTES = 8
_NO_PREFIXES: Mapping[int, IPv6Network] = MappingProxyType({})


class TokenError(ValueError):
    """A token that does not open, or an address that does not fit into one."""

    def __init__(self, status: str, value: object) -> None:
        super().__init__(f"{status}: {value}")
        self.status = status
        """length, alphabet, no_hint, format, unknown_key, forged, kind or no_prefix."""
        self.value = value
        """The ufrag or the address."""


@dataclass(frozen=True, slots=True)
class TransceiverAddress:
    """Where a session lives: what a token is sealed from."""

    cluster_id: int
    """0..65535"""
    address: IPv4Address | IPv6Address
    port: int
    """UDP, 1..65535"""


@dataclass(frozen=True, slots=True)
class RoutingToken:
    """What an opened token says."""

    key_id: int
    """The ring key that sealed it, 0..6."""
    kind: int
    """4 or 6."""
    cluster_id: int
    address: IPv4Address | IPv6Address | None
    """None for kind 6 under a prefix index that is not known here."""
    port: int
    prefix_index: int
    """0..15 for kind 6, 0 for kind 4."""


class TokenCodec:
    """Seals and opens tokens under one keyring and one cluster's IPv6 prefixes."""

    def __init__(
        self, keyring: Keyring, prefixes: Mapping[int, IPv6Network] = _NO_PREFIXES
    ) -> None:
        """Raises ValueError for an index outside 0..15 or a network that is no /64."""
        for index, network in prefixes.items():
            if not 0 <= index <= PREFIX_INDEX_MAX or network.prefixlen != 64:
                raise ValueError(f"not a /64 with an index of 0..15: {index}={network}")
        self._prefixes = dict(prefixes)
        self._cipher = TokenCipher()
        for key in keyring.keys:
            self._cipher.add(key.id, key.secret)

    def seal(self, where: TransceiverAddress) -> str:
        """A new token of 28 ice-chars. Raises TokenError (`kind` for a port of 0, `no_prefix`) and
        OverflowError for numbers out of their range.
        """
        address = where.address
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if isinstance(address, IPv4Address):
            kind, index, packed = 4, 0, address.packed
        else:
            kind, index, packed = 6, self._prefix_index(address), address.packed[8:]
        sealed = self._cipher.seal(
            kind, index, where.cluster_id, where.port, packed, secrets.token_bytes(_RANDOM_BYTES)
        )
        if isinstance(sealed, TokenStatus):
            raise TokenError(sealed.name.lower(), where)
        return sealed.decode("ascii")

    def open(self, ufrag: str | bytes) -> RoutingToken:
        """Opens a ufrag of any length and content. Raises TokenError."""
        text = ufrag.encode("ascii", "replace") if isinstance(ufrag, str) else ufrag
        opened = self._cipher.open(text)
        if isinstance(opened, TokenStatus):
            raise TokenError(opened.name.lower(), ufrag)
        key_id, kind, index, cluster_id, port, packed = opened
        return RoutingToken(
            key_id, kind, cluster_id, self._address(kind, index, packed), port, index
        )

    def _address(self, kind: int, index: int, packed: bytes) -> IPv4Address | IPv6Address | None:
        if kind == 4:
            return IPv4Address(packed)
        network = self._prefixes.get(index)
        return None if network is None else network[int.from_bytes(packed, "big")]

    def _prefix_index(self, address: IPv6Address) -> int:
        for index, network in self._prefixes.items():
            if address in network:
                return index
        raise TokenError("no_prefix", address)
