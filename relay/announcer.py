"""Tells the fleet in Redis that this relay serves an ingress (relay/wire/fleet.py), beside the packet path.

1. It runs in the control process, on a thread of its own. A relay that is not ready, for whatever reason,
   announces that it drains: it must not be advertised.
2. A Redis in trouble costs what the cache's costs: a log line when it begins and one when it ends, and counters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from relay.cache import Operation
from relay.redis_store import StoreError
from relay.wire.fleet import ANNOUNCE_S, INGRESS_KEY, Announcement, FleetState

LOOK_S = 0.1
"""How often the relay's state is looked at."""
ANNOUNCE_LIMIT_S = 0.5
"""The wait for Redis's answer."""


class AnnounceStore(Protocol):
    """Redis (relay/redis_store.py), or a test's stand-in."""

    def announce(self, key: bytes, field: bytes, value: bytes) -> None:
        """Write a field of a hash. Raises StoreError."""


class Announcer:
    """Announces one ingress. `start` makes its thread, which ends with the process."""

    def __init__(
        self,
        name: str,
        announcer: str,
        store: AnnounceStore,
        state: Callable[[], FleetState | None],
        operation: Operation,
    ) -> None:
        """`state` says what the relay does now; None: nothing that the fleet should hear of yet."""
        self._name = name
        self._announcer = announcer
        self._store = store
        self._state = state
        self._operation = operation
        self._told: FleetState | None = None
        self._due_s = 0.0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="announcer", daemon=True).start()

    def look(self, now_s: float, written_ms: int) -> None:
        """Announce what is due. `now_s` is monotonic, `written_ms` Unix time."""
        state = self._state()
        if state is None or (state is self._told and now_s < self._due_s):
            return
        self._told, self._due_s = state, now_s + ANNOUNCE_S
        told = Announcement(self._name, self._announcer, state, written_ms)
        try:
            self._store.announce(INGRESS_KEY, told.field(), told.value())
        except StoreError as error:
            self._operation.failed(error, now_s)
        else:
            self._operation.succeeded()

    def _run(self) -> None:
        while True:
            self.look(time.monotonic(), time.time_ns() // 1_000_000)
            time.sleep(LOOK_S)
