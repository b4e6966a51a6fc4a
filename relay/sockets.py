"""The sockets of a relay host: bound once, by the supervisor, before any worker exists.

1. The first socket of a group (public, backbone) is bound without SO_REUSEPORT, so that a foreign owner of the
   port, a wildcard one included, is an error and never a silent sharer. Then the option is set and
   the other slots' sockets join: the group's order is the order of the slots.
2. IPv4 and IPv6 have sockets of their own (IPV6_V6ONLY). Only a wildcard `--internal [::]` serves
   both, since it must reach transceivers of both kinds.
3. A family that the host lacks is skipped with a warning; nothing bound at all is an error.
4. What else a worker needs of a socket (PKTINFO, path MTU) the data plane sets itself.
"""

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from relay.addresses import HostPort, IPAddress, Listen
from relay.errors import BindError

SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33

Warn = Callable[..., object]
"""Takes an event name and keyword details, like a structlog method."""


@dataclass
class PublicGroup:
    """The SO_REUSEPORT group of one public address: one socket for each slot, in order."""

    bound: HostPort
    public: HostPort | None
    """What is advertised; None: the address that a packet was sent to."""
    sockets: list[socket.socket]


@dataclass
class SocketSet:
    """Everything that is bound. The position in `public` is the index that flows remember."""

    public: list[PublicGroup] = field(default_factory=list)
    internal: list[socket.socket] = field(default_factory=list)
    """One for each slot."""
    backbone: list[socket.socket] = field(default_factory=list)
    """The group of the backbone, one for each slot; empty: no --backbone."""
    admin: socket.socket | None = None

    def close(self) -> None:
        """Close all descriptors of this process."""
        for group in self.public:
            _close_all(group.sockets)
        _close_all(self.internal)
        _close_all(self.backbone)
        if self.admin is not None:
            self.admin.close()


def open_sockets(
    listens: Sequence[Listen],
    internal: HostPort,
    admin: HostPort,
    *,
    backbone: HostPort | None = None,
    slots: int,
    receive_buffer_bytes: int,
    warn: Warn,
) -> SocketSet:
    """Bind everything, or raise BindError and leave nothing bound."""
    result = SocketSet()
    buffers = _Buffers(receive_buffer_bytes, warn)
    try:
        for listen in listens:
            for ip in listen.binds:
                where = HostPort(ip, listen.port)
                first = _bind_udp("--listen", where, v6only=True, absent_ok=True)
                if first is None:
                    warn("address_family_absent", address=str(where))
                    continue
                sockets = _complete_group("--listen", first, slots, buffers)
                bound = bound_address(first)
                advertised = _advertised(listen.public, bound)
                result.public.append(PublicGroup(bound, advertised, sockets))
        if not result.public:
            raise BindError("none of the --listen addresses exists on this host")
        result.internal = _open_internal(internal, slots, buffers)
        if backbone is not None:
            first = _bind_udp("--backbone", backbone, v6only=True)
            assert first is not None
            result.backbone = _complete_group("--backbone", first, slots, buffers)
        result.admin = open_admin(admin)
    except BaseException:
        result.close()
        raise
    return result


def open_admin(where: HostPort) -> socket.socket:
    """A listening TCP socket. Raises BindError."""
    sock = _socket("--admin", where, socket.SOCK_STREAM)
    try:
        # A restart must not wait for TIME_WAIT; a listener elsewhere is refused all the same.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((str(where.ip), where.port))
        sock.listen(64)
    except OSError as error:
        sock.close()
        raise _bind_error("--admin", where, "TCP", error) from None
    return sock


def bound_address(sock: socket.socket) -> HostPort:
    """Where a socket is bound."""
    name = sock.getsockname()
    return HostPort(ipaddress.ip_address(name[0]), name[1])


def is_absent(ip: IPAddress) -> bool:
    """Whether this host lacks the address family of `ip`, so that `open_sockets` skips it."""
    try:
        sock = _bind_udp("--listen", HostPort(ip, 0), v6only=True, absent_ok=True)
    except BindError:
        return False
    if sock is not None:
        sock.close()
    return sock is None


class _Buffers:
    """Asks for large buffers; says once when the kernel gives less."""

    def __init__(self, receive_bytes: int, warn: Warn) -> None:
        self._bytes = receive_bytes
        self._warn = warn
        self._warned = False

    def enlarge(self, sock: socket.socket) -> None:
        for force, plain in (
            (SO_RCVBUFFORCE, socket.SO_RCVBUF),
            (SO_SNDBUFFORCE, socket.SO_SNDBUF),
        ):
            try:
                sock.setsockopt(socket.SOL_SOCKET, force, self._bytes)
            except OSError:  # without CAP_NET_ADMIN: up to net.core.rmem_max
                sock.setsockopt(socket.SOL_SOCKET, plain, self._bytes)
        granted = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
        if granted < self._bytes and not self._warned:
            self._warned = True
            self._warn(
                "receive_buffer_small",
                asked_bytes=self._bytes,
                granted_bytes=granted,
                remedy="raise net.core.rmem_max or grant CAP_NET_ADMIN",
            )


def _complete_group(
    option: str, first: socket.socket, slots: int, buffers: _Buffers
) -> list[socket.socket]:
    """`first` and the other slots' sockets, which join it."""
    sockets = [first]
    try:
        bound = bound_address(first)
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for _ in range(1, slots):
            member = _bind_udp(option, bound, v6only=True, reuse_port=True)
            assert member is not None
            sockets.append(member)
        for member in sockets:
            buffers.enlarge(member)
    except BaseException:
        _close_all(sockets)
        raise
    return sockets


def _open_internal(where: HostPort, slots: int, buffers: _Buffers) -> list[socket.socket]:
    both_families = where.ip.version == 6 and where.ip.is_unspecified
    sockets: list[socket.socket] = []
    try:
        for slot in range(slots):
            own = HostPort(where.ip, where.port + slot if where.port else 0)
            sock = _bind_udp("--internal", own, v6only=not both_families)
            assert sock is not None
            sockets.append(sock)
            buffers.enlarge(sock)
    except BaseException:
        _close_all(sockets)
        raise
    return sockets


def _bind_udp(
    option: str,
    where: HostPort,
    *,
    v6only: bool,
    reuse_port: bool = False,
    absent_ok: bool = False,
) -> socket.socket | None:
    """A bound socket; None when the host lacks the address family and `absent_ok`."""
    try:
        sock = _socket(option, where, socket.SOCK_DGRAM)
    except BindError as error:
        if absent_ok and _errno(error) == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        sock.setblocking(False)
        if where.ip.version == 6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(v6only))
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((str(where.ip), where.port))
    except OSError as error:
        sock.close()
        if absent_ok and error.errno == errno.EADDRNOTAVAIL and _family_is_off(where.ip):
            return None
        raise _bind_error(option, where, "UDP", error) from error
    return sock


def _socket(option: str, where: HostPort, kind: socket.SocketKind) -> socket.socket:
    family = socket.AF_INET6 if where.ip.version == 6 else socket.AF_INET
    try:
        return socket.socket(family, kind)
    except OSError as error:
        protocol = "TCP" if kind == socket.SOCK_STREAM else "UDP"
        raise _bind_error(option, where, protocol, error) from error


def _bind_error(option: str, where: HostPort, protocol: str, error: OSError) -> BindError:
    if error.errno == errno.EADDRINUSE:
        reason = f"{protocol} port {where.port} is in use by another socket"
    elif error.errno == errno.EADDRNOTAVAIL:
        reason = f"{where.ip} is no address of this host"
    elif error.errno == errno.EACCES:
        reason = f"no permission for port {where.port}"
    else:
        reason = error.strerror or os.strerror(error.errno or 0)
    return BindError(f"cannot bind {where} ({option}): {reason}")


def _errno(error: BaseException) -> int | None:
    cause = error.__cause__
    return cause.errno if isinstance(cause, OSError) else None


def _family_is_off(ip: IPAddress) -> bool:
    """Whether no interface has an IPv6 address (ipv6.disable_ipv6), when `ip` is one."""
    if ip.version != 6:
        return False
    try:
        return not Path("/proc/net/if_inet6").read_text().strip()
    except OSError:
        return True


def _advertised(public: HostPort | None, bound: HostPort) -> HostPort | None:
    if public is not None and public.port == 0:
        return HostPort(public.ip, bound.port)
    return public


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
