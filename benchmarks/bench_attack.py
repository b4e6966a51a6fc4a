"""Attacks at 100,000 datagrams a second on a real `relay serve` of one worker, beside established calls.

Method (README.md): live. First the most that the relay forwards without an attack, in the same run and
with the same generator; then half of that together with the attack. Asserted each time: the calls
keep 99 % of their packets, all of them at their own transceiver; the worker's memory does not grow;
the log says nothing; what the attack costs is bounded by caps, each with its counter.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.live import Live, run_live
from benchmarks.programs import CPUS, Program, load_generator, take_priority
from benchmarks.rig import seal
from tests.support.process import Processes, session_members
from tests.support.relayed import Relay

TRANSCEIVERS = 4
FLOWS = 256
ATTACK_PPS = 100_000
MEASURED_MS = 3000
PROBE_MS = 700
KEPT = 0.99
OFFERED = 0.9
"""The share of the attack's rate that must have been offered for the run to count."""
GROWTH_BYTES = 2 << 20
FIRST_PPS = 20_000

ATTACKS = [
    # name, generator's attack, token, counters that take the most of it
    (
        "random tokens",
        "random",
        "own",
        {"token_malformed", "token_forged", "token_unknown_key", "token_no_hint"},
    ),
    ("forged tokens", "forged", "own", {"token_forged"}),
    ("a valid token from anywhere", "replay", "calls", {"cap_token_flows_rate"}),
    (
        "a captured check from one address",
        "captured",
        "calls",
        {"cap_flow_checks", "cap_token_flows_rate"},
    ),
    ("a captured check from anywhere", "captured-anywhere", "calls", {"cap_token_flows_rate"}),
    (
        "own token from the calls' addresses",
        "spoof",
        "own",
        {"cap_token_flows", "cap_token_flows_rate", "cap_flow_checks"},
    ),
    (
        "own token from the calls' addresses, another transceiver",
        "spoof",
        "elsewhere",
        {"cap_token_flows", "cap_token_flows_rate", "cap_flow_checks"},
    ),
    (
        "own token nominates strangers",
        "nominate",
        "own",
        {"cap_token_flows", "cap_token_flows_rate"},
    ),
]


class Scene:
    """A relay, established calls through it, and an attacker's tokens."""

    def __init__(self, processes: Processes, generator: Program) -> None:
        launcher = (sys.executable, "-m", "benchmarks.launch", str(CPUS[-1]))
        self.relay = Relay(
            processes,
            processes.directory / "relay",
            *("--cluster", "1", "--pin", "never", "--log-level", "info"),
            workers=1,
            prefix=launcher,
        )
        self._generator = generator
        ports = [int(port) for port in generator.greeting]
        generator.ask("ufrags", *seal(ports, FLOWS, self.relay.keyring))
        self._public, self._internal = self.relay.public[0][1], self.relay.internal[0][1]
        assert generator.ask("establish", self._public, FLOWS) == [FLOWS]
        call = seal(ports[:1], 1, self.relay.keyring)[0]
        own = seal(ports[1:2], 1, self.relay.keyring)[0]
        elsewhere = seal(ports[-1:], 1, self.relay.keyring)[0]
        self.tokens = {"calls": call, "own": own, "elsewhere": elsewhere}

    def run(
        self, pps: int, ms: int, attack: str = "none", attack_pps: int = 0, token: str = "own"
    ) -> Live:
        """Voice at `pps`, half each way, and the attack."""
        return run_live(
            self._generator,
            ms,
            up=(self._public, pps // 2),
            down=(self._internal, pps // 2),
            attack=(attack, attack_pps, self.tokens[token]),
        )

    def most_pps(self) -> int:
        """The highest rate tried that was offered in full and lost less than 0.1 %, by steps of a quarter."""
        best, pps = 0, FIRST_PPS
        while True:
            result = self.run(pps, PROBE_MS)
            offered_pps = result.sent * 1000 / PROBE_MS
            if result.kept < 0.999 or offered_pps < 0.97 * pps:
                return best
            best, pps = pps, pps * 5 // 4

    def worker_cpu_s(self) -> float:
        """CPU time that the worker has used."""
        (pid,) = self.relay.worker_pids().values()
        return time.clock_gettime(~pid << 3 | 2)

    def worker_memory_bytes(self) -> int:
        """What the worker has in memory, shared tables included."""
        (pid,) = self.relay.worker_pids().values()
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def log_lines(self) -> int:
        """How much the relay has said."""
        return len(self.relay.process.output().splitlines())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Started once: the maximum is measured with the attacks, in the same run."""
    take_priority()
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(tmp_path_factory.mktemp("attack")))
        generator = stack.enter_context(load_generator(TRANSCEIVERS))
        yield Scene(processes, generator)


@pytest.fixture(scope="module")
def most_pps(scene: Scene) -> int:
    """The relay's maximum without an attack."""
    return scene.most_pps()


@pytest.mark.benchmark(group="attacks: a live run")
@pytest.mark.parametrize(
    ("attack", "token", "counters"), [a[1:] for a in ATTACKS], ids=[a[0] for a in ATTACKS]
)
def test_attack(
    benchmark: BenchmarkFixture,
    scene: Scene,
    most_pps: int,
    attack: str,
    token: str,
    counters: set[str],
) -> None:
    results: list[Live] = []
    scene.run(most_pps // 2, PROBE_MS, attack, ATTACK_PPS, token)
    before, lines, memory = scene.relay.counters(), scene.log_lines(), scene.worker_memory_bytes()
    cpu_s = scene.worker_cpu_s()
    benchmark.pedantic(
        lambda: results.append(scene.run(most_pps // 2, MEASURED_MS, attack, ATTACK_PPS, token)),
        rounds=1,
    )
    (result,) = results
    cpu_s = scene.worker_cpu_s() - cpu_s
    after = scene.relay.counters()
    moved = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    grown = scene.worker_memory_bytes() - memory
    stopped = sum(moved.get(f"drop {reason}", 0) for reason in counters)
    benchmark.extra_info.update(
        most_pps=most_pps,
        offered_pps=round(result.sent * 1000 / MEASURED_MS),
        attack_pps=round(result.attack_sent * 1000 / MEASURED_MS),
        kept=round(result.kept, 5),
        stopped=round(stopped / result.attack_sent, 4),
        cpu=round(cpu_s * 1000 / MEASURED_MS, 2),
        grown_kib=grown >> 10,
        up_p99_us=round(result.up_p99_ns / 1e3),
    )
    assert result.kept >= KEPT
    assert grown <= GROWTH_BYTES
    assert scene.log_lines() == lines
    assert stopped >= 0.98 * result.attack_sent, moved
    assert len(session_members(scene.relay.process.pid)) >= 4, "nobody died"
    if result.attack_sent < OFFERED * ATTACK_PPS * MEASURED_MS / 1000:
        pytest.skip("all kept, but this machine was too slow or too busy to offer the whole attack")


@pytest.mark.benchmark(group="attacks: a live run")
def test_calls_after_all_attacks(benchmark: BenchmarkFixture, scene: Scene, most_pps: int) -> None:
    """Every call is where it was."""
    results: list[Live] = []
    benchmark.pedantic(lambda: results.append(scene.run(most_pps // 2, MEASURED_MS)), rounds=1)
    assert results[0].kept >= KEPT
