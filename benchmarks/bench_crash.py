"""What the death of a worker costs at 20,000 packets a second, and what a takeover costs.

Method (README.md): one client sends numbered packets of 172 bytes through one worker, paced in bursts of
a millisecond; the sink takes the kernel's time of arrival. The figure of a round is the longest time
that a packet of it took, and the packets that never came. Receive buffers are those of an untouched
host (212,992 bytes).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.support.process import Processes
from tests.support.relayed import Client, Relay, Transceiver
from tests.support.stream import Outcome, Stream

pytestmark = pytest.mark.benchmark(group="a crash and a takeover")

PER_S = 20_000
ROUNDS = 20
LEAD_S = 0.3
BATCH_MAX = 256
ARGUMENTS = ("--receive-buffer", "212992", "--pin", "never")


class Rig:
    """A relay of one worker with one established call."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self.processes = processes
        self.directory = directory
        self.relay = self.start()
        self.client, self.transceiver = Client(), Transceiver()
        self.client.establish(
            self.transceiver.ufrag(self.relay.keyring), self.relay.public[0], self.transceiver
        )

    def start(self, *arguments: str) -> Relay:
        """A relay, or its successor."""
        return Relay(self.processes, self.directory, *ARGUMENTS, *arguments, workers=1)

    def measure(self, act: Callable[[], None]) -> Outcome:
        """What became of a stream during which `act` happened."""
        with Stream(self.client, self.relay.public[0], self.transceiver, PER_S) as stream:
            time.sleep(LEAD_S)
            act()
            time.sleep(LEAD_S)
        return stream.outcome


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Closed after the run."""
    with Processes(tmp_path) as processes:
        made = Rig(processes, tmp_path)
        with made.client, made.transceiver:
            yield made


def record(benchmark: BenchmarkFixture, outcomes: list[Outcome]) -> None:
    silences_ms = sorted(1_000 * outcome.silence_s for outcome in outcomes)
    benchmark.extra_info["silence_ms_median"] = round(median(silences_ms), 2)
    benchmark.extra_info["silence_ms_max"] = round(silences_ms[-1], 2)
    benchmark.extra_info["lost_median"] = median(outcome.lost for outcome in outcomes)
    benchmark.extra_info["lost_max"] = max(outcome.lost for outcome in outcomes)


def run(benchmark: BenchmarkFixture, rig: Rig, act: Callable[[], None]) -> list[Outcome]:
    """ROUNDS rounds; the time of a round says nothing, the outcomes are what counts."""
    outcomes: list[Outcome] = []
    benchmark.pedantic(lambda: outcomes.append(rig.measure(act)), rounds=ROUNDS)
    record(benchmark, outcomes)
    assert all(outcome.duplicates == 0 for outcome in outcomes)
    return outcomes


def test_nothing_happens(benchmark: BenchmarkFixture, rig: Rig) -> None:
    """The baseline: what client, sink and machine cost by themselves."""
    run(benchmark, rig, lambda: None)


def test_kill_9(benchmark: BenchmarkFixture, rig: Rig) -> None:
    def kill() -> None:
        served = len(rig.relay.process.events("worker_serving"))
        os.kill(rig.relay.worker_pids()[0], signal.SIGKILL)
        rig.relay.process.wait_events("worker_serving", count=served + 1)

    outcomes = run(benchmark, rig, kill)
    assert median(outcome.lost for outcome in outcomes) <= BATCH_MAX


def test_takeover(benchmark: BenchmarkFixture, rig: Rig) -> None:
    def take_over() -> None:
        successor = rig.start("--takeover")
        assert rig.relay.process.wait() == 0
        rig.relay = successor

    outcomes = run(benchmark, rig, take_over)
    assert median(outcome.lost for outcome in outcomes) == 0
