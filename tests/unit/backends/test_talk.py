"""Whole conversations: a client, its sound and a backend, in this process and over a real WebSocket."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from array import array
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.bridge_events import Sink
from tests.unit.backends.test_link import backend, note, until
from transceiver.backends.dialect import FORMATS, Dialect
from transceiver.backends.echo import EchoBackend
from transceiver.backends.link import LinkConfig
from transceiver.backends.realtime import RealtimeBackend, RealtimeConfig
from transceiver.backends.talk import AHEAD_MAX_MS, Talk

BLOCK_MS = 20


class Sound(Sink):
    def queued_ms(self) -> float:
        return sum(left for _, left in self.queue)


class Line:
    call_id = "rtc_test"
    codec: Any = None

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.ended: list[str] = []

    def send_event(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return True

    def send_audio(self, frame: Any) -> None:
        raise AssertionError

    def end(self, reason: str) -> None:
        self.ended.append(reason)

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]


def tone(duration_ms: int) -> bytes:
    return array("h", [int(9_000 * math.sin(i * 0.1)) for i in range(24 * duration_ms)]).tobytes()


def say(talk: Talk, sound: Sound, pcm: bytes) -> None:
    """Twenty milliseconds in, twenty out, as a call does."""
    block = 24 * BLOCK_MS * 2
    for at in range(0, len(pcm), block):
        talk.on_sound(pcm[at : at + block])
        sound.pass_ms(BLOCK_MS)
        talk.on_wake(at / block * BLOCK_MS / 1_000)


def silence(duration_ms: int) -> bytes:
    return bytes(24 * duration_ms * 2)


def test_barge_in_with_the_echo_model() -> None:
    line, sound = Line(), Sound()

    async def scenario() -> None:
        talk = EchoBackend().converse(line, sound, {})
        talk.on_open()
        say(talk, sound, tone(2_000) + silence(800))
        assert "output_audio_buffer.started" in line.types()
        assert sound.queued_ms() > 1_500
        talk.on_wake(3.0)
        heard_ms = sound.played_ms(1)
        say(talk, sound, tone(100))  # the user interrupts
        assert sound.queued_ms() == 0
        truncated = next(e for e in line.events if e["type"] == "conversation.item.truncated")
        assert 0 <= truncated["audio_end_ms"] - heard_ms <= 100

    asyncio.run(scenario())
    kinds = line.types()
    assert kinds[0] == "session.created"
    order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "output_audio_buffer.started",
        "response.done",
        "input_audio_buffer.speech_started",
        "output_audio_buffer.cleared",
        "conversation.item.truncated",
    ]
    assert [kind for kind in kinds if kind in order] == order
    assert "response.output_audio.delta" not in kinds


def test_an_echo_that_shall_not_be_interrupted_goes_on_while_the_user_speaks() -> None:
    line, sound = Line(), Sound()
    detection = {"type": "server_vad", "interrupt_response": False}
    session = {"audio": {"input": {"turn_detection": detection}}}

    async def scenario() -> None:
        talk = EchoBackend().converse(line, sound, {})
        talk.on_open()
        talk.on_event(json.dumps({"type": "session.update", "session": session}))
        say(talk, sound, tone(2_000) + silence(800))
        assert line.types().count("output_audio_buffer.started") == 1
        left_ms = sound.queued_ms()
        say(talk, sound, tone(100))
        assert line.types().count("input_audio_buffer.speech_started") == 2
        assert sound.queued_ms() == left_ms - 100
        assert talk.tally().interruptions == 0

    asyncio.run(scenario())
    assert "output_audio_buffer.cleared" not in line.types()
    assert "conversation.item.truncated" not in line.types()


def test_an_echo_that_is_heard_to_its_end_stops() -> None:
    line, sound = Line(), Sound()

    async def scenario() -> None:
        talk = EchoBackend().converse(line, sound, {"instructions": "posted with the offer"})
        talk.on_open()
        say(talk, sound, tone(500) + silence(3_000))

    asyncio.run(scenario())
    assert line.types()[-1] == "output_audio_buffer.stopped"
    assert line.types().count("output_audio_buffer.stopped") == 1
    assert "session.updated" not in line.types()  # the answer to the bridge's own update


@asynccontextmanager
async def talking(url: URL, line: Line, sound: Sound, **config: Any) -> Any:
    async with aiohttp.ClientSession() as http:
        link = LinkConfig(url, {"Authorization": "Bearer k"}, give_up_s=1.0)
        made = RealtimeBackend(RealtimeConfig(link, **config), http)
        talk = made.converse(line, sound, {"instructions": "mine"})
        try:
            yield talk
        finally:
            talk.close()
            await asyncio.sleep(0)


async def read(websocket: web.WebSocketResponse, kind: str) -> dict[str, Any]:
    async for message in websocket:
        event: dict[str, Any] = json.loads(message.data)
        if event["type"] == kind:
            return event
    raise AssertionError(kind)


def run(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def test_sound_waits_until_the_session_is_updated_and_keeps_its_beginning() -> None:
    async def scenario() -> None:
        heard: list[bytes] = []
        configured = asyncio.Event()

        async def model(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.send_json({"type": "session.created", "session": {"id": "sess_1"}})
            update = await read(websocket, "session.update")
            assert update["session"]["instructions"] == "mine"
            await configured.wait()
            await websocket.send_json({"type": "session.updated", "session": update["session"]})
            while len(heard) < 20:
                event = await read(websocket, "input_audio_buffer.append")
                heard.append(base64.b64decode(event["audio"]))

        line, sound = Line(), Sound()
        async with backend(model) as url, talking(url, line, sound) as talk:
            talk.on_open()
            for number in range(20):
                talk.on_sound(bytes([number]) * 960)
            await until(lambda: "session.created" in line.types())
            assert heard == []
            configured.set()
            await until(lambda: len(heard) == 20)
            assert [block[0] for block in heard] == list(range(20))

    run(scenario)


def test_events_wait_for_the_channel_in_order() -> None:
    async def scenario() -> None:
        async def model(websocket: web.WebSocketResponse, _: int) -> None:
            for kind in ("session.created", "a", "b"):
                await websocket.send_json({"type": kind})
            await websocket.receive()
            await websocket.receive()

        line, sound = Line(), Sound()
        async with backend(model) as url, talking(url, line, sound) as talk:
            await asyncio.sleep(0.2)
            assert line.events == []
            talk.on_open()
            await until(lambda: line.types() == ["session.created", "a", "b"])

    run(scenario)


def test_a_lost_backend_is_told_to_the_client_and_ends_the_call() -> None:
    async def scenario() -> None:
        async def nobody(_: web.WebSocketResponse, __: int) -> None:
            raise AssertionError

        line, sound = Line(), Sound()
        async with backend(nobody, status=401) as url, talking(url, line, sound) as talk:
            talk.on_open()
            await until(lambda: line.ended)
            assert line.ended == ["backend"]
            assert line.events[-1]["error"]["code"] == "backend_lost"
            assert "401" in line.events[-1]["error"]["message"]

    run(scenario)


def test_a_backend_far_ahead_is_not_read_until_there_is_room() -> None:
    async def scenario() -> None:
        sent: list[int] = []

        async def model(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.send_json({"type": "session.created", "session": {}})
            seconds = base64.b64encode(silence(4_000)).decode()
            where = {"response_id": "r", "item_id": "i", "content_index": 0}
            for number in range(400):
                delta = {"type": "response.output_audio.delta", "delta": seconds, **where}
                await websocket.send_json(delta)
                sent.append(number)
            await websocket.receive()

        line, sound = Line(), Sound()
        async with backend(model) as url, talking(url, line, sound) as talk:
            talk.on_open()
            await until(lambda: sound.queued_ms() >= AHEAD_MAX_MS)
            await asyncio.sleep(0.2)
            assert sound.queued_ms() <= AHEAD_MAX_MS + 8_000
            for _ in range(500):
                sound.pass_ms(4_000)
                talk.on_wake(0.0)
                await asyncio.sleep(0)
                if len(sent) == 400:
                    break
                await asyncio.sleep(0.002)
            assert len(sent) == 400

    run(scenario)


def test_a_g711_backend_gets_companded_sound() -> None:
    async def scenario() -> None:
        formats: list[Any] = []
        heard: list[int] = []

        async def model(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.send_json({"type": "session.created", "session": {}})
            update = await read(websocket, "session.update")
            formats.append(update["session"]["audio"]["input"]["format"])
            await websocket.send_json({"type": "session.updated", "session": update["session"]})
            append = await read(websocket, "input_audio_buffer.append")
            heard.append(len(base64.b64decode(append["audio"])))
            where = {"response_id": "r", "item_id": "i", "content_index": 0}
            delta = base64.b64encode(b"\xff" * 800).decode()
            await websocket.send_json(
                {"type": "response.output_audio.delta", "delta": delta, **where}
            )
            await websocket.receive()

        line, sound = Line(), Sound()
        dialect = Dialect(format=FORMATS["pcmu"])
        async with backend(model) as url, talking(url, line, sound, dialect=dialect) as talk:
            talk.on_open()
            talk.on_sound(bytes(320))
            await until(lambda: sound.queue)
            assert (formats, heard) == ([{"type": "audio/pcmu"}], [160])
            assert sound.queue[0][1] * 48 == 1_600  # 800 samples of PCM

    run(scenario)


def test_a_backend_that_never_acknowledges_its_session_is_talked_to_all_the_same() -> None:
    async def scenario() -> None:
        heard: list[str] = []

        async def deaf(websocket: web.WebSocketResponse, _: int) -> None:
            async for message in websocket:
                note(message, "type", heard)

        async with backend(deaf) as url, aiohttp.ClientSession() as http:
            config = RealtimeConfig(LinkConfig(url))
            talk = RealtimeBackend(config, http).converse(Line(), Sound(), {"instructions": "i"})
            await until(lambda: heard == ["session.update"])
            talk.on_sound(silence(20))
            talk.on_wake(10.0)
            await asyncio.sleep(0.1)
            assert heard == ["session.update"]
            talk.on_wake(13.1)
            await until(lambda: heard[1:] == ["input_audio_buffer.append"])
            talk.close()

    asyncio.run(scenario())


def test_a_backend_that_refuses_the_session_gets_the_formats_before_any_sound() -> None:
    async def scenario() -> None:
        updates: list[dict[str, Any]] = []
        kinds: list[str] = []

        async def model(websocket: web.WebSocketResponse, _: int) -> None:
            await websocket.send_json({"type": "session.created", "session": {"id": "sess_1"}})
            updates.append(await read(websocket, "session.update"))
            error = {"message": "no", "event_id": updates[0]["event_id"]}
            await websocket.send_json({"type": "error", "error": error})
            async for message in websocket:
                event = json.loads(message.data)
                kinds.append(event["type"])
                if event["type"] == "session.update":
                    updates.append(event)
                    await websocket.send_json(
                        {"type": "session.updated", "session": event["session"]}
                    )

        line, sound = Line(), Sound()
        dialect = Dialect(format=FORMATS["pcmu"])
        async with backend(model) as url, talking(url, line, sound, dialect=dialect) as talk:
            talk.on_open()
            talk.on_sound(bytes(320))
            await until(lambda: "input_audio_buffer.append" in kinds)
        assert kinds[0] == "session.update"
        first, second = (update["session"] for update in updates)
        assert (first["instructions"], "instructions" in second) == ("mine", False)
        assert second["audio"]["output"]["format"] == {"type": "audio/pcmu"}
        assert line.types().count("error") == 1

    run(scenario)
