"""What the tests of the bridge to a Realtime backend say and hear: a sink whose clock they move, and events."""

from __future__ import annotations

import base64
import json
from typing import Any

from transceiver.backends.bridge import Bridge

MS = 48  # bytes of one millisecond of 24 kHz 16-bit PCM


class Sink:
    """Plays what was written, in order, as far as the test lets time go."""

    def __init__(self) -> None:
        self.queue: list[list[float]] = []  # [generation, ms left]
        self.played: dict[int, float] = {}
        self.flushes = 0

    def write(self, generation: int, pcm: bytes) -> int:
        self.queue.append([generation, len(pcm) / MS])
        return len(pcm)

    def played_ms(self, generation: int) -> float:
        return self.played.get(generation, 0.0)

    def flush(self) -> None:
        self.flushes += 1
        self.queue.clear()

    def pass_ms(self, duration_ms: float) -> None:
        while duration_ms > 0 and self.queue:
            generation, left = self.queue[0]
            step = min(left, duration_ms)
            self.played[int(generation)] = self.played_ms(int(generation)) + step
            duration_ms -= step
            self.queue[0][1] -= step
            if self.queue[0][1] <= 0:
                self.queue.pop(0)


def greet(bridge: Bridge) -> None:
    bridge.from_backend(server("session.created", session={"id": "sess_1"}))


def server(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "event_id": "event_1", **fields})


def delta(
    duration_ms: int, response: str = "resp_1", item: str = "item_1", content_index: int = 0
) -> str:
    audio = base64.b64encode(b"\1\0" * (duration_ms * MS // 2)).decode()
    fields = {
        "response_id": response,
        "item_id": item,
        "content_index": content_index,
        "output_index": 0,
    }
    return server("response.output_audio.delta", delta=audio, **fields)


def done(response: str = "resp_1") -> str:
    return server("response.done", response={"id": response, "status": "completed"})


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def session_update(**session: Any) -> str:
    return json.dumps({"type": "session.update", "session": session})
