"""Binding: a group of one socket per slot that no stranger shares, loudly or not at all (E02, E18)."""

import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay import sockets
from relay.addresses import HostPort, parse_listen
from relay.errors import BindError
from relay.sockets import SocketSet, open_sockets

LOOPBACK = HostPort(ipaddress.ip_address("127.0.0.1"), 0)


class Warnings(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: str, **details: Any) -> None:
        self.append((event, details))


@contextlib.contextmanager
def opened(*listens: str, slots: int = 3, **settings: Any) -> Iterator[SocketSet]:
    settings = {"receive_buffer_bytes": 65536, "warn": Warnings(), **settings}
    group = open_sockets(
        [parse_listen("--listen", text) for text in listens],
        settings.pop("internal", LOOPBACK),
        LOOPBACK,
        slots=slots,
        **settings,
    )
    try:
        yield group
    finally:
        group.close()


def udp(address: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def own_sockets() -> set[str]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{fd}"))
    return {name for name in found if name.startswith("socket:")}


def test_one_socket_per_slot_on_one_free_port() -> None:
    with opened("127.0.0.1:0") as group:
        ports = {sock.getsockname() for sock in group.public[0].sockets}
        assert len(group.public[0].sockets) == 3
        assert ports == {("127.0.0.1", group.public[0].bound.port)}
        assert len({sock.getsockname()[1] for sock in group.internal}) == 3


def test_the_backbone_is_a_group_too() -> None:
    with opened("127.0.0.1:0", backbone=LOOPBACK) as group:
        assert len({sock.getsockname() for sock in group.backbone}) == 1
        assert len(group.backbone) == 3
        port = group.backbone[0].getsockname()[1]
        with (
            pytest.raises(BindError, match=rf"\(--backbone\): UDP port {port} is in use"),
            opened("127.0.0.1:0", backbone=HostPort(LOOPBACK.ip, port)),
        ):
            pass


def test_no_backbone_unless_asked() -> None:
    with opened("127.0.0.1:0") as group:
        assert group.backbone == []


def test_clients_are_spread_over_the_group() -> None:
    with opened("127.0.0.1:0", slots=2) as group:
        target = group.public[0].sockets[0].getsockname()
        for _ in range(64):
            with udp("127.0.0.1", 0) as client:
                client.sendto(b"x", target)
        counts = [0, 0]
        for slot, sock in enumerate(group.public[0].sockets):
            with contextlib.suppress(BlockingIOError):
                while sock.recv(16):
                    counts[slot] += 1
        assert sum(counts) == 64
        assert min(counts) > 0


@pytest.mark.parametrize("owner", ["127.0.0.1", "0.0.0.0", "::"])
@pytest.mark.parametrize("reuse_port", [False, True])
def test_a_foreign_owner_is_an_error_that_names_the_port(owner: str, reuse_port: bool) -> None:
    with udp(owner, 0, reuse_port=reuse_port) as foreign:
        port = foreign.getsockname()[1]
        with (
            pytest.raises(BindError, match=f"UDP port {port} is in use"),
            opened(f"127.0.0.1:{port}"),
        ):
            pass


def test_a_wildcard_meets_a_specific_owner() -> None:
    with udp("127.0.0.1", 0, reuse_port=True) as foreign:
        port = foreign.getsockname()[1]
        with pytest.raises(BindError, match=str(port)), opened(f"0.0.0.0:{port}"):
            pass


def test_an_exclusive_newcomer_is_refused() -> None:
    with opened("127.0.0.1:0") as group:
        with pytest.raises(OSError) as raised:
            udp("0.0.0.0", group.public[0].bound.port)
        assert raised.value.errno == errno.EADDRINUSE


def test_failure_leaves_nothing_bound() -> None:
    with udp("127.0.0.1", 0) as foreign:
        taken = foreign.getsockname()[1]
        before = own_sockets()
        with (
            pytest.raises(BindError, match=str(taken)),
            opened("127.0.0.1:0", f"127.0.0.1:{taken}"),
        ):
            pass
        assert own_sockets() <= before


def test_internal_ports_count_up() -> None:
    for _ in range(20):
        with udp("127.0.0.1", 0) as probe:
            port = probe.getsockname()[1]
        try:
            with opened("127.0.0.1:0", internal=HostPort(LOOPBACK.ip, port)) as group:
                ports = [sock.getsockname()[1] for sock in group.internal]
                assert ports == [port, port + 1, port + 2]
                return
        except BindError:  # somebody took one of the neighbours
            continue
    pytest.fail("no three free ports in a row")


def test_a_public_address_of_port_0_is_the_bound_port() -> None:
    with opened("127.0.0.1:0=203.0.113.9:0") as group:
        public = group.public[0].public
        assert public == HostPort(ipaddress.ip_address("203.0.113.9"), group.public[0].bound.port)


def test_an_address_of_another_host_is_an_error() -> None:
    with (
        pytest.raises(BindError, match=r"203\.0\.113\.9 is no address of this host"),
        opened("203.0.113.9:0"),
    ):
        pass


def test_both_families_apart() -> None:
    with opened("*:0") as group:
        families = [member.bound.ip.version for member in group.public]
        assert families[0] == 4
        if 6 in families:
            v6 = group.public[families.index(6)].sockets[0]
            assert v6.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1


def test_a_host_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = -1, *rest: Any, **named: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *rest, **named)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    warnings = Warnings()
    with opened("*:0", warn=warnings) as group:
        assert [member.bound.ip.version for member in group.public] == [4]
    assert [event for event, _ in warnings] == ["address_family_absent"]
    with pytest.raises(BindError, match="none of the --listen addresses"), opened("[::]:0"):
        pass


def test_a_small_receive_buffer_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SO_RCVBUFFORCE", -1)
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    warnings = Warnings()
    with opened("127.0.0.1:0", receive_buffer_bytes=limit * 2, warn=warnings):
        pass
    assert [event for event, _ in warnings] == ["receive_buffer_small"]
    assert warnings[0][1]["granted_bytes"] == limit
