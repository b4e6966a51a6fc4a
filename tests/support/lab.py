"""Several hosts on one machine: a router, the hosts around it, and the programs that run on them.

1. Every host is a network namespace with a cable to the router; nothing of the machine's network is
   touched. Ports are fixed: inside a namespace they are nobody else's.
2. The router alone decides where a shared address leads (`Lab.lead`), as ECMP does in front of relays.
3. A host's addresses are its own; `adopt` gives it one more, such as an address that relays share.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from relay.wire.keyring import generate_line
from relay.wire.spp import FlowKey
from tests.support.linksim import Link, LinkEnd, LinkProfile
from tests.support.netns import Namespace
from tests.support.process import READY_TIMEOUT_S, Process, Processes, session_members
from tests.support.redis_hosts import redis_key
from tests.support.relayed import wait_until

CLUSTER = 7
VIP = "198.19.0.1"
VIP6 = "fd00:19::1"
CACHE = "198.19.0.53"
PORT = 3478
INTERNAL_PORT = 4000
MEDIA_PORT = 5000
HTTP_PORT = 8080
ADMIN_PORT = 9478
HTTP_TIMEOUT_S = 30.0
"""A relay's control process runs at nice 19: beside others' work it gets a hundredth of a CPU."""
ANY_BEARER = "ek_test"
"""Good for a transceiver without keys."""


def run(*command: str, text: str | None = None) -> str:
    """The output of a command that has to succeed."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Host:
    """One host: its namespace and the addresses of its cable."""

    namespace: Namespace
    address: str
    address6: str
    gateway: str
    """The router's end of the cable."""
    gateway6: str
    device: str
    """The cable, as both ends call it."""

    def of_family(self, address: str) -> str:
        """The host's own address of the same family as `address`."""
        return self.address6 if ":" in address else self.address

    @property
    def prefix6(self) -> str:
        """The /64 that its own IPv6 address lies in."""
        return self.address6.removesuffix("2") + "/64"

    def ip(self, *arguments: str) -> None:
        """`ip` on this host."""
        run("ip", "-n", self.namespace.name, *arguments)

    def adopt(self, address: str) -> None:
        """Give the host one more address."""
        bits = "128" if ":" in address else "32"
        nodad = ["nodad"] if ":" in address else []
        self.ip("address", "add", f"{address}/{bits}", "dev", "lo", *nodad)

    def udp(self, address: str, port: int = 0) -> socket.socket:
        """A UDP socket on this host, non-blocking."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        opened = self.namespace.socket(family, socket.SOCK_DGRAM)
        opened.setblocking(False)
        opened.bind((address, port))
        return opened

    def request(
        self, at: tuple[str, int], method: str, path: str, body: str = "", **headers: str
    ) -> tuple[int, str, str]:
        """An HTTP request from this host: status, body, Location; status 0 when nobody answers."""
        family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        connection = http.client.HTTPConnection(*at, timeout=HTTP_TIMEOUT_S)
        opened = self.namespace.socket(family)
        opened.settimeout(HTTP_TIMEOUT_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as browsers do
        try:
            opened.connect(at)
            connection.sock = opened
            connection.request(method, path, body.encode(), headers)
            response = connection.getresponse()
            return response.status, response.read().decode(), response.getheader("Location", "")
        except (OSError, http.client.HTTPException):
            return 0, "", ""
        finally:
            opened.close()


class Lab:
    """A router and its hosts; a context manager that removes them all."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self.processes = processes
        self.directory = directory
        self.keyring = directory / "keyring"
        if not self.keyring.exists():  # several labs of one directory share it
            self.keyring.write_text(generate_line() + "\n")
        self.router = Namespace()
        self._namespaces = [self.router]
        self.shell("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")

    def shell(self, *command: str, text: str | None = None) -> str:
        """A command on the router."""
        return run(*self.router.prefix, *command, text=text)

    def ip(self, *arguments: str) -> None:
        """`ip` on the router."""
        run("ip", "-n", self.router.name, *arguments)

    def keep(self, namespace: Namespace) -> None:
        """Remove this namespace with the lab."""
        self._namespaces.append(namespace)

    def host(self) -> Host:
        """A new host, on a cable of its own."""
        namespace = Namespace()
        self.keep(namespace)
        gateway, address = self.router.connect(namespace)
        number = address.split(".")[2]
        device, net6 = f"cable{number}", f"fd00:0:0:{int(number):x}"
        host = Host(namespace, address, f"{net6}::2", gateway, f"{net6}::1", device)
        # A router asks for neighbours from its link-local address (RFC 4861 7.2.2).
        for address in (host.gateway6, "fe80::1"):
            self.ip("address", "add", f"{address}/64", "dev", device, "nodad")
        for address in (host.address6, "fe80::2"):
            host.ip("address", "add", f"{address}/64", "dev", device, "nodad")
        host.ip("route", "replace", "default", "via", gateway, "dev", device)
        host.ip("-6", "route", "replace", "default", "via", host.gateway6, "dev", device)
        return host

    def far_host(self, name: str, profile: LinkProfile, seed: int = 1) -> tuple[Host, Link]:
        """A host behind a simulated link (forward: from the host). The link is a context manager."""
        namespace = Namespace()
        self.keep(namespace)
        net = f"198.19.{200 + len(self._namespaces)}"
        link = Link(
            LinkEnd(namespace.name, name, f"{net}.2/30"),
            LinkEnd(self.router.name, name, f"{net}.1/30"),
            forward=profile,
            seed=seed,
        )
        return Host(namespace, f"{net}.2", "", f"{net}.1", "", name), link

    def lead(self, address: str, *hosts: Host, source: str | None = None) -> None:
        """Make `address` lead to a host, for one client address only when `source` is given.

        Several hosts share it by hash, as ECMP does.
        """
        family = "-6" if ":" in address else "-4"
        table = self._table(family, source)
        hops = [
            word
            for host in hosts
            for word in ("nexthop", "via", host.of_family(address), "dev", host.device)
        ]
        self.ip(family, "route", "replace", address, *table, *hops)

    def set_mtu(self, host: Host, frame_bytes: int) -> None:
        """Frames this large at most on the host's cable; other hosts do not know."""
        self.ip("link", "set", host.device, "mtu", str(frame_bytes))
        host.ip("link", "set", host.device, "mtu", str(frame_bytes))

    def block(self, match: str) -> None:
        """Drop what crosses the router and matches, e.g. `ip daddr 198.18.3.2`."""
        rules = f"table inet lab {{\n chain forward {{\n  type filter hook forward priority 0;\n  {match} drop;\n }}\n}}\n"
        self.shell("nft", "-f", "-", text=rules)

    def unblock(self) -> None:
        """Undo every `block`."""
        self.shell("nft", "flush", "ruleset")

    def unlead(self, address: str, *, source: str) -> None:
        """This client's packets to `address` go where everybody's go."""
        family = "-6" if ":" in address else "-4"
        self.ip(family, "route", "del", address, *self._table(family, source))

    def _table(self, family: str, source: str | None) -> tuple[str, ...]:
        """The routing table of one client address; none for that of everybody."""
        if source is None:
            return ()
        number = str(1000 + int(source.split(".")[2]))
        rules = run("ip", "-n", self.router.name, family, "rule")
        if f"lookup {number}" not in rules:
            self.ip(family, "rule", "add", "from", source, "lookup", number)
        return ("table", number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in self._namespaces:
            namespace.remove()


class CacheHost:
    """A redis-server on the router, at an address that every host reaches."""

    def __init__(self, lab: Lab) -> None:
        """Starts it, and waits until it answers."""
        lab.ip("address", "add", f"{CACHE}/32", "dev", "lo")
        self.process = lab.processes.start(
            *(*lab.router.prefix, "redis-server", "--port", "6379", "--bind", CACHE),
            *("--save", "", "--appendonly", "no", "--dir", str(lab.directory)),
            *("--protected-mode", "no"),
        )
        self.url = f"redis://{CACHE}:6379"
        self._router = lab.router
        wait_until(lambda: self._ask("PING") == b"+PONG\r\n", "the cache answers")

    def wait_written(self, keys: Iterable[FlowKey]) -> None:
        """Until it has the routes of these flows."""
        for key in keys:
            wait_until(partial(self._has, redis_key(key)), f"{key} in the cache")

    def _has(self, name: str) -> bool:
        return self._ask(f"EXISTS {name}") == b":1\r\n"

    def _ask(self, command: str) -> bytes:
        """The start of the answer; empty when nobody answers."""
        with self._router.socket() as opened, contextlib.suppress(OSError):
            opened.settimeout(HTTP_TIMEOUT_S)
            opened.connect((CACHE, 6379))
            opened.sendall(f"{command}\r\n".encode())
            return opened.recv(64)
        return b""

    def pause(self) -> None:
        """It accepts and never answers."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It answers again."""
        os.kill(self.process.pid, signal.SIGCONT)


class RelayHost:
    """`relay serve` on a host of its own, at the addresses that all relays of a lab share."""

    def __init__(
        self,
        lab: Lab,
        *arguments: str,
        host: Host | None = None,
        listen: tuple[str, ...] = (f"{VIP}:{PORT}",),
        allow: tuple[str, ...] = ("198.18.0.0/16", "fd00::/16"),
        family: int = 4,
        workers: int = 2,
        ready: bool = True,
    ) -> None:
        """Starts it, and waits for it unless `ready` is False. `family` is that of its internal leg."""
        self.lab = lab
        self.host = host or lab.host()
        for text in listen:
            address = text.rpartition(":")[0].strip("[]")
            if address != "*":
                self.host.adopt(address)
        internal = self.host.address if family == 4 else f"[{self.host.address6}]"
        self._workers = workers
        self._arguments = (
            *(word for text in listen for word in ("--listen", text)),
            *("--internal", f"{internal}:{INTERNAL_PORT}", "--workers", str(workers)),
            *("--cluster", str(CLUSTER), "--keyring", str(lab.keyring)),
            *(word for text in allow for word in ("--allow-transceiver", text)),
            *("--run-dir", str(lab.directory / f"relay-{self.host.device}")),
            *("--admin", f"127.0.0.1:{ADMIN_PORT}", "--drain-timeout", "0"),
            *("--log-format", "json"),
            *arguments,
        )
        self.process: Process
        self.start()
        if ready:
            self.wait_ready()

    def start(self) -> None:
        """Start the program, for the first time or again."""
        self.process = self.lab.processes.relay(
            "serve", *self._arguments, prefix=self.host.namespace.prefix
        )

    def wait_ready(self) -> None:
        """Wait until it serves."""
        self.process.wait_event("serving")
        wait_until(lambda: self.get("/readyz")[0] == 200, "relay ready", READY_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9 of every process of the relay."""
        self.process.kill()

    def stop(self) -> None:
        """End it as an operator does."""
        self.process.stop()

    def get(self, path: str) -> tuple[int, str]:
        """GET of the admin HTTP."""
        return self.host.request(("127.0.0.1", ADMIN_PORT), "GET", path)[:2]

    def metrics(self) -> dict[str, float]:
        """Samples now: `relay_flows{state="established"}` to value."""
        return read_metrics(self.get("/metrics"))

    def flows(self) -> dict[str, float]:
        """Flows by state."""
        metrics = self.metrics()
        return {
            state: metrics[f'relay_flows{{state="{state}"}}']
            for state in ("half_open", "established")
        }


class TransceiverHost:
    """`transceiver serve` on a host of its own."""

    def __init__(
        self,
        lab: Lab,
        *arguments: str,
        host: Host | None = None,
        ingress: str = f"vip={VIP}:{PORT}",
        family: int = 4,
        workers: int = 1,
        ready: bool = True,
        bearer: str = ANY_BEARER,
    ) -> None:
        """Starts it, and waits for it unless `ready` is False. `family` is that of its media address;
        `bearer` what callers of it have.
        """
        self.lab = lab
        self.bearer = bearer
        self.host = host or lab.host()
        self.http = (self.host.address, HTTP_PORT)
        media = self.host.address if family == 4 else f"[{self.host.address6}]"
        self._arguments = (
            *("--http", f"{self.host.address}:{HTTP_PORT}", "--insecure-open"),
            *("--media", f"{media}:{MEDIA_PORT}", "--workers", str(workers)),
            *("--cluster", str(CLUSTER), "--keyring", str(lab.keyring), "--ingress", ingress),
            *("--allow-relay", "198.18.0.0/16", "--allow-relay", "fd00::/16"),
            *("--backend", "loopback", "--drain-timeout", "0", "--log-format", "json"),
            *arguments,
        )
        self.process: Process
        self.start()
        if ready:
            self.wait_ready()

    def start(self) -> None:
        """Start the program, for the first time or again."""
        self.process = self.lab.processes.transceiver(
            "serve", *self._arguments, prefix=self.host.namespace.prefix
        )

    def wait_ready(self) -> None:
        """Wait until it takes calls."""
        self.process.listening("http")
        wait_until(lambda: self.get("/readyz")[0] == 200, "transceiver ready", READY_TIMEOUT_S)

    def kill(self) -> None:
        """kill -9 of every process of the pool."""
        self.process.kill()

    def signal(self, number: signal.Signals) -> None:
        """A signal to every process of the pool."""
        for pid in session_members(self.process.pid):
            os.kill(pid, number)

    def get(self, path: str) -> tuple[int, str]:
        """GET from the host itself."""
        authorized = {"Authorization": f"Bearer {self.bearer}"}
        return self.host.request(self.http, "GET", path, **authorized)[:2]

    def answer(self, path: str) -> tuple[int, str]:
        """GET of a call, asked again while its process does not get round to an answer (503)."""
        found = 503, ""

        def is_answered() -> bool:
            nonlocal found
            found = self.get(path)
            return found[0] != 503

        wait_until(is_answered, f"another answer than 503 to {path}")
        return found

    def metrics(self) -> dict[str, float]:
        """Samples of the pool now."""
        return read_metrics(self.get("/metrics"))

    def stats(self, location: str) -> dict[str, Any]:
        """GET …/stats of a call; AssertionError unless it is known."""
        status, body = self.answer(f"{location}/stats")
        assert status == 200, (status, body)
        found: dict[str, Any] = json.loads(body)
        return found


def read_metrics(answer: tuple[int, str]) -> dict[str, float]:
    """Status and Prometheus text to samples by name and labels; AssertionError when there is none."""
    status, text = answer
    assert status == 200, f"/metrics: {status or 'no answer'}"
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found
