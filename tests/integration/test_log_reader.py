"""Whoever reads the log is gone, or hangs with a full pipe: the programs go on and end as ever."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.wire.keyring import generate_line
from tests.support.offers import CHROMIUM
from tests.support.process import clean_environment, session_members
from tests.support.relayed import wait_until

START_TIMEOUT_S = 60.0
HTTP_TIMEOUT_S = 10.0
FAULTS = ("gone", "hangs")


@dataclass
class Logged:
    """A program whose log is a pipe."""

    process: subprocess.Popen[bytes]
    read_fd: int
    write_fd: int
    http: str
    """The origin of its HTTP."""

    def lose_reader(self, fault: str) -> None:
        """From now on nobody reads."""
        if fault == "gone":
            self.close()
            return
        # A descriptor of our own, so that the program's stays a blocking one.
        ours = os.open(f"/proc/self/fd/{self.write_fd}", os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(ours, b"\n" * 4096)
        os.close(ours)

    def close(self) -> None:
        """Close what is open of the pipe."""
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self.read_fd = self.write_fd = -1

    def get(self, path: str) -> int:
        """The status of a GET."""
        with urllib.request.urlopen(self.http + path, timeout=HTTP_TIMEOUT_S) as response:
            return int(response.status)

    def kill_children(self) -> None:
        """A reason to log."""
        for pid in session_members(self.process.pid):
            if pid != self.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextlib.contextmanager
def logged(role: str, *arguments: str) -> Iterator[Logged]:
    """Start it, and wait until it says where its `role` listens."""
    read_fd, write_fd = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments, "--log-format=json"],
        stdin=subprocess.DEVNULL,
        stdout=write_fd,
        stderr=write_fd,
        env=clean_environment(),
        start_new_session=True,
    )
    program = Logged(process, read_fd, write_fd, "")
    try:
        output = b""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not program.http:
            assert process.poll() is None, output
            assert time.monotonic() < deadline, output
            output += os.read(read_fd, 65536)
            for line in output.decode().splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("role") == role:
                        program.http = f"http://{event['address']}"
        yield program
    finally:
        for pid in session_members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        program.close()


def is_up(program: Logged, path: str) -> bool:
    with contextlib.suppress(OSError):
        return program.get(path) == 200
    return False


@pytest.mark.parametrize("fault", FAULTS)
def test_the_relay_goes_on(tmp_path: Path, fault: str) -> None:
    keyring = tmp_path / "keyring"
    keyring.write_text(generate_line() + "\n")
    with logged(
        "admin", "relay", "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0",
        "--workers=2", f"--keyring={keyring}", "--allow-transceiver=127.0.0.0/8",
        f"--run-dir={tmp_path / 'run'}", "--admin=127.0.0.1:0", "--drain-timeout=0",
    ) as relay:  # fmt: skip
        wait_until(lambda: is_up(relay, "/readyz"), "ready")
        relay.lose_reader(fault)
        relay.kill_children()
        time.sleep(0.5)
        wait_until(lambda: is_up(relay, "/readyz"), "ready again")
        assert relay.stop() == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_the_transceiver_takes_calls(fault: str) -> None:
    with logged(
        "http", "transceiver", "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0",
        "--workers=1", "--direct", "--drain-timeout=0",
    ) as transceiver:  # fmt: skip
        wait_until(lambda: is_up(transceiver, "/readyz"), "ready")
        transceiver.lose_reader(fault)
        offer = urllib.request.Request(
            f"{transceiver.http}/v1/realtime/calls",
            data=CHROMIUM.encode(),
            headers={"Content-Type": "application/sdp"},
        )
        with urllib.request.urlopen(offer, timeout=HTTP_TIMEOUT_S) as response:
            assert response.status == 201
        transceiver.kill_children()
        time.sleep(0.5)
        wait_until(lambda: is_up(transceiver, "/readyz"), "ready again")
        assert transceiver.stop() == 0
