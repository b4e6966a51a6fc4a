"""A backbone over IPv6 whose path takes less than the devices at its ends: fragments, and nothing lost for long.

entry relay ── 1500 ── router ── 1280 ── the other cluster (a sink)
"""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from relay.wire.spp import unwrap, wrap
from relay.wire.stun import Message, success
from tests.support.netns import Namespace
from tests.support.process import Processes
from tests.support.relayed import (
    CLUSTER,
    PASSWORD,
    PROBE_CLIENT,
    Relay,
    Transceiver,
    binding_request,
)

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("namespaces")]

DTLS = b"\x16" + bytes(1249)


def ip(inside: Namespace, *arguments: str) -> None:
    subprocess.run(["ip", "-n", inside.name, *arguments], check=True)


def cable(one: Namespace, other: Namespace, network: str) -> str:
    """Addresses ::1 and ::2 of an IPv6 network on a new cable; its device."""
    device = "cable" + one.connect(other)[0].split(".")[2]
    for host, number in ((one, 1), (other, 2)):
        for prefix in (network, "fe80"):  # a router asks for its neighbours from the latter
            ip(host, "address", "add", f"{prefix}::{number}/64", "dev", device, "nodad")
    return device


def test_an_ipv6_path_of_1280_bytes_is_learnt(processes: Processes, tmp_path: Path) -> None:
    with Namespace() as near, Namespace() as router, Namespace() as far:
        cable(near, router, "fd77:1")
        narrow = cable(router, far, "fd77:2")
        for host in (router, far):
            ip(host, "link", "set", narrow, "mtu", "1280")
        forwarding = "net.ipv6.conf.all.forwarding=1"
        subprocess.run([*router.prefix, "sysctl", "-qw", forwarding], check=True)
        ip(near, "-6", "route", "add", "fd77:2::/64", "via", "fd77:1::2")
        ip(far, "-6", "route", "add", "fd77:1::/64", "via", "fd77:2::1")

        with (
            far.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sink,
            near.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
            Transceiver() as named,
        ):
            sink.bind(("fd77:2::2", 4500))
            sink.settimeout(5)
            client.bind(("127.0.0.1", 0))
            entry = Relay(
                processes, tmp_path, "--cluster", "0",
                "--cluster-route", f"{CLUSTER}=[fd77:2::2]:4500",
                internal="[fd77:1::1]:0", workers=1, ready=False, prefix=near.prefix,
            )  # fmt: skip
            entry.process.wait_event("serving")
            public = entry.process.listening("public")[0].rpartition(":")
            to = (public[0], int(public[2]))

            def hear(limit_s: float = 10) -> bytes | None:
                """The next client's packet; probes are echoed, checks answered."""
                deadline = time.monotonic() + limit_s
                while True:
                    if time.monotonic() > deadline:
                        return None
                    datagram, sender = sink.recvfrom(4096)
                    unwrapped = unwrap(datagram)
                    assert unwrapped is not None
                    key, payload = unwrapped
                    if key.client == PROBE_CLIENT:
                        sink.sendto(datagram, sender)
                        continue
                    if payload[0] < 4:
                        answer = success(Message.read(payload), key.client, PASSWORD)
                        sink.sendto(wrap(key, answer), sender)
                    return payload

            client.sendto(binding_request(f"{named.ufrag(entry.keyring)}:cLnt".encode()), to)
            assert hear()
            client.settimeout(5)
            client.recv(2048)
            for _ in range(5):  # the router says that the first one is too big
                client.sendto(DTLS, to)
                if hear(1) == DTLS:
                    break
            else:
                pytest.fail("no packet came through")
            for _ in range(5):
                client.sendto(DTLS, to)
                assert hear() == DTLS
