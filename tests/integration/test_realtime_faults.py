"""What a Realtime backend, or a client, can do to a call: stall, break, end a session, vanish, and be interrupted at odd moments.

The clients talk G.711 frame by frame, so that what went out on the wire can be counted.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.process import Process, Processes, session_members
from tests.support.rawmedia import FRAME_S, RawMediaCall, raw_media_call
from tests.support.realtime_server import (
    RATE_HZ,
    Connection,
    Event,
    RealtimeServer,
    realtime_server,
    tone,
)

STALLED_CALLS = 100
STALL_S = 20.0
"""The buffers of two sockets hold about 15 s of a call."""
SMALL_BUFFER_BYTES = 32 * 1024
BYTES_A_CALL_MAX = 2 * 1024 * 1024


@pytest.fixture
async def model() -> AsyncIterator[RealtimeServer]:
    async with realtime_server(receive_buffer_bytes=SMALL_BUFFER_BYTES) as server:
        yield server


@pytest.fixture
def server(processes: Processes, model: RealtimeServer) -> Process:
    return processes.transceiver(
        "serve", "--http=127.0.0.1:0", "--media=127.0.0.1:0", "--workers=1", "--direct",
        "--log-format=json", "--drain-timeout=0.5", f"--backend={model.url}",
    )  # fmt: skip


@pytest.fixture
async def http(server: Process) -> AsyncIterator[aiohttp.ClientSession]:
    address = (await asyncio.to_thread(server.listening, "http"))[0]
    async with aiohttp.ClientSession(f"http://{address}") as session:
        yield session


async def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for lies in another process
            await asyncio.sleep(0.005)


async def stats(http: aiohttp.ClientSession, call: RawMediaCall) -> dict[str, Any]:
    headers = {"Authorization": "Bearer ek_test"}
    async with http.get(f"{call.location}/stats", headers=headers) as response:
        return dict(await response.json())


async def ended(http: aiohttp.ClientSession, call: RawMediaCall, timeout_s: float = 20.0) -> str:
    """The recorded reason, once the call has ended."""
    async with asyncio.timeout(timeout_s):
        while True:
            if reason := (await stats(http, call))["close_reason"]:
                return str(reason)
            await asyncio.sleep(0.05)


async def heard_in_all_ms(call: RawMediaCall) -> float:
    """How much was loud, once nothing has been for half a second: what is under way arrives before."""
    async with asyncio.timeout(30):
        while True:
            heard = sum(loud for _, loud in call.arrivals)
            await asyncio.sleep(0.5)
            if sum(loud for _, loud in call.arrivals) == heard:
                return 1_000 * FRAME_S * heard


async def metrics(http: aiohttp.ClientSession) -> str:
    async with http.get("/metrics") as response:
        return await response.text()


def sample(text: str, name: str) -> float:
    """The value of a sample, labels included in the name."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, flags=re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Strict:
    """A model that refuses to truncate beyond what it made, as real ones do."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.made_ms: dict[str, int] = {}
        self.refused: list[Event] = []

    async def speak(self, item: str, ms: int, response: str = "resp_1") -> None:
        self.made_ms[item] = self.made_ms.get(item, 0) + ms
        await self._connection.say(tone(ms), response=response, item=item)

    async def react(self, event: Event) -> None:
        if event["type"] == "conversation.item.truncate":
            item = event["item_id"]
            if not 0 < event["audio_end_ms"] <= self.made_ms[item]:
                self.refused.append(event)


# F01, F03, F04: interruptions


@pytest.mark.parametrize("at_ms", [100, 1_000, 1_980, 2_500])
async def test_f01_a_cut_is_never_beyond_the_sound_made_and_is_what_went_out(
    model: RealtimeServer, http: aiohttp.ClientSession, at_ms: int
) -> None:
    strict: list[Strict] = []

    def react(connection: Connection) -> Any:
        strict.append(Strict(connection))
        return strict[-1].react

    model.react = react
    async with raw_media_call(http) as call:
        await strict[0].speak("item_1", 2_000)
        await call.first_loud.wait()
        if at_ms > 2_000:
            await call.event("output_audio_buffer.stopped")
        else:
            await asyncio.sleep(at_ms / 1_000 - 0.02)
        call.send_event({"type": "output_audio_buffer.clear"})
        if at_ms <= 1_000:
            await until(lambda: model.connections[0].of("conversation.item.truncate"))
        heard_ms = await heard_in_all_ms(call)
        truncates = model.connections[0].of("conversation.item.truncate")
        assert strict[0].refused == []
        if at_ms > 2_000:
            assert truncates == []
        for truncate in truncates:
            # A frame may be half played when the cut comes, and fades out.
            assert truncate["audio_end_ms"] == pytest.approx(heard_ms, abs=40)
        if at_ms <= 1_000:
            assert len(truncates) == 1
        # What was said is never an error to the client.
        assert not [event for event in call.events if event["type"] == "error"]


async def test_f03_f04_the_model_is_told_once_what_was_heard_and_the_queue_is_gone(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async with raw_media_call(http) as call:
        connection = model.connections[0]
        await connection.say(tone(20_000))  # all of it at once
        await call.first_loud.wait()
        await asyncio.sleep(1.0)
        said_s = time.monotonic()
        await connection.send("input_audio_buffer.speech_started", item_id="u", audio_start_ms=1)
        await call.event("output_audio_buffer.cleared")
        heard_ms = await heard_in_all_ms(call)
        # 40 ms on a free machine (benchmarks/bench_bridge.py), 19 s if nothing was cut
        assert call.last_loud_s() - said_s <= 1.0
        await until(lambda: connection.of("conversation.item.truncate"))
        (truncate,) = connection.of("conversation.item.truncate")
        assert truncate["audio_end_ms"] == pytest.approx(heard_ms, abs=40)
        assert (await stats(http, call))["interruptions"] == 1


# F08, F10: connections that end


@pytest.mark.parametrize("how", [1000, 1001, 1006, 1011, "abort"])
async def test_f08_a_connection_that_dies_mid_reply_is_replaced_and_nothing_is_silent(
    model: RealtimeServer, http: aiohttp.ClientSession, how: int | str
) -> None:
    async with raw_media_call(http) as call:
        first = model.connections[0]
        await first.send("response.created", response={"id": "resp_1", "status": "in_progress"})
        await call.event("response.created")
        output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
        call.send_event({"type": "conversation.item.create", "item": output})
        call.send_event({"type": "response.create"})
        await until(lambda: first.of("response.create"))
        began_s = time.monotonic()
        if how == "abort":
            first.abort()
        elif how == 1006:
            transport_of(first).close()
        else:
            await first.websocket.close(code=int(how))
        failed = await call.event("response.done")
        assert failed["response"]["status"] == "failed"
        await until(lambda: len(model.connections) == 2)
        assert time.monotonic() - began_s < 10.0  # a second on a free machine
        second = model.connections[1]
        # what had no answer yet is asked for again, in order
        await until(lambda: second.of("response.create"))
        kinds = [event["type"] for event in second.events]
        assert kinds.index("conversation.item.create") < kinds.index("response.create")
        assert second.of("conversation.item.create")[0]["item"] == output
        call.first_loud.clear()
        await second.say(tone(400), response="resp_2", item="item_2")
        async with asyncio.timeout(10):
            await call.first_loud.wait()
        assert (await stats(http, call))["reconnects"] == 1


async def test_f10_a_backend_that_ends_sessions_by_age_costs_a_short_gap_each_time(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async def grow_old(connection: Connection) -> None:
        await asyncio.sleep(1.0)
        await connection.websocket.close(code=1001)

    model.script = grow_old
    async with raw_media_call(http) as call:
        call.speak(60.0)
        await until(lambda: len(model.connections) >= 4, 30.0)
        await until(lambda: any(len(c.audio) > RATE_HZ // 5 * 2 for c in model.connections[3:]))
        assert (await stats(http, call))["reconnects"] >= 3
        assert [e["type"] for e in call.events].count("session.created") == 1
        location = call.location
    async with http.delete(location, headers={"Authorization": "Bearer ek_test"}):
        pass
    assert sample(await metrics(http), "transceiver_backend_reconnects_total") >= 3


# F11, F14: ends


@pytest.mark.slow
async def test_f11_clients_that_are_killed_are_given_up_and_so_are_their_backends(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    """Idle, speaking, and spoken to; nothing says goodbye, neither SCTP nor DTLS."""
    async with (
        raw_media_call(http) as idle,
        raw_media_call(http) as speaking,
        raw_media_call(http) as spoken_to,
    ):
        speaking.speak(60.0)
        await model.connections[2].say(tone(3_000))
        await spoken_to.first_loud.wait()
        for call in (idle, speaking, spoken_to):
            while (await stats(http, call))["packets_in"] == 0:  # noqa: ASYNC110
                await asyncio.sleep(FRAME_S)
        began_s = time.monotonic()
        for call in (idle, speaking, spoken_to):
            call.vanish()
        for connection in model.connections:
            await asyncio.wait_for(connection.closed.wait(), 60)
        assert time.monotonic() - began_s <= 45
        for call in (idle, speaking, spoken_to):
            assert await ended(http, call) == "consent_expired"
    text = await metrics(http)
    assert sample(text, 'transceiver_sessions{state="connected"}') == 0
    assert sample(text, 'transceiver_calls_ended_total{reason="consent_expired"}') == 3
    assert sample(text, "transceiver_call_seconds_count") == 3
    assert sample(text, 'transceiver_call_loss_ratio_count{direction="in"}') == 3


@pytest.mark.parametrize("method", ["delete", "hangup"])
async def test_f14_an_end_is_answered_at_once_and_twice(
    model: RealtimeServer, http: aiohttp.ClientSession, method: str
) -> None:
    async def end(call: RawMediaCall) -> tuple[int, float]:
        began_s = time.monotonic()
        headers = {"Authorization": "Bearer ek_test"}
        request = (
            http.delete(call.location, headers=headers)
            if method == "delete"
            else http.post(f"{call.location}/hangup", headers=headers)
        )
        async with request as response:
            return response.status, time.monotonic() - began_s

    async with raw_media_call(http) as call, raw_media_call(http) as gone:
        gone.vanish()
        for one in (call, gone):
            status, took_s = await end(one)
            assert status == 200
            assert took_s <= 2.0
            status, took_s = await end(one)
            assert status == 404
            assert took_s <= 2.0
        for connection in model.connections:
            await asyncio.wait_for(connection.closed.wait(), 10)


# F13: backends that do not read


def transport_of(connection: Connection) -> Any:
    """Of the model's side."""
    request: Any = connection.websocket._req
    return request.transport


def is_loud_pcm(pcm: bytes | bytearray) -> bool:
    return max(array("h", bytes(pcm[: len(pcm) // 2 * 2])), default=0) > 3_000


def resident_bytes(process: Process) -> int:
    """Anonymous memory of all its processes."""
    found = 0
    for pid in session_members(process.pid):
        status = Path(f"/proc/{pid}/status").read_text()
        resident = re.search(r"^RssAnon:\s+(\d+) kB", status, flags=re.MULTILINE)
        found += 1_024 * int(resident[1]) if resident is not None else 0
    return found


@pytest.mark.soak
@pytest.mark.slow
async def test_f13_a_hundred_stalled_backends_cost_two_megabytes_each_and_lag_no_more_after(
    server: Process, model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async with AsyncExitStack() as stack:
        calls = []
        for _ in range(STALLED_CALLS):
            calls.append(await stack.enter_async_context(raw_media_call(http)))
            # From the first packet on there is sound, silence for one that stops: a hundred clients cost nothing.
            await until(lambda: model.connections[len(calls) - 1].audio)
            calls[-1].mute_packets()
        before = resident_bytes(server)
        for connection in model.connections:
            transport_of(connection).pause_reading()
        await asyncio.sleep(STALL_S)
        grown = resident_bytes(server) - before
        print(f"{grown / STALLED_CALLS / 1024:.0f} KiB a call")
        assert grown <= STALLED_CALLS * BYTES_A_CALL_MAX
        # one resumes: what it hears is the present again soon
        connection, call = model.connections[0], calls[0]
        transport_of(connection).resume_reading()
        await asyncio.sleep(2.0)
        heard = len(connection.audio)
        call.go_on()
        call.speak(0.5)
        began_s = time.monotonic()
        await until(lambda: is_loud_pcm(connection.audio[heard:]))
        lag_s = time.monotonic() - began_s
        dropped_ms = (await stats(http, call))["dropped_ms"]["in"]
        print(f"dropped {dropped_ms} ms, lag {lag_s:.2f} s")
        assert dropped_ms > 1_000
        assert lag_s < 5.0  # half a second on a free machine
        # all were told, in the moment that it began and not with every frame
        for stalled in calls:
            slow = [e["error"] for e in stalled.events if e["type"] == "error"]
            assert 1 <= len(slow) <= 3
            assert {error["code"] for error in slow} == {"backend_slow"}


async def test_a_backend_that_says_nothing_is_told_of_once(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    model.greets = False
    async with raw_media_call(http) as call:  # which is there with its first event
        assert [event["type"] for event in call.events] == ["error"]
        assert call.events[0]["error"]["code"] == "backend_silent"
        await asyncio.sleep(0.5)
        assert len(call.events) == 1
        await model.connections[0].send("session.created", session={})
        await call.event("session.created")
        assert (await stats(http, call))["state"] == "connected"


async def test_what_a_model_says_beyond_all_room_is_counted(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    """A backend is not read while four minutes wait to be played; what comes in one message is not cut in two."""
    async with raw_media_call(http) as call:
        where = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
        for seconds in (80, 80, 75, 80):
            sound = base64.b64encode(bytes(seconds * RATE_HZ * 2)).decode()
            await model.connections[0].send("response.output_audio.delta", delta=sound, **where)
        async with asyncio.timeout(20):
            # what is waited for lies in another process
            while not (dropped_ms := (await stats(http, call))["dropped_ms"]["out"]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        location = call.location
    # 315 s into a room of 300 s, from which some have been played
    assert 1_000 < dropped_ms <= 15_000
    async with http.delete(location, headers={"Authorization": "Bearer ek_test"}):
        pass
    counter = 'transceiver_dropped_sound_seconds_total{direction="out"}'
    assert sample(await metrics(http), counter) == pytest.approx(dropped_ms / 1_000, abs=0.01)


# The user's silence


async def test_a_client_whose_packets_stop_is_silent_to_the_backend(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    """A backend's turn detection hears the end of a turn only when time goes on."""
    async with raw_media_call(http) as call:
        connection = model.connections[0]
        call.speak(60.0)
        await until(lambda: len(connection.audio) > RATE_HZ * 2 // 2)
        call.mute_packets()
        await asyncio.sleep(0.5)
        before, began_s = len(connection.audio), time.monotonic()
        await until(lambda: len(connection.audio) - before >= 2.0 * 2 * RATE_HZ)
        assert time.monotonic() - began_s >= 2.0 - 0.4, "no faster than time goes by"
        assert set(connection.audio[before + RATE_HZ :]) == {0}


# Events: size and backpressure


async def test_a_burst_of_large_events_waits_for_the_client_and_all_arrive_in_order(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async with raw_media_call(http) as call:
        for number in range(80):
            await model.connections[0].send("large", number=number, blob="x" * 50_000)
        await until(lambda: len([e for e in call.events if e["type"] == "large"]) == 80, 40.0)
        assert [e["number"] for e in call.events if e["type"] == "large"] == list(range(80))
        assert (await stats(http, call))["state"] == "connected"


async def test_events_of_two_hundred_kilobytes_pass_both_ways(
    model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async with raw_media_call(http) as call:
        await model.connections[0].send("large", blob="x" * 200_000)
        assert (await call.event("large"))["blob"] == "x" * 200_000
        item = {"id": "big", "type": "message", "blob": "y" * 200_000}
        call.send_event({"type": "conversation.item.create", "item": item})
        await until(lambda: model.connections[0].of("conversation.item.create"))
        assert model.connections[0].of("conversation.item.create")[0]["item"] == item


async def test_logs_name_the_call_and_no_secret(
    server: Process, model: RealtimeServer, http: aiohttp.ClientSession
) -> None:
    async with raw_media_call(http) as call:
        model.connections[0].abort()
        await until(lambda: len(model.connections) == 2)
        call_id = call.location.rpartition("/")[2]
    await ended(http, call)
    events = server.events(call_id=call_id)
    names = [event["event"] for event in events]
    for name in ("call_opened", "backend_connected", "backend_connection_lost", "call_ended"):
        assert name in names
    assert json.dumps(events).count("sk-") == 0
