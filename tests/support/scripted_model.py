"""A model for browsers: what it does follows from what the client asks, so nobody has to prompt it.

1. A user's text chooses the act: `talk long` speaks LONG_MS, `use the tool` calls the session's first function, anything else
   is answered shortly. A function's output is answered with what it said.
2. `test.speak` and `test.stop` stand for the user's voice: speech started, and stopped with a transcript.
3. It sends sound faster than it is played, goes on a little after `response.cancel`, and acknowledges what real servers do.
4. It runs in a thread with a loop of its own, so that it serves tests that have none.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.realtime_server import RATE_HZ, Connection, Event, RealtimeServer, tone

LONG_MS = 12_000
SHORT_MS = 800
DELTA_MS = 200
AHEAD = 4
"""Times faster than played."""
HEARD_TEXT = "please stop"
START_TIMEOUT_S = 10.0


@dataclass
class _Act:
    """One response under way."""

    response_id: str
    item_id: str
    cancelled: bool = False


@dataclass
class ScriptedModel:
    """The model of one connection."""

    connection: Connection
    items: dict[str, Event] = field(default_factory=dict)
    tools: list[Event] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _act: _Act | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def on_event(self, event: Event) -> None:
        """Answers one event of the client."""
        kind = event["type"]
        if kind == "session.update":
            self.tools = event["session"].get("tools", self.tools)
        elif kind == "conversation.item.create":
            await self._add({"status": "completed", **event["item"]})
        elif kind == "response.create":
            self._start(self._answer())
        elif kind == "response.cancel" and self._act is not None:
            self._act.cancelled = True
        elif kind == "conversation.item.truncate":
            where = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
            await self.connection.send("conversation.item.truncated", **where)
        elif kind == "conversation.item.retrieve" and event["item_id"] in self.items:
            item = self.items[event["item_id"]]
            await self.connection.send("conversation.item.retrieved", item=item)
        elif kind == "test.speak":
            await self.connection.send(
                "input_audio_buffer.speech_started", item_id="item_voice", audio_start_ms=100
            )
        elif kind == "test.stop":
            await self._hear_out()

    def _start(self, coroutine: Any) -> None:
        async def until_gone() -> None:
            with suppress(ConnectionError):
                await coroutine

        task = asyncio.create_task(until_gone())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _name(self, prefix: str) -> str:
        return f"{prefix}_{next(self._numbers)}"

    async def _add(self, item: Event) -> None:
        item = {"id": self._name("item"), "object": "realtime.item", **item}
        previous = next(reversed(self.items), None)
        self.items[item["id"]] = item
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self.connection.send(kind, item=item, previous_item_id=previous)

    async def _hear_out(self) -> None:
        send = self.connection.send
        await send("input_audio_buffer.speech_stopped", item_id="item_voice", audio_end_ms=900)
        await send("input_audio_buffer.committed", item_id="item_voice", previous_item_id=None)
        content = [{"type": "input_audio", "transcript": None}]
        item = {"id": "item_voice", "type": "message", "role": "user", "content": content}
        await self._add({**item, "status": "completed"})
        content[0]["transcript"] = HEARD_TEXT
        await send(
            "conversation.item.input_audio_transcription.completed",
            item_id="item_voice",
            content_index=0,
            transcript=HEARD_TEXT,
            usage={"type": "duration", "seconds": 0.8},
        )

    async def _answer(self) -> None:
        last = next(reversed(self.items.values()), {})
        text = " ".join(part.get("text") or "" for part in last.get("content") or [])
        if last.get("type") == "function_call_output":
            await self._speak(f"The function said {last['output']}", SHORT_MS)
        elif "use the tool" in text and self.tools:
            await self._call_function(self.tools[0]["name"])
        elif "talk long" in text:
            await self._speak("I talk for a long time", LONG_MS)
        else:
            await self._speak(f"You said {text}", SHORT_MS)

    async def _call_function(self, name: str) -> None:
        send, response_id = self.connection.send, self._name("resp")
        item = {
            "id": self._name("item"),
            "object": "realtime.item",
            "type": "function_call",
            "status": "in_progress",
            "call_id": self._name("call"),
            "name": name,
            "arguments": "",
        }
        in_response = {"response_id": response_id, "output_index": 0}
        await send("response.created", response=_response(response_id, "in_progress", []))
        await send("response.output_item.added", item=item, **in_response)
        arguments = '{"city":"Bonn"}'
        where = {**in_response, "item_id": item["id"], "call_id": item["call_id"]}
        await send("response.function_call_arguments.delta", delta=arguments, **where)
        await send("response.function_call_arguments.done", arguments=arguments, name=name, **where)
        done = {**item, "status": "completed", "arguments": arguments}
        await self._add(done)
        await send("response.output_item.done", item=done, **in_response)
        await send("response.done", response=_response(response_id, "completed", [done]))

    async def _speak(self, text: str, length_ms: int) -> None:
        send = self.connection.send
        act = self._act = _Act(self._name("resp"), self._name("item"))
        where = {"response_id": act.response_id, "item_id": act.item_id, "output_index": 0}
        part = {**where, "content_index": 0}
        item: Event = {"id": act.item_id, "object": "realtime.item", "type": "message"}
        item |= {"role": "assistant", "status": "in_progress", "content": []}
        in_response = {"response_id": act.response_id, "output_index": 0}
        await send("response.created", response=_response(act.response_id, "in_progress", []))
        await send("response.output_item.added", item=item, **in_response)
        await send("conversation.item.added", item=item, previous_item_id=None)
        await send("response.content_part.added", part={"type": "audio", "transcript": ""}, **part)
        await send("response.output_audio_transcript.delta", delta=text, **part)
        late = 2
        sound = tone(length_ms)
        for at in range(0, len(sound), RATE_HZ * DELTA_MS // 1_000 * 2):
            late -= act.cancelled
            if late == 0:
                break
            delta = base64.b64encode(sound[at : at + RATE_HZ * DELTA_MS // 1_000 * 2]).decode()
            await send("response.output_audio.delta", delta=delta, **part)
            await asyncio.sleep(DELTA_MS / 1_000 / AHEAD)
        content = [{"type": "output_audio", "transcript": text}]
        status = "incomplete" if act.cancelled else "completed"
        done = {**item, "status": status, "content": content}
        self.items[act.item_id] = done
        await send("response.output_audio.done", **part)
        await send("response.output_audio_transcript.done", transcript=text, **part)
        await send("response.content_part.done", part={"type": "audio", "transcript": text}, **part)
        await send("conversation.item.done", item=done, previous_item_id=None)
        await send("response.output_item.done", item=done, **in_response)
        status = "cancelled" if act.cancelled else "completed"
        await send("response.done", response=_response(act.response_id, status, [done]))
        if self._act is act:
            self._act = None


def _response(response_id: str, status: str, output: list[Event]) -> Event:
    return {
        "id": response_id,
        "object": "realtime.response",
        "status": status,
        "status_details": None,
        "output": output,
        "output_modalities": ["audio"],
        "usage": None,
    }


@contextmanager
def scripted_models(listener: socket.socket | None = None) -> Iterator[RealtimeServer]:
    """A server on `listener` (bound, of any namespace; by default a free port of loopback) in a thread of its own."""
    server = RealtimeServer(react=lambda connection: ScriptedModel(connection).on_event)
    if listener is None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
    host, port = listener.getsockname()
    server.url = f"ws://{host}:{port}/v1/realtime"
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(server.app(), shutdown_timeout=0.2)

    async def start() -> None:
        await runner.setup()
        await web.SockSite(runner, listener).start()

    thread = threading.Thread(target=loop.run_forever, name="scripted models")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(START_TIMEOUT_S)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(START_TIMEOUT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        listener.close()
