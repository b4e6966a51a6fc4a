"""A Realtime server in miniature that says back what it heard: the model behind the echo backend. Sans-IO.

1. It speaks GA events and 16-bit mono PCM; what it sends has the shapes of a real backend, in a real backend's order.
2. Turn detection follows `session.audio.input.turn_detection`: threshold, prefix_padding_ms, silence_duration_ms,
   create_response, interrupt_response, or null for turns that the client commits.
3. A turn is at most TURN_MAX_S long; of a longer one the end is kept.
4. An event it cannot serve is answered with an `error` that names the event.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

from .dialect import Event
from .journal import ITEM_MAX_BYTES
from .session_record import SESSION_MAX_BYTES, merge
from .sized import SizedEvents, size_of
from .vad import EnergyVad, VadSettings

TURN_MAX_S: Final = 30
DELTA_MS: Final = 200
ITEMS_MAX_BYTES: Final = 524_288
"""Of the conversation; its oldest items are deleted, and the client is told."""
QUOTED_MAX_CHARS: Final = 100
"""Of what a client sent, in an error."""
ODD_VALUE: Final = (AttributeError, KeyError, OverflowError, TypeError, ValueError)
"""What serving an event of an unexpected shape raises; JSON's `Infinity` overflows where a number is wanted."""
DEFAULT_TURN_DETECTION: Final[Event] = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "create_response": True,
    "interrupt_response": True,
}


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(10)}"


class Parrot:
    """One call's model."""

    def __init__(self, rate_hz: int = 24_000) -> None:
        """`rate_hz`: samples a second of the PCM, both ways."""
        self._rate_hz = rate_hz
        self._vad = EnergyVad(rate_hz)
        self._heard = bytearray()
        self._turn_start_bytes: int | None = None
        self._dropped_bytes = 0
        self._turn_item_id = ""
        self._items = SizedEvents()
        self._last_turn = b""
        self._handlers: Mapping[str, Callable[[Event], list[Event]]] = {
            "session.update": self._update_session,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit_on_request,
            "input_audio_buffer.clear": self._clear,
            "response.create": self._respond_on_request,
            "response.cancel": self._cancel,
            "conversation.item.create": self._create_item,
            "conversation.item.retrieve": self._retrieve_item,
            "conversation.item.delete": self._delete_item,
            "conversation.item.truncate": self._truncate_item,
        }
        self.session: Event = {
            "id": _id("sess"),
            "object": "realtime.session",
            "type": "realtime",
            "model": "echo",
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": rate_hz},
                    "turn_detection": DEFAULT_TURN_DETECTION,
                },
                "output": {
                    "format": {"type": "audio/pcm", "rate": rate_hz},
                    "voice": "echo",
                    "speed": 1.0,
                },
            },
        }

    def hello(self) -> list[Event]:
        """The first event of a session."""
        return [_event("session.created", session=self.session)]

    def handle(self, event: Event) -> list[Event]:
        """One client event; the events that answer it."""
        kind = event.get("type")
        serve = self._handlers.get(kind) if isinstance(kind, str) else None
        if serve is None:
            message = f"The echo backend does not know `{str(kind)[:QUOTED_MAX_CHARS]}`."
            return [self._error(event, "unknown_event", message)]
        try:
            events = serve(event)
        except ODD_VALUE as reason:
            message = f"`{kind}` is not well formed: {str(reason)[:QUOTED_MAX_CHARS]}."
            return [self._error(event, "invalid_value", message)]
        return events

    def hear(self, pcm: bytes) -> list[Event]:
        """The next samples of the user."""
        self._heard += pcm
        excess = len(self._heard) - TURN_MAX_S * self._rate_hz * 2
        if excess > 0:
            del self._heard[:excess]
            self._dropped_bytes += excess
        events: list[Event] = []
        turn_detection = self._turn_detection()
        if turn_detection is None:
            return events
        for edge in self._vad.feed(pcm):
            if edge.kind == "started":
                events.append(self._speech_started(edge.at_ms))
            else:
                events += self._speech_stopped(edge.at_ms, turn_detection)
        return events

    def _turn_detection(self) -> Event | None:
        value = self.session["audio"]["input"].get("turn_detection")
        return value if isinstance(value, dict) else None

    def _speech_started(self, at_ms: int) -> Event:
        self._turn_item_id = _id("item")
        start_ms = max(0, at_ms - self._vad.settings.prefix_padding_ms)
        self._turn_start_bytes = start_ms * self._rate_hz // 1000 * 2
        return _event(
            "input_audio_buffer.speech_started", item_id=self._turn_item_id, audio_start_ms=start_ms
        )

    def _speech_stopped(self, at_ms: int, turn_detection: Event) -> list[Event]:
        events = [
            _event(
                "input_audio_buffer.speech_stopped", item_id=self._turn_item_id, audio_end_ms=at_ms
            )
        ]
        start = max(0, (self._turn_start_bytes or 0) - self._dropped_bytes)
        events += self._commit(bytes(self._heard[start:]))
        if turn_detection.get("create_response") is not False:
            events += self._respond({})
        return events

    def _commit(self, pcm: bytes) -> list[Event]:
        item_id = self._turn_item_id or _id("item")
        previous = self._items.last()
        self._dropped_bytes += len(self._heard)
        self._heard.clear()
        self._turn_start_bytes, self._turn_item_id = None, ""
        self._last_turn = pcm
        item = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_audio", "transcript": None}],
        }
        committed = _event(
            "input_audio_buffer.committed", item_id=item_id, previous_item_id=previous
        )
        deleted, added, done = self._add_item(item, previous)
        return [committed, *deleted, added, done]

    def _add_item(self, item: Event, previous: str | None) -> tuple[list[Event], Event, Event]:
        """What tells the client: of the items that made room, that it was added, that it is done. It comes behind
        `previous`, which is an item; None: in front of all.
        """
        self._items.put_behind(previous, item["id"], item)
        deleted = []
        while self._items.size_bytes > ITEMS_MAX_BYTES:
            deleted.append(self._items.remove_oldest())
        return (
            [_event("conversation.item.deleted", item_id=name) for name in deleted],
            _event("conversation.item.added", item=item, previous_item_id=previous),
            _event("conversation.item.done", item=item, previous_item_id=previous),
        )

    def _respond(self, asked: Event) -> list[Event]:
        """Says the last turn back, in sound or in words; `asked` is the `response` of a `response.create`."""
        response_id, item_id = _id("resp"), _id("item")
        in_response = {"response_id": response_id, "output_index": 0}
        where = {**in_response, "item_id": item_id, "content_index": 0}
        response: Event = {
            "id": response_id,
            "object": "realtime.response",
            "status": "in_progress",
            "output": [],
            "metadata": asked.get("metadata"),
        }
        words = f"(echo of {len(self._last_turn) / 2 / self._rate_hz:.1f} s)"
        modalities = asked.get("output_modalities") or self.session.get("output_modalities")
        if modalities == ["text"]:
            part, content = {"type": "output_text", "text": words}, self._write(where, words)
        else:
            part, content = {"type": "output_audio", "transcript": words}, self._speak(where, words)
        open_item: Event = {
            "id": item_id,
            "object": "realtime.item",
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        item = {**open_item, "status": "completed", "content": [part]}
        told: tuple[list[Event], ...] = ([], [], [])
        if asked.get("conversation") != "none":
            deleted, added, done = self._add_item(item, self._items.last())
            told = (deleted, [{**added, "item": open_item}], [done])
        return [
            *told[0],
            _event("response.created", response=response),
            _event("response.output_item.added", **in_response, item=open_item),
            *told[1],
            *content,
            *told[2],
            _event("response.output_item.done", **in_response, item=item),
            _event(
                "response.done",
                response={**response, "status": "completed", "output": [item], "usage": None},
            ),
        ]

    def _speak(self, where: Event, transcript: str) -> list[Event]:
        """The content of a spoken answer."""
        delta_bytes = self._rate_hz * DELTA_MS // 1000 * 2
        deltas = [
            _event(
                "response.output_audio.delta",
                **where,
                delta=base64.b64encode(self._last_turn[at : at + delta_bytes]).decode("ascii"),
            )
            for at in range(0, len(self._last_turn), delta_bytes)
        ]
        part = {"type": "audio", "transcript": transcript}
        return [
            _event("response.content_part.added", **where, part={**part, "transcript": ""}),
            _event("response.output_audio_transcript.delta", **where, delta=transcript),
            *deltas,
            _event("response.output_audio.done", **where),
            _event("response.output_audio_transcript.done", **where, transcript=transcript),
            _event("response.content_part.done", **where, part=part),
        ]

    @staticmethod
    def _write(where: Event, text: str) -> list[Event]:
        """The content of a written answer."""
        part = {"type": "text", "text": text}
        return [
            _event("response.content_part.added", **where, part={**part, "text": ""}),
            _event("response.output_text.delta", **where, delta=text),
            _event("response.output_text.done", **where, text=text),
            _event("response.content_part.done", **where, part=part),
        ]

    def _update_session(self, event: Event) -> list[Event]:
        session = event["session"]
        updated = merge(self.session, session)
        if size_of(updated) > SESSION_MAX_BYTES:
            raise ValueError("the session has grown too large")
        settings = updated["audio"]["input"].get("turn_detection")
        if isinstance(settings, dict):
            self._vad.settings = VadSettings(
                threshold=float(_given(settings, "threshold")),
                prefix_padding_ms=max(0, int(_given(settings, "prefix_padding_ms"))),
                silence_duration_ms=max(0, int(_given(settings, "silence_duration_ms"))),
            )
        self.session = updated
        return [_event("session.updated", session=updated)]

    def _append(self, event: Event) -> list[Event]:
        pcm = base64.b64decode(event["audio"], validate=True)
        if len(pcm) % 2:
            raise ValueError("`audio` is not of whole samples")
        return self.hear(pcm)

    def _commit_on_request(self, event: Event) -> list[Event]:
        if not self._heard:
            return [
                self._error(
                    event, "input_audio_buffer_commit_empty", "There is no audio to commit."
                )
            ]
        return self._commit(bytes(self._heard))

    def _respond_on_request(self, event: Event) -> list[Event]:
        asked = event.get("response")
        if not isinstance(asked, dict | None):
            raise ValueError("`response` is no object")
        return self._respond(asked or {})

    def _clear(self, _event_: Event) -> list[Event]:
        self._dropped_bytes += len(self._heard)
        self._heard.clear()
        return [_event("input_audio_buffer.cleared")]

    def _cancel(self, event: Event) -> list[Event]:
        # A response is made in one go, so none is ever under way.
        return [self._error(event, "response_cancel_not_active", "No response is under way.")]

    def _create_item(self, event: Event) -> list[Event]:
        made = {"object": "realtime.item", "status": "completed"}
        item = {**made, **event["item"]}
        if item.get("id") is None:
            item["id"] = _id("item")
        elif not isinstance(item["id"], str):
            raise ValueError("an item's `id` is text")
        if size_of(item) > ITEM_MAX_BYTES:
            raise ValueError("the item is too large")
        previous = event.get("previous_item_id") or self._items.last()
        if previous == "root":
            previous = None
        elif previous is not None and previous not in self._items:
            return [self._error(event, "item_not_found", "There is no such previous item.")]
        if item["id"] in self._items:
            return [self._error(event, "item_exists", "There is an item of that id.")]
        deleted, added, done = self._add_item(item, previous)
        return [*deleted, added, done]

    def _retrieve_item(self, event: Event) -> list[Event]:
        item = self._items.get(event["item_id"])
        if item is None:
            return [self._error(event, "item_not_found", "There is no such item.")]
        return [_event("conversation.item.retrieved", item=item)]

    def _delete_item(self, event: Event) -> list[Event]:
        if self._items.remove(event["item_id"]) is None:
            return [self._error(event, "item_not_found", "There is no such item.")]
        return [_event("conversation.item.deleted", item_id=event["item_id"])]

    def _truncate_item(self, event: Event) -> list[Event]:
        fields = {name: event[name] for name in ("item_id", "content_index", "audio_end_ms")}
        if event["item_id"] not in self._items:
            return [self._error(event, "item_not_found", "There is no such item.")]
        return [_event("conversation.item.truncated", **fields)]

    def _error(self, cause: Event, code: str, message: str) -> Event:
        error = {"type": "invalid_request_error", "code": code, "message": message, "param": None}
        return _event("error", error={**error, "event_id": cause.get("event_id")})


def _given(settings: Event, name: str) -> Any:
    value = settings.get(name)
    return DEFAULT_TURN_DETECTION[name] if value is None else value


def _event(kind: str, **fields: Any) -> Event:
    return {"type": kind, "event_id": _id("event"), **fields}
