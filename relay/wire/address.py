"""A transport address, and the 16 bytes in which both programs write one.

1. Every address on the wire is IPv6 or IPv4-mapped (RFC 4291 2.5.5.2).
2. Here, on the Python side, a mapped address is always the IPv4 address that it means.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple, Self

_MAPPED = bytes(10) + b"\xff\xff"


def pack_ip(ip: IPv4Address | IPv6Address) -> bytes:
    """16 bytes, IPv4 mapped."""
    return ip.packed if ip.version == 6 else _MAPPED + ip.packed


def unpack_ip(packed: bytes) -> IPv4Address | IPv6Address:
    """The address in 16 bytes. Raises ValueError for another length."""
    if packed.startswith(_MAPPED):
        return IPv4Address(packed[12:])
    return IPv6Address(packed)


class Endpoint(NamedTuple):
    """An IP address and a UDP port."""

    ip: IPv4Address | IPv6Address
    port: int
    """0..65535"""

    @classmethod
    def of(cls, host: str, port: int) -> Self:
        """From what the socket API returns; a scope id is left out, a mapped address undone.

        Raises ValueError when `host` is no numeric address.
        """
        ip = ip_address(host.partition("%")[0])
        mapped = ip.ipv4_mapped if ip.version == 6 else None
        return cls(mapped or ip, port)

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if self.ip.version == 6 else f"{self.ip}:{self.port}"
