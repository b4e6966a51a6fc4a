"""`relay serve` as tests use it: on free ports, with a client and a sink that stands for a transceiver.

1. Everything goes over real sockets of real processes; what is read is what an operator reads.
2. `changed` gives the exact counters that a step moved, so that a test can name them all.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from relay.wire._codec import StunClass
from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring, generate_line
from relay.wire.spp import FlowKey, unwrap, wrap
from relay.wire.stun import USERNAME, Message, encode, error, success
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.process import Process, Processes

HAS_IPV6 = Path("/proc/net/if_inet6").exists() and "00000001" in Path(
    "/proc/net/if_inet6"
).read_text().replace("0" * 24, "")
"""Whether this host has an IPv6 loopback."""
PASSWORD = b"0123456789abcdef01234567"
CLUSTER = 7
PROBE_CLIENT = Endpoint.of("::", 0)
"""Whose packets probes of a cluster route seem to be."""
RTP = b"\x80\x6f" + bytes(range(170))
RECEIVE_TIMEOUT_S = 20.0
"""A worker that starts beside others' work takes a second or two."""
HTTP_TIMEOUT_S = 20.0
"""The control process runs at nice 19: beside others' work it gets a hundredth of a CPU."""
COUNTED_LIMIT_S = 10.0
SILENCE_S = 0.15


def wait_until(true: Callable[[], object], what: str, timeout_s: float = 20.0) -> None:
    """Poll until `true()` holds; AssertionError with `what` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def bind_udp(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """A UDP socket that waits at most RECEIVE_TIMEOUT_S."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.bind((host, port))
    sock.settimeout(RECEIVE_TIMEOUT_S)
    return sock


def parse_address(text: str) -> tuple[str, int]:
    """`1.2.3.4:5` or `[::1]:5` as the socket API wants it."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


class _Peer:
    """A UDP socket with an end."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.socket = bind_udp(host, port)

    @property
    def address(self) -> Endpoint:
        """Where it is bound."""
        return Endpoint.of(*self.socket.getsockname()[:2])

    def is_heard_within(self, limit_s: float) -> bool:
        """Whether a datagram comes within `limit_s`; it stays to be received."""
        return bool(select.select([self.socket], [], [], limit_s)[0])

    def hears_nothing(self, for_s: float = SILENCE_S) -> bool:
        """Whether no datagram comes within `for_s`."""
        self.socket.settimeout(for_s)
        try:
            self.socket.recvfrom(65536)
        except TimeoutError:
            return True
        else:
            return False
        finally:
            self.socket.settimeout(RECEIVE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


class Transceiver(_Peer):
    """A sink for SPP datagrams that seals tokens for itself."""

    def ufrag(self, keyring: Keyring, cluster: int = CLUSTER, **codec: Any) -> str:
        """A token that names this socket."""
        where = TransceiverAddress(cluster, self.address.ip, self.address.port)
        return TokenCodec(keyring, **codec).seal(where)

    def receive(self) -> tuple[FlowKey, bytes, tuple[str, int]]:
        """Flow key, payload and the sender of the next datagram."""
        datagram, sender = self.socket.recvfrom(65536)
        unwrapped = unwrap(datagram)
        assert unwrapped is not None, f"not SPP: {datagram[:40].hex()}"
        return *unwrapped, sender[:2]

    def send(self, key: FlowKey, payload: bytes, to: tuple[str, int]) -> None:
        """One datagram down."""
        self.socket.sendto(wrap(key, payload), to)

    def answer(self) -> FlowKey:
        """Receive a check and let its success go down."""
        key, payload, sender = self.receive()
        self.send(key, success(Message.read(payload), key.client, PASSWORD), sender)
        return key

    def refuse(self, code: int = 487) -> FlowKey:
        """Receive a check and let an error response go down."""
        key, payload, sender = self.receive()
        self.send(key, error(Message.read(payload), code, "Role Conflict", PASSWORD), sender)
        return key


class RouteSink(Transceiver):
    """A sink that stands for another cluster's relay: it echoes probes, on a thread of its own."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(host, port)
        self._received: queue.Queue[tuple[FlowKey, bytes, tuple[str, int]]] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def receive(self) -> tuple[FlowKey, bytes, tuple[str, int]]:
        """As Transceiver.receive, without the probes."""
        return self._received.get(timeout=RECEIVE_TIMEOUT_S)

    def is_heard_within(self, limit_s: float) -> bool:
        """Whether a datagram that is no probe comes within `limit_s`; it stays to be received."""
        deadline = time.monotonic() + limit_s
        while self._received.empty():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _read(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                datagram, sender = self.socket.recvfrom(65536)
                if not datagram:
                    return
                unwrapped = unwrap(datagram)
                assert unwrapped is not None, f"not SPP: {datagram[:40].hex()}"
                if unwrapped[0].client == PROBE_CLIENT:
                    self.socket.sendto(datagram, sender)
                else:
                    self._received.put((*unwrapped, sender[:2]))

    def __exit__(self, *_: object) -> None:
        with bind_udp(self.socket.getsockname()[0]) as waker:
            waker.sendto(b"", self.socket.getsockname())
        self._thread.join()
        super().__exit__()


class Client(_Peer):
    """A browser's UDP socket."""

    def check(self, ufrag: str, relay: tuple[str, int]) -> bytes:
        """Send a connectivity check; its bytes."""
        message = binding_request(f"{ufrag}:cLnt".encode())
        self.socket.sendto(message, relay)
        return message

    def send(self, payload: bytes, relay: tuple[str, int]) -> None:
        """One datagram up."""
        self.socket.sendto(payload, relay)

    def receive(self) -> tuple[bytes, tuple[str, int]]:
        """The next datagram and whence it came."""
        payload, sender = self.socket.recvfrom(65536)
        return payload, sender[:2]

    def establish(self, ufrag: str, relay: tuple[str, int], transceiver: Transceiver) -> FlowKey:
        """A check up and its success down."""
        self.check(ufrag, relay)
        key = transceiver.answer()
        answer, sender = self.receive()
        assert Message.read(answer).stun_class == StunClass.SUCCESS
        assert sender == relay
        return key


def binding_request(username: bytes, **settings: Any) -> bytes:
    """A check as a browser sends it."""
    return encode(
        StunClass.REQUEST, os.urandom(12), [(USERNAME, username)], key=PASSWORD, **settings
    )


class Relay:
    """A running `relay serve` and its addresses."""

    def __init__(
        self,
        processes: Processes,
        directory: Path,
        *arguments: str,
        listen: tuple[str, ...] = ("127.0.0.1:0",),
        internal: str = "127.0.0.1:0",
        allow: tuple[str, ...] = ("127.0.0.0/8", "::1/128"),
        workers: int = 2,
        ready: bool = True,
        prefix: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Start it with a run directory and a keyring in `directory` (made if missing).

        With `cwd` the program is the `relay` package in that directory.
        """
        directory.mkdir(exist_ok=True)
        keyring_path = directory / "keyring"
        if not keyring_path.exists():
            keyring_path.write_text(generate_line() + "\n")
        self.keyring = Keyring.load(keyring_path)
        self.workers = workers
        self._has_backbone = "--backbone" in arguments
        self.process: Process = processes.start(
            *(*prefix, sys.executable, "-m", "relay", "serve"),
            *(word for text in listen for word in ("--listen", text)),
            *("--internal", internal, "--workers", str(workers), "--cluster", str(CLUSTER)),
            *(word for text in allow for word in ("--allow-transceiver", text)),
            *("--keyring", keyring_path, "--run-dir", directory / "run"),
            *("--admin", "127.0.0.1:0", "--drain-timeout", "0"),
            *("--log-format", "json", "--log-level", "debug"),
            *arguments,
            name="relay",
            env=env,
            cwd=cwd,
        )
        if ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until every worker serves and the admin HTTP answers."""
        self.process.wait_event("serving")
        self.admin = parse_address(self.process.listening("admin")[0])
        self.public = [parse_address(text) for text in self.process.listening("public")]
        self.internal = [
            parse_address(text) for text in self.process.listening("internal", count=self.workers)
        ]
        if self._has_backbone:
            self.backbone = parse_address(self.process.listening("backbone")[0])
        wait_until(lambda: self.get("/readyz")[0] == 200, "ready")

    def get(self, path: str) -> tuple[int, str]:
        """GET of the admin HTTP: status and body; status 0 when nobody answers."""
        connection = http.client.HTTPConnection(*self.admin, timeout=HTTP_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metrics(self) -> dict[str, float]:
        """Samples now: `relay_flows{state="established"}` to value."""
        found: dict[str, float] = {}
        status, text = self.get("/metrics")
        assert status == 200, f"/metrics: {status or 'no answer'}"
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{key}="{text}"' for key, text in sample.labels.items())
                found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    @contextlib.contextmanager
    def changed(self, expected: Mapping[str, float]) -> Iterator[None]:
        """Assert that exactly these packet and flow counters change by these amounts inside.

        Names are short: `rx public`, `tx internal`, `drop no_flow`, `created`, `promoted`.
        Gauges and bytes do not count.
        """
        before = self.counters()
        yield
        moved: dict[str, float] = {}

        def settled() -> bool:
            nonlocal moved
            after = _short(self.metrics())
            moved = {name: after[name] - before[name] for name in after}
            moved = {name: value for name, value in moved.items() if value}
            return moved == expected

        with contextlib.suppress(AssertionError):
            wait_until(settled, "counters", COUNTED_LIMIT_S)
        assert moved == expected, f"moved {moved}, expected {dict(expected)}"

    def counters(self) -> dict[str, float]:
        """Packet and flow counters under the short names of `changed`, with all that has been heard by now.

        A worker counts a batch when it has sent it, so what came out of it may not be counted yet; in the
        next round of its loop it is.
        """
        begun = _loops(self.metrics())

        def came_round() -> bool:
            now = _loops(self.metrics())
            return all(now[worker] > begun[worker] for worker in begun)

        wait_until(came_round, "another round of each worker's loop")
        return _short(self.metrics())

    def wait_standby(self) -> None:
        """Wait until a warm worker waits: from then on the next death costs milliseconds."""
        wait_until(lambda: self.metrics()["relay_standby_ready"] == 1, "a standby")

    def worker_pids(self) -> dict[int, int]:
        """Slot to the pid of the worker that serves it now, as the log has it."""
        return {e["slot"]: e["pid"] for e in self.process.events("worker_serving")}

    def transceiver(self, host: str = "127.0.0.1") -> Transceiver:
        """A new sink; close it, or use it as a context manager."""
        return Transceiver(host)


def _loops(metrics: Mapping[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if name.startswith("relay_worker_loops_total")
    }


def _short(metrics: Mapping[str, float]) -> dict[str, float]:
    short: dict[str, float] = {}
    for name, value in metrics.items():
        label = name.partition('"')[2].rstrip('"}')
        if name.startswith(("relay_rx_packets_total", "relay_tx_packets_total")):
            short[f"{name[6:8]} {label}"] = value
        elif name.startswith("relay_drop_packets_total"):
            short[f"drop {label}"] = value
        elif name in ("relay_flows_created_total", "relay_flows_promoted_total"):
            short[name[12:-6]] = value
    return short


def check_both_ways(relay: Relay, client: Client, transceiver: Transceiver) -> None:
    """Media of an established flow passes up and down, whichever process forwards it."""
    client.send(RTP, relay.public[0])
    key, payload, internal = transceiver.receive()
    assert payload == RTP
    transceiver.send(key, RTP, internal)
    assert client.receive() == (RTP, relay.public[0])


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")
