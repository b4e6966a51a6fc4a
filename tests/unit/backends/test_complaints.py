"""What a client hears of a backend that is there and does not do its part (complaints.py)."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tests.unit.backends.test_link import backend, until
from tests.unit.backends.test_talk import Line, Sound, talking
from transceiver.backends.complaints import AGAIN_S, SILENT_S, Complaints


def codes(events: list[Any]) -> list[str]:
    return [event["error"]["code"] for event in events if event["type"] == "error"]


def test_silence_is_told_once_a_connection() -> None:
    complaints = Complaints()
    assert complaints.due(SILENT_S - 0.1, 0.0, 0, 1.0) == []
    assert codes(complaints.due(SILENT_S, 0.0, 0, 1.1)) == ["backend_silent"]
    assert complaints.due(SILENT_S + 1, 0.0, 0, 2.1) == []
    assert complaints.due(0.0, 0.0, 0, 3.0) == []
    assert codes(complaints.due(SILENT_S, 0.0, 0, 9.0)) == ["backend_silent"]


def test_dropped_sound_is_told_when_it_begins_and_while_it_goes_on() -> None:
    complaints = Complaints()
    (first,) = complaints.due(0.0, 40.0, 0, 0.0)
    assert first["error"]["code"] == "backend_slow"
    assert "0.04 s" in first["error"]["message"]
    assert complaints.due(0.0, 2_000.0, 0, AGAIN_S - 0.1) == []
    (again,) = complaints.due(0.0, 3_040.0, 0, AGAIN_S)
    assert "3.00 s" in again["error"]["message"]
    assert complaints.due(0.0, 3_040.0, 0, 5 * AGAIN_S) == []


def test_garbage_is_told_when_it_begins_and_while_it_goes_on() -> None:
    complaints = Complaints()
    (first,) = complaints.due(0.0, 0.0, 1, 0.0)
    assert (first["error"]["code"], first["error"]["type"]) == ("backend_garbage", "server_error")
    assert complaints.due(0.0, 0.0, 3, AGAIN_S - 0.1) == []
    both = complaints.due(0.0, 500.0, 5, AGAIN_S)  # each has a clock of its own
    assert codes(both) == ["backend_slow", "backend_garbage"]
    assert both[1]["error"]["message"].endswith(": 4.")
    assert complaints.due(0.0, 500.0, 5, 5 * AGAIN_S) == []


def test_a_backend_that_says_nothing_and_one_that_breaks_are_told() -> None:
    async def scenario() -> None:
        leave = asyncio.Event()

        async def mute(websocket: web.WebSocketResponse, number: int) -> None:
            if number == 1:
                await leave.wait()
            else:
                await websocket.send_json({"type": "session.created", "session": {}})
                async for _ in websocket:
                    pass

        line, sound = Line(), Sound()
        async with backend(mute) as url, talking(url, line, sound) as talk:
            talk.on_open()
            link = talk._peer._link
            await until(lambda: link._speechless_since_s is not None)
            link._speechless_since_s -= SILENT_S
            talk.on_wake(0.0)
            assert codes(line.events) == ["backend_silent"]
            leave.set()
            await until(lambda: "session.created" in line.types())
            talk.on_wake(0.1)
            assert codes(line.events) == ["backend_silent", "backend_connection_lost"]

    asyncio.run(scenario())
