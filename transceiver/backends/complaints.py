"""What a client is told of a backend that is there and does not do its part. Sans-IO.

1. A connection over which nothing has come for SILENT_S after it stood: once a connection.
2. The user's sound that was dropped because the backend does not take it: when it begins, and every
   AGAIN_S while it goes on.
3. A connection that broke: each, in the moment it does.
"""

from __future__ import annotations

from typing import Final

from .dialect import Event
from .made import error_event

SILENT_S: Final = 5.0
AGAIN_S: Final = 10.0


class Complaints:
    """Of one call."""

    def __init__(self) -> None:
        self._told_silent = False
        self._told_dropped_ms = 0.0
        self._told_s: float | None = None

    def due(self, silent_s: float, dropped_ms: float, now_s: float) -> list[Event]:
        """`silent_s`: how long a connection has stood without a word, 0 once there was one;
        `dropped_ms`: the user's sound that was dropped so far; `now_s` is monotonic.
        """
        events = []
        if silent_s < SILENT_S:
            self._told_silent = False
        elif not self._told_silent:
            self._told_silent = True
            message = f"The backend is connected and has said nothing for {SILENT_S:.0f} s."
            events.append(error_event("backend_silent", message))
        is_time = self._told_s is None or now_s - self._told_s >= AGAIN_S
        if dropped_ms > self._told_dropped_ms and is_time:
            lost_s = (dropped_ms - self._told_dropped_ms) / 1_000
            self._told_dropped_ms, self._told_s = dropped_ms, now_s
            message = f"The backend does not keep up: {lost_s:.1f} s of what was said were dropped."
            events.append(error_event("backend_slow", message))
        return events

    @staticmethod
    def broken(reason: str) -> Event:
        """A connection that had stood is gone."""
        return error_event("backend_connection_lost", f"Connecting to the backend again: {reason}.")
