"""Datagrams from addresses that the sender does not have: any of 127/8, by IP_PKTINFO.

An attacker who spoofs never sees an answer, and neither do these tests: what is sent back to
127.x.y.z arrives at the wildcard socket and is left there.
"""

from __future__ import annotations

import socket
import struct
from typing import Self

IP_PKTINFO = 8  # socket.IP_PKTINFO exists from Python 3.14 on


class Spoofer:
    """One wildcard UDP socket; its port is the same for every source."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("0.0.0.0", 0))

    @property
    def port(self) -> int:
        """The source port of everything it sends."""
        port: int = self._socket.getsockname()[1]
        return port

    def send(self, datagram: bytes, source: str, to: tuple[str, int]) -> None:
        """One datagram that comes from `source`."""
        info = struct.pack("=i4s4x", 0, socket.inet_aton(source))
        self._socket.sendmsg([datagram], [(socket.IPPROTO_IP, IP_PKTINFO, info)], 0, to)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def loopback(index: int) -> str:
    """Address number `index` of a part of 127/8 that nothing else uses."""
    return f"127.{64 + (index >> 16) % 128}.{index >> 8 & 255}.{index & 255}"
