"""Programs that a test starts: their log in a file, their readiness read from it, their end by pid.

1. Output goes to a file, so that no pipe fills up and a failing test can show it.
2. Readiness is an event in the JSON log (`listening`), never a sleep and never a fixed port.
3. A program leads a session of its own; `stop` signals the program, and what is left of its
   session afterwards is killed, so a failing test leaves nothing behind.
4. A port that a program has to be told is reserved for it as long as the test lasts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGKILL, SIGSTOP, SIGTERM, Signals
from types import TracebackType
from typing import Any

Event = dict[str, Any]

OF_A_SERVICE = ("NOTIFY_SOCKET", "RUNTIME_DIRECTORY")
"""What systemd tells a program; where it runs the tests, it does not mean theirs."""
READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_POLL_S = 0.01
_LOG_TAIL_BYTES = 20_000


class ProcessError(AssertionError):
    """A started program ended too early or never logged what the test waits for."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without the programs' own variables, plus `extra`."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RELAY_", "TRANSCEIVER_")) and name not in OF_A_SERVICE
    }
    env["PYTHONUNBUFFERED"] = "1"
    env.update(extra or {})
    return env


def session_members(session: int) -> list[int]:
    """The processes of a session, whatever process group they are in; zombies are left out."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    members.append(int(entry.name))
    return members


class Process:
    """One started program."""

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log_path = log
        self.argv = [os.fspath(arg) for arg in argv]
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(env),
                cwd=cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The program's process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, None while it runs, -N after signal N."""
        return self._popen.poll()

    def output(self) -> str:
        """Everything the program has printed so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def events(self, name: str | None = None, **fields: Any) -> list[Event]:
        """The JSON log lines so far whose event is `name` and whose fields have these values."""
        found = []
        for line in self.output().splitlines():
            if not line.startswith("{"):
                continue
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if (name is None or event.get("event") == name) and all(
                    event.get(key) == value for key, value in fields.items()
                ):
                    found.append(event)
        return found

    def wait_events(
        self, name: str, *, count: int = 1, timeout_s: float = READY_TIMEOUT_S, **fields: Any
    ) -> list[Event]:
        """Wait until `count` such events are in the log.

        Raises ProcessError with the log's end when the program ends or the time passes first.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.returncode is not None
            found = self.events(name, **fields)
            if len(found) >= count:
                return found
            if ended or time.monotonic() > deadline:
                why = f"ended with status {self.returncode}" if ended else f"{timeout_s} s passed"
                raise ProcessError(
                    f"{why}, with {len(found)} of {count} events {name!r} {fields}\n{self.tail()}"
                )
            time.sleep(_POLL_S)

    def wait_event(self, name: str, *, timeout_s: float = READY_TIMEOUT_S, **fields: Any) -> Event:
        """Wait for the first such event; errors as in `wait_events`."""
        return self.wait_events(name, timeout_s=timeout_s, **fields)[0]

    def listening(
        self, role: str, *, count: int = 1, timeout_s: float = READY_TIMEOUT_S
    ) -> list[str]:
        """The addresses ("HOST:PORT") that the program says it has bound for `role`."""
        events = self.wait_events("listening", count=count, timeout_s=timeout_s, role=role)
        return [event["address"] for event in events]

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for the program's end; ProcessError when it does not come."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"still running after {timeout_s} s\n{self.tail()}") from None

    def signal(self, signum: Signals) -> None:
        """Signal the program itself."""
        self._popen.send_signal(signum)

    def stop(self, signum: Signals = SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Signal the program, wait for its end, and return its exit status."""
        if self.returncode is None:
            self._popen.send_signal(signum)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """End the program and whatever is left of its session, at once: none lives to see another die, and
        afterwards nobody has its ports.
        """
        self._signal_all(SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while members := self._signal_all(SIGKILL):
            self._popen.poll()
            if time.monotonic() > deadline:
                raise ProcessError(f"{members} outlive SIGKILL\n{self.tail()}")
            time.sleep(0.001)
        self._popen.wait()

    def _signal_all(self, signum: Signals) -> list[int]:
        """Signal each process of the session; those that were there."""
        members = session_members(self._popen.pid)
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signum)
        return members

    def tail(self) -> str:
        """The end of the log, headed by the command line."""
        text = self.output()[-_LOG_TAIL_BYTES:]
        return f"--- {' '.join(self.argv)} (pid {self.pid}, status {self.returncode}) ---\n{text}"


class Processes:
    """The programs of one test (or of one fixture), ended together.

    A context manager; its exit stops every program in reverse order of their start.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[Process] = []
        self._reserved: list[socket.socket] = []

    def start(
        self,
        *argv: str | os.PathLike[str],
        name: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Process:
        """Start a program; its log is a file named after it in the directory."""
        name = name or Path(argv[0]).name
        log = self.directory / f"{len(self.started)}-{name}.log"
        process = Process(argv, log=log, env=env, cwd=cwd)
        self.started.append(process)
        return process

    def relay(
        self,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start `python -m relay` with these arguments, e.g. in a namespace named by `prefix`."""
        return self.start(*prefix, sys.executable, "-m", "relay", *arguments, name="relay", env=env)

    def transceiver(
        self,
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> Process:
        """Start `python -m transceiver` with these arguments."""
        return self.start(
            *prefix, sys.executable, "-m", "transceiver", *arguments, name="transceiver", env=env
        )

    def reserve_port(self) -> int:
        """A TCP port of 127.0.0.1 that refuses connections until a program is told to listen there.

        It stays bound here, so that the kernel gives it to nobody who did not ask for it by its number; who
        does so with SO_REUSEADDR, as every server here, can listen there, end, and come back.
        """
        held = socket.socket()
        self._reserved.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port

    def stop_all(self) -> None:
        """Stop every program: SIGTERM and patience first, then the whole session."""
        for process in reversed(self.started):
            try:
                process.stop(timeout_s=10.0)
            except ProcessError:
                pass
            finally:
                process.kill()

    def report(self) -> str:
        """The ends of all logs, for a failing test."""
        return "\n".join(process.tail() for process in self.started)

    def __enter__(self) -> Processes:
        """Nothing to do; see `stop_all`."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop every program, and give the reserved ports back."""
        self.stop_all()
        for held in self._reserved:
            held.close()
