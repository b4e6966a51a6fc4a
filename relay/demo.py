"""`relay demo`: relay, transceivers and the demo page on this machine, by one command.

1. Everything is the real thing, started as an operator would: `relay serve`, `transceiver serve`, a
   fresh keyring. Nothing outlives the demo: files lie in a temporary folder, children end with it.
2. The one line with the page's URL appears when both programs say that they are ready.
3. When a child ends by itself the demo says so, ends the other and exits with status 1.
4. It is for trying out: whoever reaches the page may talk. Only `--public-address` lets others in.
"""

import asyncio
import contextlib
import ctypes
import ipaddress
import json
import os
import signal
import socket
import ssl
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import click

from relay.addresses import HostPort, IPAddress, parse_endpoint
from relay.certificate import write_self_signed
from relay.errors import ConfigError, StartError
from relay.log import LogFormat, Logger, configure, get_logger
from relay.wire.keyring import generate_line

DEFAULT_UDP_PORT = 3478
DEFAULT_HTTP_PORT = 8080
START_LIMIT_S = 60.0
END_LIMIT_S = 5.0
_PR_SET_PDEATHSIG = 1
_OWN_VARIABLES = ("RELAY_", "TRANSCEIVER_")
_BACKEND_KEY = "TRANSCEIVER_BACKEND_KEY"
BUILT_IN_BACKENDS = ("loopback", "echo")
"""What the page offers besides --backend; without one, a visitor hears himself at once."""


@dataclass(frozen=True)
class DemoConfig:
    """What the demo starts."""

    workers: int
    transceivers: int
    http: HostPort
    listen: HostPort
    admin: HostPort
    public_address: IPAddress | None
    backends: tuple[str, ...]
    """Who may answer, the default first."""
    log_level: str
    log_format: LogFormat


def run_demo(
    *,
    workers: int,
    transceivers: int,
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
    config = DemoConfig(
        workers=workers,
        transceivers=transceivers,
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
class _Program:
    """A child and what it has said."""

    name: str
    process: asyncio.subprocess.Process
    listening: dict[str, HostPort] = field(default_factory=dict)
    """Role to the first address that was logged for it."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)


class _Demo:
    def __init__(self, config: DemoConfig, folder: Path, log: Logger) -> None:
        self._config = config
        self._folder = folder
        self._log = log
        self._programs: list[_Program] = []
        self._readers: set[asyncio.Task[None]] = set()
        self._certificate: Path | None = None
        self._signals = 0
        self._ending = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
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
            await self._end_programs()

    async def _serve(self) -> None:
        relay = await self._start("relay", self._relay_arguments())
        async with asyncio.timeout(START_LIMIT_S) as limit:
            try:
                entry = await self._heard(relay, "public")
                admin = await self._heard(relay, "admin")
                transceiver = await self._start("transceiver", self._transceiver_arguments(entry))
                page = await self._heard(transceiver, "http")
                await self._ready(relay, admin, None)
                await self._ready(transceiver, page, self._certificate)
            except TimeoutError:
                raise StartError(f"not ready within {START_LIMIT_S:.0f} s") from None
            limit.reschedule(None)
            click.echo(
                f"The demo is ready: open {self._url(page)}  (relay at {entry} over UDP, "
                f"{self._config.workers} workers, {self._config.transceivers} transceivers; "
                "Ctrl-C ends it)"
            )
            await self._any_end()

    # --- what is started ------------------------------------------------------------------------

    def _relay_arguments(self) -> list[str]:
        config = self._config
        keyring = self._folder / "keyring"
        keyring.touch(mode=0o600)
        keyring.write_text(generate_line() + "\n")
        listen = str(config.listen)
        if config.public_address is not None:
            listen += f"={HostPort(config.public_address, config.listen.port)}"
        return [
            *("--listen", listen),
            *("--workers", str(config.workers)),
            *("--keyring", str(keyring)),
            *("--internal", "127.0.0.1:0"),
            *("--allow-transceiver", "127.0.0.1/32"),
            *("--admin", str(config.admin)),
            *("--run-dir", str(self._folder / "run")),
            *("--drain-timeout", "0"),
        ]

    def _transceiver_arguments(self, entry: HostPort) -> list[str]:
        config = self._config
        arguments = [
            *("--http", str(config.http)),
            *("--media", "127.0.0.1:0"),
            *("--workers", str(config.transceivers)),
            *("--cluster", "0"),
            *("--keyring", str(self._folder / "keyring")),
            *("--ingress", f"demo={entry}"),
            *(word for backend in config.backends for word in ("--backend", backend)),
            *("--drain-timeout", "0"),
            "--demo-page",
        ]
        if not config.http.ip.is_loopback:
            arguments.append("--insecure-open")
        if config.public_address is not None:
            self._certificate = self._folder / "certificate.pem"
            key = self._folder / "key.pem"
            write_self_signed(self._certificate, key, config.public_address)
            arguments += ["--tls-cert", str(self._certificate), "--tls-key", str(key)]
        return arguments

    async def _start(self, name: str, arguments: list[str]) -> _Program:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name == _BACKEND_KEY or not name.startswith(_OWN_VARIABLES)
        }
        logs = ["--log-level", self._config.log_level, "--log-format", "json"]
        if self._config.log_level in ("warning", "error"):
            logs[1] = "info"  # the demo itself needs the event `listening`
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", name, "serve", *arguments, *logs),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,  # a Ctrl-C is the demo's to pass on
            preexec_fn=_end_with_parent,
        )
        program = _Program(name, process)
        self._programs.append(program)
        reader = asyncio.create_task(self._read_log(program))
        self._readers.add(reader)
        return program

    # --- what is heard --------------------------------------------------------------------------

    async def _read_log(self, program: _Program) -> None:
        assert program.process.stderr is not None
        while line := await program.process.stderr.readline():
            try:
                entry = dict(json.loads(line))
            except ValueError:  # not from the log: a traceback, or a refusal to start
                text = line.decode(errors="replace").rstrip()
                named = text.startswith(f"{program.name}: ")
                click.echo(text if named else f"{program.name}: {text}", err=True)
                continue
            event = str(entry.pop("event", ""))
            level = str(entry.pop("level", "info"))
            entry.pop("timestamp", None)
            if event == "listening":
                role = str(entry.get("role"))
                address = str(entry.get("public") or entry.get("address"))
                program.listening.setdefault(role, parse_endpoint(role, address))
                program.heard.set()
            getattr(self._log, level, self._log.info)(event, program=program.name, **entry)

    async def _heard(self, program: _Program, role: str) -> HostPort:
        """The address that a child has bound for `role`; fails when it ends first."""
        while role not in program.listening:
            program.heard.clear()
            await self._unless_ended(program, program.heard.wait())
        return program.listening[role]

    async def _ready(self, program: _Program, where: HostPort, certificate: Path | None) -> None:
        while not await self._unless_ended(program, _is_ready(where, certificate)):
            await self._unless_ended(program, asyncio.sleep(0.05))

    async def _unless_ended(self, program: _Program, wanted: object) -> object:
        waiting = asyncio.ensure_future(wanted)  # type: ignore[call-overload]
        ended = asyncio.ensure_future(program.process.wait())
        try:
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            await asyncio.sleep(0.1)  # let its last words be read
            raise StartError(f"{program.name} serve {_how_ended(program.process)}")
        finally:
            waiting.cancel()
            ended.cancel()

    async def _any_end(self) -> None:
        """Wait for a child that ends by itself, and raise StartError."""
        waits = {asyncio.create_task(one.process.wait()): one for one in self._programs}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        program = waits[done.pop()]
        raise StartError(f"{program.name} serve {_how_ended(program.process)}")

    # --- the end --------------------------------------------------------------------------------

    def _on_signal(self) -> None:
        self._signals += 1
        self._ending.set()
        if self._signals > 1:
            for program in self._programs:
                with contextlib.suppress(ProcessLookupError):
                    program.process.kill()

    async def _end_programs(self) -> None:
        """Transceivers first, so that calls end while their packets still flow."""
        for program in reversed(self._programs):
            with contextlib.suppress(ProcessLookupError):
                program.process.terminate()
            try:
                async with asyncio.timeout(END_LIMIT_S):
                    await program.process.wait()
            except TimeoutError:
                self._log.warning("killed", program=program.name, after_s=END_LIMIT_S)
                program.process.kill()
                await program.process.wait()
        if self._readers:
            await asyncio.wait(self._readers, timeout=1.0)

    def _url(self, page: HostPort) -> str:
        public = self._config.public_address
        if public is not None:
            return f"https://{HostPort(public, page.port)}"
        if page.ip.is_unspecified or page.ip == ipaddress.ip_address("127.0.0.1"):
            return f"http://localhost:{page.port}"
        return f"http://{page}"


async def _is_ready(where: HostPort, certificate: Path | None) -> bool:
    """Whether GET /readyz answers 200."""
    host = str(where.ip)
    if where.ip.is_unspecified:
        host = "::1" if where.ip.version == 6 else "127.0.0.1"
    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    try:
        reader, writer = await asyncio.open_connection(
            host, where.port, ssl=tls, server_hostname="localhost" if tls else None
        )
    except OSError:
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).split()[1:2] == [b"200"]
    except OSError:
        return False
    finally:
        writer.close()


def _how_ended(process: asyncio.subprocess.Process) -> str:
    status = process.returncode
    if status is not None and status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _end_with_parent() -> None:
    """In a child: SIGTERM when the demo dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
