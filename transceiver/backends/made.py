"""The events that are made here, in the shapes of OpenAI's: errors, keys pressed, the sound's account."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

from .dialect import Event

PATHS_MAX_CHARS: Final = 256
"""Of the names of fields in an error."""


def event_id(prefix: str = "event_") -> str:
    """A fresh event id."""
    return prefix + secrets.token_hex(10)


def error_event(
    code: str, message: str, *, cause: str | None = None, param: str | None = None
) -> Event:
    """An `error` event in OpenAI's shape; `cause` is the client event it answers."""
    kind = "server_error" if code.startswith("backend_") else "invalid_request_error"
    error = {"type": kind, "code": code, "message": message, "param": param, "event_id": cause}
    return {"type": "error", "event_id": event_id(), "error": error}


def fixed_event(paths: Sequence[str], cause: str | None) -> Event:
    """The `error` that names what a client secret fixes for the call; `paths` is not empty."""
    message = f"Fixed for this call: {', '.join(paths)[:PATHS_MAX_CHARS]}."
    first = paths[0][:PATHS_MAX_CHARS]
    return error_event("session_field_locked", message, cause=cause, param=first)


def digit_event(digit: str, received_s: float) -> Event:
    """A key that the client pressed, as OpenAI's SIP calls tell it; `received_s` is Unix time."""
    kind = "input_audio_buffer.dtmf_event_received"
    return {"type": kind, "event_id": event_id(), "event": digit, "received_at": int(received_s)}


def buffer_event(name: str, response_id: str) -> Event:
    """`output_audio_buffer.` started, stopped or cleared."""
    return {
        "type": f"output_audio_buffer.{name}",
        "event_id": event_id(),
        "response_id": response_id,
    }


def failed_response(response_id: str) -> Event:
    """The end of a response whose connection broke."""
    error = {"type": "server_error", "code": "backend_connection_lost"}
    response: Event = {
        "id": response_id,
        "object": "realtime.response",
        "status": "failed",
        "status_details": {"type": "failed", "error": error},
        "output": [],
        "usage": None,
    }
    return {"type": "response.done", "event_id": event_id(), "response": response}


def without_sound(event: Event) -> Event:
    """An event whose item does not carry the sound of its content."""
    item = event.get("item")
    content = item.get("content") if isinstance(item, dict) else None
    if not isinstance(content, list):
        return event
    parts = [
        {name: value for name, value in part.items() if name != "audio"}
        if isinstance(part, dict)
        else part
        for part in content
    ]
    return {**event, "item": {**event["item"], "content": parts}}
