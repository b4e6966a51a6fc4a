"""Three regions on one machine: an entry near the client, another one next door, and the one where calls live.

        client ── 5 ms ── frankfurt ══ 40 ms, low jitter, two links ══ oregon (two relays, the transceiver)
                              │ 8 ms                                     ║
                            london ═════════ 42 ms, low jitter ══════════╝
        the direct way: client ── 60 ms, jitter, 1 % loss ── oregon

1. Each region is a lab with a router of its own; between routers, and before clients, there are simulated
   links (`linksim`), whose delays are one way. Within a region nothing takes time.
2. Entries share one address (ANYCAST) and have one of their own (`Region.public`). Where the shared one leads is a
   matter of the client's nearest router (`World.lead`), as with anycast.
3. What the two links between frankfurt and oregon carry is told by the address of oregon's relay: one each,
   and replies of a relay take the link that leads to it.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.support.lab import (
    ANY_BEARER,
    HTTP_PORT,
    PORT,
    VIP,
    Host,
    Lab,
    RelayHost,
    TransceiverHost,
)
from tests.support.linksim import Link, LinkEnd, LinkProfile
from tests.support.netns import Namespace
from tests.support.process import Processes

ANYCAST = VIP
"""All entries' address."""
BACKBONE_PORT = 4500
SECRET = "a secret that is the same in every region"
BEARER = "a-key-of-a-caller-0123456789"

NEAR = LinkProfile(delay_ms=5, jitter_ms=1)
BACKBONE = LinkProfile(delay_ms=40, jitter_ms=1)
LONDON_BACKBONE = LinkProfile(delay_ms=42, jitter_ms=1)
NEIGHBOURS = LinkProfile(delay_ms=8, jitter_ms=1)
DIRECT = LinkProfile(delay_ms=60, jitter_ms=30, loss=0.01)
CELLULAR = LinkProfile(delay_ms=20, jitter_ms=15)

_ALL_HOSTS = "198.18.0.0/16"
_REPLIES_OF_THE_SECOND = "200"


@dataclass(eq=False)
class Region:
    """One place."""

    name: str
    cluster: int
    place: str
    lab: Lab
    hosts: list[Host] = field(default_factory=list)
    relays: list[RelayHost] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    """The device by which another region's router is reached."""

    @property
    def public(self) -> str:
        """The address of its own relays."""
        return f"198.19.{self.cluster}.1"

    def host(self) -> Host:
        """One more host."""
        made = self.lab.host()
        self.hosts.append(made)
        return made

    def route(self, address: str, device: str, *table: str) -> None:
        """On its router."""
        self.lab.ip("route", "replace", address, "dev", device, *table)


class World:
    """The three regions with their relays and one transceiver; a context manager."""

    def __init__(
        self, processes: Processes, directory: Path, *, near_signaling: bool = False
    ) -> None:
        """`near_signaling`: frankfurt takes offers, too, and hands all of them to oregon."""
        self._stack = contextlib.ExitStack()
        self._processes = processes
        self._directory = directory
        self._made_ways = 0
        self.frankfurt = self._region("frankfurt", 2, "50.1,8.7")
        self.london = self._region("london", 3, "51.5,-0.1")
        self.oregon = self._region("oregon", 1, "45.6,-121.2")
        self.transceiver: TransceiverHost
        self.near_signaling: TransceiverHost | None = None
        self._near_signaling = near_signaling
        self.backbones: list[Link] = []
        """Between frankfurt and the n-th relay of oregon."""
        self.ways: dict[str, Link] = {}
        """A client's link by its device."""
        self._seen: dict[tuple[str, str], Host] = {}

    @property
    def regions(self) -> list[Region]:
        """All."""
        return [self.frankfurt, self.london, self.oregon]

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.push(self._stack)
            self._make_networks()
            self._start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.started:
            process.kill()
        self._stack.close()

    def client(self, region: Region, profile: LinkProfile = NEAR) -> Host:
        """A host whose way into the world is a region's router (forward: from the client)."""
        namespace = Namespace()
        self._stack.callback(namespace.remove)
        host = Host(namespace, "", "", "", "", "")
        return self.connect(host, region, profile)

    def connect(self, host: Host, region: Region, profile: LinkProfile) -> Host:
        """The same host over one more way, which packets from the address there take; made once for each region."""
        made = self._seen.get((host.namespace.name, region.name))
        if made is not None:
            return made
        name, net = self._way()
        inside = LinkEnd(host.namespace.name, name, f"{net}.2/30")
        outside = LinkEnd(region.lab.router.name, name, f"{net}.1/30")
        self.ways[name] = self._enter(Link(inside, outside, forward=profile, seed=self._made_ways))
        seen = Host(host.namespace, f"{net}.2", "", f"{net}.1", "", name)
        table = str(100 + self._made_ways)
        seen.ip("rule", "add", "from", seen.address, "lookup", table)
        for where in (*([()] if not host.address else []), ("table", table)):
            seen.ip("route", "replace", "default", "via", seen.gateway, "dev", name, *where)
        for other in self.regions:
            if other is not region:
                other.route(seen.address, other.links[region.name])
        self._seen[host.namespace.name, region.name] = seen
        return seen

    def lead(self, at: Region, to: Region) -> None:
        """Make a router's clients reach a region's relay by the shared address."""
        if at is to:
            at.lab.lead(ANYCAST, to.relays[0].host)
        else:
            at.lab.ip("route", "replace", ANYCAST, "dev", at.links[to.name])

    # --- how it is made ---------------------------------------------------------------------------

    def _region(self, name: str, cluster: int, place: str) -> Region:
        lab = self._stack.enter_context(Lab(self._processes, self._directory))
        lab.shell("sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0",
                  "net.ipv4.conf.default.rp_filter=0")  # fmt: skip
        return Region(name, cluster, place, lab)

    def _enter(self, link: Link) -> Link:
        return self._stack.enter_context(link)

    def _way(self) -> tuple[str, str]:
        """A device's name and the first three bytes of its network; never the same again."""
        self._made_ways += 1
        return f"way{self._made_ways}", f"198.19.{100 + self._made_ways}"

    def _between(self, first: Region, second: Region, profile: LinkProfile) -> tuple[str, Link]:
        name, net = self._way()
        ends = (
            LinkEnd(region.lab.router.name, name, f"{net}.{number}/30")
            for number, region in enumerate((first, second), 1)
        )
        return name, self._enter(Link(*ends, forward=profile, seed=self._made_ways))

    def _make_networks(self) -> None:
        """Hosts, links and routes."""
        frankfurt, london, oregon = self.regions
        for region, count in ((frankfurt, 2), (london, 1), (oregon, 3)):
            for _ in range(count):
                region.host()
        north, first = self._between(frankfurt, oregon, BACKBONE)
        south, second = self._between(frankfurt, oregon, BACKBONE)
        self.backbones = [first, second]
        for one, other, device in (
            (frankfurt, oregon, north),
            (london, oregon, self._between(london, oregon, LONDON_BACKBONE)[0]),
            (frankfurt, london, self._between(frankfurt, london, NEIGHBOURS)[0]),
        ):
            one.links[other.name] = other.links[one.name] = device
        for region in self.regions:
            for other in self.regions:
                if other is not region:
                    for address in (other.public, *(host.address for host in other.hosts)):
                        region.route(address, region.links[other.name])
        second_relay = oregon.hosts[1].address
        frankfurt.route(second_relay, south)
        oregon.lab.ip("rule", "add", "from", second_relay, "lookup", _REPLIES_OF_THE_SECOND)
        oregon.route(frankfurt.hosts[0].address, south, "table", _REPLIES_OF_THE_SECOND)

    def _start(self) -> None:
        """All programs at once, then wait for each."""
        oregon = self.oregon
        key = self._directory / "backbone-key"
        key.write_text(secrets.token_hex(16) + "\n")
        targets = ",".join(f"{host.address}:{BACKBONE_PORT}" for host in oregon.hosts[:2])
        for entry in (self.frankfurt, self.london):
            self._relay(entry, entry.hosts[0], "--cluster-route", f"{oregon.cluster}={targets}")
        for host in oregon.hosts[:2]:
            backbone = f"{host.address}:{BACKBONE_PORT}"
            self._relay(oregon, host, "--backbone", backbone, "--backbone-allow", _ALL_HOSTS)
        self.transceiver = self._signaling(oregon, oregon.hosts[2])
        if self._near_signaling:
            self.near_signaling = self._signaling(self.frankfurt, self.frankfurt.hosts[1])
        for region in self.regions:
            for relay in region.relays:
                relay.wait_ready()
            region.lab.lead(region.public, region.relays[0].host)
            self.lead(region, region)
        for signaling in (self.transceiver, self.near_signaling):
            if signaling is not None:
                signaling.wait_ready()

    def _signaling(self, region: Region, host: Host) -> TransceiverHost:
        """Transceivers that name all entries; in frankfurt they are there for others alone."""
        arguments = ["--cluster", str(region.cluster), "--place", region.place]
        for entry in (self.frankfurt, self.london):
            arguments += ["--ingress", f"{entry.name}={entry.public}:{PORT}@{entry.place}"]
        if self._near_signaling:
            for name, text in (("secret", SECRET), ("api-keys", f"caller {BEARER}")):
                (self._directory / name).write_text(text + "\n")
            arguments += ["--auth-secret", str(self._directory / "secret")]
            arguments += ["--api-keys", str(self._directory / "api-keys")]
            for other, at, weight in ((self.oregon, 2, 1), (self.frankfurt, 1, 0)):
                url = f"http://{other.hosts[at].address}:{HTTP_PORT}"
                arguments += ["--cluster-peer", f"{other.cluster}={url}@{other.place},{weight}"]
        return TransceiverHost(
            region.lab, *arguments, host=host, ready=False,
            ingress=f"oregon={self.oregon.public}:{PORT}@{self.oregon.place}",
            bearer=BEARER if self._near_signaling else ANY_BEARER,
        )  # fmt: skip

    def _relay(self, region: Region, host: Host, *arguments: str) -> None:
        listen = tuple(f"{address}:{PORT}" for address in (ANYCAST, region.public))
        cluster = ("--cluster", str(region.cluster))
        key = ("--backbone-key", str(self._directory / "backbone-key"))
        region.relays.append(
            RelayHost(
                region.lab,
                *cluster,
                *key,
                *arguments,
                host=host,
                listen=listen,
                workers=1,
                ready=False,
            )
        )
