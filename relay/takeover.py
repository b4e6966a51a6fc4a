"""The successor's way through a takeover: warm up, then slot by slot, then it is the relay.

1. Nothing is asked of the running relay before every worker of this one is ready: imports done,
   tables mapped and found to be of the right layout.
2. One slot at a time: its datagrams wait in its socket for the few milliseconds between two workers.
3. Whatever goes wrong raises HandoverError; the supervisor then ends its workers, and the running
   relay, told or not, takes back what it gave.
"""

import time

from relay.errors import HandoverError
from relay.events import Events
from relay.handover import Predecessor
from relay.pool import WorkerPool
from relay.wire.log import Logger

WARM_LIMIT_S = 30.0
SLOT_LIMIT_S = 5.0
END_LIMIT_S = 10.0


class Takeover:
    """`tick` after every event moves it on until `finished`."""

    def __init__(
        self,
        predecessor: Predecessor,
        pool: WorkerPool,
        slots: int,
        log: Logger,
        events: Events,
    ) -> None:
        self.finished = False
        self._predecessor = predecessor
        self._pool = pool
        self._slots = slots
        self._log = log
        self._events = events
        self._next = 0
        """The slot that is asked for or being taken."""
        self._asked = False
        self._limit_s = time.monotonic() + WARM_LIMIT_S
        events.watch(predecessor.conn.fileno(), self._on_message)

    def tick(self) -> None:
        """Ask for the next slot when the last one is served. Raises HandoverError."""
        if self.finished:
            return
        if self._pool.deaths:
            raise HandoverError("a worker of this version died (see the log above)")
        if time.monotonic() > self._limit_s:
            raise HandoverError(f"no progress at slot {self._next} of {self._slots}")
        if not self._asked:
            pidfds = self._pool.warm_pidfds()
            if len(pidfds) > self._slots:
                self._predecessor.offer_workers(pidfds)
                self._ask()
        elif self._next < self._slots and self._pool.serves(self._next):
            self._next += 1
            if self._next < self._slots:
                self._ask()
            else:
                self._limit_s = time.monotonic() + END_LIMIT_S
                self._predecessor.done()

    def abort(self, reason: str) -> None:
        """Give everything back, once all workers of this process have been reaped."""
        if not self.finished:
            self._events.unwatch(self._predecessor.conn.fileno())
            self._predecessor.abort(reason)

    def _ask(self) -> None:
        self._asked = True
        self._limit_s = time.monotonic() + SLOT_LIMIT_S
        self._predecessor.ask_release(self._next)

    def _on_message(self) -> None:
        slot = self._predecessor.released()
        if slot is not None:
            self._pool.hold(slot)
            return
        self._events.unwatch(self._predecessor.conn.fileno())
        self._predecessor.conn.close()
        if self._next < self._slots:
            raise HandoverError("the running relay ended in the middle")
        self.finished = True
