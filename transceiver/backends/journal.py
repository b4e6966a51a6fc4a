"""What a backend must be told again after its connection broke: the session and the conversation, as text.

1. Bounded: the oldest items go first.
2. Audio is not kept. A spoken turn comes back as its transcript, or not at all when there is none.
3. What the user did not hear does not come back: of a cut item the share of its words that its sound had come to.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any, Final

from .dialect import Event

ITEMS_MAX: Final = 200
ITEM_MAX_CHARS: Final = 64_000
"""A larger item is not kept."""
SESSION_MAX_CHARS: Final = 256_000
"""A session that grows beyond this stays as it was."""
TEXT_MAX_CHARS: Final = 32_000
"""Per item; a longer text is kept from its start."""

_REPLAYED_TEXT: Final = {"user": "input_text", "system": "input_text", "assistant": "output_text"}


class Journal:
    """The conversation of one call in GA events."""

    def __init__(self) -> None:
        self.session: Event = {}
        self._items: OrderedDict[str, Event] = OrderedDict()
        self._heard: dict[str, float] = {}

    def session_updated(self, session: Event) -> None:
        """A client's `session.update` on its way up: later fields win, nested `audio` is merged."""
        merged = merge(self.session, session)
        if len(json.dumps(merged)) <= SESSION_MAX_CHARS:
            self.session = merged

    def observe(self, event: Event) -> None:
        """A backend event on its way down; unknown ones are ignored."""
        kind, item_id = event.get("type"), event.get("item_id")
        if kind in ("conversation.item.added", "conversation.item.done") and isinstance(
            event.get("item"), dict
        ):
            self._store(event["item"], event.get("previous_item_id"))
        elif kind == "conversation.item.deleted" and isinstance(item_id, str):
            self._items.pop(item_id, None)
        elif kind in (
            "conversation.item.input_audio_transcription.completed",
            "response.output_audio_transcript.done",
        ):
            self._transcribe(item_id, event.get("content_index", 0), event.get("transcript"))

    def cut(self, item_id: str, share: float) -> None:
        """The user heard only this share (0..1) of an item's sound."""
        self._heard[item_id] = share
        if len(self._heard) > ITEMS_MAX:
            del self._heard[next(iter(self._heard))]

    def replay(self) -> list[Event]:
        """The events that bring a fresh backend session to where this one was.

        The first is its update, even of nothing: it also carries the audio formats.
        """
        session = {"type": "session.update", "session": self.session}
        texts = [
            text
            for name, item in self._items.items()
            if (text := _as_text(item, self._heard.get(name, 1.0))) is not None
        ]
        return [session, *({"type": "conversation.item.create", "item": text} for text in texts)]

    def _store(self, item: Event, previous_id: Any) -> None:
        item_id = item.get("id")
        if not isinstance(item_id, str) or len(json.dumps(item)) > ITEM_MAX_CHARS:
            return
        known = self._items.get(item_id)
        self._items[item_id] = item if known is None else _keep_transcripts(known, item)
        if known is None and (previous_id == "root" or previous_id in self._items):
            self._move_behind(item_id, None if previous_id == "root" else previous_id)
        while len(self._items) > ITEMS_MAX:
            self._items.popitem(last=False)

    def _move_behind(self, item_id: str, previous_id: str | None) -> None:
        order = [known for known in self._items if known != item_id]
        order.insert(0 if previous_id is None else order.index(previous_id) + 1, item_id)
        self._items = OrderedDict((known, self._items[known]) for known in order)

    def _transcribe(self, item_id: Any, content_index: Any, transcript: Any) -> None:
        item = self._items.get(item_id) if isinstance(item_id, str) else None
        if item is None or not isinstance(transcript, str) or not isinstance(content_index, int):
            return
        content = [dict(part) for part in item.get("content") or [] if isinstance(part, dict)]
        if not content:
            kind = "output_audio" if item.get("role") == "assistant" else "input_audio"
            content = [{"type": kind}]
        if 0 <= content_index < len(content):
            content[content_index]["transcript"] = transcript[:TEXT_MAX_CHARS]
        self._items[str(item_id)] = {**item, "content": content}


def merge(old: Event, new: Event) -> Event:
    """`old` with the fields of `new`, objects merged, everything else replaced."""
    merged = dict(old)
    for name, value in new.items():
        both = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = merge(merged[name], value) if both else value
    return merged


def _keep_transcripts(known: Event, item: Event) -> Event:
    old_parts = [part for part in known.get("content") or [] if isinstance(part, dict)]
    new_parts = [dict(part) for part in item.get("content") or [] if isinstance(part, dict)]
    for old, new in zip(old_parts, new_parts, strict=False):
        if old.get("transcript") and not new.get("transcript"):
            new["transcript"] = old["transcript"]
    return {**item, "content": new_parts or old_parts}


def _as_text(item: Event, share: float) -> Event | None:
    kind = item.get("type")
    if kind in ("function_call", "function_call_output"):
        return {name: value for name, value in item.items() if name not in ("object", "status")}
    role = item.get("role")
    if kind != "message" or role not in _REPLAYED_TEXT:
        return None
    texts = [
        part.get("text") or part.get("transcript")
        for part in item.get("content") or []
        if isinstance(part, dict)
    ]
    kept = [heard for text in texts if isinstance(text, str) and (heard := _heard(text, share))]
    if not kept:
        return None
    parts = [{"type": _REPLAYED_TEXT[role], "text": text[:TEXT_MAX_CHARS]} for text in kept]
    return {"id": item["id"], "type": "message", "role": role, "content": parts}


def _heard(text: str, share: float) -> str:
    """The first words, in that share of the characters."""
    if share >= 1.0:
        return text
    return text[: int(len(text) * share)].rpartition(" ")[0]
