"""The programs of a demo: started as an operator would start them, known by what they log, ended with it.

1. No program outlives the demo: the kernel ends it when the demo dies, even by SIGKILL.
2. A program that ends by itself is an error of the demo (StartError), whatever the demo waits for then.
3. What they keep for their life only lies in the demo's folder, which goes with it however they end.
4. They are ended in the reverse order of their kinds' start: transceivers before relays, so that calls end while
   their packets still flow.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import click

from relay.addresses import HostPort, parse_endpoint
from relay.errors import StartError
from relay.wire.log import Logger

END_LIMIT_S = 5.0
_PR_SET_PDEATHSIG = 1
_OWN_VARIABLES = ("RELAY_", "TRANSCEIVER_")
_BACKEND_KEY = "TRANSCEIVER_BACKEND_KEY"

T = TypeVar("T")


@dataclass
class Program:
    """A child and what it has said."""

    kind: str
    """`relay` or `transceiver`."""
    where: str
    """Its region; empty when there is one."""
    process: asyncio.subprocess.Process
    listening: dict[str, HostPort] = field(default_factory=dict)
    """Role to the first address that was logged for it."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def name(self) -> str:
        """For people and logs."""
        return f"{self.kind} {self.where}".rstrip()

    def end(self) -> StartError:
        """How it ended, as an error."""
        status = self.process.returncode
        how = f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        where = f" ({self.where})" if self.where else ""
        return StartError(f"{self.kind} serve{where} {how}")


class Programs:
    """All of them."""

    def __init__(self, folder: Path, log_level: str, log: Logger) -> None:
        self._folder = folder
        self._log_level = log_level
        self._log = log
        self._all: list[Program] = []
        self._readers: set[asyncio.Task[None]] = set()

    async def start(self, kind: str, where: str, arguments: Sequence[str]) -> Program:
        """`KIND serve ARGUMENTS`."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if name == _BACKEND_KEY or not name.startswith(_OWN_VARIABLES)
        }
        environment["TMPDIR"] = str(self._folder)
        logs = ["--log-level", self._log_level, "--log-format", "json"]
        if self._log_level in ("warning", "error"):
            logs[1] = "info"  # the demo itself needs the event `listening`
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", kind, "serve", *arguments, *logs),
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,  # a Ctrl-C is the demo's to pass on
            preexec_fn=_end_with_parent,
        )
        program = Program(kind, where, process)
        self._all.append(program)
        reader = asyncio.create_task(self._read_log(program))
        self._readers.add(reader)
        return program

    async def heard(self, program: Program, role: str) -> HostPort:
        """The address that it has bound for `role`. Raises StartError when it ends first."""
        while role not in program.listening:
            program.heard.clear()
            await self._unless_ended(program, program.heard.wait())
        return program.listening[role]

    async def ready(self, program: Program, where: HostPort, certificate: Path | None) -> None:
        """Until its GET /readyz at `where` answers 200. Raises StartError when it ends first."""
        while not await self._unless_ended(program, _is_ready(where, certificate)):
            await self._unless_ended(program, asyncio.sleep(0.05))

    async def any_end(self) -> None:
        """Wait for one that ends by itself, and raise StartError."""
        waits = {asyncio.create_task(one.process.wait()): one for one in self._all}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        raise waits[done.pop()].end()

    def kill(self) -> None:
        """All at once."""
        for program in self._all:
            with contextlib.suppress(ProcessLookupError):
                program.process.kill()

    async def end(self) -> None:
        """Kind by kind (rule 4), with END_LIMIT_S for each kind; what a killed one had started ends, too."""
        for kind in dict.fromkeys(program.kind for program in reversed(self._all)):
            await asyncio.gather(*(self._end(one) for one in self._all if one.kind == kind))
        if self._readers:
            await asyncio.wait(self._readers, timeout=END_LIMIT_S)

    async def _end(self, program: Program) -> None:
        with contextlib.suppress(ProcessLookupError):
            program.process.terminate()
        try:
            async with asyncio.timeout(END_LIMIT_S):
                await program.process.wait()
        except TimeoutError:
            self._log.warning("killed", program=program.name, after_s=END_LIMIT_S)
            program.process.kill()
            await program.process.wait()

    async def _read_log(self, program: Program) -> None:
        assert program.process.stderr is not None
        while True:
            try:
                line = await program.process.stderr.readline()
            except ValueError:  # longer than the reader's limit: only the end of it is shown
                continue
            if not line:
                return
            try:
                entry = dict(json.loads(line))
            except (TypeError, ValueError):  # not from the log: a traceback, or a refusal to start
                text = line.decode(errors="replace").rstrip()
                named = text.startswith(f"{program.kind}: ")
                click.echo(text if named else f"{program.kind}: {text}", err=True)
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

    async def _unless_ended(self, program: Program, wanted: Awaitable[T]) -> T:
        waiting = asyncio.ensure_future(wanted)
        ended = asyncio.ensure_future(program.process.wait())
        try:
            await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            await asyncio.sleep(0.1)  # let its last words be read
            raise program.end()
        finally:
            waiting.cancel()
            ended.cancel()


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


def _end_with_parent() -> None:
    """In a child: SIGTERM when the demo dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
