"""One worker of the relay from Python: a client on one side, a transceiver on the other, real sockets.

The worker runs in a thread of the test: its loop holds no GIL, so both run side by side.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from relay._dataplane import (
    DROP_REASONS,
    LIMITS,
    Counters,
    ForwardConfig,
    PublicSocket,
    Stats,
    Table,
    Worker,
    create_stats,
    create_table,
    table_bytes,
)
from relay.wire._codec import StunClass
from relay.wire.address import Endpoint
from relay.wire.keyring import Keyring
from relay.wire.spp import FlowKey, unwrap, wrap
from relay.wire.stun import USERNAME, Message, encode, success
from relay.wire.token import TokenCodec, TransceiverAddress
from tests.support.generated import calls_without_gil

SECRET = bytes(range(32))
PASSWORD = b"0123456789abcdef01234567"
MEDIA = b"\x80" + bytes(171)


def udp(host: str = "127.0.0.1") -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    sock.settimeout(5)
    return sock


def forward_config(**changes: Any) -> ForwardConfig:
    settings: dict[str, Any] = {
        "cluster_id": 1,
        "keys": [(0, SECRET)],
        "allow_transceiver": [("127.0.0.0/8", 0, 65535)],
    }
    return ForwardConfig(**(settings | changes))


class Rig:
    """A worker on a wildcard and a specific public socket, with a client and a transceiver."""

    def __init__(self, cleanup: ExitStack) -> None:
        self.public = cleanup.enter_context(udp("0.0.0.0"))
        self.specific = cleanup.enter_context(udp())
        self.internal = cleanup.enter_context(udp())
        self.client = cleanup.enter_context(udp())
        self.transceiver = cleanup.enter_context(udp())
        self.table_fd, self.stats_fd = create_table(1000), create_stats(2)
        self.stop_fd = os.eventfd(0)
        self.life_fd, self.supervisor_fd = os.pipe()
        for fd in (self.table_fd, self.stats_fd, self.stop_fd, self.life_fd, self.supervisor_fd):
            cleanup.callback(_close, fd)
        cleanup.callback(self.stop)
        self.table, self.stats = Table(self.table_fd), Stats(self.stats_fd, 2)
        codec = TokenCodec(Keyring.parse(f"0:{SECRET.hex()}\n"))
        host, port = self.transceiver.getsockname()
        self.ufrag = codec.seal(TransceiverAddress(1, ip_address(host), port))
        self.outcome: list[str] = []
        self._thread: threading.Thread | None = None

    def start(self, **changes: Any) -> None:
        worker = Worker(
            slot=1,
            public=[
                PublicSocket(self.public.fileno(), 0),
                PublicSocket(self.specific.fileno(), 1, ("192.0.2.1", 3478)),
            ],
            internal_fd=self.internal.fileno(),
            table_fd=self.table_fd,
            stats_fd=self.stats_fd,
            stop_fd=self.stop_fd,
            life_fd=self.life_fd,
            config=forward_config(**changes),
        )
        self._thread = threading.Thread(target=lambda: self.outcome.append(worker.run()))
        self._thread.start()

    def join(self) -> str:
        if self._thread is not None:
            self._thread.join(10)
            assert not self._thread.is_alive()
            self._thread = None
        return self.outcome[-1]

    def stop(self) -> None:
        if self._thread is not None:
            os.eventfd_write(self.stop_fd, 1)
            self.join()
            os.eventfd_read(self.stop_fd)

    def counters(self) -> Counters:
        return self.stats.read(1)

    def establish(self, relay: tuple[str, int] | None = None) -> FlowKey:
        """A check up, its success down: the flow key as the transceiver saw it."""
        relay = relay or ("127.0.0.1", self.public.getsockname()[1])
        check = encode(
            StunClass.REQUEST, os.urandom(12), [(USERNAME, f"{self.ufrag}:abcd".encode())], key=b"x"
        )
        self.client.sendto(check, relay)
        datagram, sender = self.transceiver.recvfrom(4096)
        assert sender == self.internal.getsockname()
        unwrapped = unwrap(datagram)
        assert unwrapped is not None
        key, payload = unwrapped
        assert payload == check
        answer = success(Message.read(check), key.client, PASSWORD)
        self.transceiver.sendto(wrap(key, answer), self.internal.getsockname())
        assert self.client.recvfrom(4096) == (answer, relay)
        return key


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # the test closed it


@pytest.fixture
def rig() -> Iterator[Rig]:
    with ExitStack() as cleanup:
        yield Rig(cleanup)


def test_a_check_opens_a_flow_and_media_follows_it(rig: Rig) -> None:
    rig.start()
    relay = ("127.0.0.1", rig.public.getsockname()[1])
    key = rig.establish()
    assert key.client == Endpoint.of(*rig.client.getsockname())
    assert key.proxy == Endpoint.of(*relay)
    rig.client.sendto(MEDIA, relay)
    assert rig.transceiver.recvfrom(4096) == (wrap(key, MEDIA), rig.internal.getsockname())
    rig.transceiver.sendto(wrap(key, MEDIA), rig.internal.getsockname())
    assert rig.client.recvfrom(4096) == (MEDIA, relay)

    rig.stop()
    assert rig.outcome == ["stopped"]
    counters = rig.counters()
    assert not any(counters["drop"].values())
    assert counters["worker_pid"] == os.getpid()
    assert counters["flows_established"] == 1
    assert [counters[side]["rx_packets"] for side in ("public", "internal")] == [2, 2]
    assert [counters[side]["tx_packets"] for side in ("public", "internal")] == [2, 2]
    assert rig.table.counts() == (0, 1)
    assert rig.table.audit() == []
    (flow,) = rig.table.flows()
    assert flow["client"] == rig.client.getsockname()
    assert flow["proxy"] == relay
    assert flow["state"] == "established"
    assert flow["packets_up"] == flow["packets_down"] == 2
    assert flow["idle_s"] < 60
    (owner,) = flow["owners"]
    assert (owner["cluster"], owner["address"], owner["port"]) == (
        1,
        *rig.transceiver.getsockname(),
    )
    assert owner["token"] == rig.ufrag


def test_replies_leave_from_the_address_that_was_asked(rig: Rig) -> None:
    rig.start()
    port = rig.public.getsockname()[1]
    for host in ("127.0.0.1", "127.44.55.66"):
        key = rig.establish((host, port))
        assert key.proxy == Endpoint.of(host, port)
        rig.transceiver.sendto(wrap(key, MEDIA), rig.internal.getsockname())
        assert rig.client.recvfrom(4096) == (MEDIA, (host, port))


def test_the_advertised_address_is_the_proxy_address(rig: Rig) -> None:
    rig.start()
    assert rig.establish(rig.specific.getsockname()).proxy == Endpoint.of("192.0.2.1", 3478)


def test_a_flow_outlives_its_worker(rig: Rig) -> None:
    rig.start()
    key = rig.establish()
    rig.stop()
    relay = ("127.0.0.1", rig.public.getsockname()[1])
    rig.client.sendto(MEDIA, relay)  # waits in the socket for the next worker
    rig.start()
    assert rig.transceiver.recv(4096) == wrap(key, MEDIA)
    rig.transceiver.sendto(wrap(key, MEDIA), rig.internal.getsockname())
    assert rig.client.recvfrom(4096) == (MEDIA, relay)


def test_long_datagrams_pass_whole_or_not_at_all(rig: Rig) -> None:
    rig.start()
    relay = ("127.0.0.1", rig.public.getsockname()[1])
    key = rig.establish()
    for size in (1473, 1501, 2048, 9000, 65507, 100):
        media = b"\x80" + os.urandom(size - 1)
        rig.client.sendto(media, relay)
        if size <= 2048:
            assert rig.transceiver.recv(65535) == wrap(key, media)
    assert rig.counters()["drop"]["truncated"] == 2


def test_a_worker_ends_with_its_supervisor(rig: Rig) -> None:
    rig.start()
    os.close(rig.supervisor_fd)
    assert rig.join() == "orphaned"


def test_a_packet_touches_no_python_object(rig: Rig) -> None:
    """While thousands of packets pass, the worker's thread runs no Python and allocates nothing."""
    events: list[str] = []

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event.startswith("c_") or "run" in frame.f_code.co_name:
            events.append(f"{event} {getattr(argument, '__name__', frame.f_code.co_name)}")

    threading.setprofile(profile)
    try:
        rig.start()
    finally:
        threading.setprofile(None)
    relay = ("127.0.0.1", rig.public.getsockname()[1])
    key = rig.establish()
    up, down = wrap(key, MEDIA), bytearray(4096)
    internal = rig.internal.getsockname()

    def exchange(packets: int) -> int:
        for _ in range(packets):
            rig.client.sendto(MEDIA, relay)
            assert rig.transceiver.recv_into(down) == len(up)
            rig.transceiver.sendto(up, internal)
            assert rig.client.recv_into(down) == len(MEDIA)
        return sys.getallocatedblocks()

    exchange(100)
    gc.collect()  # what other tests have left must not be freed in between
    before = len(events)
    blocks = exchange(100)
    # What the test's own loop keeps is a handful of blocks, whatever the number of packets.
    assert abs(exchange(5000) - blocks) < 50
    assert len(events) == before, events[before:]
    assert rig.counters()["public"]["rx_packets"] >= 5200
    rig.stop()


def test_the_generated_loop_calls_nothing_but_c(root: Path, tmp_path: Path) -> None:
    """Between giving up the GIL and taking it again there is one statement: the call of vr_loop_run."""
    calls = calls_without_gil(root, "relay/_dataplane.pyx", "vr_loop_run", tmp_path)
    assert calls == ["vr_loop_run"]


def test_shared_memory_cannot_be_resized(rig: Rig) -> None:
    for fd in (rig.table_fd, rig.stats_fd):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1 << 30)


def test_a_table_is_checked_before_it_is_used(rig: Rig) -> None:
    assert rig.table.header["max_flows"] == 1000
    assert rig.table.header["bytes"] == table_bytes(1000)
    with pytest.raises(ValueError, match="not a flow table"):
        Table(rig.stats_fd)
    with pytest.raises(OSError):
        Table(rig.life_fd)
    for wrong in (0, -1, 1 << 40):
        with pytest.raises((ValueError, OverflowError)):
            create_table(wrong)


def test_counters_are_named_and_apart(rig: Rig) -> None:
    labels = [label for label, _ in DROP_REASONS]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch("[a-z_]+", label) for label in labels)
    assert list(rig.stats.read(0)["drop"]) == labels
    for slot in (-1, 2):
        with pytest.raises(IndexError):
            rig.stats.read(slot)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster_id": 65536},
        {"cluster_id": -1},
        {"keys": [(7, SECRET)]},
        {"keys": [(0, SECRET[:31])]},
        {"allow_transceiver": [("127.0.0.0/33", 0, 65535)]},
        {"allow_transceiver": [("example.org", 0, 65535)]},
        {"allow_transceiver": [("127.0.0.1", 2, 1)]},
        {"allow_transceiver": [("127.0.0.1", 0, 65536)]},
        {"ipv6_prefixes": {16: "2001:db8::/64"}},
        {"ipv6_prefixes": {1: "2001:db8::/48"}},
        {"ipv6_prefixes": {1: "10.0.0.0/8"}},
        {"backbone_allow": ["10.0.0.0/x"]},
        {"cluster_routes": {2: []}},
        {"cluster_routes": {2: [("10.0.0.1", 0)]}},
        {"cluster_routes": {2: [("10.0.0.1", 1)] * 9}},
        {"limits": {"no_such_limit": 1}},
        {"idle_timeout_s": 0},
    ],
    ids=str,
)
def test_a_wrong_configuration_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        forward_config(**wrong)


def test_a_good_configuration_is_taken() -> None:
    forward_config(
        keys=[(6, SECRET), (0, SECRET)],
        allow_transceiver=[("10.0.0.0/8", 5000, 6000), ("2001:db8::/32", 0, 65535)],
        ipv6_prefixes={0: "2001:db8::/64", 15: "2001:db8:0:1::/64"},
        backbone_allow=["192.0.2.0/24", "2001:db8::1"],
        cluster_routes={2: [("192.0.2.1", 3479), ("2001:db8::2", 3479)]},
        limits=dict(LIMITS),
        idle_timeout_s=0.5,
        park=True,
    )


def test_a_worker_needs_good_descriptors(rig: Rig) -> None:
    good: dict[str, Any] = {
        "slot": 0,
        "public": [PublicSocket(rig.public.fileno(), 0)],
        "internal_fd": rig.internal.fileno(),
        "table_fd": rig.table_fd,
        "stats_fd": rig.stats_fd,
        "stop_fd": rig.stop_fd,
        "life_fd": rig.life_fd,
        "config": forward_config(),
    }
    Worker(**good)
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"slot": 2}, IndexError),
        ({"table_fd": rig.stats_fd}, ValueError),
        ({"internal_fd": rig.life_fd}, OSError),
        ({"batch_max": 257}, ValueError),
        ({"coalesce_us": 10001}, ValueError),
        ({"public": [PublicSocket(rig.public.fileno(), 0)] * 2}, ValueError),
        ({"config": None}, TypeError),
    ]
    for wrong, error in cases:
        with pytest.raises(error):
            Worker(**(good | wrong))
    with pytest.raises(ValueError):
        PublicSocket(0, 256)
