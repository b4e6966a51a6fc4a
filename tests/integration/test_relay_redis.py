"""Two relay hosts behind one address share routes in a real Redis, and never depend on it.

Both advertise PROXY, as hosts behind one virtual address do; a client that sends to the other one's
socket has been moved there by ECMP.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from relay.certificate import write_self_signed
from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.process import Processes
from tests.support.redis_server import PASSWORD, RedisServer, missing_for_redis
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

PROXY = "127.0.0.1:0=203.0.113.7:3478"
ADVERTISED = Endpoint(ip_address("203.0.113.7"), 3478)
BACK_AGAIN_S = 5.0


@pytest.fixture
def server(processes: Processes, tmp_path: Path) -> RedisServer:
    return RedisServer(processes, tmp_path)


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


@pytest.fixture
def hosts(processes: Processes, tmp_path: Path, server: RedisServer) -> Hosts:
    return Hosts(processes, tmp_path, server.url)


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


# --- what it is for -------------------------------------------------------------------------------


def test_e10_the_first_packet_after_a_move_passes(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    ufrag = transceiver.ufrag(hosts.first.keyring)
    key = client.establish(ufrag, hosts.first.public[0], transceiver)
    assert wait_written(server, key) == b"1 " + ufrag.encode()
    with server.client() as redis:
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
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    key = client.establish(
        transceiver.ufrag(hosts.first.keyring), hosts.first.public[0], transceiver
    )
    wait_written(server, key)
    packets = [RTP + bytes([number]) for number in range(4)]

    def are_heard() -> bool:
        for packet in packets:
            client.send(packet, hosts.second.public[0])
        return transceiver.is_heard_within(0.1)

    wait_until(are_heard, "an answer in time", BACK_AGAIN_S)
    assert [transceiver.receive()[1] for _ in packets] == packets


def test_both_owners_are_written_and_recovered(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    public = hosts.first.public[0]
    key = client.establish(transceiver.ufrag(hosts.first.keyring), public, transceiver)
    with Transceiver() as other:
        client.establish(other.ufrag(hosts.first.keyring), public, other)
        wait_written(server, key, tokens=2)
        check_moved(hosts.second, key, client, transceiver)
        assert other.receive()[:2] == (key, RTP)


def test_e04_a_restarted_host_knows_its_flows_by_the_first_packet(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    settings = {"env": {"RELAY_REDIS": server.url}, "workers": 1}
    relay = Relay(processes, tmp_path, **settings)  # type: ignore[arg-type]
    public = relay.public[0]
    key = client.establish(transceiver.ufrag(relay.keyring), public, transceiver)
    wait_written(server, key)
    relay.process.kill()
    again = Relay(processes, tmp_path, listen=(f"{public[0]}:{public[1]}",), **settings)  # type: ignore[arg-type]
    check_moved(again, key, client, transceiver)


def test_a_recovered_flow_ends_unless_a_success_confirms_it(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    key = client.establish(
        transceiver.ufrag(hosts.first.keyring), hosts.first.public[0], transceiver
    )
    wait_written(server, key)
    check_moved(hosts.second, key, client, transceiver)
    assert hosts.second.metrics()['relay_flows{state="half_open"}'] == 1
    wait_until(lambda: hosts.second.metrics()['relay_flows{state="half_open"}'] == 0, "its end", 20)


@pytest.mark.slow
def test_a_wiped_redis_is_filled_again_while_calls_go_on(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    ufrag = transceiver.ufrag(hosts.first.keyring)
    key = client.establish(ufrag, hosts.first.public[0], transceiver)
    wait_written(server, key)
    with server.client() as redis:
        redis.flushall()
        deadline = time.monotonic() + 20
        while not redis.exists(redis_key(key)):
            assert time.monotonic() < deadline
            client.establish(ufrag, hosts.first.public[0], transceiver)
            time.sleep(0.5)


# --- strangers and liars --------------------------------------------------------------------------


def test_an_unknown_client_costs_one_lookup_and_gets_nothing(hosts: Hosts, client: Client) -> None:
    with hosts.second.changed({"rx public": 1, "drop park_expired": 1}):
        client.send(RTP, hosts.second.public[0])
    assert lookups(hosts.second) == {"miss": 1}
    with hosts.second.changed({"rx public": 3, "drop park_expired": 3}):
        for _ in range(3):
            client.send(RTP, hosts.second.public[0])
            time.sleep(0.02)
    assert lookups(hosts.second)["miss"] == 1
    assert client.hears_nothing()


def test_tokenless_stun_asks_nobody(hosts: Hosts, client: Client) -> None:
    with hosts.second.changed({"rx public": 1, "drop no_flow": 1}):
        client.send(bytes.fromhex("000100002112a442") + bytes(12), hosts.second.public[0])
    assert lookups(hosts.second) == {}


def test_a_poisoned_cache_routes_nowhere(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
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
    with server.client() as redis:
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


# --- Redis in trouble -----------------------------------------------------------------------------


def check_untouched(relay: Relay, client: Client, transceiver: Transceiver) -> None:
    """Set-up, forwarding, health and readiness know nothing of Redis."""
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    client.send(RTP, relay.public[0])
    assert transceiver.receive()[1] == RTP
    assert relay.get("/healthz")[0] == relay.get("/readyz")[0] == 200


def wait_degraded(relay: Relay, operation: str, reason: str) -> None:
    """One log line and a metric say what is wrong; no password is in sight."""
    relay.process.wait_event("cache_degraded", operation=operation, reason=reason)
    name = f'relay_cache_up{{operation="{operation}"}}'
    wait_until(lambda: relay.metrics()[name] == 0, "the metric")
    assert PASSWORD not in relay.process.output()
    assert PASSWORD not in relay.get("/metrics")[1]


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


def test_redis_is_down_at_the_start(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    server = RedisServer(processes, tmp_path, started=False)
    hosts = Hosts(processes, tmp_path, server.url)
    check_untouched(hosts.first, client, transceiver)
    wait_degraded(hosts.first, "write", "connection")
    server.start()
    check_back(hosts, server, transceiver)
    hosts.first.process.wait_event("cache_restored", operation="write")


def test_e12_redis_dies_and_comes_back_empty(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    check_untouched(hosts.first, client, transceiver)
    server.kill()
    check_untouched(hosts.first, client, transceiver)
    with Client() as another:
        check_untouched(hosts.first, another, transceiver)
    wait_degraded(hosts.first, "write", "connection")
    server.start()
    check_back(hosts, server, transceiver)


def test_e14_redis_hangs(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    check_untouched(hosts.first, client, transceiver)
    server.pause()
    try:
        client.establish(
            transceiver.ufrag(hosts.second.keyring), hosts.second.public[0], transceiver
        )
        with (
            Stream(client, hosts.second.public[0], transceiver, 500) as stream,
            Client() as stranger,
        ):
            for _ in range(40):
                stranger.send(RTP, hosts.second.public[0])
                time.sleep(0.02)
            assert hosts.second.get("/healthz")[0] == hosts.second.get("/readyz")[0] == 200
        assert stream.outcome.lost == 0
        wait_degraded(hosts.second, "lookup", "timeout")
        assert lookups(hosts.second)["error"] >= 3
    finally:
        server.resume()
    check_back(hosts, server, transceiver)


def test_e14_a_black_hole_at_the_start_delays_nothing(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        url = f"redis://127.0.0.1:{black_hole.getsockname()[1]}"
        relay = Relay(processes, tmp_path, env={"RELAY_REDIS": url})
        check_untouched(relay, client, transceiver)
        wait_degraded(relay, "write", "timeout")
        os.kill(relay.process.pid, signal.SIGTERM)
        assert relay.process.wait() == 0


def test_e15_a_wrong_password_is_said_without_it(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    wrong = server.url.replace(PASSWORD, "hunter2hunter2")
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": wrong})
    check_untouched(relay, client, transceiver)
    wait_degraded(relay, "write", "auth")
    assert "hunter2" not in relay.process.output()


def test_e15_a_line_end_after_the_url_is_no_password(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": server.url + "\n"})
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(server, key)


def test_e15_reading_without_permission_to_write(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    with server.client() as redis:
        redis.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+mget"])
    url = f"redis://reader:pw@127.0.0.1:{server.port}"
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": url})
    check_untouched(relay, client, transceiver)
    wait_degraded(relay, "write", "permission")
    with Client() as stranger:
        stranger.send(RTP, relay.public[0])
        wait_until(lambda: lookups(relay) == {"miss": 1}, "a lookup")
    assert relay.metrics()['relay_cache_up{operation="lookup"}'] == 1


def test_redis_is_full(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    server = RedisServer(processes, tmp_path, "--maxmemory", "1")
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": server.url})
    check_untouched(relay, client, transceiver)
    wait_degraded(relay, "write", "full")


def test_e12_a_failover_leaves_a_replica_for_a_while(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": server.url})
    with server.client() as redis:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        check_untouched(relay, client, transceiver)
        wait_degraded(relay, "write", "readonly")
        redis.execute_command("REPLICAOF", "NO", "ONE")
    with Client() as another:
        ufrag = transceiver.ufrag(relay.keyring)
        key = another.establish(ufrag, relay.public[0], transceiver)
        wait_written(server, key, timeout_s=2 * BACK_AGAIN_S)


class SlowPath(threading.Thread):
    """A TCP proxy whose answers take `delay_s` each."""

    def __init__(self, port: int, delay_s: float) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._target = port
        self._delay_s = delay_s
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink, delay_s in ((near, far, 0.0), (far, near, self._delay_s)):
                args = (source, sink, delay_s)
                threading.Thread(target=self._copy, args=args, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        with contextlib.suppress(OSError), source, sink:
            while data := source.recv(65536):
                time.sleep(delay_s)
                sink.sendall(data)

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()


def test_a_slow_redis_helps_late_and_delays_nothing(
    processes: Processes,
    tmp_path: Path,
    server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    """Longer than a packet waits: the answer is remembered for the next one."""
    slow = SlowPath(server.port, 0.1)
    slow.start()
    try:
        hosts = Hosts(processes, tmp_path, server.url.replace(str(server.port), str(slow.port)))
        ufrag = transceiver.ufrag(hosts.first.keyring)
        key = client.establish(ufrag, hosts.first.public[0], transceiver)
        wait_written(server, key)
        with Client() as other, Transceiver() as sink:
            other.establish(sink.ufrag(hosts.second.keyring), hosts.second.public[0], sink)
            with Stream(other, hosts.second.public[0], sink, 200) as stream:
                check_moved(hosts.second, key, client, transceiver)
            assert stream.outcome.lost == 0
    finally:
        slow.close()


def test_rediss_checks_the_certificate(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    certificate, private_key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_self_signed(certificate, private_key, ip_address("127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        tls_port = probe.getsockname()[1]
    tls = ("--tls-port", str(tls_port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(private_key))
    server = RedisServer(processes, tmp_path, *tls, *files, "--tls-ca-cert-file", str(certificate))
    url = f"rediss://:{PASSWORD}@localhost:{tls_port}"
    (tmp_path / "good").mkdir()
    trusting = {"RELAY_REDIS": f"{url}?ssl_ca_certs={certificate}"}
    relay = Relay(processes, tmp_path / "good", env=trusting)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(server, key)
    (tmp_path / "doubting").mkdir()
    doubting = Relay(processes, tmp_path / "doubting", env={"RELAY_REDIS": url})
    with Client() as another:
        check_untouched(doubting, another, transceiver)
    wait_degraded(doubting, "write", "connection")


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://:s3cret@host:port", ""])
def test_a_url_that_cannot_be_meant_is_refused_without_repeating_it(
    processes: Processes, tmp_path: Path, url: str
) -> None:
    relay = Relay(processes, tmp_path, "--redis", url, ready=False)
    assert relay.process.wait() == 2
    assert "--redis" in relay.process.output()
    assert "s3cret" not in relay.process.output()


def test_trouble_is_no_log_storm(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": "redis://127.0.0.1:1"})
    check_untouched(relay, client, transceiver)
    for _ in range(100):
        with Client() as stranger:
            stranger.send(RTP, relay.public[0])
        time.sleep(0.02)
    assert len(relay.process.events("cache_degraded")) == 2  # one for lookups, one for writes


# --- the control process itself -------------------------------------------------------------------


def test_a_new_control_process_goes_on_with_the_cache(
    hosts: Hosts, server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    relay = hosts.first
    os.kill(relay.process.events("control_started")[0]["pid"], signal.SIGKILL)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(server, key)  # it lay on the desk meanwhile


def test_a_successor_goes_on_with_the_cache(
    processes: Processes,
    tmp_path: Path,
    hosts: Hosts,
    server: RedisServer,
    transceiver: Transceiver,
) -> None:
    settings = {"listen": (PROXY,), "workers": 1, "env": {"RELAY_REDIS": server.url}}
    successor = Relay(processes, tmp_path / "b", "--takeover", **settings)  # type: ignore[arg-type]
    assert hosts.second.process.wait() == 0
    hosts.second = successor
    check_back(hosts, server, transceiver)
