"""Two relay hosts behind one address that share routes in a real Redis, and what their tests look at."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

from relay.wire.address import Endpoint
from relay.wire.keyring import generate_line
from relay.wire.spp import FlowKey
from tests.support.process import Processes
from tests.support.redis_server import RedisServer
from tests.support.relayed import (
    RTP,
    Client,
    Relay,
    Transceiver,
    wait_until,
)

PROXY = "127.0.0.1:0=203.0.113.7:3478"
ADVERTISED = Endpoint(ip_address("203.0.113.7"), 3478)
BACK_AGAIN_S = 5.0


class Hosts:
    """Two relays with one keyring and one Redis."""

    def __init__(self, processes: Processes, directory: Path, url: str, *arguments: str) -> None:
        line = generate_line() + "\n"
        self.relays = []
        for name in ("a", "b"):
            (directory / name).mkdir()
            (directory / name / "keyring").write_text(line)
            self.relays.append(
                Relay(
                    processes,
                    directory / name,
                    *arguments,
                    listen=(PROXY,),
                    workers=1,
                    env={"RELAY_REDIS": url},
                )
            )
        self.first, self.second = self.relays


def redis_key(key: FlowKey) -> str:
    return f"flow:1:{key.packed.hex()}"


def wait_written(
    server: RedisServer, key: FlowKey, tokens: int = 1, timeout_s: float = 10
) -> bytes:
    """The value of a flow, once it names so many owners."""
    with server.client() as redis:

        def value() -> bytes:
            return bytes(redis.get(redis_key(key)) or b"")

        what = f"a route with {tokens} owners in Redis"
        wait_until(lambda: len(value().split()) == 1 + tokens, what, timeout_s)
        return value()


def check_moved(relay: Relay, key: FlowKey, client: Client, transceiver: Transceiver) -> None:
    """Media of a flow passes both ways on a relay that has never seen a check of it.

    A packet every 20 ms, as in a call: where tests share two CPUs, the first may wait too long.
    """

    def is_heard() -> bool:
        client.send(RTP, relay.public[0])
        return transceiver.is_heard_within(0.02)

    wait_until(is_heard, "a packet after the move", BACK_AGAIN_S)
    heard, payload, internal = transceiver.receive()
    assert (heard, payload) == (key, RTP)
    assert internal in relay.internal
    transceiver.send(key, RTP[::-1], internal)
    assert client.receive() == (RTP[::-1], relay.public[0])
    while not transceiver.hears_nothing():
        pass


def lookups(relay: Relay) -> dict[str, float]:
    """Lookups by result, those that happened."""
    found = {
        name.partition('"')[2].rstrip('"}'): value
        for name, value in relay.metrics().items()
        if name.startswith("relay_cache_lookups_total") and value
    }
    return found


def check_back(hosts: Hosts, server: RedisServer, transceiver: Transceiver) -> None:
    """The cache works again, soon, with nobody's help."""
    with Client() as client:
        ufrag = transceiver.ufrag(hosts.first.keyring)
        key = client.establish(ufrag, hosts.first.public[0], transceiver)
        wait_written(server, key, timeout_s=2 * BACK_AGAIN_S)

        def is_found() -> bool:
            client.send(RTP, hosts.second.public[0])
            return not transceiver.hears_nothing(0.2)

        wait_until(is_found, "the other host finds it", 2 * BACK_AGAIN_S)
