"""The numbers a pool shares: one row of 64-bit words a process, in memory that outlives each process.

1. A process writes its own row only, `reset` by the supervisor when it ends apart; any reads all.
2. A counter never goes back, also when a process is replaced; a gauge starts at 0 with each.
3. Only admission is decided across processes; it alone takes the lock, for microseconds. The
   kernel releases it when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from itertools import accumulate


class Serving(IntEnum):
    """What a process is doing."""

    STARTING = 0
    SERVING = 1
    DRAINING = 2
    RESTARTING = 3
    """Between a process's death and its replacement's first request."""
    ENDED = 4
    """Gone during a drain, not to be replaced."""
    DRAINED = 5
    """Without calls, and still answering HTTP for as long as others have some."""


class Board:
    """A table of named words, `rows` processes by `names`. Make it before forking."""

    def __init__(self, rows: int, names: Sequence[str]) -> None:
        self.rows = rows
        self._columns: Mapping[str, int] = {name: index for index, name in enumerate(names)}
        self._width = len(names)
        self._fd = os.memfd_create("transceiver-board", os.MFD_CLOEXEC)
        size_bytes = max(8, 8 * rows * self._width)
        os.ftruncate(self._fd, size_bytes)
        self._words = memoryview(mmap.mmap(self._fd, size_bytes)).cast("Q")

    def get(self, row: int, name: str) -> int:
        """One process's word."""
        return self._words[row * self._width + self._columns[name]]

    def set(self, row: int, name: str, value: int) -> None:
        """Sets one word."""
        self._words[row * self._width + self._columns[name]] = value

    def add(self, row: int, name: str, value: int = 1) -> None:
        """Adds to one word; never below 0."""
        index = row * self._width + self._columns[name]
        self._words[index] = max(0, self._words[index] + value)

    def total(self, name: str) -> int:
        """The sum over all processes."""
        return sum(self.get(row, name) for row in range(self.rows))

    def buckets(self, name: str, bounds: Sequence[float]) -> list[tuple[str, float]]:
        """The words `name.0`, `name.1` ..., one for each bound and one beyond, as a Prometheus histogram has
        them: how many are at most each bound, as text, over all processes.
        """
        counts = [self.total(f"{name}.{index}") for index in range(len(bounds) + 1)]
        return list(zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True))

    def has(self, name: str) -> bool:
        """Whether there is such a word."""
        return name in self._columns

    def admit(self, row: int, limit: int) -> bool:
        """Takes one of `limit` places for this row, if one is free in the pool."""
        with self.locked():
            if self.total("admitted") >= limit:
                return False
            self.add(row, "admitted")
            return True

    def release(self, row: int) -> None:
        """Gives a place back."""
        with self.locked():
            self.add(row, "admitted", -1)

    def beat(self, row: int) -> None:
        """Says that this row's loop makes progress."""
        self.set(row, "heartbeat_ns", time.monotonic_ns())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else is between here and there; for microseconds."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
