"""`relay demo`: relay, transceivers and the demo page on this machine, by one command.

1. Everything is the real thing, started as an operator would: `relay serve`, `transceiver serve`, a
   fresh keyring. Nothing outlives the demo: files lie in a temporary folder, children end with it.
2. The one line with the page's URL, or one for each region, appears when all programs say that they are ready.
3. When a child ends by itself the demo says so, ends the others and exits with status 1.
4. It is for trying out: whoever reaches the page may talk. Only `--public-address` lets others in.
5. With several regions, each has a relay and transceivers of its own and a page whose calls live there.
"""

import asyncio
import contextlib
import ipaddress
import signal
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click

from relay.addresses import HostPort, IPAddress, parse_endpoint
from relay.certificate import write_self_signed
from relay.demo_programs import Program, Programs
from relay.demo_regions import Backbone, Region, regions
from relay.errors import ConfigError, StartError
from relay.wire.keyring import generate_line
from relay.wire.log import LogFormat, Logger, configure, get_logger

DEFAULT_UDP_PORT = 3478
DEFAULT_HTTP_PORT = 8080
START_LIMIT_S = 60.0
BUILT_IN_BACKENDS = ("loopback", "echo")
"""What the page offers besides --backend; without one, a visitor hears himself at once."""


@dataclass(frozen=True)
class DemoConfig:
    """What the demo starts."""

    regions: tuple[Region, ...]
    workers: int
    """Of each relay."""
    transceivers: int
    """Processes of each region."""
    http: HostPort
    """Of the first region, as are the next two; the others' ports follow."""
    listen: HostPort
    admin: HostPort
    public_address: IPAddress | None
    backends: tuple[str, ...]
    """Who may answer, the default first."""
    log_level: str
    log_format: LogFormat


def run_demo(
    *,
    regions_count: int,
    workers: int | None,
    transceivers: int | None,
    http: str | None,
    listen: str | None,
    admin: str,
    public_address: str | None,
    backend: str | None,
    log_level: str,
    log_format: LogFormat,
) -> int:
    """Run the demo until a signal; the exit status. Raises RelayError."""
    public = _parse_public("--public-address", public_address)
    own = HostPort(_own_address(), DEFAULT_UDP_PORT)
    if public is not None:
        wildcard = ipaddress.ip_address("::" if public.version == 6 else "0.0.0.0")
        own = HostPort(wildcard, DEFAULT_UDP_PORT)
    page = HostPort(ipaddress.ip_address("0.0.0.0" if public else "127.0.0.1"), DEFAULT_HTTP_PORT)
    default_count = 2 if regions_count == 1 else 1
    config = DemoConfig(
        regions=tuple(regions(regions_count)),
        workers=workers or default_count,
        transceivers=transceivers or default_count,
        http=parse_endpoint("--http", http) if http else page,
        listen=parse_endpoint("--listen", listen) if listen else own,
        admin=parse_endpoint("--admin", admin),
        public_address=public,
        backends=tuple(dict.fromkeys(filter(None, (backend, *BUILT_IN_BACKENDS)))),
        log_level=log_level,
        log_format=log_format,
    )
    if config.listen.ip.is_unspecified and public is None:
        raise ConfigError("--listen", config.listen, "a wildcard needs --public-address")
    configure(log_level, log_format)
    with tempfile.TemporaryDirectory(prefix="relay-demo-") as folder:
        return asyncio.run(_Demo(config, Path(folder), get_logger()).run())


def _own_address() -> IPAddress:
    """The source address of the default route, else 127.0.0.1; nothing is sent.

    Firefox never checks a candidate 127.0.0.1.
    """
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with (
            contextlib.suppress(OSError),
            socket.socket(family, socket.SOCK_DGRAM) as probe,
        ):
            probe.connect((target, 9))
            return ipaddress.ip_address(probe.getsockname()[0])
    return ipaddress.ip_address("127.0.0.1")


def _parse_public(option: str, text: str | None) -> IPAddress | None:
    if text is None:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(option, text, "not an IP address") from None
    if address.is_unspecified:
        raise ConfigError(option, text, "not an address that others can reach")
    return address


@dataclass
class _Site:
    """A region that is running, or about to."""

    region: Region
    relay: Program
    entry: HostPort
    """What clients are told."""
    page: HostPort | None = None


class _Demo:
    def __init__(self, config: DemoConfig, folder: Path, log: Logger) -> None:
        self._config = config
        self._folder = folder
        self._programs = Programs(folder, config.log_level, log)
        self._backbone = Backbone(config.regions)
        self._certificate: Path | None = None
        self._signals = 0
        self._ending = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else under nohup
            loop.add_signal_handler(signal.SIGHUP, self._on_signal)
        serving = asyncio.create_task(self._serve())
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
            return 0
        finally:
            serving.cancel()
            ending.cancel()
            await self._programs.end()
            self._backbone.close()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(START_LIMIT_S):
                sites = await self._start()
        except TimeoutError:
            raise StartError(f"not ready within {START_LIMIT_S:.0f} s") from None
        self._say(sites)
        await self._programs.any_end()

    def _on_signal(self) -> None:
        self._signals += 1
        self._ending.set()
        if self._signals > 1:
            self._programs.kill()

    # --- what is started ------------------------------------------------------------------------

    async def _start(self) -> list[_Site]:
        """Relays first: transceivers name the addresses of all."""
        keyring = self._folder / "keyring"
        keyring.touch(mode=0o600)
        keyring.write_text(generate_line() + "\n")
        await self._backbone.open()
        names = [
            region.name if len(self._config.regions) > 1 else "" for region in self._config.regions
        ]
        relays = [
            await self._programs.start("relay", name, self._relay_arguments(index))
            for index, name in enumerate(names)
        ]
        sites = []
        for region, relay in zip(self._config.regions, relays, strict=True):
            sites.append(_Site(region, relay, await self._programs.heard(relay, "public")))
            if len(relays) > 1:
                self._backbone.lead(region, await self._programs.heard(relay, "backbone"))
        self._make_certificate()
        pools = [
            await self._programs.start(
                "transceiver", name, self._transceiver_arguments(index, sites)
            )
            for index, name in enumerate(names)
        ]
        for site, pool in zip(sites, pools, strict=True):
            admin = await self._programs.heard(site.relay, "admin")
            await self._programs.ready(site.relay, admin, None)
            site.page = await self._programs.heard(pool, "http")
            await self._programs.ready(pool, site.page, self._certificate)
        return sites

    def _relay_arguments(self, index: int) -> list[str]:
        config = self._config
        region = config.regions[index]
        at = _nth(config.listen, index)
        listen = str(at)
        if config.public_address is not None:
            listen += f"={HostPort(config.public_address, at.port)}"
        arguments = [
            *("--listen", listen),
            *("--workers", str(config.workers)),
            *("--cluster", str(region.cluster)),
            *("--keyring", str(self._folder / "keyring")),
            *("--internal", "127.0.0.1:0"),
            *("--allow-transceiver", "127.0.0.1/32"),
            *("--admin", str(_nth(config.admin, index))),
            *("--run-dir", str(self._folder / f"run-{region.name}")),
            *("--drain-timeout", "0"),
        ]
        if len(config.regions) > 1:
            arguments += ["--backbone", "127.0.0.1:0", "--backbone-allow", "127.0.0.1/32"]
            arguments += self._backbone.routes(region)
        return arguments

    def _transceiver_arguments(self, index: int, sites: list[_Site]) -> list[str]:
        config = self._config
        region = config.regions[index]
        several = len(sites) > 1
        arguments = [
            *("--http", str(_nth(config.http, index))),
            *("--media", "127.0.0.1:0"),
            *("--workers", str(config.transceivers)),
            *("--cluster", str(region.cluster)),
            *("--keyring", str(self._folder / "keyring")),
            *(word for backend in config.backends for word in ("--backend", backend)),
            *("--drain-timeout", "0"),
            "--demo-page",
        ]
        for site in sites:
            where = f"@{site.region.place}" if several else ""
            arguments += ["--ingress", f"{site.region.name}={site.entry}{where}"]
        if several:
            arguments += ["--place", region.place]
        if not config.http.ip.is_loopback:
            arguments.append("--insecure-open")
        if self._certificate is not None:
            key = self._folder / "key.pem"
            arguments += ["--tls-cert", str(self._certificate), "--tls-key", str(key)]
        return arguments

    def _make_certificate(self) -> None:
        if self._config.public_address is not None:
            self._certificate = self._folder / "certificate.pem"
            key = self._folder / "key.pem"
            write_self_signed(self._certificate, key, self._config.public_address)

    # --- what is said ---------------------------------------------------------------------------

    def _say(self, sites: list[_Site]) -> None:
        workers, transceivers = self._config.workers, self._config.transceivers
        if len(sites) == 1:
            click.echo(
                f"The demo is ready: open {self._url(sites[0])}  (relay at {sites[0].entry} over UDP, "
                f"{workers} workers, {transceivers} transceivers; Ctrl-C ends it)"
            )
            return
        lines = [
            f"The demo is ready: {len(sites)} regions, Ctrl-C ends them. Calls live where their page is:"
        ]
        first = sites[0].region
        for site in sites:
            far = f", {first.delay_ms(site.region):.0f} ms by backbone from {first.name} each way"
            lines.append(
                f"  {site.region.name}: open {self._url(site)}  (relay at {site.entry} over UDP, "
                f"cluster {site.region.cluster}{'' if site is sites[0] else far})"
            )
        click.echo("\n".join(lines))

    def _url(self, site: _Site) -> str:
        page, public = site.page, self._config.public_address
        assert page is not None
        if public is not None:
            return f"https://{HostPort(public, page.port)}"
        if page.ip.is_unspecified or page.ip == ipaddress.ip_address("127.0.0.1"):
            return f"http://localhost:{page.port}"
        return f"http://{page}"


def _nth(first: HostPort, index: int) -> HostPort:
    """The same address and a port further on; port 0 stays."""
    return HostPort(first.ip, first.port + index if first.port else 0)
