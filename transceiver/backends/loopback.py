"""The user's own sound comes back at once, packet by packet, in the user's own codec.

1. Nothing is decoded, so there is no voice activity: no speech events, no responses of its own.
2. The events an SDK waits for are answered, so that an unmodified one connects: `session.created`,
   `session.updated`, an empty response for `response.create`, items, buffers. Everything else is
   an `error` that names the client's event.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable

from ..nesting import read_json
from .base import Event, Line, Sound, Tally
from .made import digit_event, fixed_event
from .policy import restrict
from .session_record import merge

MAX_EVENT_CHARS = 262_144
MAX_ITEMS = 64
MAX_ITEM_CHARS = 16_384


class LoopbackBackend:
    """Makes conversations without a model; see the module."""

    name = "loopback"
    rate_hz = None

    def converse(
        self, line: Line, _sound: Sound, session: Event, updatable: Iterable[str] | None = None
    ) -> LoopbackConversation:
        """See Backend.converse."""
        return LoopbackConversation(line, session, updatable)


class LoopbackConversation:
    """One call whose sound is passed through."""

    def __init__(self, line: Line, session: Event, updatable: Iterable[str] | None) -> None:
        self._line = line
        self._session: Event = {
            "id": _id("sess"),
            "object": "realtime.session",
            "type": "realtime",
            "model": "loopback",
            "output_modalities": ["audio"],
            "instructions": "",
            "tools": [],
        }
        self._updatable = None if updatable is None else tuple(updatable)
        self._merge(session)
        self._items: dict[str, Event] = {}
        self._answers: dict[str, Callable[[Event], None]] = {
            "session.update": self._on_session_update,
            "response.create": self._on_response_create,
            "conversation.item.create": self._on_item_create,
            "conversation.item.retrieve": self._on_item_retrieve,
            "conversation.item.delete": self._on_item_delete,
            "input_audio_buffer.clear": lambda _: self._send("input_audio_buffer.cleared"),
            "output_audio_buffer.clear": lambda _: self._send(
                "output_audio_buffer.cleared", response_id=_id("resp")
            ),
        }

    def on_open(self) -> None:
        """See Conversation.on_open."""
        self._send("session.created", session=self._session)

    def on_sound(self, pcm: bytes) -> None:
        """Nothing: the media engine passes the packets through."""

    def on_digit(self, digit: str) -> None:
        """See Conversation.on_digit."""
        self._line.send_event(digit_event(digit, time.time()))

    def on_wake(self, now_s: float) -> None:
        """See Conversation.on_wake."""

    def tally(self) -> Tally:
        """Nothing is counted: nobody talks but the user."""
        return Tally()

    def on_event(self, message: str | bytes) -> None:
        """See Conversation.on_event."""
        event = _read_object(message)
        if event is None or not isinstance(event.get("type"), str):
            self._refuse(event, "invalid_event", "An event is a JSON object with a string `type`.")
            return
        answer = self._answers.get(event["type"])
        if answer is None:
            self._refuse(
                event, "unknown_event", f"The loopback does not do {event['type'][:100]!r}."
            )
        else:
            answer(event)

    def close(self) -> None:
        """See Conversation.close."""
        self._items.clear()

    def _on_session_update(self, event: Event) -> None:
        session = event.get("session")
        if not isinstance(session, dict):
            self._refuse(event, "invalid_event", "`session` must be an object.", "session")
            return
        allowed, refused = restrict(session, self._updatable)
        if refused:
            cause = event.get("event_id")
            self._line.send_event(fixed_event(refused, cause if isinstance(cause, str) else None))
        before = self._session
        self._merge(allowed)
        if len(json.dumps(self._session)) > MAX_EVENT_CHARS:
            self._session = before
            self._refuse(event, "session_too_large", "The session has grown too large.", "session")
            return
        self._send("session.updated", session=self._session)

    def _on_response_create(self, event: Event) -> None:
        response: Event = {
            "id": _id("resp"),
            "object": "realtime.response",
            "status": "in_progress",
            "output": [],
            "usage": None,
        }
        self._send("response.created", response=response)
        self._send("response.done", response={**response, "status": "completed"})

    def _on_item_create(self, event: Event) -> None:
        item = event.get("item")
        if not isinstance(item, dict) or len(json.dumps(item)) > MAX_ITEM_CHARS:
            self._refuse(event, "invalid_event", "`item` must be an object of text.", "item")
            return
        if not isinstance(item.get("id"), str):
            item = {**item, "id": _id("item")}
        if len(self._items) >= MAX_ITEMS:
            del self._items[next(iter(self._items))]
        previous = next(reversed(self._items), None)
        self._items[item["id"]] = item
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._send(kind, item=item, previous_item_id=previous)

    def _on_item_retrieve(self, event: Event) -> None:
        item = self._items.get(str(event.get("item_id")))
        if item is None:
            self._refuse(event, "item_not_found", "There is no such item.", "item_id")
        else:
            self._send("conversation.item.retrieved", item=item)

    def _on_item_delete(self, event: Event) -> None:
        item = self._items.pop(str(event.get("item_id")), None)
        if item is None:
            self._refuse(event, "item_not_found", "There is no such item.", "item_id")
        else:
            self._send("conversation.item.deleted", item_id=item["id"])

    def _merge(self, session: Event) -> None:
        fixed = ("id", "object", "type", "model")
        free = {key: value for key, value in session.items() if key not in fixed}
        self._session = merge(self._session, free)

    def _send(self, kind: str, **fields: object) -> None:
        self._line.send_event({"type": kind, "event_id": _id("event"), **fields})

    def _refuse(
        self, event: Event | None, code: str, message: str, param: str | None = None
    ) -> None:
        cause = None if event is None else event.get("event_id")
        error = {
            "type": "invalid_request_error",
            "code": code,
            "message": message,
            "param": param,
            "event_id": cause if isinstance(cause, str) else None,
        }
        self._send("error", error=error)


def _read_object(message: str | bytes) -> Event | None:
    if isinstance(message, bytes) or len(message) > MAX_EVENT_CHARS:
        return None
    try:
        event = read_json(message)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"
