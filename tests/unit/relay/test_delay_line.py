"""The long way between two regions of a demo (relay/delay_line.py), over loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest

from relay import delay_line
from relay.addresses import HostPort, parse_endpoint
from relay.delay_line import DelayLine


def bound() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(("127.0.0.1", 0))
    made.setblocking(False)
    return made


def at(made: socket.socket) -> HostPort:
    host, port = made.getsockname()
    return parse_endpoint("test", f"{host}:{port}")


async def test_each_sender_has_one_socket_however_fast_he_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delay_line, "SENDERS_MAX", 2)
    loop = asyncio.get_running_loop()
    line = DelayLine(1.0)
    where = await line.open()
    with bound() as end, bound() as first, bound() as second, bound() as third:
        line.lead(at(end))
        for sender in (first, second, third):
            for number in range(3):
                line.datagram_received(b"%d" % number, sender.getsockname())
        came: dict[object, list[bytes]] = {}
        async with asyncio.timeout(10):
            for _ in range(6):
                data, sender_at = await loop.sock_recvfrom(end, 100)
                came.setdefault(sender_at, []).append(data)
            assert list(map(sorted, came.values())) == [[b"0", b"1", b"2"]] * 2, (
                "the third has no room"
            )
            third.sendto(b"lost", (str(where.ip), where.port))
            first.sendto(b"late", (str(where.ip), where.port))
            data, sender_at = await loop.sock_recvfrom(end, 100)
            assert (data, sender_at in came) == (b"late", True)
            end.sendto(b"back", sender_at)
            assert await loop.sock_recv(first, 100) == b"back"
        line.close()
