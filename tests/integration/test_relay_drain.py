"""SIGTERM: not ready at once, forwarding on, and an end in time (E09)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.process import Processes
from tests.support.relayed import (
    RTP,
    Client,
    Relay,
    Transceiver,
    check_both_ways,
    is_running,
    wait_until,
)

NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

# Its argument runs in a terminal of its own, though its output goes where ours goes; SIGUSR1 closes the terminal.
IN_A_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
master, slave = os.openpty()
child = os.fork()
if child == 0:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    os.close(master)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY)
    os.execvp(sys.argv[1], sys.argv[1:])
os.close(slave)
signal.sigwait([signal.SIGUSR1])
os.close(master)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def children_of(pid: int) -> list[int]:
    """Zombies included."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def missing_for_pid_namespaces() -> str | None:
    """Why a process cannot be made process 1 here; None when it can."""
    if shutil.which("unshare") is None:
        return "`unshare` (util-linux) is missing"
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        return "PID namespaces need root"
    return None


def test_readiness_goes_first_forwarding_goes_on_until_the_timeout(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, "--drain-timeout", "2")
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    start = time.monotonic()
    os.kill(relay.process.pid, signal.SIGTERM)
    wait_until(lambda: relay.get("/readyz") == (503, "draining\n"), "not ready")
    assert relay.get("/healthz")[0] == 200
    check_both_ways(relay, client, transceiver)
    with Client() as newcomer:  # a client that was sent here a moment ago
        newcomer.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    assert relay.process.wait() == 0
    assert time.monotonic() - start >= 2


def test_a_closed_terminal_ends_it(processes: Processes, tmp_path: Path) -> None:
    prefix = (sys.executable, "-c", IN_A_TERMINAL)
    relay = Relay(processes, tmp_path, prefix=prefix)
    os.kill(relay.process.pid, signal.SIGUSR1)
    relay.process.wait_event("draining", signal="SIGHUP")
    assert relay.process.wait() == 0


def test_few_flows_end_the_drain(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    flags = ("--drain-timeout", "600", "--drain-min-flows", "2", "--idle-timeout", "2")
    relay = Relay(processes, tmp_path, *flags)
    ufrag = transceiver.ufrag(relay.keyring)
    key = client.establish(ufrag, relay.public[0], transceiver)
    client.send(RTP, relay.public[0])
    internal = transceiver.receive()[2]
    with Client() as other:
        other.establish(ufrag, relay.public[0], transceiver)
        os.kill(relay.process.pid, signal.SIGTERM)
        relay.process.wait_event("draining", established_flows=2)
        deadline = time.monotonic() + 20
        while relay.process.returncode is None:  # the other's owner is silent: its flow ends
            transceiver.send(key, RTP, internal)
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert relay.process.wait() == 0
    assert relay.process.wait_event("stopping")["established_flows"] == 1


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(
    processes: Processes,
    tmp_path: Path,
    client: Client,
    transceiver: Transceiver,
    second: signal.Signals,
) -> None:
    relay = Relay(processes, tmp_path, "--drain-timeout", "600")
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    os.kill(relay.process.pid, signal.SIGTERM)
    relay.process.wait_event("draining")
    os.kill(relay.process.pid, second)
    assert relay.process.wait(timeout_s=10) == 0
    assert not any(is_running(pid) for pid in relay.worker_pids().values())


def test_a_draining_relay_replaces_a_dead_worker_and_refuses_a_successor(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, "--drain-timeout", "600", workers=1)
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    os.kill(relay.process.pid, signal.SIGTERM)
    relay.process.wait_event("draining")
    os.kill(relay.worker_pids()[0], signal.SIGKILL)
    check_both_ways(relay, client, transceiver)
    successor = Relay(processes, tmp_path, "--takeover", workers=1, ready=False)
    assert successor.process.wait() == 1
    assert "it is draining" in successor.process.output()
    os.kill(relay.process.pid, signal.SIGTERM)
    assert relay.process.wait() == 0


@pytest.mark.skipif(
    missing_for_pid_namespaces() is not None, reason=str(missing_for_pid_namespaces())
)
def test_as_process_1_it_drains_and_reaps_strangers(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, "--drain-timeout", "600", prefix=NAMESPACE)
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    (first,) = children_of(relay.process.pid)
    # A process of the container whose parent ends: process 1 has to reap it.
    orphan = "import os, time\nif os.fork() == 0: time.sleep(0.3)"
    enter = ("nsenter", "--pid", "--mount", "--root", f"--target={first}")
    own = set(children_of(first))
    subprocess.run([*enter, sys.executable, "-c", orphan], check=True)
    wait_until(lambda: set(children_of(first)) <= own, "the orphan is reaped")
    os.kill(first, signal.SIGHUP)
    relay.process.wait_event("no_successor")
    os.kill(first, signal.SIGTERM)
    relay.process.wait_event("draining")
    check_both_ways(relay, client, transceiver)
    os.kill(first, signal.SIGTERM)
    assert relay.process.wait() == 0
