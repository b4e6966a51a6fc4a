"""The supervisor's side of the control process: starts it, and starts it again when it dies.

1. Packets never wait for it, so a control process that dies again and again costs its pause only.
2. One that hangs leaves probes without an answer, which ends the whole relay where they decide: it is asked
   once a second, and one that does not answer is killed and replaced. As in relay/pool.py, nobody is judged
   for a time in which this process was late, or the other got no CPU.
"""

import time
from collections.abc import Mapping, Sequence

from relay.addresses import HostPort
from relay.cachelink import CacheLink
from relay.child import Child
from relay.config import LogConfig
from relay.cpus import read_activity
from relay.estate import Estate
from relay.events import Events
from relay.status import StatusPage
from relay.wire.fleet import draw_announcer
from relay.wire.log import Logger

BACKOFF_S = 2.0
ASK_EVERY_S = 1.0
HUNG_AFTER_S = 10.0
STARTING_LIMIT_S = 60.0
"""Nice 19 beside busy workers, its imports take their time."""


class ControlKeeper:
    """Keeps one control process; `tick` is called a few times a second."""

    def __init__(
        self,
        estate: Estate,
        status_fd: int,
        status: StatusPage,
        log_config: LogConfig,
        log: Logger,
        cache: CacheLink | None,
        ingress_name: str | None,
        events: Events,
        routes: Mapping[int, Sequence[HostPort]],
    ) -> None:
        self._estate = estate
        self._status_fd = status_fd
        self._status = status
        self._log_config = log_config
        self._log = log
        self._cache = cache
        self._ingress_name = ingress_name
        self._announcer = draw_announcer()
        self._events = events
        self._routes = routes
        self._child: Child | None = None
        self._started_s = 0.0
        self._retry_at_s = 0.0
        self._ticked_s = 0.0
        self._asked_s = 0.0
        self._heard_s = 0.0
        self._answers = False

    def has(self, pid: int) -> bool:
        """Whether `pid` is the control process and has not been reaped."""
        return self._child is not None and self._child.pid == pid

    def tick(self) -> None:
        """Start the process when there is none and its pause is over; ask one that there is."""
        now_s = time.monotonic()
        if self._child is not None:
            self._ask(self._child, now_s)
        elif now_s >= self._retry_at_s:
            self._start(now_s)

    def _start(self, now_s: float) -> None:
        self._started_s = self._heard_s = now_s
        self._answers = False
        try:
            child = Child("relay.control", self._descriptors(), self._description())
        except OSError as error:
            self._log.error("control_spawn_failed", reason=str(error))
            self._retry_at_s = now_s + BACKOFF_S
            return
        self._child = child
        self._events.watch(child.channel.fileno(), lambda: self._on_answer(child))
        self._events.watch(child.pidfd, lambda: self._on_exit(child))
        self._log.debug("control_started", pid=child.pid)

    def _ask(self, child: Child, now_s: float) -> None:
        if now_s - self._ticked_s > ASK_EVERY_S:
            self._heard_s = now_s
        self._ticked_s = now_s
        if now_s - self._asked_s >= ASK_EVERY_S:
            self._asked_s = now_s
            child.send({"alive": True})
        limit_s = HUNG_AFTER_S if self._answers else STARTING_LIMIT_S
        if now_s - self._heard_s > limit_s and not read_activity(child.pid).runnable:
            self._heard_s = now_s
            self._log.error("control_hung", pid=child.pid)
            child.kill()

    def _on_answer(self, child: Child) -> None:
        if child.receive() is None:  # it has closed its end, or died: its pidfd tells
            self._events.unwatch(child.channel.fileno())
        elif not self._answers:
            self._answers = True
            self._log.debug("control_ready", pid=child.pid)
        self._heard_s = time.monotonic()

    def end(self) -> None:
        """Kill and reap it: it holds nothing that could be lost."""
        if self._child is not None:
            self._events.unwatch(self._child.channel.fileno())
            self._events.unwatch(self._child.pidfd)
            self._child.kill()
            self._child.wait()
            self._child.close()
            self._child = None

    def _descriptors(self) -> list[int]:
        estate = self._estate
        fds = [estate.stats_fd, self._status_fd, *estate.tables, estate.admin.fileno()]
        return fds + (self._cache.fds if self._cache else [])

    def _description(self) -> dict[str, object]:
        cache = self._cache
        return {
            "slots": len(self._estate.tables),
            "stats": self._estate.stats_fd,
            "status": self._status_fd,
            "tables": self._estate.tables,
            "admin": self._estate.admin.fileno(),
            "cache": cache
            and {
                "url": cache.url,
                "lookups_per_s": cache.lookups_per_s,
                "desks": cache.desks_fd,
                "bell": cache.bell_fd,
                "answers": cache.answer_fds,
            },
            "routes": [
                (cluster, str(address))
                for cluster, route in self._routes.items()
                for address in route
            ],
            "announce": cache
            and self._ingress_name
            and {"url": cache.url, "name": self._ingress_name, "announcer": self._announcer},
            "log_level": self._log_config.level,
            "log_format": self._log_config.format,
        }

    def _on_exit(self, child: Child) -> None:
        how = child.reap()
        if how is None:
            return
        self._events.unwatch(child.channel.fileno())
        self._events.unwatch(child.pidfd)
        child.close()
        self._child = None
        lived_s = time.monotonic() - self._started_s
        self._retry_at_s = time.monotonic() + max(0.0, BACKOFF_S - lived_s)
        self._status.count_control_restart()
        self._log.error("control_died", pid=child.pid, how=how)
