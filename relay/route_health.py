"""Which addresses of the cluster routes answer the workers' probes, as their counters show it.

1. Each worker probes for itself, from the socket that its flows leave by, and decides for itself: two may
   differ, since another relay's socket group gives them to different workers.
2. The addresses are counted through in the order of the configuration, as the data plane does.
3. During a takeover the former relay's workers may have other routes. What they find out says nothing of
   these, so only workers with exactly these count.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from relay._dataplane import Stats, route_digest
from relay.addresses import parse_endpoint
from relay.wire.log import Logger

WATCH_S = 0.5


@dataclass(frozen=True)
class RouteAddress:
    """One address of a cluster route."""

    cluster: int
    address: str
    """HOST:PORT."""


class RouteHealth:
    """Reads the verdicts of all workers."""

    def __init__(self, stats: Stats, slots: int, routes: Sequence[RouteAddress]) -> None:
        self._stats = stats
        self._slots = slots
        self.routes = tuple(routes)
        self._digest = route_digest(_by_cluster(self.routes))

    def down_workers(self) -> tuple[int, list[int]]:
        """How many workers have these routes, and for each address for how many of them it is down."""
        shown = [self._stats.read(slot) for slot in range(self._slots)]
        masks = [one["route_down"] for one in shown if one["route_digest"] == self._digest]
        return len(masks), [sum(mask >> i & 1 for mask in masks) for i in range(len(self.routes))]

    def up_shares(self) -> list[tuple[RouteAddress, float]]:
        """Each address and the share of the workers, 0 to 1, for which it is up; 1 as long as none is there."""
        workers, downs = self.down_workers()
        return [
            (route, 1 - down / max(1, workers))
            for route, down in zip(self.routes, downs, strict=True)
        ]


def _by_cluster(routes: Sequence[RouteAddress]) -> dict[int, list[tuple[str, int]]]:
    """As a worker's ForwardConfig takes them."""
    found: dict[int, list[tuple[str, int]]] = {}
    for route in routes:
        at = parse_endpoint("cluster route", route.address)
        found.setdefault(route.cluster, []).append((str(at.ip), at.port))
    return found


class RouteWatch:
    """Logs when an address goes down for a worker, or is up for all again."""

    def __init__(self, health: RouteHealth, log: Logger) -> None:
        self._health = health
        self._log = log
        self._down = [0] * len(health.routes)

    def start(self) -> None:
        """Look every WATCH_S on a thread of its own, for the life of the process."""
        if self._health.routes:
            threading.Thread(target=self._run, name="route-watch", daemon=True).start()

    def look(self) -> None:
        """Log what has changed since the last look."""
        workers, downs = self._health.down_workers()
        if not workers:
            return
        for route, before, now in zip(self._health.routes, self._down, downs, strict=True):
            details = {"cluster": route.cluster, "address": route.address, "workers_down": now}
            if now > before:
                self._log.warning("route_down", **details)
            elif now < before and now == 0:
                self._log.info("route_up", **details)
        self._down = downs

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(WATCH_S):
            self.look()
