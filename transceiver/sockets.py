"""The sockets of the pool, as they have to be before anybody reads them.

A media socket has room for a burst (4 MiB where allowed), and the kernel fragments what SPP made too
long for the way to the relay instead of losing it. `::` takes IPv4 too.
"""

from __future__ import annotations

import socket

from relay.wire.address import Endpoint

BUFFER_BYTES = 4 * 1_048_576

# linux/in.h, linux/in6.h, asm-generic/socket.h: names that Python's socket module lacks
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_OMIT = 5
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33


def open_media(host: str, port: int) -> socket.socket:
    """Binds a media socket, non-blocking, ready for MediaEngine. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_OMIT)
        if family == socket.AF_INET or host == "::":
            opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_OMIT)
        _set_buffers(opened)
        opened.bind((host, port))
    except OSError:
        opened.close()
        raise
    return opened


def open_http(at: Endpoint) -> socket.socket:
    """A TCP socket bound with SO_REUSEPORT, not listening. Raises OSError."""
    family = socket.AF_INET6 if at.ip.version == 6 else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.setblocking(False)
        opened.bind((str(at.ip), at.port))
    except OSError:
        opened.close()
        raise
    return opened


def _set_buffers(opened: socket.socket) -> None:
    for forced, usual in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            opened.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, usual, BUFFER_BYTES)
