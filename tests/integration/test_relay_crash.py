"""What a crash costs: kill -9, a crash loop, a hang. Times here are ten times looser than the targets;
benchmarks/bench_crash.py measures them.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.process import Processes
from tests.support.relayed import RTP, Client, Relay, Transceiver, is_running, wait_until
from tests.support.stream import Stream

BATCH_MAX = 256
SMALL_BUFFER = ("--receive-buffer", "212992")
"""What a host with an untouched net.core.rmem_max gives."""


def test_kill_9_under_traffic_costs_at_most_the_batch(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, *SMALL_BUFFER, workers=1)
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    with Stream(client, relay.public[0], transceiver, 2_000) as stream:
        for kill in range(3):
            time.sleep(0.7)
            relay.wait_standby()
            os.kill(relay.worker_pids()[0], signal.SIGKILL)
            relay.process.wait_events("worker_serving", count=kill + 2)
        time.sleep(0.1)
    assert stream.outcome.lost <= 3 * BATCH_MAX
    assert stream.outcome.duplicates == 0
    assert relay.metrics()["relay_worker_restarts_total"] == 3


def test_a_crash_loop_is_tried_at_least_once_a_second(
    processes: Processes, tmp_path: Path, client: Client, transceiver: Transceiver
) -> None:
    relay = Relay(processes, tmp_path, workers=1)
    client.establish(transceiver.ufrag(relay.keyring), relay.public[0], transceiver)
    times = []
    for death in range(1, 8):
        os.kill(relay.worker_pids()[0], signal.SIGKILL)
        start = time.monotonic()
        relay.process.wait_events("worker_serving", count=death + 1, timeout_s=10)
        times.append(time.monotonic() - start)
    assert times[-1] > 0.2, "no backoff"
    assert max(times) < 10, "a second at most, ten on a busy machine"
    client.send(RTP, relay.public[0])
    assert transceiver.receive()[1] == RTP


def test_a_hung_worker_is_gone_before_its_slot_is_given_away(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    hung = relay.worker_pids()[1]
    os.kill(hung, signal.SIGSTOP)
    relay.process.wait_events("worker_serving", count=3)
    assert not is_running(hung)
    names = ["worker_hung", "worker_died", "worker_serving"]
    order = [e["event"] for e in relay.process.events() if e["event"] in names]
    assert order == [
        "worker_serving",
        "worker_serving",
        "worker_hung",
        "worker_died",
        "worker_serving",
    ]


def test_a_pause_of_the_whole_relay_is_no_hang(processes: Processes, tmp_path: Path) -> None:
    """A suspended machine or container: nobody is killed for having stood still with everybody."""
    relay = Relay(processes, tmp_path)
    everybody = [relay.process.pid, *relay.worker_pids().values()]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)
    for pid in reversed(everybody):
        os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert not relay.process.events("worker_hung")
    assert relay.get("/healthz")[0] == 200


def standby_of(relay: Relay) -> int:
    """The pid of its standby, once there is one."""
    relay.wait_standby()
    ready = {event["pid"] for event in relay.process.events("worker_ready")}
    standby: int = (ready - set(relay.worker_pids().values())).pop()
    return standby


def test_a_dying_standby_is_replaced_and_costs_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    standby = standby_of(relay)
    os.kill(standby, signal.SIGKILL)
    relay.process.wait_event("standby_died")
    relay.wait_standby()
    assert relay.metrics()["relay_worker_restarts_total"] == 0


def test_a_hung_standby_that_is_given_a_slot_is_replaced(
    processes: Processes, tmp_path: Path
) -> None:
    relay = Relay(processes, tmp_path)
    standby = standby_of(relay)
    os.kill(standby, signal.SIGSTOP)
    os.kill(relay.worker_pids()[0], signal.SIGKILL)
    relay.process.wait_event("worker_hung", pid=standby, timeout_s=10.0)
    relay.process.wait_events("worker_serving", slot=0, count=2)


def test_a_hung_control_process_is_replaced(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path)
    control = relay.process.wait_event("control_ready")["pid"]
    os.kill(control, signal.SIGSTOP)
    relay.process.wait_event("control_hung", pid=control)
    wait_until(lambda: relay.get("/healthz")[0] == 200, "an answer of the next one")
    assert relay.metrics()["relay_control_restarts_total"] == 1


def test_a_worker_may_end_by_a_signal_without_a_name(processes: Processes, tmp_path: Path) -> None:
    relay = Relay(processes, tmp_path)
    number = signal.SIGRTMIN + 1
    os.kill(relay.worker_pids()[0], number)
    assert relay.process.wait_event("worker_died")["how"] == f"signal {number}"
    relay.process.wait_events("worker_serving", slot=0, count=2)


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_signal_without_meaning_ends_nobody(
    processes: Processes, tmp_path: Path, name: str
) -> None:
    relay = Relay(processes, tmp_path)
    os.killpg(relay.process.pid, signal.Signals[name])
    relay.process.wait_event("signal_without_meaning", signal=name)
    assert relay.get("/readyz")[0] == 200
    assert not relay.process.events("worker_died")
    assert not relay.process.events("control_died")
