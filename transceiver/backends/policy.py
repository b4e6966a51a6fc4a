"""What a client's `session.update` may change when its client secret says so.

1. A path names a field and all below it: `audio.output` covers `audio.output.voice`.
2. What may not change is left out, the rest goes on: a stock client sends whole sessions and waits for the answer.
3. `type` always passes: it selects the shape, not the behaviour.
"""

from __future__ import annotations

from collections.abc import Iterable

from .dialect import Event


def restrict(session: Event, updatable: Iterable[str] | None) -> tuple[Event, list[str]]:
    """The part of `session` that may change, and the paths that were left out; None allows everything."""
    if updatable is None:
        return session, []
    refused: list[str] = []
    return _restrict(session, "", tuple(updatable), refused), refused


def _restrict(value: Event, prefix: str, updatable: tuple[str, ...], refused: list[str]) -> Event:
    kept: Event = {}
    for name, field in value.items():
        path = prefix + name
        if path == "type" or any(path == own or path.startswith(own + ".") for own in updatable):
            kept[name] = field
        elif isinstance(field, dict) and any(own.startswith(path + ".") for own in updatable):
            kept[name] = _restrict(field, path + ".", updatable, refused)
        else:
            refused.append(path)
    return kept
