"""Calls that come and go for minutes: at the end nothing has grown and nothing is left.

`./run soak SECONDS` sets SOAK_SECONDS. The first quarter warms caches and allocators up; what the
processes hold then is compared with what they hold at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.interop.demo import Demo, start_demo
from tests.interop.test_stock_aiortc import call
from tests.support.process import Processes, session_members

pytestmark = pytest.mark.soak

SECONDS = float(os.environ.get("SOAK_SECONDS", "300"))
CALLERS = 6
HOLD_S = (0.5, 4.0)
CONNECT_TIMEOUT_S = 30.0
SETTLE_TIMEOUT_S = 120.0
MEMORY_GROWTH_KIB = 16 * 1024
DESCRIPTOR_GROWTH = 8


@dataclass(frozen=True)
class Holdings:
    """What one process holds."""

    command: str
    memory_kib: int
    descriptors: int


def holdings(demo: Demo) -> dict[int, Holdings]:
    """Process id to what it holds, for every process of the demo."""
    found = {}
    for pid in session_members(demo.process.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        resident = re.search(r"^RssAnon:\s+(\d+) kB", status, flags=re.MULTILINE)
        assert resident is not None
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        found[pid] = Holdings(command, int(resident[1]), len(os.listdir(f"/proc/{pid}/fd")))
    return found


async def one_call(base: str, dice: random.Random) -> None:
    """Connect, talk for a moment, hang up: by DELETE or by leaving, as clients do."""
    async with call(base) as client:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.connected.wait()
            await client.created.wait()
        await asyncio.sleep(dice.uniform(*HOLD_S))
    assert client.events[0]["type"] == "session.created"


async def talk_until(base: str, deadline: float) -> int:
    """Keep calls coming until then; returns how many there were."""

    async def caller(seed: int) -> int:
        dice = random.Random(seed)
        calls = 0
        while time.monotonic() < deadline:
            await one_call(base, dice)
            calls += 1
        return calls

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller(seed)) for seed in range(CALLERS)]
    return sum(task.result() for task in callers)


async def sessions(base: str) -> float:
    """Sessions in the pool that are not closed, from its metrics."""
    async with aiohttp.ClientSession() as http, http.get(f"{base}/metrics") as response:
        text = await response.text()
    samples = re.findall(r'^transceiver_sessions\{state="(\w+)"\} (\S+)$', text, flags=re.MULTILINE)
    assert samples
    return sum(float(value) for state, value in samples if state != "closed")


async def settle(demo: Demo, base: str) -> None:
    """Wait until the pool has no session and the relay has no flow."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        metrics = await asyncio.to_thread(demo.metrics)
        flows = sum(value for name, value in metrics.items() if name.startswith("relay_flows{"))
        left = await sessions(base)
        if not flows and not left:
            return
        assert time.monotonic() < deadline, f"{flows} flows, {left} sessions are left"
        await asyncio.sleep(1)


async def test_calls_come_and_go(processes: Processes) -> None:
    demo = await asyncio.to_thread(start_demo, processes)
    base = demo.url.replace("localhost", "127.0.0.1")
    began = time.monotonic()
    warm_up = await talk_until(base, began + SECONDS / 4)
    before = holdings(demo)
    calls = await talk_until(base, began + SECONDS)
    await settle(demo, base)
    after = holdings(demo)

    print(f"{warm_up} + {calls} calls")
    assert calls > SECONDS / 10
    assert after.keys() == before.keys(), "a process was replaced"
    for pid, held in after.items():
        print(f"{before[pid]} -> {held}")
        assert held.descriptors <= before[pid].descriptors + DESCRIPTOR_GROWTH
        assert held.memory_kib <= before[pid].memory_kib + MEMORY_GROWTH_KIB
    assert processes.started[0].stop() == 0
