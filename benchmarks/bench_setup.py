"""Call setup without a browser: offer to `session.created` through relay and transceiver on loopback.

Method (README.md): one call after the other; each must bring its `session.created`. The impatient
client leaves out what a client's own timers add, so that its time is the server's and the relay's
plus about as much work again in the client; the stock client is aiortc with its 20 ms ICE ticks. The
server's share is CPU time of relay and transceivers over the run, per call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import aiohttp
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from relay.wire.keyring import generate_line
from tests.support.calls import stock_call
from tests.support.process import Process, Processes, session_members
from tests.support.rawcall import raw_call

pytestmark = pytest.mark.benchmark(group="call set-up without a browser")

ROUNDS = 100
STOCK_ROUNDS = 20
WARM_UP_ROUNDS = 5
_TICK_MS = 1_000 / os.sysconf("SC_CLK_TCK")


class Servers:
    """A relay and a transceiver of two processes each."""

    def __init__(self, processes: Processes) -> None:
        keys = processes.directory / "keyring"
        keys.write_text(generate_line() + "\n")
        common = (f"--keyring={keys}", "--cluster=1", "--workers=2", "--log-format=json")
        self.relay: Process = processes.relay(
            "serve", "--listen=127.0.0.1:0", "--internal=127.0.0.1:0", "--admin=127.0.0.1:0",
            "--allow-transceiver=127.0.0.0/8", "--drain-timeout=0", *common,
            f"--run-dir={processes.directory / 'run'}",
        )  # fmt: skip
        self.transceiver: Process = processes.transceiver(
            "serve", "--backend=loopback", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--drain-timeout=0", *common,
            f"--ingress=here={self.relay.listening('public')[0]}",
        )  # fmt: skip
        self.base = f"http://{self.transceiver.listening('http')[0]}"

    def cpu_ms(self) -> float:
        """CPU time that both have used so far."""
        pids = [*session_members(self.relay.pid), *session_members(self.transceiver.pid)]
        return sum(_cpu_ms(pid) for pid in pids)


def _cpu_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Quiet servers, ended after the run."""
    with Processes(tmp_path) as processes:
        yield Servers(processes)


def test_offer_to_session_created(benchmark: BenchmarkFixture, servers: Servers) -> None:
    steps_ms: dict[str, list[float]] = {}

    async def one(http: aiohttp.ClientSession) -> None:
        call = await raw_call(http)
        assert call.events[0]["type"] == "session.created"
        for stage, at_s in call.timeline_s.items():
            elapsed_ms = 1_000 * (at_s - call.timeline_s["offer"])
            steps_ms.setdefault(stage, []).append(elapsed_ms)
        call.close()

    with asyncio.Runner() as runner:
        http = runner.run(_session(servers.base))
        for _ in range(WARM_UP_ROUNDS):
            runner.run(one(http))
        steps_ms.clear()
        before_ms = servers.cpu_ms()
        benchmark.pedantic(lambda: runner.run(one(http)), rounds=ROUNDS)
        spent_ms = servers.cpu_ms() - before_ms
        runner.run(http.close())
    for stage, values in steps_ms.items():
        benchmark.extra_info[f"{stage}_ms_median"] = round(median(values), 2)
    benchmark.extra_info["server_cpu_ms_per_call"] = round(spent_ms / len(steps_ms["event"]), 2)


def test_offer_to_session_created_stock_client(
    benchmark: BenchmarkFixture, servers: Servers
) -> None:
    created_ms: list[float] = []

    async def one() -> None:
        async with stock_call(servers.base, audio=False) as call:
            await call.wait(audio=False)
            created_ms.append(1_000 * (call.timeline_s["event"] - call.timeline_s["offer"]))

    benchmark.pedantic(lambda: asyncio.run(one()), rounds=STOCK_ROUNDS, warmup_rounds=2)
    benchmark.extra_info["created_ms_median"] = round(median(created_ms), 2)


async def _session(base: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(base)
