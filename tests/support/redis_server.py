"""A redis-server of a test's own: on a free port, in memory, with the faults that an operator meets."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import redis

from tests.support.process import Process, Processes

PASSWORD = "c0rrect-h0rse"
START_LIMIT_S = 20.0


def missing_for_redis() -> str | None:
    """Why no redis-server can be started; None when one can."""
    if shutil.which("redis-server") is None:
        return "redis-server is missing (Debian's redis-server)"
    return None


class RedisServer:
    """Starts when it is made, unless told otherwise."""

    def __init__(
        self, processes: Processes, directory: Path, *arguments: str, started: bool = True
    ) -> None:
        self._processes = processes
        self._directory = directory
        self._arguments = arguments
        self._process: Process | None = None
        self.port = processes.reserve_port()
        if started:
            self.start()

    @property
    def url(self) -> str:
        """With the password."""
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}"

    def client(self) -> redis.Redis:
        """A connection of the test's own."""
        return redis.Redis(port=self.port, password=PASSWORD, socket_timeout=5, protocol=2)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = self._processes.start(
            *("redis-server", "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no", "--dir", str(self._directory)),
            *("--requirepass", PASSWORD, *self._arguments),
        )
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                if client.ping():
                    return
            assert time.monotonic() < deadline, self._process.tail()
            time.sleep(0.02)

    def kill(self) -> None:
        """As a crash: nothing is said to its clients."""
        assert self._process is not None
        self._process.kill()

    def pause(self) -> None:
        """It accepts and never answers."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """It answers again, also what has waited."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)
