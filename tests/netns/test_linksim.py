"""The link simulator itself: the same seed gives the same losses, and the kernel sees the delay."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.linksim import Direction, Link, LinkEnd, LinkProfile
from tests.support.netns import Namespace


def delivered(seed: int, profile: LinkProfile, packets: int = 1_000) -> list[bytes]:
    direction = Direction(profile, random.Random(seed))
    out = []
    for number in range(packets):
        now_s = number * 0.02
        direction.push(number.to_bytes(4, "big"), now_s)
        while (packet := direction.pop(now_s)) is not None:
            out.append(packet)
    while (packet := direction.pop(1e9)) is not None:
        out.append(packet)
    return out


def test_same_seed_same_fate() -> None:
    profile = LinkProfile(delay_ms=30, jitter_ms=50, loss=0.05, duplicate=0.01, reorder=0.1)
    assert delivered(7, profile) == delivered(7, profile)
    assert delivered(7, profile) != delivered(8, profile)


def test_jitter_alone_never_reorders() -> None:
    packets = delivered(7, LinkProfile(delay_ms=5, jitter_ms=200))
    assert len(packets) == 1_000
    assert packets == sorted(packets)


def test_loss_rate_and_reordering() -> None:
    packets = delivered(7, LinkProfile(delay_ms=5, jitter_ms=100, loss=0.1, reorder=0.2))
    assert 850 <= len(packets) <= 950
    assert packets != sorted(packets)


def test_cut_loses_everything() -> None:
    direction = Direction(LinkProfile(), random.Random(1), cut=True)
    direction.push(b"x", 0.0)
    assert direction.pop(1.0) is None
    assert (direction.received, direction.lost) == (1, 1)


@pytest.fixture
def two_namespaces(namespaces: None) -> Iterator[tuple[str, str]]:
    if not Path("/dev/net/tun").exists():
        pytest.skip("the link simulator needs /dev/net/tun")
    with Namespace() as first, Namespace() as second:
        yield first.name, second.name


ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("10.77.0.2", 7000)); print("bound", flush=True)
while True: s.sendto(*s.recvfrom(2048))
"""

PING = """
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1)
for _ in range(5):
    sent = time.monotonic(); s.sendto(b"x", ("10.77.0.2", 7000))
    try: s.recv(2048)
    except TimeoutError: print("lost")
    else: print((time.monotonic() - sent) * 1000)
"""


def test_packets_cross_with_delay_and_cut(two_namespaces: tuple[str, str]) -> None:
    first, second = two_namespaces
    python = [sys.executable, "-c"]
    with Link(
        LinkEnd(first, "vra", "10.77.0.1/30"),
        LinkEnd(second, "vrb", "10.77.0.2/30"),
        forward=LinkProfile(delay_ms=30),
    ) as link:
        inside = ["ip", "netns", "exec"]
        echo = subprocess.Popen([*inside, second, *python, ECHO], stdout=subprocess.PIPE)
        try:
            assert echo.stdout is not None
            echo.stdout.readline()
            ping = [*inside, first, *python, PING]
            times = subprocess.run(ping, capture_output=True, text=True, check=True).stdout.split()
            assert min(map(float, times)) >= 60
            link.cut()
            assert "lost" in subprocess.run(ping, capture_output=True, text=True, check=True).stdout
            forward, _ = link.counts()
            assert forward["lost"] >= 5  # IPv6 router solicitations may be among them
        finally:
            echo.kill()
            echo.communicate()
