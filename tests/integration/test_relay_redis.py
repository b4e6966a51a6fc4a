"""Two relay hosts behind one address share routes in a real Redis, and never depend on it.

Both advertise PROXY, as hosts behind one virtual address do; a client that sends to the other one's
socket has been moved there by ECMP.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from relay.cache import MISS_MEMORY_S
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.process import Processes
from tests.support.redis_hosts import (
    ADVERTISED,
    BACK_AGAIN_S,
    PROXY,
    Hosts,
    check_back,
    check_moved,
    lookups,
    redis_key,
    wait_written,
)
from tests.support.redis_server import RedisServer, missing_for_redis
from tests.support.relayed import (
    CLUSTER,
    RTP,
    Client,
    Relay,
    Transceiver,
    wait_until,
)
from tests.support.stream import Stream

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(missing_for_redis() is not None, reason=str(missing_for_redis())),
]


# --- what it is for -------------------------------------------------------------------------------


def test_e10_the_first_packet_after_a_move_passes(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    ufrag = transceiver.ufrag(hosts.first.keyring)
    key = client.establish(ufrag, hosts.first.public[0], transceiver)
    assert wait_written(redis_server, key) == b"1 " + ufrag.encode()
    with redis_server.client() as redis:
        assert 0 < redis.ttl(redis_key(key)) <= 45
        assert redis.dbsize() == 1
    before = hosts.second.counters()
    check_moved(hosts.second, key, client, transceiver)
    after = hosts.second.counters()
    assert after["created"] - before["created"] == 1
    assert after["promoted"] == before["promoted"]
    assert lookups(hosts.second)["hit"] == 1
    client.establish(ufrag, hosts.second.public[0], transceiver)
    assert hosts.second.counters()["promoted"] - before["promoted"] == 1
    check_moved(hosts.first, key, client, transceiver)


def test_what_arrives_while_the_answer_is_awaited_passes_too(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    key = client.establish(
        transceiver.ufrag(hosts.first.keyring), hosts.first.public[0], transceiver
    )
    wait_written(redis_server, key)
    packets = [RTP + bytes([number]) for number in range(4)]

    def are_heard() -> bool:
        for packet in packets:
            client.send(packet, hosts.second.public[0])
        return transceiver.is_heard_within(0.1)

    wait_until(are_heard, "an answer in time", BACK_AGAIN_S)
    assert [transceiver.receive()[1] for _ in packets] == packets


def test_both_owners_are_written_and_recovered(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    public = hosts.first.public[0]
    key = client.establish(transceiver.ufrag(hosts.first.keyring), public, transceiver)
    with Transceiver() as other:
        client.establish(other.ufrag(hosts.first.keyring), public, other)
        wait_written(redis_server, key, tokens=2)
        check_moved(hosts.second, key, client, transceiver)
        assert other.receive()[:2] == (key, RTP)


def test_e04_a_restarted_host_knows_its_flows_by_the_first_packet(
    processes: Processes,
    tmp_path: Path,
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    settings = {"env": {"RELAY_REDIS": redis_server.url}, "workers": 1}
    relay = Relay(processes, tmp_path, **settings)  # type: ignore[arg-type]
    public = relay.public[0]
    key = client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    wait_written(redis_server, key)
    relay.process.kill()
    again = Relay(processes, tmp_path, listen=(f"{public[0]}:{public[1]}",), **settings)  # type: ignore[arg-type]
    check_moved(again, key, client, transceiver)


def test_a_recovered_flow_ends_unless_a_success_confirms_it(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    key = client.establish(
        transceiver.ufrag(hosts.first.keyring), hosts.first.public[0], transceiver
    )
    wait_written(redis_server, key)
    check_moved(hosts.second, key, client, transceiver)
    assert hosts.second.metrics()['relay_flows{state="half_open"}'] == 1
    wait_until(lambda: hosts.second.metrics()['relay_flows{state="half_open"}'] == 0, "its end", 20)


@pytest.mark.slow
def test_a_wiped_redis_is_filled_again_while_calls_go_on(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    ufrag = transceiver.ufrag(hosts.first.keyring)
    key = client.establish(ufrag, hosts.first.public[0], transceiver)
    wait_written(redis_server, key)
    with redis_server.client() as redis:
        redis.flushall()
        deadline = time.monotonic() + 20
        while not redis.exists(redis_key(key)):
            assert time.monotonic() < deadline
            client.establish(ufrag, hosts.first.public[0], transceiver)
            time.sleep(0.5)


# --- strangers and liars --------------------------------------------------------------------------


def wait_misses(relay: Relay, count: int) -> None:
    wait_until(lambda: lookups(relay).get("miss") == count, f"{count} lookups that found nothing")


def test_an_unknown_client_costs_one_lookup_and_gets_nothing(hosts: Hosts) -> None:
    """A miss is remembered for a second: who did not get as far within it is succeeded by another client."""
    for misses in range(1, 21):
        with Client() as client:
            asked_s = time.monotonic()
            with hosts.second.changed({"rx public": 1, "drop park_expired": 1}):
                client.send(RTP, hosts.second.public[0])
            wait_misses(hosts.second, misses)
            with hosts.second.changed({"rx public": 3, "drop park_expired": 3}):
                for _ in range(3):
                    client.send(RTP, hosts.second.public[0])
                    time.sleep(0.02)
            told = lookups(hosts.second)
            assert client.hears_nothing()
        if time.monotonic() - asked_s < MISS_MEMORY_S:
            break
    assert told["miss"] == misses


def test_tokenless_stun_asks_nobody(hosts: Hosts, client: Client) -> None:
    with hosts.second.changed({"rx public": 1, "drop no_flow": 1}):
        client.send(bytes.fromhex("000100002112a442") + bytes(12), hosts.second.public[0])
    assert lookups(hosts.second) == {}


def test_a_poisoned_cache_routes_nowhere(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    relay = hosts.second
    good = transceiver.ufrag(relay.keyring)
    foreign = Keyring.parse(generate_line())
    codec = TokenCodec(relay.keyring)
    outside = codec.seal(TransceiverAddress(CLUSTER, ip_address("192.0.2.1"), 4000))
    far = codec.seal(
        TransceiverAddress(CLUSTER + 1, transceiver.address.ip, transceiver.address.port)
    )
    poison = [
        b"",
        b"garbage",
        b"1 " + good.encode()[:-1],
        b"2 " + good.encode(),
        b"1 " + transceiver.ufrag(foreign).encode(),
        b"1 " + outside.encode(),
        b"1 " + far.encode(),
    ]
    with redis_server.client() as redis:
        for value in poison:
            with Client() as victim:
                key = FlowKey(victim.address, ADVERTISED)
                redis.set(redis_key(key), value)
                with relay.changed({"rx public": 1, "drop park_expired": 1}):
                    victim.send(RTP, relay.public[0])
        redis.rpush(redis_key(FlowKey(client.address, ADVERTISED)), "a list")
        with relay.changed({"rx public": 1, "drop park_expired": 1}):
            client.send(RTP, relay.public[0])
    assert transceiver.hears_nothing()


def test_a_flood_of_unknown_clients_leaves_a_call_alone(
    hosts: Hosts, client: Client, transceiver: Transceiver
) -> None:
    relay = hosts.second
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.bind(("0.0.0.0", 0))
        with Stream(client, relay.public[0], transceiver, 200) as stream:
            for number in range(6_000):
                source = f"127.1.{number // 250}.{1 + number % 250}"
                info = bytes(4) + socket.inet_aton(source) + bytes(4)
                flood.sendmsg([RTP], [(socket.IPPROTO_IP, 8, info)], 0, relay.public[0])
    assert stream.outcome.lost <= stream.outcome.sent * 0.01
    counters = relay.counters()
    assert counters["drop park_expired"] + counters["drop park_full"] == 6_000
    assert relay.get("/readyz")[0] == 200


# --- the control process itself -------------------------------------------------------------------


def test_a_new_control_process_goes_on_with_the_cache(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    relay = hosts.first
    os.kill(relay.process.events("control_started")[0]["pid"], signal.SIGKILL)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(redis_server, key)  # it lay on the desk meanwhile


def test_a_successor_goes_on_with_the_cache(
    processes: Processes,
    tmp_path: Path,
    hosts: Hosts,
    redis_server: RedisServer,
    transceiver: Transceiver,
) -> None:
    settings = {"listen": (PROXY,), "workers": 1, "env": {"RELAY_REDIS": redis_server.url}}
    successor = Relay(processes, tmp_path / "b", "--takeover", **settings)  # type: ignore[arg-type]
    assert hosts.second.process.wait() == 0
    hosts.second = successor
    check_back(hosts, redis_server, transceiver)
