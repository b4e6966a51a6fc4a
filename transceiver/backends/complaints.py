"""What a client is told of a backend that is there and does not do its part. Sans-IO.

1. A connection over which nothing has come for SILENT_S after it stood: once a connection.
2. The user's sound that was dropped because the backend does not take it: when it begins, and every
   AGAIN_S while it goes on.
3. Messages of the backend that were no events: as with sound, when it begins and every AGAIN_S.
4. A connection that broke: each, in the moment it does.
"""

from __future__ import annotations

from typing import Final

from .dialect import Event
from .made import error_event

SILENT_S: Final = 5.0
AGAIN_S: Final = 10.0


class _Growing:
    """A number that only grows, and of which is told how much."""

    def __init__(self) -> None:
        self._told = 0.0
        self._told_s: float | None = None

    def news(self, value: float, now_s: float) -> float:
        """What came since it was told, if it is time to tell; else 0."""
        is_time = self._told_s is None or now_s - self._told_s >= AGAIN_S
        grown = value - self._told
        if grown <= 0 or not is_time:
            return 0.0
        self._told, self._told_s = value, now_s
        return grown


class Complaints:
    """Of one call."""

    def __init__(self) -> None:
        self._told_silent = False
        self._dropped_ms = _Growing()
        self._garbage = _Growing()

    def due(self, silent_s: float, dropped_ms: float, garbage: int, now_s: float) -> list[Event]:
        """`silent_s`: how long a connection has stood without a word, 0 once there was one;
        `dropped_ms`: the user's sound that was dropped so far; `garbage`: messages of the backend
        so far that were no events; `now_s` is monotonic.
        """
        events = []
        if silent_s < SILENT_S:
            self._told_silent = False
        elif not self._told_silent:
            self._told_silent = True
            message = f"The backend is connected and has said nothing for {SILENT_S:.0f} s."
            events.append(error_event("backend_silent", message))
        if lost_ms := self._dropped_ms.news(dropped_ms, now_s):
            message = f"The backend does not keep up: {lost_ms / 1_000:.2f} s of what was said were dropped."
            events.append(error_event("backend_slow", message))
        if count := self._garbage.news(garbage, now_s):
            message = f"Messages of the backend that could not be understood: {count:.0f}."
            events.append(error_event("backend_garbage", message))
        return events

    @staticmethod
    def broken(reason: str) -> Event:
        """A connection that had stood is gone."""
        return error_event("backend_connection_lost", f"Connecting to the backend again: {reason}.")
