"""How long the first packet of a moved flow waits for Redis.

Method (README.md): two relays of one worker each advertise one address and share a redis-server on
loopback. Flows are established through the first; then each sends one packet to the second, which
asks Redis. The figure is the packet's way through the relay: its arrival by the kernel's clock less the
time just before it was sent. The same flow's next packet is the baseline.
"""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from statistics import median, quantiles

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relay.wire.keyring import generate_line
from tests.support.process import Processes
from tests.support.redis_server import RedisServer, missing_for_redis
from tests.support.relayed import RTP, Client, Relay, Transceiver, wait_until
from tests.support.stream import SO_TIMESTAMPNS

pytestmark = pytest.mark.benchmark(group="a move to another relay host")

FLOWS = 200
PER_TOKEN = 10
ADVERTISED = "127.0.0.1:0=203.0.113.7:3478"


def way_ms(client: Client, relay: Relay, transceiver: Transceiver) -> float | None:
    """One packet's way; None when it was lost."""
    sent_ns = time.time_ns()
    client.send(RTP, relay.public[0])
    if not transceiver.is_heard_within(0.5):
        return None
    _, control, _, _ = transceiver.socket.recvmsg(2048, 64)
    seconds, nanoseconds = struct.unpack("=qq", control[0][2])
    return float(seconds * 1_000_000_000 + nanoseconds - sent_ns) / 1e6


@pytest.mark.skipif(missing_for_redis() is not None, reason=str(missing_for_redis()))
def test_first_packet_after_a_move(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    with Processes(tmp_path) as processes, Transceiver() as transceiver:
        transceiver.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        server = RedisServer(processes, tmp_path)
        line = generate_line() + "\n"
        relays = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "keyring").write_text(line)
            environment = {"RELAY_REDIS": server.url}
            relays.append(
                Relay(processes, tmp_path / name, listen=(ADVERTISED,), workers=1, env=environment)
            )
        first, second = relays
        clients = [Client() for _ in range(FLOWS)]
        for number, client in enumerate(clients):
            if number % PER_TOKEN == 0:
                ufrag = transceiver.ufrag(first.keyring)
            client.establish(ufrag, first.public[0], transceiver)
        with server.client() as redis:
            wait_until(lambda: redis.dbsize() == FLOWS, "all routes written")
        asked: list[float | None] = []
        known: list[float | None] = []

        def move() -> None:
            client = clients[len(asked)]
            asked.append(way_ms(client, second, transceiver))
            known.append(way_ms(client, second, transceiver))

        benchmark.pedantic(move, rounds=FLOWS)
        for client in clients:
            client.socket.close()
        assert None not in known
        for name, ways in (("asked", asked), ("known", known)):
            came = [way for way in ways if way is not None]
            benchmark.extra_info[f"{name}_ms_median"] = round(median(came), 3)
            benchmark.extra_info[f"{name}_ms_p99"] = round(quantiles(came, n=100)[98], 3)
        benchmark.extra_info["lost"] = asked.count(None)
