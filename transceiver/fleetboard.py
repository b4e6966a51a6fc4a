"""What the pool counts and knows of ingresses and clusters, in memory that all its processes share.

1. A process writes its own row only; any reads all (board.py).
2. Names are those of the configuration, so the board has a word for each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .board import Board
from .entry import EXPLICIT, Entry
from .steering import SOURCES

OUTCOMES = ("answered", "limited", "refused", "full", "failed")
"""Of an offer that was handed over: see clusters.py, rule 3."""


class FleetBoard:
    """Make it before forking. `rows` is the number of processes; the watch (fleet.py) has one more."""

    def __init__(
        self,
        rows: int,
        ingresses: Sequence[str],
        other_clusters: Sequence[int] = (),
        *,
        has_watch: bool = False,
    ) -> None:
        self._has_watch = has_watch
        self._ingresses = tuple(ingresses)
        self._clusters = tuple(other_clusters)
        self._watch_row = rows
        self._board = Board(
            rows + 1,
            [
                *(f"source.{source}" for source in (*SOURCES, EXPLICIT)),
                *(f"advertised.{name}" for name in ingresses),
                *(f"ingress.{name}" for name in ingresses),
                "redis_up",
                *(f"cluster.{cluster}" for cluster in other_clusters),
                *(f"passed_over_until_ms.{cluster}" for cluster in other_clusters),
                *(f"handed.{cluster}.{out}" for cluster in other_clusters for out in OUTCOMES),
            ],
        )

    def chose(self, row: int, entry: Entry) -> None:
        """An answer names these ingresses."""
        self._board.add(row, f"source.{entry.source}")
        for ingress in entry.ingresses:
            if self._board.has(f"advertised.{ingress.name}"):
                self._board.add(row, f"advertised.{ingress.name}")

    def unhealthy_ingresses(self) -> frozenset[str]:
        """Those that are not to be advertised."""
        return frozenset(
            name for name in self._ingresses if self._board.total(f"ingress.{name}") > 0
        )

    def unhealthy_clusters(self, now_s: float) -> frozenset[str]:
        """Ids, as text, of those that are not to be chosen. Monotonic seconds."""
        return frozenset(
            str(cluster)
            for cluster in self._clusters
            if self._board.total(f"cluster.{cluster}") > 0
            or any(
                self._board.get(row, f"passed_over_until_ms.{cluster}") > now_s * 1e3
                for row in range(self._board.rows)
            )
        )

    def watched(
        self, ingresses: frozenset[str], clusters: frozenset[str], *, redis_up: bool
    ) -> None:
        """What the watch knows: those that are not to be chosen, and whether all Redis answer."""
        for name in self._ingresses:
            self._board.set(self._watch_row, f"ingress.{name}", name in ingresses)
        for cluster in self._clusters:
            self._board.set(self._watch_row, f"cluster.{cluster}", str(cluster) in clusters)
        self._board.set(self._watch_row, "redis_up", redis_up)

    def handed(self, row: int, cluster: int, outcome: str) -> None:
        """An offer was handed to a cluster, with one of OUTCOMES."""
        self._board.add(row, f"handed.{cluster}.{outcome}")

    def pass_over(self, row: int, cluster: int, until_s: float) -> None:
        """A cluster failed; it is not to be chosen before that monotonic second."""
        self._board.set(row, f"passed_over_until_ms.{cluster}", int(until_s * 1e3))

    def collect(self) -> Iterator[Metric]:
        """Families for Prometheus."""
        decisions = CounterMetricFamily(
            "transceiver_steering_decisions",
            "Answers, by what their ingress was chosen by.",
            labels=["source"],
        )
        for source in (*SOURCES, EXPLICIT):
            decisions.add_metric([source], self._board.total(f"source.{source}"))
        yield decisions
        advertised = CounterMetricFamily(
            "transceiver_ingress_advertised", "Answers that name an ingress.", labels=["ingress"]
        )
        healthy = GaugeMetricFamily(
            "transceiver_ingress_healthy", "1 while an ingress is advertised.", labels=["ingress"]
        )
        unhealthy = self.unhealthy_ingresses()
        for name in self._ingresses:
            advertised.add_metric([name], self._board.total(f"advertised.{name}"))
            healthy.add_metric([name], float(name not in unhealthy))
        yield advertised
        yield healthy
        yield from self._collect_clusters()
        if self._has_watch:
            yield GaugeMetricFamily(
                "transceiver_fleet_redis_up",
                "1 while every Redis that tells of the fleet answers.",
                value=self._board.get(self._watch_row, "redis_up"),
            )

    def _collect_clusters(self) -> Iterator[Metric]:
        handovers = CounterMetricFamily(
            "transceiver_handovers",
            "Offers that were handed to another cluster, by what came of it.",
            labels=["cluster", "outcome"],
        )
        healthy = GaugeMetricFamily(
            "transceiver_cluster_healthy",
            "1 while offers may be handed to another cluster.",
            labels=["cluster"],
        )
        unhealthy = self.unhealthy_clusters(time.monotonic())
        for cluster in self._clusters:
            for out in OUTCOMES:
                handed = self._board.total(f"handed.{cluster}.{out}")
                handovers.add_metric([str(cluster), out], handed)
            healthy.add_metric([str(cluster)], float(str(cluster) not in unhealthy))
        yield handovers
        yield healthy
