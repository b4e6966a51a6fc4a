"""A running relay passes to a successor: nothing is lost, and a successor that fails changes nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import relay as relay_package
from tests.support import deny
from tests.support.process import Processes
from tests.support.relayed import (
    Client,
    Relay,
    Transceiver,
    check_both_ways,
    is_running,
    wait_until,
)
from tests.support.stream import Stream

RATE_PER_S = 2_000


def other_version(directory: Path, file: str, old: str, new: str) -> Path:
    """A copy of the package in which one text differs, as a new version on disk; where to start it."""
    source = Path(relay_package.__file__).parent
    copy = directory / "version" / "relay"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    return copy.parent


def test_a_takeover_under_traffic_loses_nothing(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    before = first.metrics()
    with Stream(client, first.public[0], transceiver, RATE_PER_S) as stream:
        second = Relay(processes, tmp_path, "--takeover")
        assert first.process.wait() == 0
    outcome = stream.outcome
    assert (outcome.lost, outcome.duplicates) == (0, 0)
    assert second.public == first.public
    assert second.internal == first.internal
    check_both_ways(second, client, transceiver)
    after = second.metrics()
    assert after['relay_flows{state="established"}'] == 1
    assert after['relay_rx_packets_total{side="public"}'] >= outcome.sent
    assert after["relay_worker_restarts_total"] == before["relay_worker_restarts_total"] == 0
    third = Relay(processes, tmp_path, "--takeover", "--busy-poll-us", "50")
    assert second.process.wait() == 0
    check_both_ways(third, client, transceiver)


def set_up(client: Client, ufrag: str, relay: tuple[str, int], transceiver: Transceiver) -> bool:
    """A check, sent again every 100 ms as ICE does (RFC 8445 14.3), until its success is back.

    A check that one worker forwarded and whose success the next one gets is unknown to that.
    """
    for _ in range(50):
        client.check(ufrag, relay)
        while transceiver.is_heard_within(0.05):
            transceiver.answer()
        if client.is_heard_within(0.05):
            return client.receive()[1] == relay
    return False


def test_e03_every_setup_succeeds_during_takeovers(
    processes: Processes, tmp_path: Path, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path)
    public = relay.public[0]
    ufrag = transceiver.ufrag(relay.keyring)
    stop = threading.Event()
    setups: list[bool] = []

    def set_up_many() -> None:
        while not stop.is_set():
            with Client() as client:
                setups.append(set_up(client, ufrag, public, transceiver))

    # 16 established flow keys are the cap of one token: each set-up has its own.
    limits = ("--limit", "token-established-flows=100000", "--limit", "token-new-flows-per-s=1000")
    relay.process.stop()
    relay = Relay(processes, tmp_path, *limits, listen=(f"127.0.0.1:{public[1]}",))
    thread = threading.Thread(target=set_up_many)
    thread.start()
    try:
        takeovers = 0
        while takeovers < 4 or len(setups) <= 20:
            successor = Relay(processes, tmp_path, "--takeover", *limits)
            assert relay.process.wait() == 0
            relay = successor
            takeovers += 1
    finally:
        stop.set()
        thread.join()
    assert len(setups) > 20
    assert all(setups)


def test_another_number_of_workers_is_refused(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    second = Relay(processes, tmp_path, "--takeover", workers=3, ready=False)
    assert second.process.wait() == 1
    line = second.process.output().strip().splitlines()[-1]
    assert "--workers 3: the running relay has 2" in line
    assert "restart" in line
    check_both_ways(first, client, transceiver)
    assert first.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    ("listen", "named"),
    [
        (("127.0.0.1:1",), "--listen 127.0.0.1:1"),
        (("127.0.0.1:0=192.0.2.1:1",), "--listen 127.0.0.1:0"),
        (("127.0.0.1:0", "127.0.0.2:0"), "--listen 127.0.0.2:0"),
    ],
)
def test_another_public_address_is_refused(
    processes: Processes, tmp_path: Path, listen: tuple[str, ...], named: str
) -> None:
    first = Relay(processes, tmp_path)
    second = Relay(processes, tmp_path, "--takeover", listen=listen, ready=False)
    assert second.process.wait() == 1
    assert named in second.process.output()
    assert first.get("/readyz")[0] == 200


@pytest.mark.skipif(deny.why_not() is not None, reason=str(deny.why_not()))
def test_a_family_that_the_host_lacks_is_no_difference(
    processes: Processes, tmp_path: Path
) -> None:
    prefix = (sys.executable, "-m", "tests.support.deny", "socket=10:EAFNOSUPPORT", "--")
    first = Relay(processes, tmp_path, listen=("*:0",), prefix=prefix)
    second = Relay(processes, tmp_path, "--takeover", listen=("*:0",), prefix=prefix)
    assert first.process.wait() == 0
    assert second.public == first.public


def test_nothing_to_take_over(processes: Processes, tmp_path: Path) -> None:
    second = Relay(processes, tmp_path, "--takeover", ready=False)
    assert second.process.wait() == 1
    assert "no relay to take over" in second.process.output()


def test_a_version_whose_self_check_fails_takes_nothing(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    broken = other_version(
        tmp_path, "worker.py", "Table(slot", 'raise RuntimeError("no"); Table(slot'
    )
    with Stream(client, first.public[0], transceiver, RATE_PER_S) as stream:
        second = Relay(processes, tmp_path, "--takeover", cwd=broken, ready=False)
        assert second.process.wait() == 1
    assert stream.outcome.lost == 0
    assert first.process.wait_event("handover_aborted")["released"] == []
    assert len(first.process.events("worker_serving")) == 2
    check_both_ways(first, client, transceiver)


def test_a_version_that_dies_in_the_middle_gives_back_what_it_took(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    broken = other_version(
        tmp_path, "worker.py", "    own = about", "    1 / (1 - slot)\n    own = about"
    )
    with Stream(client, first.public[0], transceiver, RATE_PER_S) as stream:
        second = Relay(processes, tmp_path, "--takeover", cwd=broken, ready=False)
        assert second.process.wait() == 1
        assert first.process.wait_event("handover_aborted")["released"] == [0, 1]
        first.process.wait_events("worker_serving", count=4)
    assert (stream.outcome.lost, stream.outcome.duplicates) == (0, 0)
    check_both_ways(first, client, transceiver)
    again = Relay(processes, tmp_path, "--takeover")
    assert first.process.wait() == 0
    check_both_ways(again, client, transceiver)


@pytest.mark.parametrize("how", ["successor killed", "running relay told to end"])
def test_an_end_in_the_middle(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver, how: str
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    slow = other_version(
        tmp_path,
        "worker.py",
        "    own = about",
        "    import time; time.sleep(3 * slot)\n    own = about",
    )
    second = Relay(processes, tmp_path, "--takeover", cwd=slow, ready=False)
    second.process.wait_event("worker_serving", slot=0)
    if how == "successor killed":
        os.kill(second.process.pid, signal.SIGKILL)
        first.process.wait_events("worker_serving", count=4)
        check_both_ways(first, client, transceiver)
    else:
        assert first.process.stop() == 0
        assert second.process.wait() == 1
        assert "ended in the middle" in second.process.output()


def test_tables_of_another_layout_start_empty(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    first = Relay(processes, tmp_path)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    other = other_version(
        tmp_path, "estate.py", "        Table(fd)\n", '        raise ValueError("layout 7")\n'
    )
    second = Relay(processes, tmp_path, "--takeover", cwd=other)
    assert first.process.wait() == 0
    assert len(second.process.events("flow_table_started_empty", level="warning")) == 2
    assert second.metrics()['relay_flows{state="established"}'] == 0
    client.establish(transceiver.ufrag(first.keyring), second.public[0], transceiver)
    check_both_ways(second, client, transceiver)


class ServiceManager(contextlib.AbstractContextManager["ServiceManager"]):
    """systemd's end of $NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20)

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def wait_for(self, prefix: str) -> str:
        """The first line that begins so; barriers are answered on the way."""
        while True:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
            for fd in fds:
                os.close(fd)
            for line in data.decode().splitlines():
                self.said.append(line)
                if line.startswith(prefix):
                    return line


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with ServiceManager(tmp_path / "notify") as opened:
        yield opened


def test_sighup_starts_the_successor_and_systemd_learns_of_it(
    processes: Processes,
    tmp_path: Path,
    client: Client,
    transceiver: Transceiver,
    manager: ServiceManager,
) -> None:
    first = Relay(processes, tmp_path, env={"NOTIFY_SOCKET": str(manager.path)})
    assert manager.wait_for("READY=1")
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    os.kill(first.process.pid, signal.SIGHUP)
    pid = int(manager.wait_for("MAINPID=").partition("=")[2])
    if pid == first.process.pid:  # it said its own when it got ready
        pid = int(manager.wait_for("MAINPID=").partition("=")[2])
    assert pid == first.process.wait_event("successor_started")["pid"]
    assert first.process.wait() == 0
    try:
        wait_until(lambda: first.get("/readyz")[0] == 200, "the successor is ready")
        check_both_ways(first, client, transceiver)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_running(pid), "the successor ends")


def test_a_failing_successor_is_reported(processes: Processes, tmp_path: Path) -> None:
    first = Relay(processes, tmp_path)
    (tmp_path / "keyring").write_text("spoiled")
    os.kill(first.process.pid, signal.SIGHUP)
    first.process.wait_event("successor_failed")
    assert first.get("/readyz")[0] == 200


def test_a_successor_that_hangs_in_the_middle_loses_what_it_took(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    hasty = other_version(
        tmp_path / "old", "handover.py", "TAKING_LIMIT_S = 15.0", "TAKING_LIMIT_S = 1.0"
    )
    slow = other_version(
        tmp_path / "new",
        "worker.py",
        "    own = about",
        "    import time; time.sleep(3 * slot)\n    own = about",
    )
    first = Relay(processes, tmp_path, cwd=hasty)
    client.establish(transceiver.ufrag(first.keyring), first.public[0], transceiver)
    second = Relay(processes, tmp_path, "--takeover", cwd=slow, ready=False)
    second.process.wait_event("worker_serving", slot=0)
    os.kill(second.process.pid, signal.SIGSTOP)
    assert "said nothing" in first.process.wait_event("handover_aborted")["reason"]
    assert second.process.wait() == -signal.SIGKILL
    first.process.wait_events("worker_serving", count=4)
    check_both_ways(first, client, transceiver)
    again = Relay(processes, tmp_path, "--takeover")
    assert first.process.wait() == 0
    check_both_ways(again, client, transceiver)


def test_a_connection_without_a_greeting_keeps_no_successor_out_for_long(
    processes: Processes, tmp_path: Path
) -> None:
    hasty = other_version(tmp_path, "handover.py", "HELLO_LIMIT_S = 10.0", "HELLO_LIMIT_S = 1.0")
    first = Relay(processes, tmp_path, cwd=hasty)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.connect(str(tmp_path / "run" / "takeover.sock"))
        first.process.wait_event("handover_aborted")
        Relay(processes, tmp_path, "--takeover")
        assert first.process.wait() == 0


def test_a_successor_without_room_for_the_descriptors_says_so(
    processes: Processes, tmp_path: Path
) -> None:
    first = Relay(processes, tmp_path, workers=8)
    prefix = ("prlimit", "--nofile=24:24")
    second = Relay(processes, tmp_path, "--takeover", workers=8, prefix=prefix, ready=False)
    assert second.process.wait() == 1
    assert "Too many open files" in second.process.output().strip().splitlines()[-1]
    first.process.wait_event("handover_aborted")
    assert first.get("/readyz")[0] == 200


@pytest.mark.parametrize(
    "messages",
    [
        [b'{"done": true}'],
        [b'{"release": 0}'],
        [b'{"hello": 1}', b'{"release": 2}'],
        [b'{"hello": 1}', b'{"release": -1}'],
        [b'{"hello": 1}', b'{"release": 0}', b'{"release": 0}'],
        [b'{"hello": 1}', b'{"release": 0}', b'{"done": true}'],
        [b'{"hello": 1}', b'{"release": []}'],
        [b"[1]"],
        [b"not JSON"],
        [b"[" * 60_000],
    ],
    ids=lambda messages: messages[-1][:20].decode(),
)
def test_nonsense_from_a_successor_changes_nothing(
    processes: Processes, tmp_path: Path, messages: list[bytes]
) -> None:
    relay = Relay(processes, tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as successor:
        successor.connect(str(tmp_path / "run" / "takeover.sock"))
        for message in messages:
            successor.send(message)
        relay.process.wait_event("handover_aborted")
    wait_until(lambda: relay.get("/readyz")[0] == 200, "it serves")
    Relay(processes, tmp_path, "--takeover")
    assert relay.process.wait() == 0


def test_a_relay_whose_socket_was_removed_is_named(processes: Processes, tmp_path: Path) -> None:
    first = Relay(processes, tmp_path)
    (tmp_path / "run" / "takeover.sock").unlink()
    second = Relay(processes, tmp_path, "--takeover", ready=False)
    assert second.process.wait() == 1
    assert "cannot be reached" in second.process.output().strip().splitlines()[-1]
    assert first.get("/readyz")[0] == 200
