"""Which processes are stuck: their heartbeat stands still while the supervisor's own time goes on. Sans-IO.

1. Only time in which the supervisor itself woke regularly counts: when everything was frozen (a
   stopped container, a suspended machine) nobody is to blame.
2. A process that has yet to start, or to start again, has longer.
"""

from __future__ import annotations

from .board import Board, Serving

HUNG_AFTER_S = 10.0
START_LIMIT_S = 60.0
LATE_S = 2.0
"""Between two looks: the watcher did not run, so it knows nothing of the others."""

_BEATING = (Serving.SERVING, Serving.DRAINING, Serving.DRAINED)


class Watchdog:
    """Looks at the heartbeats of one pool."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._looked_s: float | None = None
        self._beats_ns = [0] * board.rows
        self._still_s = [0.0] * board.rows

    def hung(self, now_s: float) -> dict[int, float]:
        """The rows that are stuck, and for how many seconds. Call it about every 0.5 s."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        if passed_s > LATE_S:
            passed_s = 0.0
        found: dict[int, float] = {}
        for row in range(self._board.rows):
            beat_ns = self._board.get(row, "heartbeat_ns")
            if beat_ns != self._beats_ns[row]:
                self.forget(row)
                self._beats_ns[row] = beat_ns
                continue
            self._still_s[row] += passed_s
            is_beating = self._board.get(row, "serving") in _BEATING
            if self._still_s[row] >= (HUNG_AFTER_S if is_beating else START_LIMIT_S):
                found[row] = self._still_s[row]
        return found

    def forget(self, row: int) -> None:
        """Another process has this row now."""
        self._still_s[row] = 0.0
