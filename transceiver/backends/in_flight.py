"""What a client asked a backend for and has no answer to: it must survive a connection that breaks. Sans-IO.

1. Items that the client makes, deletes or retrieves, and responses that it asks for; nothing else can be asked for twice
   without harm.
2. An item is answered by an added item of its id, or of its kind where it has none, or by one of its id that was deleted or
   retrieved; a response by the next `response.created`; all by an `error` that names them.
3. Who owns it bounds it (kept.py).
"""

from __future__ import annotations

import secrets
from typing import Any, Final

from .acks import NAMED_EVENT_PREFIX
from .dialect import Event
from .sized import SizedEvents

_CREATE: Final = "conversation.item.create"
_DELETE: Final = "conversation.item.delete"
_RETRIEVE: Final = "conversation.item.retrieve"
_ASKED_AGAIN: Final = frozenset(("response.create", _DELETE, _RETRIEVE))


class InFlight:
    """The account of one call, in GA events."""

    def __init__(self) -> None:
        self._events = SizedEvents()

    @property
    def size_bytes(self) -> int:
        """Of the events."""
        return self._events.size_bytes

    def forget_oldest(self) -> bool:
        """Makes room; False when there is nothing."""
        return self._events.remove_oldest() is not None

    def sent(self, event: Event) -> Event:
        """A client's event goes up: as it is, or with an id where it needs one to be known by."""
        kind = event["type"]
        is_item = kind == _CREATE and isinstance(event.get("item"), dict)
        if not is_item and kind not in _ASKED_AGAIN:
            return event
        name = event.get("event_id")
        if not isinstance(name, str):
            name = NAMED_EVENT_PREFIX + secrets.token_hex(10)
            event = {**event, "event_id": name}
        self._events.put(name, event)
        return event

    def answered(self, event: Event) -> None:
        """An event of the backend."""
        if event["type"] == "response.created":
            self._forget(lambda asked: asked["type"] == "response.create")
        elif event["type"] == "conversation.item.deleted":
            self._forget(lambda asked: _asks(asked, _DELETE, event.get("item_id")))
        elif not isinstance(item := event.get("item"), dict):
            return
        elif event["type"] == "conversation.item.added":
            self._forget(lambda asked: asked["type"] == _CREATE and _is_answer(asked["item"], item))
        elif event["type"] == "conversation.item.retrieved":
            self._forget(lambda asked: _asks(asked, _RETRIEVE, item.get("id")))

    def refused(self, cause: str | None) -> None:
        """An `error` that names this event."""
        self._events.remove(cause)

    def unanswered(self, unsent: frozenset[str]) -> list[Event]:
        """What a new connection must be asked again: all but what waits to be sent anyway."""
        return [event for name, event in self._events.items() if name not in unsent]

    def _forget(self, matches: Any) -> None:
        self._events.remove(next((n for n, asked in self._events.items() if matches(asked)), None))


def _asks(asked: Event, kind: str, item_id: object) -> bool:
    return bool(asked["type"] == kind and asked.get("item_id") == item_id)


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
