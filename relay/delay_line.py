"""A UDP address on loopback that leads to another one, late: the long way between two regions of a demo.

1. Datagrams come out unchanged, as late as the line is long, both ways.
2. Each sender gets a socket of its own, so that replies find the way back. The other end sees that socket.
3. What finds no room, or no way yet, is lost, as on any line.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from relay.addresses import HostPort, parse_endpoint

SENDERS_MAX = 256
"""Sockets of one line; an entry has one sender for each worker."""


class DelayLine(asyncio.DatagramProtocol):
    """One direction of dialling: an entry's way to another region's relay, and back."""

    def __init__(self, delay_ms: float) -> None:
        self._delay_s = delay_ms / 1000
        self._front: asyncio.DatagramTransport
        self._backs: dict[Any, asyncio.DatagramTransport] = {}
        self._early: dict[Any, list[bytes]] = {}
        """What senders sent whose sockets are being made."""
        self._meetings: set[asyncio.Task[None]] = set()
        self._target: HostPort | None = None

    async def open(self) -> HostPort:
        """The address to send to."""
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        host, port = self._front.get_extra_info("sockname")
        return parse_endpoint("delay line", f"{host}:{port}")

    def lead(self, target: HostPort) -> None:
        """Where it leads; until then, nowhere."""
        self._target = target

    def close(self) -> None:
        """What is on its way is lost."""
        for meeting in self._meetings:
            meeting.cancel()
        for transport in (self._front, *self._backs.values()):
            transport.close()

    def datagram_received(self, data: bytes, addr: Any) -> None:
        """From an entry."""
        if addr in self._backs:
            self._later(self._backs[addr], data)
        elif addr in self._early:
            self._early[addr].append(data)
        elif self._target is not None and len(self._backs) + len(self._early) < SENDERS_MAX:
            self._early[addr] = [data]
            meeting = asyncio.get_running_loop().create_task(self._meet(addr, self._target))
            self._meetings.add(meeting)
            meeting.add_done_callback(self._meetings.discard)

    async def _meet(self, sender: Any, target: HostPort) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: _Back(self, sender), remote_addr=(str(target.ip), target.port)
            )
        finally:
            early = self._early.pop(sender)
        self._backs[sender] = transport
        for data in early:
            self._later(transport, data)

    def back(self, data: bytes, sender: Any) -> None:
        """A reply, on its way to the sender."""
        self._later(self._front, data, sender)

    def _later(self, transport: asyncio.DatagramTransport, data: bytes, *to: Any) -> None:
        def arrive() -> None:
            if not transport.is_closing():
                transport.sendto(data, *to)

        asyncio.get_running_loop().call_later(self._delay_s, arrive)


@dataclass
class _Back(asyncio.DatagramProtocol):
    line: DelayLine
    sender: Any

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.line.back(data, self.sender)
