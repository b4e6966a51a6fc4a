"""What a client asked a backend for and has no answer to: it must survive a connection that breaks. Sans-IO.

1. Items that the client makes, and responses that it asks for; nothing else can be asked for twice without harm.
2. An item is answered by an added item of its id, or of its kind where it has none; a response by the next `response.created`;
   both by an `error` that names them.
3. Bounded: the oldest is forgotten.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any, Final

from .acks import NAMED_EVENT_PREFIX
from .dialect import Event

IN_FLIGHT_MAX: Final = 64


class InFlight:
    """The account of one call, in GA events."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, Event] = OrderedDict()

    def sent(self, event: Event) -> Event:
        """A client's event goes up: as it is, or with an id where it needs one to be known by."""
        kind = event["type"]
        is_item = kind == "conversation.item.create" and isinstance(event.get("item"), dict)
        if not is_item and kind != "response.create":
            return event
        name = event.get("event_id")
        if not isinstance(name, str):
            name = NAMED_EVENT_PREFIX + secrets.token_hex(10)
            event = {**event, "event_id": name}
        self._events[name] = event
        while len(self._events) > IN_FLIGHT_MAX:
            self._events.popitem(last=False)
        return event

    def answered(self, event: Event) -> None:
        """An event of the backend."""
        if event["type"] == "response.created":
            self._forget(lambda asked: asked["type"] == "response.create")
        elif event["type"] == "conversation.item.added" and isinstance(event.get("item"), dict):
            item = event["item"]
            self._forget(lambda asked: "item" in asked and _is_answer(asked["item"], item))

    def refused(self, cause: str | None) -> None:
        """An `error` that names this event."""
        self._events.pop(cause or "", None)

    def unanswered(self, unsent: frozenset[str]) -> list[Event]:
        """What a new connection must be asked again: all but what waits to be sent anyway."""
        return [event for name, event in self._events.items() if name not in unsent]

    def _forget(self, matches: Any) -> None:
        name = next((name for name, asked in self._events.items() if matches(asked)), None)
        if name is not None:
            del self._events[name]


def _is_answer(asked: Event, item: Event) -> bool:
    if asked.get("id") is not None:
        return bool(asked["id"] == item.get("id"))
    same = all(asked.get(name) == item.get(name) for name in ("type", "role", "call_id"))
    return same and not _is_spoken(item)


def _is_spoken(item: Event) -> bool:
    """The user's turn at the microphone is no answer to a text."""
    content = item.get("content")
    first = content[0] if isinstance(content, list) and content else None
    return isinstance(first, dict) and first.get("type") == "input_audio"
