"""What the workers' verdicts on route addresses become for an operator."""

from __future__ import annotations

from typing import Any, cast

from relay._dataplane import Stats, route_digest
from relay.metrics import RouteCollector
from relay.route_health import RouteAddress, RouteHealth, RouteWatch
from relay.wire.log import Logger

ROUTES = (RouteAddress(2, "192.0.2.1:4500"), RouteAddress(2, "192.0.2.2:4500"))
OURS = route_digest({2: [("192.0.2.1", 4500), ("192.0.2.2", 4500)]})
FORMER = route_digest({2: [("192.0.2.2", 4500), ("192.0.2.1", 4500)]})


class FakeStats:
    """One bit mask of down addresses for each worker, and which routes it is about."""

    def __init__(self, *masks: int) -> None:
        self.masks = list(masks)
        self.digests = [OURS] * len(masks)

    def read(self, slot: int) -> dict[str, int]:
        return {"route_down": self.masks[slot], "route_digest": self.digests[slot]}


class FakeLog:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int]] = []

    def warning(self, event: str, **details: Any) -> None:
        self.lines.append((event, details["address"], details["workers_down"]))

    info = warning


def health(stats: FakeStats) -> RouteHealth:
    return RouteHealth(cast(Stats, stats), len(stats.masks), ROUTES)


def test_the_gauge_is_the_share_of_workers() -> None:
    [family] = RouteCollector(health(FakeStats(0b10, 0b11, 0b10, 0b10))).collect()
    assert family.name == "relay_route_up"
    assert {s.labels["address"]: s.value for s in family.samples} == {
        "192.0.2.1:4500": 0.75,
        "192.0.2.2:4500": 0.0,
    }
    assert {s.labels["cluster"] for s in family.samples} == {"2"}


def test_a_fall_is_logged_and_the_return_of_the_last_worker() -> None:
    stats, log = FakeStats(0, 0), FakeLog()
    watch = RouteWatch(health(stats), cast(Logger, log))
    watch.look()
    for masks in ([0, 2], [2, 2], [2, 0], [0, 0]):
        stats.masks = masks
        watch.look()
        watch.look()
    assert log.lines == [
        ("route_down", "192.0.2.2:4500", 1),
        ("route_down", "192.0.2.2:4500", 2),
        ("route_up", "192.0.2.2:4500", 0),
    ]


def test_workers_of_a_former_relay_with_other_routes_do_not_count() -> None:
    stats, log = FakeStats(0b01, 0b10, 0b01), FakeLog()
    stats.digests = [FORMER, OURS, 0]
    made = health(stats)
    watch = RouteWatch(made, cast(Logger, log))
    assert [share for _, share in made.up_shares()] == [1.0, 0.0]
    watch.look()
    stats.digests = [FORMER] * 3
    assert [share for _, share in made.up_shares()] == [1.0, 1.0], (
        "nobody knows of any that is down"
    )
    watch.look()
    assert log.lines == [("route_down", "192.0.2.2:4500", 1)]


def test_a_digest_is_of_clusters_addresses_and_their_order() -> None:
    at = ("192.0.2.1", 4500)
    made = [
        route_digest({}),
        route_digest({2: [at]}),
        route_digest({3: [at]}),
        route_digest({2: [("192.0.2.1", 4501)]}),
        OURS,
        FORMER,
    ]
    assert made[0] == 0
    assert len(set(made)) == len(made)
