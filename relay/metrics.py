"""Prometheus metrics, read from shared memory when they are asked for.

1. Nothing is counted here: workers write their counters, the supervisor its page, this file reads.
2. No label ever holds a client address, a ufrag or a call id.
3. A name that dashboards rely on never changes (design 3.6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from relay._dataplane import DROP_REASONS, Stats
from relay.status import State, StatusPage

if TYPE_CHECKING:
    from relay._dataplane import Counters, SideCounters
    from relay.cache import FlowCache, Operation
    from relay.route_health import RouteHealth

SIDES = ("public", "internal", "backbone")
LATE_AFTER_S = 2.0


class Health:
    """What /healthz, /readyz and the metrics say of the loops."""

    def __init__(self, stats: Stats, status: StatusPage, slots: int) -> None:
        self.stats = stats
        self.status = status
        self.slots = range(slots)

    def stalled(self) -> list[int]:
        """Slots whose loop has not come round for LATE_AFTER_S, or never did."""
        now_ns = time.monotonic_ns()
        return [
            slot
            for slot in self.slots
            if now_ns - self.stats.read(slot)["progress_ns"] > LATE_AFTER_S * 1e9
        ]

    def not_ready(self) -> str | None:
        """Why no new client should be sent here; None when one may."""
        if self.status.state is not State.SERVING:
            return self.status.state.name.lower()
        stalled = self.stalled()
        return f"workers without progress: {stalled}" if stalled else None


class RelayCollector(Collector):
    """Reads every counter once per scrape."""

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        """All families; each is summed over the workers unless its name says worker."""
        counters = [self._health.stats.read(slot) for slot in self._health.slots]
        yield from _traffic(counters)
        yield from _fragments(counters)
        yield from _drops(counters)
        yield from _flows(counters)
        yield from _probes(counters)
        yield from self._workers(counters)

    def _workers(self, counters: Sequence[Counters]) -> Iterator[Metric]:
        status = self._health.status
        yield _counter(
            "relay_worker_restarts", "Workers that died and were replaced", status.worker_restarts
        )
        yield _counter(
            "relay_worker_hangs", "Workers that were killed because they hung", status.hung_workers
        )
        yield _counter(
            "relay_control_restarts",
            "Control processes that died and were replaced",
            status.control_restarts,
        )
        yield GaugeMetricFamily(
            "relay_standby_ready", "1 while a warm worker waits", value=status.standby_ready
        )
        yield GaugeMetricFamily(
            "relay_ready",
            "1 while /readyz answers 200",
            value=float(self._health.not_ready() is None),
        )
        iterations = CounterMetricFamily(
            "relay_worker_loops", "Rounds of a worker's loop", labels=["worker"]
        )
        packets = CounterMetricFamily(
            "relay_worker_rx_packets", "Datagrams received by a worker", labels=["worker"]
        )
        for slot, of_slot in enumerate(counters):
            iterations.add_metric([str(slot)], of_slot["progress"])
            received = sum(side["rx_packets"] for side in _sides(of_slot))
            packets.add_metric([str(slot)], received)
        yield iterations
        yield packets


class CacheCollector(Collector):
    """The counters of the flow cache, and of announcements to the fleet, which live in this process."""

    def __init__(self, cache: FlowCache, announced: Operation | None) -> None:
        self._cache = cache
        self._operations = [cache.lookup, cache.write, *([announced] if announced else [])]

    def collect(self) -> Iterator[Metric]:
        """Families named relay_cache_…."""
        cache = self._cache
        up = GaugeMetricFamily(
            "relay_cache_up", "1 while the last attempt went well", labels=["operation"]
        )
        errors = CounterMetricFamily(
            "relay_cache_errors", "Attempts that failed", labels=["operation", "reason"]
        )
        for operation in self._operations:
            up.add_metric([operation.name], float(operation.trouble is None))
            for reason, count in operation.errors.items():
                errors.add_metric([operation.name, reason], count)
        yield up
        yield errors
        lookups = CounterMetricFamily(
            "relay_cache_lookups", "Flows that workers asked for", labels=["result"]
        )
        for result, count in cache.lookups.items():
            lookups.add_metric([result], count)
        yield lookups
        yield _counter("relay_cache_writes", "Routes written", cache.written)
        yield _counter(
            "relay_cache_overflows",
            "Notices lost because the cache did not keep up",
            cache.write_overflows + cache.notices_lost(),
        )


class RouteCollector(Collector):
    """Health of the addresses of the cluster routes, which are configuration and no clients."""

    def __init__(self, routes: RouteHealth) -> None:
        self._routes = routes

    def collect(self) -> Iterator[Metric]:
        """One gauge; a route address is up for some workers and down for others at times."""
        up = GaugeMetricFamily(
            "relay_route_up",
            "Share of the workers (0 to 1) for which this address of a cluster route is up",
            labels=["cluster", "address"],
        )
        for route, share in self._routes.up_shares():
            up.add_metric([str(route.cluster), route.address], share)
        yield up


def registry(
    health: Health,
    routes: RouteHealth,
    cache: FlowCache | None = None,
    announced: Operation | None = None,
) -> CollectorRegistry:
    """A registry with the relay's collectors alone."""
    result = CollectorRegistry()
    result.register(RelayCollector(health))
    result.register(RouteCollector(routes))
    if cache is not None:
        result.register(CacheCollector(cache, announced))
    return result


def _traffic(counters: Sequence[Counters]) -> Iterator[Metric]:
    totals = [
        ("rx_packets", "relay_rx_packets", "Datagrams received"),
        ("rx_bytes", "relay_rx_bytes", "UDP payload received"),
        ("tx_packets", "relay_tx_packets", "Datagrams sent"),
        ("tx_bytes", "relay_tx_bytes", "UDP payload sent"),
    ]
    for field, name, text in totals:
        family = CounterMetricFamily(name, text, labels=["side"])
        for index, side in enumerate(SIDES):
            sides = [_sides(of_slot)[index] for of_slot in counters]
            family.add_metric([side], sum(one[field] for one in sides))  # type: ignore[literal-required]
        yield family


def _fragments(counters: Sequence[Counters]) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "relay_tx_fragmented_packets",
        "Datagrams sent inside that are longer than the path's MTU: the kernel fragments them",
        labels=["side"],
    )
    for index, side in enumerate(SIDES[1:], start=1):
        fragmented = [_sides(of_slot)[index]["tx_fragmented"] for of_slot in counters]
        family.add_metric([side], sum(fragmented))
    yield family


def _drops(counters: Sequence[Counters]) -> Iterator[Metric]:
    meanings = "; ".join(f"{label}: {text}" for label, text in DROP_REASONS)
    family = CounterMetricFamily(
        "relay_drop_packets", f"Datagrams dropped, by reason ({meanings})", labels=["reason"]
    )
    for label, _ in DROP_REASONS:
        family.add_metric([label], sum(of_slot["drop"][label] for of_slot in counters))
    yield family
    yield _counter(
        "relay_kernel_drops",
        "Datagrams that the kernel dropped because a receive buffer was full",
        sum(of_slot["kernel_drops"] for of_slot in counters),
    )


def _flows(counters: Sequence[Counters]) -> Iterator[Metric]:
    family = GaugeMetricFamily("relay_flows", "Flows in the tables now", labels=["state"])
    half_open = sum(of_slot["flows_half_open"] for of_slot in counters)
    family.add_metric(["half_open"], half_open)
    established = sum(of_slot["flows_established"] for of_slot in counters)
    family.add_metric(["established"], established)
    yield family
    for name, text, value in (
        ("created", "Flows that began half-open", [c["flows_created"] for c in counters]),
        ("promoted", "Flows that became established", [c["flows_promoted"] for c in counters]),
        ("expired", "Flows that ended idle", [c["flows_expired"] for c in counters]),
        (
            "displaced",
            "Half-open flows that gave way to newcomers",
            [c["half_open_displaced"] for c in counters],
        ),
    ):
        yield _counter(f"relay_flows_{name}", text, sum(value))


def _probes(counters: Sequence[Counters]) -> Iterator[Metric]:
    for name, text, value in (
        ("probes_sent", "Probes sent to route addresses", [c["probes_sent"] for c in counters]),
        ("probes_answered", "Of those, answered", [c["probes_answered"] for c in counters]),
        (
            "probes_echoed",
            "Probes of other clusters' entries that were echoed",
            [c["probes_echoed"] for c in counters],
        ),
        (
            "route_falls",
            "Times that a route address stopped answering a worker",
            [c["route_falls"] for c in counters],
        ),
    ):
        yield _counter(f"relay_{name}", text, sum(value))


def _sides(counters: Counters) -> tuple[SideCounters, SideCounters, SideCounters]:
    return counters["public"], counters["internal"], counters["backbone"]


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)
