"""The flow cache: owners of flows in Redis, so that any relay host can pick up any flow.

1. Workers never wait for it. It runs in the control process, on two threads of its own: a slow write
   delays no lookup.
2. What a worker tells is written soon, in batches, to live for TTL_S; a flow that goes on is told
   again in time. Nothing is ever deleted: a key that is not refreshed ends by itself.
3. What a worker asks is read once: one lookup a key at a time, a short memory of what was found and
   what was not, at most `lookups_per_s`, and at once "not found" while Redis is in trouble.
4. Trouble costs one log line when it begins, one when it ends, and counters; never an exception.
"""

import base64
import itertools
import os
import select
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from relay.cache_policy import (
    LOOKUPS_PER_S,
    Breaker,
    NegativeCache,
    RateCap,
    make_value,
    parse_value,
    redis_key,
)
from relay.redis_store import REASONS, StoreError
from relay.wire.log import Logger

TTL_S = 45
WRITE_PAUSE_S = 0.05
WRITE_BATCH = 500
WRITES_WAITING_MAX = 100_000
LOOKUP_BATCH = 64
LOOKUP_LIMIT_S = 0.25
WRITE_LIMIT_S = 1.0
MISS_MEMORY_S = 1.0
MISSES_MAX = 10_000
HIT_MEMORY_S = 1.0
HITS_MAX = 10_000
LOG_PAUSE_S = 30.0
CHECK_PAUSE_S = 2.0

LOOKUP_RESULTS = ("hit", "miss", "garbage", "remembered", "shed", "error")


class Store(Protocol):
    """Redis (relay/redis_store.py), or a test's stand-in."""

    def check(self) -> None:
        """Raise StoreError when there is trouble."""

    def get(self, keys: Sequence[bytes]) -> list[object]:
        """Values of keys, None where there is none. Raises StoreError."""

    def set(self, values: Mapping[bytes, bytes], ttl_s: int) -> None:
        """Write all values. Raises StoreError."""


class Desks(Protocol):
    """The cache's side of all desks; see relay/_dataplane.pyi."""

    def take(self, slot: int, limit: int = 256) -> list[tuple[bytes, tuple[bytes, ...] | None]]:
        """Notices of a worker."""

    def answer(self, slot: int, key: bytes, tokens: Sequence[bytes]) -> bool:
        """Answer a worker."""

    def lost(self, slot: int) -> int:
        """Notices for which a worker found no room."""


class Operation:
    """How one kind of operation fares: its breaker, its counters, and what was logged of it."""

    def __init__(
        self,
        name: str,
        log: Logger,
        *,
        trouble_event: str = "cache_degraded",
        end_event: str = "cache_restored",
    ) -> None:
        """The events are what log lines say when trouble begins and when it ends."""
        self.name = name
        self._trouble_event = trouble_event
        self._end_event = end_event
        self.errors = dict.fromkeys(REASONS, 0)
        self.trouble: str | None = None
        """Why the last attempt failed; None while all is well."""
        self._breaker = Breaker()
        self._log = log
        self._logged_at_s: float | None = None
        self._is_logged = False

    def allows(self, now_s: float) -> bool:
        """Whether to try now."""
        return self._breaker.allows(now_s)

    def succeeded(self) -> None:
        """An attempt went well."""
        self._breaker.succeeded()
        if self._is_logged:
            self._log.info(self._end_event, operation=self.name)
        self._is_logged = False
        self.trouble = None

    def failed(self, error: StoreError, now_s: float) -> None:
        """An attempt failed."""
        self._breaker.failed(now_s)
        self.errors[error.reason] += 1
        is_new = error.reason != self.trouble
        self.trouble = error.reason
        due = self._logged_at_s is None or now_s - self._logged_at_s >= LOG_PAUSE_S
        if is_new and (due or not self._is_logged):
            self._log.warning(
                self._trouble_event,
                operation=self.name,
                reason=error.reason,
                detail=error.detail,
            )
            self._logged_at_s = now_s
            self._is_logged = True


class FlowCache:
    """Serves all desks of a host. `start` makes its threads, which end with the process."""

    def __init__(
        self,
        desks: Desks,
        bell_fd: int,
        answer_fds: Sequence[int],
        lookup_store: Store,
        write_store: Store,
        log: Logger,
        lookups_per_s: int = LOOKUPS_PER_S,
    ) -> None:
        """`answer_fds` has the eventfd of each slot; the two stores are used by a thread each."""
        self.lookup = Operation("lookup", log)
        self.write = Operation("write", log)
        self.lookups = dict.fromkeys(LOOKUP_RESULTS, 0)
        self.written = 0
        self.write_overflows = 0
        self._desks = desks
        self._bell_fd = bell_fd
        self._answer_fds = answer_fds
        self._lookup_store = lookup_store
        self._write_store = write_store
        self._cap = RateCap(lookups_per_s)
        self._misses = NegativeCache(MISS_MEMORY_S, MISSES_MAX)
        self._check_at_s = 0.0
        self._hits: dict[bytes, tuple[float, tuple[bytes, ...]]] = {}
        self._waiting: dict[bytes, tuple[bytes, float]] = {}
        """Redis key to value, to be written, and when it was told."""
        self._lock = threading.Lock()
        self._has_writes = threading.Event()

    def start(self) -> None:
        """Start both threads."""
        for run in (self._run_lookups, self._run_writes):
            threading.Thread(target=run, name=run.__name__, daemon=True).start()

    def notices_lost(self) -> int:
        """Notices for which workers found no room, ever."""
        return sum(self._desks.lost(slot) for slot in range(len(self._answer_fds)))

    # --- lookups ------------------------------------------------------------------------------

    def _run_lookups(self) -> None:
        poller = select.poll()
        poller.register(self._bell_fd, select.POLLIN)
        while True:
            self.check(time.monotonic())
            if poller.poll(CHECK_PAUSE_S * 1000):
                try:
                    os.eventfd_read(self._bell_fd)
                except BlockingIOError:
                    pass
            while self.serve(time.monotonic()):
                pass

    def check(self, now_s: float) -> None:
        """Look how Redis is when nothing was asked for a while: a connection is then ready, and the
        metrics are true.
        """
        if now_s < self._check_at_s or not self.lookup.allows(now_s):
            return
        self._check_at_s = now_s + CHECK_PAUSE_S
        try:
            self._lookup_store.check()
        except StoreError as error:
            self.lookup.failed(error, now_s)
        else:
            self.lookup.succeeded()

    def serve(self, now_s: float) -> bool:
        """Take what the desks have and answer what is asked; whether there was anything."""
        asked: dict[bytes, set[int]] = {}
        anything = False
        for slot in range(len(self._answer_fds)):
            for key, tokens in self._desks.take(slot):
                anything = True
                if tokens is None:
                    asked.setdefault(key, set()).add(slot)
                elif tokens:
                    self._owners(key, tokens, now_s)
        if asked:
            self._answer_all(asked, now_s)
        return anything

    def _owners(self, key: bytes, sealed: Iterable[bytes], now_s: float) -> None:
        tokens = tuple(base64.b64encode(token) for token in sealed)
        self._misses.discard(key)
        self._hits.pop(key, None)
        with self._lock:
            if len(self._waiting) >= WRITES_WAITING_MAX:
                self.write_overflows += 1
                return
            self._waiting[redis_key(key)] = make_value(tokens), now_s
        self._has_writes.set()

    def _answer_all(self, asked: Mapping[bytes, set[int]], now_s: float) -> None:
        to_read: list[bytes] = []
        for key, slots in asked.items():
            known = self._known(key, now_s)
            if known is None:
                to_read.append(key)
            else:
                self._answer(key, slots, known)
        for start in range(0, len(to_read), LOOKUP_BATCH):
            batch = to_read[start : start + LOOKUP_BATCH]
            for key, tokens in zip(batch, self._read(batch), strict=True):
                self._answer(key, asked[key], tokens)

    def _known(self, key: bytes, now_s: float) -> tuple[bytes, ...] | None:
        """What can be said without Redis: tokens, none at all, or None: it must be read."""
        hit = self._hits.get(key)
        if hit is not None and now_s < hit[0]:
            self.lookups["remembered"] += 1
            return hit[1]
        if self._misses.holds(key, now_s):
            self.lookups["remembered"] += 1
            return ()
        if not self.lookup.allows(now_s):
            self.lookups["error"] += 1
            return ()
        if not self._cap.take(now_s):
            self.lookups["shed"] += 1
            return ()
        return None

    def _read(self, keys: Sequence[bytes]) -> list[tuple[bytes, ...]]:
        if not self.lookup.allows(time.monotonic()):  # an earlier batch has just failed
            self.lookups["error"] += len(keys)
            return [()] * len(keys)
        try:
            values = self._lookup_store.get([redis_key(key) for key in keys])
        except StoreError as error:
            self.lookup.failed(error, time.monotonic())
            self.lookups["error"] += len(keys)
            return [()] * len(keys)
        self.lookup.succeeded()
        self._check_at_s = time.monotonic() + CHECK_PAUSE_S
        values += [None] * (len(keys) - len(values))
        return [self._found(key, value) for key, value in zip(keys, values, strict=True)]

    def _found(self, key: bytes, value: object) -> tuple[bytes, ...]:
        tokens = parse_value(value)
        now_s = time.monotonic()
        if tokens is None:
            self.lookups["miss" if value is None else "garbage"] += 1
            self._misses.add(key, now_s)
            return ()
        self.lookups["hit"] += 1
        while len(self._hits) >= HITS_MAX:
            del self._hits[next(iter(self._hits))]
        self._hits[key] = (now_s + HIT_MEMORY_S, tokens)
        return tokens

    def _answer(self, key: bytes, slots: Iterable[int], tokens: tuple[bytes, ...]) -> None:
        for slot in slots:
            if self._desks.answer(slot, key, tokens):
                os.eventfd_write(self._answer_fds[slot], 1)

    # --- writes -------------------------------------------------------------------------------

    def _run_writes(self) -> None:
        while True:
            self._has_writes.wait()
            time.sleep(WRITE_PAUSE_S)
            self.flush(time.monotonic())

    def flush(self, now_s: float) -> None:
        """Write what waits, as far as Redis goes along; what it refuses waits for the next time."""
        if not self.write.allows(now_s):
            return
        while batch := self._take_batch():
            values = {k: value for k, (value, told_s) in batch.items() if now_s < told_s + TTL_S}
            if not values:
                continue
            try:
                self._write_store.set(values, TTL_S)
            except StoreError as error:
                self.write.failed(error, now_s)
                self._put_back(batch)
                return
            self.written += len(values)
            self.write.succeeded()

    def _take_batch(self) -> dict[bytes, tuple[bytes, float]]:
        with self._lock:
            keys = list(itertools.islice(self._waiting, WRITE_BATCH))
            batch = {key: self._waiting.pop(key) for key in keys}
            if not self._waiting:
                self._has_writes.clear()
        return batch

    def _put_back(self, batch: dict[bytes, tuple[bytes, float]]) -> None:
        with self._lock:
            self._waiting = {**batch, **self._waiting}  # what was told since wins
            self._has_writes.set()
