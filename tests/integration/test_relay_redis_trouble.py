"""A Redis that is down, hangs, is full, refuses, is slow or lies about who it is: the relay hosts go on without it."""

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
from tests.support.process import Processes
from tests.support.redis_hosts import (
    BACK_AGAIN_S,
    Hosts,
    check_back,
    check_moved,
    lookups,
    wait_written,
)
from tests.support.redis_server import PASSWORD, RedisServer, missing_for_redis
from tests.support.relayed import (
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


def test_redis_is_down_at_the_start(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    redis_server = RedisServer(processes, tmp_path, started=False)
    hosts = Hosts(processes, tmp_path, redis_server.url)
    check_untouched(hosts.first, client, transceiver)
    wait_degraded(hosts.first, "write", "connection")
    redis_server.start()
    check_back(hosts, redis_server, transceiver)
    hosts.first.process.wait_event("cache_restored", operation="write")


def test_e12_redis_dies_and_comes_back_empty(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    check_untouched(hosts.first, client, transceiver)
    redis_server.kill()
    check_untouched(hosts.first, client, transceiver)
    with Client() as another:
        check_untouched(hosts.first, another, transceiver)
    wait_degraded(hosts.first, "write", "connection")
    redis_server.start()
    check_back(hosts, redis_server, transceiver)


def test_e14_redis_hangs(
    hosts: Hosts, redis_server: RedisServer, client: Client, transceiver: Transceiver
) -> None:
    check_untouched(hosts.first, client, transceiver)
    redis_server.pause()
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
        wait_until(
            lambda: lookups(hosts.second).get("error", 0) >= 3, "lookups that came to nothing"
        )
    finally:
        redis_server.resume()
    check_back(hosts, redis_server, transceiver)


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
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    wrong = redis_server.url.replace(PASSWORD, "hunter2hunter2")
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": wrong})
    check_untouched(relay, client, transceiver)
    wait_degraded(relay, "write", "auth")
    assert "hunter2" not in relay.process.output()


def test_e15_a_line_end_after_the_url_is_no_password(
    processes: Processes,
    tmp_path: Path,
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": redis_server.url + "\n"})
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(redis_server, key)


def test_e15_reading_without_permission_to_write(
    processes: Processes,
    tmp_path: Path,
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    with redis_server.client() as redis:
        redis.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+mget"])
    url = f"redis://reader:pw@127.0.0.1:{redis_server.port}"
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
    redis_server = RedisServer(processes, tmp_path, "--maxmemory", "1")
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": redis_server.url})
    check_untouched(relay, client, transceiver)
    wait_degraded(relay, "write", "full")


def test_e12_a_failover_leaves_a_replica_for_a_while(
    processes: Processes,
    tmp_path: Path,
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    relay = Relay(processes, tmp_path, env={"RELAY_REDIS": redis_server.url})
    with redis_server.client() as redis:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        check_untouched(relay, client, transceiver)
        wait_degraded(relay, "write", "readonly")
        redis.execute_command("REPLICAOF", "NO", "ONE")
    with Client() as another:
        ufrag = transceiver.ufrag(relay.keyring)
        key = another.establish(ufrag, relay.public[0], transceiver)
        wait_written(redis_server, key, timeout_s=2 * BACK_AGAIN_S)


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
    redis_server: RedisServer,
    client: Client,
    transceiver: Transceiver,
) -> None:
    """Longer than a packet waits: the answer is remembered for the next one."""
    slow = SlowPath(redis_server.port, 0.1)
    slow.start()
    try:
        hosts = Hosts(
            processes, tmp_path, redis_server.url.replace(str(redis_server.port), str(slow.port))
        )
        ufrag = transceiver.ufrag(hosts.first.keyring)
        key = client.establish(ufrag, hosts.first.public[0], transceiver)
        wait_written(redis_server, key)
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
    tls_port = processes.reserve_port()
    tls = ("--tls-port", str(tls_port), "--tls-auth-clients", "no")
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(private_key))
    redis_server = RedisServer(
        processes, tmp_path, *tls, *files, "--tls-ca-cert-file", str(certificate)
    )
    url = f"rediss://:{PASSWORD}@localhost:{tls_port}"
    (tmp_path / "good").mkdir()
    trusting = {"RELAY_REDIS": f"{url}?ssl_ca_certs={certificate}"}
    relay = Relay(processes, tmp_path / "good", env=trusting)
    key = client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    wait_written(redis_server, key)
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
    # One for lookups, one for writes; both come, and nothing more.
    assert len(relay.process.wait_events("cache_degraded", count=2)) == 2
    assert len(relay.process.events("cache_degraded")) == 2
