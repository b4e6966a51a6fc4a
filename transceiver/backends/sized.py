"""Events by name, in order, whose size is known: what a bound in bytes needs. Sans-IO."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from .dialect import Event

EVENT_OVERHEAD_BYTES: Final = 512
"""For the objects that hold an event, besides its JSON."""


def size_of(event: Event) -> int:
    """Bytes that an event counts for."""
    return EVENT_OVERHEAD_BYTES + len(json.dumps(event, separators=(",", ":")))


class SizedEvents:
    """An ordered mapping of names to events."""

    def __init__(self) -> None:
        self._events: OrderedDict[str, tuple[Event, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, name: object) -> bool:
        return name in self._events

    def __iter__(self) -> Iterator[str]:
        return iter(self._events)

    def items(self) -> Iterator[tuple[str, Event]]:
        """Names and events, the oldest first."""
        return ((name, event) for name, (event, _) in self._events.items())

    def events(self) -> Iterator[Event]:
        """The events, the oldest first."""
        return (event for event, _ in self._events.values())

    def get(self, name: object) -> Event | None:
        """The event of that name."""
        return self._events[name][0] if isinstance(name, str) and name in self._events else None

    def last(self) -> str | None:
        """The newest name."""
        return next(reversed(self._events), None)

    def put(self, name: str, event: Event, size_bytes: int | None = None) -> None:
        """Adds it at the end, or changes it where it is; `size_bytes` is its `size_of`, if that is known."""
        if size_bytes is None:
            size_bytes = size_of(event)
        _, before_bytes = self._events.get(name, (event, 0))
        self._events[name] = (event, size_bytes)
        self.size_bytes += size_bytes - before_bytes

    def put_behind(
        self, previous: str | None, name: str, event: Event, size_bytes: int | None = None
    ) -> None:
        """Adds it behind `previous`, or at the front; see `put`."""
        was_last = self.last()
        self.put(name, event, size_bytes)
        if previous is not None and previous == was_last:
            return
        order = [known for known in self._events if known != name]
        order.insert(0 if previous is None else order.index(previous) + 1, name)
        self._events = OrderedDict((known, self._events[known]) for known in order)

    def remove(self, name: object) -> Event | None:
        """Takes one out."""
        if not isinstance(name, str) or name not in self._events:
            return None
        event, size_bytes = self._events.pop(name)
        self.size_bytes -= size_bytes
        return event

    def remove_oldest(self) -> str | None:
        """Takes the first one out; its name, None when there is none."""
        if not self._events:
            return None
        name, (_, size_bytes) = self._events.popitem(last=False)
        self.size_bytes -= size_bytes
        return name
