"""The bridge between a client and a Realtime backend: set-up, both directions, and barge-in, with one call and with a hundred.

Method (README.md): client, transceiver and an instant backend are three processes on loopback with one clock. The client talks
G.711, so that loudness is read off the bytes; what the jitter buffer holds back by itself is taken off the way up. With a hundred
calls, ninety-nine talk Opus all the time and hear their backend for a third of it, placed by mediaload.c.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import aiohttp
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.media_load import Load
from tests.support.process import Process, Processes, session_members
from tests.support.rawmedia import RawMediaCall, raw_media_call

SETUPS = 60
MOMENTS = 100
WARM_UP = 3
OTHERS = (0, 99)
LOAD_CPUS = (0,)
APART = 15
READY_S = 30.0


@dataclass
class Figures:
    """What one kind of measurement gave, in ms."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, seconds: float) -> None:
        """One more value."""
        self.values.setdefault(name, []).append(1_000 * seconds)

    def write(self, benchmark: BenchmarkFixture) -> None:
        """Median, 90th and 99th percentile of each into the report."""
        for name, values in self.values.items():
            ordered = sorted(values)
            for share in (90, 99):
                rank = min(len(ordered) - 1, len(ordered) * share // 100)
                benchmark.extra_info[f"{name}_ms_p{share}"] = round(ordered[rank], 2)
            benchmark.extra_info[f"{name}_ms_median"] = round(median(values), 2)


@dataclass(frozen=True)
class Servers:
    """A transceiver of one process and its backend."""

    transceiver: Process

    @property
    def base(self) -> str:
        """Its origin."""
        return f"http://{self.transceiver.listening('http')[0]}"

    def wait_until_ready(self) -> None:
        """Until its processes and their threads are there, not only the address."""
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                with urllib.request.urlopen(f"{self.base}/readyz", timeout=READY_S):
                    return
            except urllib.error.HTTPError:
                assert time.monotonic() < deadline_s, "not ready"
                time.sleep(0.05)


@pytest.fixture(params=OTHERS, ids=lambda count: f"{count + 1}-calls")
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    """Quiet ones, or with so many other calls that talk."""
    with Processes(tmp_path) as processes:
        model = processes.start(sys.executable, "-m", "benchmarks.bridge_model", name="model")
        url = f"ws://{model.listening('model')[0]}/v1/realtime"
        session = processes.directory / "session.json"
        session.write_text(json.dumps({"instructions": "busy"}))
        transceiver = processes.transceiver(
            "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=2", "--direct", "--log-format=json",
            f"--backend={url}", f"--backend-session={session}", "--drain-timeout=0",
        )  # fmt: skip
        made = Servers(transceiver)
        made.wait_until_ready()
        pids = [model.pid, *session_members(transceiver.pid)]
        if not request.param:
            with apart(*pids):
                yield made
            return
        port = int(made.base.rpartition(":")[2])
        with Load(port, transceiver.pid, list(LOAD_CPUS)) as load:
            load.place(request.param)
            pids.append(load.program.pid)
            done = threading.Event()

            def talk() -> None:
                while not done.is_set():
                    load.talk(2.0)

            talking = threading.Thread(target=talk)
            talking.start()
            try:
                with apart(*pids):
                    yield made
            finally:
                done.set()
                talking.join()


@contextlib.contextmanager
def apart(*pids: int) -> Iterator[None]:
    """Everything measured, this process too, goes before what else runs here; their order among themselves stays. Root only."""
    threads = [
        int(task.name)
        for pid in (*pids, os.getpid())
        for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    before = {thread: os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}
    with contextlib.suppress(PermissionError):
        for thread, nice in before.items():
            os.setpriority(os.PRIO_PROCESS, thread, nice - APART)
    yield
    for thread, nice in before.items():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)


Measure = Callable[[aiohttp.ClientSession, Figures], Coroutine[None, None, None]]


def run(benchmark: BenchmarkFixture, servers: Servers, measure: Measure, rounds: int) -> Figures:
    """`measure` so many times in one loop; the figures of all but the first few."""
    figures = Figures()
    with asyncio.Runner() as runner:

        async def session() -> aiohttp.ClientSession:
            return aiohttp.ClientSession(servers.base)

        http = runner.run(session())
        for _ in range(WARM_UP):
            runner.run(measure(http, Figures()))
        benchmark.pedantic(lambda: runner.run(measure(http, figures)), rounds=rounds)
        runner.run(http.close())
    figures.write(benchmark)
    return figures


@contextlib.asynccontextmanager
async def quiet_call(http: aiohttp.ClientSession) -> AsyncIterator[RawMediaCall]:
    """A call whose backend says nothing by itself, a moment after its start."""
    async with raw_media_call(http, session={"instructions": "quiet"}) as call:
        await call.event("session.created")
        await asyncio.sleep(0.5)
        yield call


@pytest.mark.benchmark(group="bridge: a call is set up")
def test_setup(benchmark: BenchmarkFixture, servers: Servers) -> None:
    async def measure(http: aiohttp.ClientSession, figures: Figures) -> None:
        async with raw_media_call(http, session={"instructions": "instant"}) as call:
            async with asyncio.timeout(10):
                await call.first_loud.wait()
            async with http.get(f"{call.location}/stats") as response:
                stats = await response.json()
            figures.add("server_answer", stats["timeline_ms"]["answer"] / 1_000)
            for stage in ("answer", "ice", "dtls", "event", "first_loud"):
                figures.add(stage, call.timeline_s[stage] - call.timeline_s["offer"])
        await asyncio.sleep(0.02)

    run(benchmark, servers, measure, SETUPS)


@pytest.mark.benchmark(group="bridge: both ways, and barge-in")
def test_both_ways(benchmark: BenchmarkFixture, servers: Servers) -> None:
    figures = Figures()

    async def moments(http: aiohttp.ClientSession) -> None:
        async with quiet_call(http) as call:
            for number in range(MOMENTS + WARM_UP):
                kept = figures if number >= WARM_UP else Figures()
                await up(http, call, kept)
                await down(call, kept)
                await barge_in(call, kept)

    async def everything() -> None:
        async with aiohttp.ClientSession(servers.base) as http:
            await moments(http)

    benchmark.pedantic(lambda: asyncio.run(everything()), rounds=1)
    figures.write(benchmark)


async def up(http: aiohttp.ClientSession, call: RawMediaCall, figures: Figures) -> None:
    """Mouth to backend: from a loud frame's departure to its arrival in an event, less the jitter buffer's delay."""
    seen = len(call.events)
    await asyncio.sleep(random.uniform(0.0, 0.02))
    call.speak(0.2)
    heard = await call.event("bench.heard", seen)
    assert call.spoke_s is not None
    async with http.get(f"{call.location}/stats") as response:
        buffered_ms = (await response.json())["playout_delay_ms"]
    figures.add("up", heard["at_s"] - call.spoke_s)
    figures.add("jitter_buffer", buffered_ms / 1_000)
    figures.add("up_beyond_buffer", heard["at_s"] - call.spoke_s - buffered_ms / 1_000)
    await asyncio.sleep(0.3)


async def down(call: RawMediaCall, figures: Figures) -> None:
    """Backend to ear: from the moment before the first delta to the first loud frame's arrival."""
    seen, arrived = len(call.events), len(call.arrivals)
    call.first_loud.clear()
    call.send_event({"type": "bench.speak", "ms": 2_000})
    spoken = await call.event("bench.spoken", seen)
    async with asyncio.timeout(10):
        await call.first_loud.wait()
    loud_s = next(at_s for at_s, loud in call.arrivals[arrived:] if loud)
    figures.add("down", loud_s - spoken["at_s"])


async def barge_in(call: RawMediaCall, figures: Figures) -> None:
    """From the backend's word of the user's speech to the last loud frame on the wire."""
    await asyncio.sleep(random.uniform(0.2, 0.4))
    seen = len(call.events)
    call.send_event({"type": "bench.barge"})
    barged = await call.event("bench.barged", seen)
    await call.event("output_audio_buffer.cleared", seen)
    await asyncio.sleep(0.3)
    figures.add("barge_in", max(0.0, call.last_loud_s() - barged["at_s"]))
