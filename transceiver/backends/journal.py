"""What a backend must be told again after its connection broke besides its session: the conversation, as text.

1. What is too large by itself is not kept, and counted (`refused`); the whole is bounded by its owner (kept.py).
2. Neither audio nor images are kept. A spoken turn comes back as its transcript, or not at all when there is none.
3. What the user did not hear does not come back: of a cut item the share of its words that its sound had come to.
"""

from __future__ import annotations

from typing import Any, Final

from .dialect import Event
from .sized import SizedEvents, size_of

ITEM_MAX_BYTES: Final = 262_144
CUTS_MAX: Final = 256
"""Items whose unheard rest is known; older ones come back whole."""
NAME_MAX_CHARS: Final = 256

_REPLAYED_TEXT: Final = {"user": "input_text", "system": "input_text", "assistant": "output_text"}


class Journal:
    """The conversation of one call in GA events."""

    def __init__(self) -> None:
        self.refused = 0
        self._items = SizedEvents()
        self._heard: dict[str, float] = {}

    @property
    def size_bytes(self) -> int:
        """Of the items."""
        return self._items.size_bytes

    def forget_oldest(self) -> bool:
        """Makes room; False when there is no item."""
        return self._items.remove_oldest() is not None

    def observe(self, event: Event) -> None:
        """A backend event on its way down; unknown ones are ignored."""
        kind, item_id = event.get("type"), event.get("item_id")
        if kind in ("conversation.item.added", "conversation.item.done") and isinstance(
            event.get("item"), dict
        ):
            self._store(event["item"], event.get("previous_item_id"))
        elif kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            # Beta backends say nowhere else what has become of an item; one out of band stays unknown.
            if event["item"].get("id") in self._items:
                self._store(event["item"], None)
        elif kind == "conversation.item.deleted" and isinstance(item_id, str):
            self._items.remove(item_id)
        elif kind in (
            "conversation.item.input_audio_transcription.completed",
            "response.output_audio_transcript.done",
        ):
            self._transcribe(item_id, event.get("content_index", 0), event.get("transcript"))

    def cut(self, item_id: str, share: float) -> None:
        """The user heard only this share (0..1) of an item's sound."""
        self._heard[item_id] = share
        if len(self._heard) > CUTS_MAX:
            del self._heard[next(iter(self._heard))]

    def unheard(self, item_id: str) -> None:
        """The user heard nothing of an item, unless a cut said how much."""
        if item_id not in self._heard:
            self.cut(item_id, 0.0)

    def replay(self) -> list[Event]:
        """The events that bring the conversation of a fresh backend session to where this one was."""
        texts = [
            text
            for name, item in self._items.items()
            if (text := _as_text(item, self._heard.get(name, 1.0))) is not None
        ]
        return [{"type": "conversation.item.create", "item": text} for text in texts]

    def _store(self, item: Event, previous_id: Any) -> None:
        item_id = item.get("id")
        if not isinstance(item_id, str):
            return
        known = self._items.get(item_id)
        kept = _without_media(item if known is None else _keep_transcripts(known, item))
        size_bytes = size_of(kept)
        if len(item_id) > NAME_MAX_CHARS or size_bytes > ITEM_MAX_BYTES:
            self.refused += 1
        elif known is None and (previous_id == "root" or previous_id in self._items):
            previous = None if previous_id == "root" else previous_id
            self._items.put_behind(previous, item_id, kept, size_bytes)
        else:
            self._items.put(item_id, kept, size_bytes)

    def _transcribe(self, item_id: Any, content_index: Any, transcript: Any) -> None:
        item = self._items.get(item_id)
        if item is None or not isinstance(transcript, str) or not isinstance(content_index, int):
            return
        content = [dict(part) for part in item.get("content") or [] if isinstance(part, dict)]
        if not content:
            kind = "output_audio" if item.get("role") == "assistant" else "input_audio"
            content = [{"type": kind}]
        if 0 <= content_index < len(content):
            content[content_index]["transcript"] = transcript
        transcribed = {**item, "content": content}
        size_bytes = size_of(transcribed)
        if size_bytes > ITEM_MAX_BYTES:
            self.refused += 1
        else:
            self._items.put(item_id, transcribed, size_bytes)


def _without_media(item: Event) -> Event:
    """An item without what never comes back."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    parts = [part for part in content if isinstance(part, dict)]
    lean = [{k: v for k, v in part.items() if k not in ("audio", "image_url")} for part in parts]
    return {**item, "content": lean}


def _keep_transcripts(known: Event, item: Event) -> Event:
    old_parts = [part for part in known.get("content") or [] if isinstance(part, dict)]
    new_parts = [dict(part) for part in item.get("content") or [] if isinstance(part, dict)]
    for old, new in zip(old_parts, new_parts, strict=False):
        if old.get("transcript") and not new.get("transcript"):
            new["transcript"] = old["transcript"]
    parts = new_parts or old_parts
    return {**item, "content": parts} if parts else item


def _as_text(item: Event, share: float) -> Event | None:
    kind = item.get("type")
    if kind == "function_call" and item.get("status") == "in_progress":
        return None  # its arguments never came, and nobody called it
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
    parts = [{"type": _REPLAYED_TEXT[role], "text": text} for text in kept]
    return {"id": item["id"], "type": "message", "role": role, "content": parts}


def _heard(text: str, share: float) -> str:
    """The first words, in that share of the characters."""
    if share >= 1.0:
        return text
    return text[: int(len(text) * share)].rpartition(" ")[0]
