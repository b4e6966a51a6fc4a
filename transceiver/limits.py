"""How much one API key may call, over all processes of the pool, and how long one call may last.

1. Calls at once are exact: a place is taken under the board's lock and freed with the call, or with its process.
2. Calls a minute are a sliding window of two fixed ones: at no time more than the limit in any 60 s by more than the rounding
   of that estimate.
3. A call that nears its end says so once; a call without events for its idle limit ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from .auth import ApiKey
from .board import Board
from .errors import RequestError

WINDOW_S: Final = 60
AT_ONCE_RETRY_S: Final = 5


class KeyLimits:
    """The limits of all keys; one board, which every process of the pool shares."""

    def __init__(self, rows: int, keys: Iterable[ApiKey]) -> None:
        """Make it before forking. `rows` is the number of processes."""
        self._keys = {key.name: key for key in keys}
        names = [
            f"{word}.{name}" for name in self._keys for word in ("calls", "minute", "now", "before")
        ]
        self._board = Board(rows, names)

    def take(self, row: int, name: str, now_s: float) -> None:
        """Takes a place for a new call of key `name` (Unix time). Raises RequestError with 429.

        A name without limits, such as an open server's, always passes.
        """
        key = self._keys.get(name)
        if key is None:
            return
        with self._board.locked():
            if key.calls is not None and self._board.total(f"calls.{name}") >= key.calls:
                message = f"The key may have {key.calls} calls at once."
                raise RequestError(429, "too_many_calls", message, retry_after_s=AT_ONCE_RETRY_S)
            if key.calls_per_minute is not None:
                self._take_from_window(row, name, key.calls_per_minute, now_s)
            self._board.add(row, f"calls.{name}")

    def release(self, row: int, name: str) -> None:
        """A call of this key, opened by this row, has ended."""
        if name in self._keys:
            with self._board.locked():
                self._board.add(row, f"calls.{name}", -1)

    def forget(self, row: int) -> None:
        """A process is gone, and its calls with it."""
        for name in self._keys:
            self._board.set(row, f"calls.{name}", 0)

    def _take_from_window(self, row: int, name: str, limit: int, now_s: float) -> None:
        minute, into_s = divmod(now_s, WINDOW_S)
        now, before = 0, 0
        for other in range(self._board.rows):
            self._turn(other, name, int(minute))
            now += self._board.get(other, f"now.{name}")
            before += self._board.get(other, f"before.{name}")
        if now + before * (1 - into_s / WINDOW_S) + 1 > limit:
            retry_s = max(1, math.ceil(WINDOW_S - into_s)) if now >= limit else 1
            message = f"The key may place {limit} calls a minute."
            raise RequestError(429, "rate_limit_exceeded", message, retry_after_s=retry_s)
        self._board.add(row, f"now.{name}")

    def _turn(self, row: int, name: str, minute: int) -> None:
        """Brings a row's window to this minute. Under the lock any row may be turned."""
        was = self._board.get(row, f"minute.{name}")
        if was == minute:
            return
        counted = self._board.get(row, f"now.{name}") if was == minute - 1 else 0
        self._board.set(row, f"before.{name}", counted)
        self._board.set(row, f"now.{name}", 0)
        self._board.set(row, f"minute.{name}", minute)


@dataclass(frozen=True)
class Span:
    """How long a call may last; None: for ever."""

    max_s: float | None = None
    """From the offer."""
    warn_s: float = 60.0
    """So long before the end the client is told; at most half of the call."""
    idle_s: float | None = None
    """Without an event of either side."""

    def shortened(self, max_s: float | None) -> Span:
        """With the shorter of both maxima."""
        both = [limit for limit in (self.max_s, max_s) if limit is not None]
        return Span(min(both, default=None), self.warn_s, self.idle_s)


Due = Literal["warn", "expired", "idle"]


class CallClock:
    """The limits of one call. Sans-IO; monotonic seconds."""

    def __init__(self, span: Span, offered_s: float) -> None:
        self._span = span
        self._offered_s = offered_s
        self._active_s = offered_s
        self._warned = False

    def active(self, now_s: float) -> None:
        """An event went either way."""
        self._active_s = now_s

    def left_s(self, now_s: float) -> float:
        """Until the end; infinite without a maximum."""
        if self._span.max_s is None:
            return math.inf
        return max(0.0, self._offered_s + self._span.max_s - now_s)

    def due(self, now_s: float) -> Due | None:
        """What is due; `warn` comes once."""
        left_s = self.left_s(now_s)
        if left_s <= 0:
            return "expired"
        if self._span.idle_s is not None and now_s - self._active_s >= self._span.idle_s:
            return "idle"
        warn_s = min(self._span.warn_s, (self._span.max_s or math.inf) / 2)
        if not self._warned and left_s <= warn_s and left_s < math.inf:
            self._warned = True
            return "warn"
        return None
