"""A Realtime server that answers at once and says when: the backend under which the bridge is measured.

1. Where the session says `instructions: "quiet"`, loud sound after some quiet is reported by `bench.heard {at_s}`.
2. `bench.speak {ms}` makes it speak, announced by `bench.spoken {at_s}` just before the first delta; `bench.barge` makes it tell of
   the user's speech, announced by `bench.barged {at_s}`. Unknown events pass the bridge, and so do these.
3. "instant" is spoken to as soon as it is configured; "busy" hears sound a third of the time, as the other side of a call does, and each of them at times of its own.
4. `at_s` is the monotonic clock, which all processes of a machine share. The event `listening` on stdout tells the address.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import time
from array import array
from typing import Any

from aiohttp import WSMsgType, web

RATE_HZ = 24_000
DELTA_MS = 200
LOUD = 6_000
QUIET_BLOCKS = 5
BUSY_S = 2.0
_APPEND = '{"type": "input_audio_buffer.append"'


def _tone(ms: int) -> bytes:
    step = 2 * math.pi * 500 / RATE_HZ
    return array(
        "h", (int(16_000 * math.sin(i * step)) for i in range(RATE_HZ * ms // 1_000))
    ).tobytes()


_DELTA = base64.b64encode(_tone(DELTA_MS)).decode()


class Connection:
    """One call."""

    def __init__(self, websocket: web.WebSocketResponse) -> None:
        self._websocket = websocket
        self._probe = False
        self._quiet_blocks = 0
        self._responses = 0
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Until it closes."""
        await self._send("session.created", session={"type": "realtime"})
        try:
            async for message in self._websocket:
                if message.type is WSMsgType.TEXT:
                    await self._on_text(message.data)
        finally:
            if self._task is not None:
                self._task.cancel()

    async def _on_text(self, text: str) -> None:
        if text.startswith(_APPEND):
            if self._probe:
                await self._listen(base64.b64decode(json.loads(text)["audio"]))
            return
        event = json.loads(text)
        kind = event["type"]
        if kind == "session.update":
            session = event["session"]
            await self._send("session.updated", session=session)
            if session.get("instructions") == "instant":
                await self._speak(1_000)
            elif session.get("instructions") == "busy" and self._task is None:
                self._task = asyncio.create_task(self._be_busy())
            self._probe = session.get("instructions") == "quiet"
        elif kind == "bench.speak":
            await self._speak(event["ms"])
        elif kind == "bench.barge":
            await self._send("bench.barged", at_s=time.monotonic())
            await self._send("input_audio_buffer.speech_started", item_id="u", audio_start_ms=0)

    async def _listen(self, pcm: bytes) -> None:
        at_s = time.monotonic()
        if max(array("h", pcm), default=0) <= LOUD:
            self._quiet_blocks += 1
            return
        quiet, self._quiet_blocks = self._quiet_blocks, 0
        if quiet >= QUIET_BLOCKS:
            await self._send("bench.heard", at_s=at_s)

    async def _be_busy(self) -> None:
        await asyncio.sleep(random.uniform(0, 3 * BUSY_S))
        while True:
            await self._speak(int(BUSY_S * 1_000))
            await asyncio.sleep(3 * BUSY_S)

    async def _speak(self, ms: int) -> None:
        self._responses += 1
        name = f"resp_{self._responses}"
        await self._send("response.created", response={"id": name, "status": "in_progress"})
        where = {"response_id": name, "item_id": f"item_{name}", "content_index": 0}
        await self._send("bench.spoken", at_s=time.monotonic())
        for _ in range(0, ms, DELTA_MS):
            await self._send("response.output_audio.delta", delta=_DELTA, **where)
        await self._send("response.output_audio.done", **where)
        await self._send("response.done", response={"id": name, "status": "completed"})

    async def _send(self, kind: str, **fields: Any) -> None:
        await self._websocket.send_str(json.dumps({"type": kind, "event_id": "e", **fields}))


async def _serve(request: web.Request) -> web.StreamResponse:
    websocket = web.WebSocketResponse(compress=False)
    await websocket.prepare(request)
    await Connection(websocket).run()
    return websocket


async def main() -> None:
    """Serves until it is ended."""
    app = web.Application()
    app.router.add_get("/v1/realtime", _serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=512).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    print(json.dumps({"event": "listening", "role": "model", "address": address}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
