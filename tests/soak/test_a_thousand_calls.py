"""A thousand calls with a Realtime backend leave nothing: no object, no descriptor, no memory.

The clients are of tests/support (G.711, one check, DTLS, SCTP). In each call the model speaks and is interrupted, both sides send
events, and the call ends in one of the ways there are. 300 calls before the first count warm caches and allocators up; then
a hundred more at a time are counted after their ended calls are forgotten (calls.ENDED_KEPT_S).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.integration.test_realtime_faults import resident_bytes, sample
from tests.support.process import Process, Processes, session_members
from tests.support.rawmedia import RawMediaCall, raw_media_call
from tests.support.realtime_server import Connection, RealtimeServer, realtime_server, tone

pytestmark = [pytest.mark.soak, pytest.mark.slow]

WARM_UP_CALLS = 300
CALLS = 1_000
AT_ONCE = 10
FORGOTTEN_S = 62.0
COUNTED_TYPES = (
    "Call",
    "Talk",
    "Bridge",
    "Link",
    "Dtls",
    "Sctp",
    "WebSocketPeer",
    "Task",
    "Connection",
)
SPEECH = tone(4_000)
OBJECT_GROWTH = 2_000
MEMORY_GROWTH_BYTES = 8 * 1024 * 1024

# In every process of the server: SIGRTMIN writes how many objects of each type there are.
CENSUS = """
import collections, gc, json, os, signal

def census(*_):
    gc.collect()
    types = collections.Counter(type(one).__name__ for one in gc.get_objects())
    path = os.environ["CENSUS"] + f"/{os.getpid()}"
    with open(path + ".new", "w") as file:
        json.dump(types, file)
    os.rename(path + ".new", path)

signal.signal(signal.SIGRTMIN, census)
"""


async def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another process
            await asyncio.sleep(0.01)


async def census(pid: int, folder: Path) -> dict[str, int]:
    """Objects by type in that process."""
    file = folder / str(pid)
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGRTMIN)
    await until(file.exists)
    counts: dict[str, int] = json.loads(file.read_text())
    return counts


async def speak(connection: Connection) -> None:
    item = {"id": "item_1", "type": "message", "role": "assistant", "content": []}
    await connection.send("conversation.item.added", item=item)
    await connection.say(SPEECH)


async def one_call(http: aiohttp.ClientSession, number: int, model: RealtimeServer) -> None:
    async with raw_media_call(http) as call:
        call.send_event({"type": "session.update", "session": {"instructions": "x" * 1_000}})
        await call.event("session.updated")
        async with asyncio.timeout(20):
            await call.first_loud.wait()
        call.send_event({"type": "output_audio_buffer.clear"})
        await over(call)
        await end(http, call, number)


async def over(call: RawMediaCall) -> None:
    """The sound was cut or, on a machine that was slow to say so, heard to its end."""
    ends = {"output_audio_buffer.cleared", "output_audio_buffer.stopped"}
    await until(lambda: any(event["type"] in ends for event in call.events))


async def end(http: aiohttp.ClientSession, call: RawMediaCall, number: int) -> None:
    """By DELETE, by a word of the client (close_notify), or by its silence."""
    if number % 3 == 0:
        assert (await http.delete(call.location)).status == 200
    elif number % 50 == 1:
        call.vanish()


async def many(http: aiohttp.ClientSession, model: RealtimeServer, count: int) -> None:
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            await one_call(http, number, model)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(caller())
    model.connections.clear()


async def all_ended(http: aiohttp.ClientSession) -> None:
    """Those that vanished last for 30 s and more."""
    async with asyncio.timeout(60):
        while True:
            async with http.get("/metrics") as response:
                text = await response.text()
            states = ("new", "connecting", "connected")
            if not sum(sample(text, f'transceiver_sessions{{state="{s}"}}') for s in states):
                return
            await asyncio.sleep(0.5)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def settled(http: aiohttp.ClientSession) -> None:
    await all_ended(http)
    await asyncio.sleep(FORGOTTEN_S)


async def test_a_thousand_calls_with_a_backend_leave_nothing(
    processes: Processes, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CENSUS)
    async with realtime_server() as model:
        model.script = speak
        server: Process = processes.transceiver(
            "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
            "--log-format=json", "--drain-timeout=0.5", f"--backend={model.url}",
            env={"PYTHONPATH": str(tmp_path), "CENSUS": str(tmp_path)},
        )  # fmt: skip
        address = (await asyncio.to_thread(server.listening, "http"))[0]
        (pid,) = (one for one in session_members(server.pid) if one != server.pid)
        async with aiohttp.ClientSession(f"http://{address}") as http:
            await many(http, model, WARM_UP_CALLS)
            await settled(http)
            before, open_before = await census(pid, tmp_path), descriptors(pid)
            memory_before = resident_bytes(server)
            began_s = time.monotonic()
            await many(http, model, CALLS)
            took_s = time.monotonic() - began_s
            await settled(http)
            after = await census(pid, tmp_path)
            open_after, memory_after = descriptors(pid), resident_bytes(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    most = sorted(grown.items(), key=lambda item: -item[1])[:8]
    print(
        f"{CALLS} calls in {took_s:.0f} s; objects {sum(before.values())} -> {sum(after.values())}"
    )
    print(f"most grown: {most}; descriptors {open_before} -> {open_after}")
    print(f"memory {memory_before / 2**20:.1f} -> {memory_after / 2**20:.1f} MiB")
    assert {name: grown.get(name, 0) for name in COUNTED_TYPES if grown.get(name, 0) > 2} == {}
    assert sum(after.values()) - sum(before.values()) < OBJECT_GROWTH
    assert open_after <= open_before + 2
    assert memory_after - memory_before < MEMORY_GROWTH_BYTES
