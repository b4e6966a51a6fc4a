"""Steering and busy polling: on, off again, and what a kernel that refuses is reported as."""

import contextlib
import errno
import ipaddress
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from relay import tuning
from relay.addresses import HostPort, parse_listen
from relay.errors import ConfigError
from relay.sockets import SocketSet, open_sockets
from relay.tuning import check_steering, tune

LOOPBACK = HostPort(ipaddress.ip_address("127.0.0.1"), 0)
CPUS = sorted(os.sched_getaffinity(0))
NOBODY = 65534


class Warnings(list[tuple[str, dict[str, Any]]]):
    def __call__(self, event: str, **details: Any) -> None:
        self.append((event, details))


@contextlib.contextmanager
def opened(slots: int = 2) -> Iterator[SocketSet]:
    group = open_sockets(
        [parse_listen("--listen", "127.0.0.1:0")],
        LOOPBACK,
        LOOPBACK,
        backbone=LOOPBACK,
        slots=slots,
        receive_buffer_bytes=65536,
        warn=Warnings(),
    )
    try:
        yield group
    finally:
        group.close()


def read(sockets: SocketSet, option: int) -> list[int]:
    everything = [*sockets.public[0].sockets, *sockets.backbone, *sockets.internal]
    return [sock.getsockopt(socket.SOL_SOCKET, option) for sock in everything]


def send_from(cpu: int, to: tuple[str, int], count: int) -> None:
    """Each from a port of its own, so that the kernel's hash would spread them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        for _ in range(count):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.sendto(b"x", to)
    finally:
        os.sched_setaffinity(0, before)


def waiting(sock: socket.socket) -> int:
    count = 0
    with contextlib.suppress(BlockingIOError):
        while sock.recv(16):
            count += 1
    return count


@pytest.mark.skipif(len(CPUS) < 2, reason="there is one CPU")
def test_a_datagram_goes_to_the_worker_of_the_cpu_that_received_it() -> None:
    warnings = Warnings()
    with opened() as sockets:
        group = sockets.public[0].sockets
        tune(sockets, steer_to=CPUS[:2], busy_poll_us=0, warn=warnings)
        for slot in (0, 1):
            send_from(CPUS[slot], group[0].getsockname(), 32)
            assert (waiting(group[slot]), waiting(group[1 - slot])) == (32, 0)
        tune(sockets, steer_to=None, busy_poll_us=0, warn=warnings)
        send_from(CPUS[0], group[0].getsockname(), 64)
        assert waiting(group[0])
        assert waiting(group[1])
    assert warnings == []


def test_settings_reach_every_socket_and_leave_it() -> None:
    warnings = Warnings()
    with opened() as sockets:
        tune(sockets, steer_to=[5, 6], busy_poll_us=40, warn=warnings)
        assert read(sockets, tuning.SO_INCOMING_CPU) == [5, 6, 5, 6, -1, -1]
        if ("busy_poll_refused", "Operation not permitted") in [
            (event, details["reason"]) for event, details in warnings
        ]:
            pytest.skip("busy polling needs CAP_NET_ADMIN")
        assert read(sockets, tuning.SO_BUSY_POLL) == [40] * 6
        assert read(sockets, tuning.SO_PREFER_BUSY_POLL) == [1] * 6
        tune(sockets, steer_to=None, busy_poll_us=0, warn=warnings)
        assert read(sockets, tuning.SO_INCOMING_CPU) == [-1] * 6
        assert read(sockets, tuning.SO_BUSY_POLL) == [0] * 6
        assert read(sockets, tuning.SO_PREFER_BUSY_POLL) == [0] * 6


@pytest.mark.skipif(os.getuid() != 0, reason="gives up root's rights")
def test_without_the_right_to_busy_poll_one_line_says_so() -> None:
    script = (
        "from tests.unit.relay.test_tuning import *\n"
        "warnings = Warnings()\n"
        f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "with opened() as sockets:\n"
        "    tune(sockets, steer_to=None, busy_poll_us=40, warn=warnings)\n"
        "print([(event, details['reason']) for event, details in warnings])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "('busy_poll_refused', 'Operation not permitted')" in done.stdout, done.stderr


@pytest.mark.parametrize("option", ["SO_INCOMING_CPU", "SO_BUSY_POLL", "EPIOCSPARAMS"])
def test_a_kernel_without_it_costs_a_warning(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr(tuning, option, 9999)
    warnings = Warnings()
    with opened() as sockets:
        tune(sockets, steer_to=[0, 1], busy_poll_us=40, warn=warnings)
        event = "steering_refused" if option == "SO_INCOMING_CPU" else "busy_poll_refused"
        reasons = [details["reason"] for name, details in warnings if name == event]
        assert "this kernel has no such option" in reasons
        assert os.strerror(errno.EPERM) not in reasons or os.getuid() != 0


def test_steering_needs_a_cpu_for_each_worker() -> None:
    check_steering("--steer", "off", None)
    check_steering("--steer", "cpu", [0, 1])
    with pytest.raises(ConfigError, match="--pin always"):
        check_steering("--steer", "cpu", None)
    with pytest.raises(ConfigError, match="3 workers share 2 CPUs"):
        check_steering("--steer", "cpu", [0, 1, 0])
