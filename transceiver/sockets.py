"""The sockets of the pool, as they have to be before anybody reads them.

A media socket has room for a burst (4 MiB where allowed), and the kernel fragments what SPP made too
long for the way to the relay instead of losing it. `::` takes IPv4 too.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct

from relay.wire.address import Endpoint

BUFFER_BYTES = 4 * 1_048_576

# linux/in.h, linux/in6.h, asm-generic/socket.h: names that Python's socket module lacks
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_OMIT = 5
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_SO_ATTACH_FILTER = 26
_BPF = struct.Struct("=HBBI")
"""struct sock_filter (linux/filter.h): code, jump if true, jump if false, operand."""


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


def open_http(at: Endpoint, count: int) -> list[socket.socket]:
    """TCP sockets at one address, not listening yet; the kernel shares connections out between those
    that do. Raises OSError, also when somebody else has the port.
    """
    opened: list[socket.socket] = []
    try:
        opened.append(bind_tcp(at))
        # From now on those of this user may join, and nobody else (socket(7)).
        opened[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound = Endpoint.of(*opened[0].getsockname()[:2])
        while len(opened) < count:
            opened.append(bind_tcp(bound, shared=True))
    except OSError:
        for one in opened:
            one.close()
        raise
    return opened


def bind_tcp(at: Endpoint, *, shared: bool = False) -> socket.socket:
    """A TCP socket at one address, non-blocking, not listening yet; `shared` with others that are so.
    Raises OSError, and OverflowError for a port beyond all.
    """
    opened = socket.socket(
        socket.AF_INET6 if at.ip.version == 6 else socket.AF_INET, socket.SOCK_STREAM
    )
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opened.bind((str(at.ip), at.port))
    except (OSError, OverflowError):
        opened.close()
        raise
    return opened


def is_listening(opened: socket.socket) -> bool:
    """Whether connections can be accepted there."""
    return opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


def refuse_new(listener: socket.socket) -> None:
    """From now on no SYN gets in, so that a queue of connections that has been emptied stays empty.

    Who has connected already can be accepted; others try again until the port is closed, and are
    refused. Closing alone would reset what the queue holds.
    """
    program = b"".join(
        _BPF.pack(*instruction)
        for instruction in (
            (0x30, 0, 0, 13),  # A = the TCP header's flags
            (0x54, 0, 0, 0x12),  # A &= ACK | SYN
            (0x15, 0, 1, 0x02),  # SYN alone?
            (0x06, 0, 0, 0),  # drop it
            (0x06, 0, 0, 0xFFFFFFFF),  # take it whole
        )
    )
    held = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // _BPF.size, ctypes.addressof(held))
    # Where there are no socket filters, a connection made in the last moment is reset.
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, described)


def _set_buffers(opened: socket.socket) -> None:
    for forced, usual in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            opened.setsockopt(socket.SOL_SOCKET, forced, BUFFER_BYTES)
        except PermissionError:
            opened.setsockopt(socket.SOL_SOCKET, usual, BUFFER_BYTES)
