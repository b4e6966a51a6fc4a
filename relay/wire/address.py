"""A transport address, and the 16 bytes in which both programs write one.

1. Every address on the wire is IPv6 or IPv4-mapped (RFC 4291 2.5.5.2).
2. Here, on the Python side, a mapped address is always the IPv4 address that it means.
3. What a token, a candidate or SPP carries is one host's address, and the same wherever it stands.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, Self

_MAPPED = bytes(10) + b"\xff\xff"
_BROADCAST = IPv4Address("255.255.255.255")


def host_ip(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address of one host (rule 3), a mapped one undone. Raises ValueError with the reason when it is none."""
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            raise ValueError("an address with a zone cannot be used")
        if ip.is_link_local:
            raise ValueError(
                "a link-local address needs a zone, and one with a zone cannot be used"
            )
        ip = ip.ipv4_mapped or ip
    if ip.is_multicast or ip == _BROADCAST:
        raise ValueError("a multicast or broadcast address is no host's")
    return ip


def read_network(text: str) -> IPv4Network | IPv6Network:
    """A CIDR without host bits. Raises ValueError with the reason; a mapped one would hold no address (rule 2)."""
    network = ip_network(text)
    if "%" in text:
        raise ValueError("an address with a zone cannot be used")
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped:
        raise ValueError("write an IPv4-mapped network as IPv4")
    return network


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
