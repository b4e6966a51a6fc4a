"""The one UDP socket of a process: datagrams in, each to the agent or to the calls of its flow key.

1. Only datagrams of allowed relays are unwrapped; bare ones are taken only with `direct`.
2. A wakeup reads a bounded batch, so that timers and HTTP get their turn.
3. A send that fails loses its datagram, is counted, and nothing else.
4. Replies of a wildcard socket leave from the address that was asked (IP_PKTINFO).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from relay.wire.address import Endpoint
from relay.wire.spp import FlowKey, unwrap

from .ice import Checked, IceAgent, Path, Source
from .log import get_logger

BATCH_DATAGRAMS = 64
KNOWN_SOURCES = 4_096
BUFFER_BYTES = 4 * 1_048_576

_MAX_DATAGRAM_BYTES = 65_535
_PKTINFO4 = struct.Struct("@i4s4s")  # struct in_pktinfo
_PKTINFO6 = struct.Struct("@16sI")  # struct in6_pktinfo
# linux/in.h, linux/in6.h, asm-generic/socket.h: names that Python's socket module lacks
_IP_PKTINFO = 8
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_OMIT = 5
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


class PacketHandler(Protocol):
    """A path's owner. It tells the agent of each authentic packet before it acts on it, so that
    what it sends in reply goes back the same way, and returns whether the packet was authentic.
    """

    def on_check(self, path: Path, now_s: float) -> None:
        """A check was answered on `path`."""

    def on_dtls(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        """Takes a DTLS datagram that came from `source` on one of the session's paths."""

    def on_media(self, datagram: bytes, path: Path, source: Source, now_s: float) -> bool:
        """Takes an SRTP or SRTCP datagram that came so."""


def open_socket(host: str, port: int) -> socket.socket:
    """Binds a media socket, non-blocking, ready for `Mux`. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        if family == socket.AF_INET or host == "::":
            opened.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        _set_buffers(opened)
        _fragment_freely(opened, family)
        opened.bind((host, port))
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


def _fragment_freely(opened: socket.socket, family: int) -> None:
    """A datagram that SPP made too long for the way to the relay is fragmented, not lost."""
    if family == socket.AF_INET:
        opened.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_OMIT)
    else:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_OMIT)


class Mux:
    """Reads and writes the media socket for one agent. Single-threaded, on one event loop."""

    def __init__(
        self,
        media: socket.socket,
        agent: IceAgent,
        *,
        allowed_relays: Sequence[IpNetwork],
        direct: bool,
    ) -> None:
        self._socket = media
        self._agent = agent
        self._allowed_relays = allowed_relays
        self._direct = direct
        host, self._port = media.getsockname()[:2]
        self._wildcard = ipaddress.ip_address(host).is_unspecified
        self._own_ip = host
        self._buffer = bytearray(_MAX_DATAGRAM_BYTES)
        self._view = memoryview(self._buffer)
        self._relays: OrderedDict[str, bool] = OrderedDict()
        self._direct_keys: OrderedDict[tuple[object, ...], FlowKey] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.drops: Counter[str] = Counter()
        """Datagrams that reached nobody, or that the kernel did not take, by reason."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts reading."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), self._read_batch)

    def detach(self) -> None:
        """Stops reading; the socket stays open."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = None

    def send(self, source: Source, key: FlowKey, payload: bytes) -> bool:
        """Sends one datagram to where `source` says, wrapped unless it is direct."""
        datagram = payload if source.direct else key + payload
        try:
            if source.local_ip is None:
                self._socket.sendto(datagram, source.address)
            else:
                self._socket.sendmsg([datagram], [_pktinfo(source.local_ip)], 0, source.address)
        except OSError:
            self.drops["send_failed"] += 1
            return False
        return True

    def receive(
        self, datagram: bytes, address: tuple[Any, ...], local_ip: bytes | None, now_s: float
    ) -> None:
        """Handles one datagram from the socket."""
        wrapped = unwrap(datagram)
        if wrapped is not None:
            if not self._is_relay(address[0]):
                self.drops["foreign_relay"] += 1
                return
            key, payload = wrapped
            source = Source(address, local_ip, False)
        elif self._direct:
            key, payload = self._direct_key(address, local_ip), datagram
            source = Source(address, local_ip, True)
        else:
            self.drops["not_wrapped"] += 1
            return
        if not payload:
            self.drops["empty"] += 1
            return
        first = payload[0]
        if first <= 3:
            self._on_stun(payload, key, source, now_s)
        elif 20 <= first <= 63 or 128 <= first <= 191:
            self._offer(payload, key, source, now_s, is_dtls=first <= 63)
        else:
            self.drops["unknown_protocol"] += 1

    def _read_batch(self) -> None:
        for _ in range(BATCH_DATAGRAMS):
            try:
                if self._wildcard:
                    size, ancillary, _, address = self._socket.recvmsg_into([self._view], 128)
                    local_ip = _local_ip(ancillary)
                else:
                    size, address = self._socket.recvfrom_into(self._buffer)
                    local_ip = None
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.drops["receive_failed"] += 1
                return
            try:
                self.receive(bytes(self._view[:size]), address, local_ip, time.monotonic())
            except Exception:
                # A fault of ours must not cost the datagrams behind it, nor fill the log.
                self.drops["handler_failed"] += 1
                if self.drops["handler_failed"] == 1:
                    get_logger().exception("datagram_failed")

    def _on_stun(self, payload: bytes, key: FlowKey, source: Source, now_s: float) -> None:
        checked: Checked | None = self._agent.check(payload, key, source, now_s)
        if checked is None:
            return
        self.send(source, key, checked.reply)
        if checked.path is not None:
            handler: PacketHandler = checked.path.session.owner  # type: ignore[assignment]
            handler.on_check(checked.path, now_s)

    def _offer(
        self, payload: bytes, key: FlowKey, source: Source, now_s: float, *, is_dtls: bool
    ) -> None:
        taken = False
        for path in self._agent.members(key, now_s):
            handler: PacketHandler = path.session.owner  # type: ignore[assignment]
            if is_dtls:
                # Several may be in a handshake, and none can tell a foreign record from its own.
                taken |= handler.on_dtls(payload, path, source, now_s)
            elif handler.on_media(payload, path, source, now_s):
                return
        if not taken:
            self.drops["not_authentic"] += 1

    def _is_relay(self, host: str) -> bool:
        known = self._relays.get(host)
        if known is None:
            address = Endpoint.of(host, 0).ip
            known = any(address in network for network in self._allowed_relays)
            self._relays[host] = known
            if len(self._relays) > KNOWN_SOURCES:
                self._relays.popitem(last=False)
        return known

    def _direct_key(self, address: tuple[Any, ...], local_ip: bytes | None) -> FlowKey:
        lookup = (*address[:2], local_ip)
        key = self._direct_keys.get(lookup)
        if key is None:
            own = self._own_ip if local_ip is None else str(ipaddress.ip_address(local_ip))
            key = FlowKey(Endpoint.of(address[0], address[1]), Endpoint.of(own, self._port))
            self._direct_keys[lookup] = key
            if len(self._direct_keys) > KNOWN_SOURCES:
                self._direct_keys.popitem(last=False)
        return key


def _local_ip(ancillary: list[tuple[int, int, bytes]]) -> bytes | None:
    """The address a datagram was sent to."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO and len(data) >= _PKTINFO4.size:
            return _PKTINFO4.unpack_from(data)[2]  # type: ignore[no-any-return]
        if (
            level == socket.IPPROTO_IPV6
            and kind == socket.IPV6_PKTINFO
            and len(data) >= _PKTINFO6.size
        ):
            return _PKTINFO6.unpack_from(data)[0]  # type: ignore[no-any-return]
    return None


def _pktinfo(local_ip: bytes) -> tuple[int, int, bytes]:
    if len(local_ip) == 4:
        return socket.IPPROTO_IP, _IP_PKTINFO, _PKTINFO4.pack(0, local_ip, bytes(4))
    return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, _PKTINFO6.pack(local_ip, 0)
