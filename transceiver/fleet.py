"""The watch of a pool: a process that tells the fleet of this pool, and the pool of the fleet.

1. It is beside everything: calls, offers, health and draining never wait for it, nor for Redis.
2. What it knows stands on the FleetBoard. When it dies, that stands as it is until it is replaced.
3. One thread for each Redis, so that one which hangs delays no news from another.
4. Redis in trouble is one log line when it begins and one when it ends. It says which one by host and port: a URL
   may hold a password.
5. Whatever answers there may be no Redis at all: of an answer that cannot be read anything is raised, from
   ValueError to RecursionError, and all of it is trouble, so that no thread ends of it. What is too much for
   MEMORY_MAX_BYTES is, too.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from relay.wire.fleet import (
    ANNOUNCE_S,
    CLUSTER_KEY,
    FIELDS_MAX,
    INGRESS_KEY,
    Announcement,
    FleetState,
    draw_announcer,
    read_announcement,
)
from relay.wire.log import get_logger
from relay.wire.redis_url import place_of_redis

from .board import Board, Serving
from .fleetboard import FleetBoard
from .metrics import is_ready
from .picture import Picture, unhealthy

LOOK_S = 0.1
"""How often the pool's own state is looked at."""
REDIS_LIMIT_S = 0.75
"""The wait for a connection, and for an answer; less than the TTL."""
FORGET_EVERY_S = 60.0
NICE = 10
MEMORY_MAX_BYTES = 512 << 20
"""Of the watch's own data, which is far less: a fleet of FIELDS_MAX takes some MiB."""


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What the supervisor gives to the watch."""

    urls: tuple[str, ...]
    cluster_id: int
    max_sessions: int
    board: Board
    fleet: FleetBoard


def run_watch(parts: WatchParts, life_fd: int) -> None:
    """The whole life of the process: until the supervisor is gone, or kills it."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    os.nice(NICE)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most == resource.RLIM_INFINITY or most > MEMORY_MAX_BYTES:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX_BYTES, most))
    Watch(parts).start()
    select.select([life_fd], [], [])


class Watch:
    """All Redis together."""

    def __init__(self, parts: WatchParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        announcer = draw_announcer()
        self._sources = [Source(url, announcer, parts) for url in parts.urls]

    def start(self) -> None:
        """Starts the threads, which end with the process."""
        for source in self._sources:
            threading.Thread(target=self._run, args=(source,), daemon=True).start()

    def _run(self, source: Source) -> None:
        while True:
            if source.look(time.monotonic()):
                with self._lock:
                    self._publish()
            time.sleep(LOOK_S)

    def _publish(self) -> None:
        self._parts.fleet.watched(
            unhealthy([source.ingresses for source in self._sources]),
            unhealthy([source.clusters for source in self._sources]),
            redis_up=all(source.is_up for source in self._sources),
        )


class Source:
    """One Redis. One thread."""

    def __init__(self, url: str, announcer: str, parts: WatchParts) -> None:
        self.ingresses = Picture()
        self.clusters = Picture()
        self.is_up = False
        self._parts = parts
        self._announcer = announcer
        self._told: FleetState | None = None
        self._due_s = 0.0
        self._forget_s = 0.0
        self._reason = ""
        self._place = place_of_redis(url)
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=REDIS_LIMIT_S,
            socket_connect_timeout=REDIS_LIMIT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )

    def look(self, now_s: float) -> bool:
        """Announces and reads when it is due, or when the pool's state has changed; whether it was."""
        state = state_of(self._parts.board, self._parts.max_sessions)
        if state is self._told and now_s < self._due_s:
            return False
        self._told, self._due_s = state, now_s + ANNOUNCE_S
        try:
            self._exchange(state)
        except Exception as error:
            self._redis.connection_pool.disconnect()
            self.ingresses.failed()
            self.clusters.failed()
            self._became(up=False, reason=type(error).__name__)
        else:
            self._became(up=True, reason="")
        return True

    def _exchange(self, state: FleetState | None) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._redis.pipeline(transaction=False) as pipeline:
            if state is not None:
                name = str(self._parts.cluster_id)
                told = Announcement(name, self._announcer, state, now_ms)
                pipeline.hset(CLUSTER_KEY, told.field(), told.value())
            pipeline.hlen(INGRESS_KEY)
            pipeline.hlen(CLUSTER_KEY)
            counts = pipeline.execute()[-2:]
        if max(counts) > FIELDS_MAX:
            raise ValueError("more than a fleet has")
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hgetall(INGRESS_KEY)
            pipeline.hgetall(CLUSTER_KEY)
            fields = pipeline.execute()
        now_s = time.monotonic()
        for picture, read in zip((self.ingresses, self.clusters), fields, strict=True):
            told_all = (read_announcement(field, value) for field, value in read.items())
            picture.read([one for one in told_all if one is not None], now_s)
        if now_s >= self._forget_s:
            self._forget_s = now_s + FORGET_EVERY_S
            self._forget(now_ms)

    def _forget(self, now_ms: int) -> None:
        for key, picture in ((INGRESS_KEY, self.ingresses), (CLUSTER_KEY, self.clusters)):
            if fields := picture.forget(now_ms):
                self._redis.hdel(key, *fields)

    def _became(self, *, up: bool, reason: str) -> None:
        if not up and not self._reason:
            get_logger().warning("fleet_redis_lost", redis=self._place, reason=reason)
        elif up and not self.is_up and self._reason:
            get_logger().info("fleet_redis_restored", redis=self._place)
        self.is_up, self._reason = up, reason


def state_of(board: Board, max_sessions: int) -> FleetState | None:
    """What the pool does; None while it has not begun to serve."""
    if is_ready(board):
        full = board.total("admitted") >= max_sessions
        return FleetState.FULL if full else FleetState.SERVING
    states: Sequence[int] = [board.get(row, "serving") for row in range(board.rows)]
    leaving = (Serving.DRAINING, Serving.DRAINED, Serving.ENDED)
    return FleetState.DRAINING if any(state in leaving for state in states) else None
