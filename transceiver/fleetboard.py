"""What the pool counts and knows of ingresses and clusters, in memory that all its processes share.

1. A process writes its own row only; any reads all (board.py).
2. Names are those of the configuration, so the board has a word for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .board import Board
from .entry import EXPLICIT, Entry
from .steering import SOURCES


class FleetBoard:
    """Make it before forking. `rows` is the number of processes."""

    def __init__(self, rows: int, ingresses: Sequence[str]) -> None:
        self._ingresses = tuple(ingresses)
        self._board = Board(
            rows,
            [
                *(f"source.{source}" for source in (*SOURCES, EXPLICIT)),
                *(f"advertised.{name}" for name in ingresses),
                *(f"ingress.{name}" for name in ingresses),
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
