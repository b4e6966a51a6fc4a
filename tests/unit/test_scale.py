"""The simulation of many sessions: its assumptions against small models, and the shape of what it says."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import report, scale
from relay.cache_policy import LOOKUPS_PER_S

CALLS = 20_000
BUCKETS = 4096


def plain(hosts: list[int]) -> Callable[[int], int]:
    """ECMP as a plain router does it: the hash modulo the number of hosts."""
    return lambda call: hosts[call % len(hosts)]


def resilient(hosts: list[int], gone: set[int]) -> Callable[[int], int]:
    """A fixed number of buckets; only those of a host that is gone are dealt anew."""
    left = [host for host in hosts if host not in gone]
    buckets = [hosts[bucket % len(hosts)] for bucket in range(BUCKETS)]
    for i, bucket in enumerate(b for b in range(BUCKETS) if buckets[b] in gone):
        buckets[bucket] = left[i % len(left)]
    return lambda call: buckets[call % BUCKETS]


def moved(before: Callable[[int], int], after: Callable[[int], int]) -> float:
    """The share of calls whose packets come to a host that does not know them."""
    rng = random.Random(1)
    calls = [rng.getrandbits(32) for _ in range(CALLS)]
    return sum(before(call) != after(call) for call in calls) / CALLS


def test_losses_are_those_that_the_routers_hashes_make() -> None:
    sessions = 1_000_000
    said = {what: left * each / sessions for what, left, each in scale.losses(sessions)}
    (left,) = {left for what, left, _ in scale.losses(sessions) if what.startswith("one host")}
    hosts = list(range(left + 1))
    everywhere = resilient(hosts, set())
    one = moved(everywhere, resilient(hosts, {7}))
    third = moved(everywhere, resilient(hosts, set(range(len(hosts) // 3))))
    assert said["one host, resilient hashing"] == pytest.approx(1 / len(hosts), rel=0.01)
    assert said["one host, resilient hashing"] == pytest.approx(one, rel=0.1)
    assert said["a third of the hosts, resilient hashing"] == pytest.approx(third, rel=0.1)
    assert said["one host, plain hashing"] > 0.95
    assert said["one host, plain hashing"] == pytest.approx(
        moved(plain(hosts), plain(hosts[:-1])), rel=0.02
    )


def test_redis_heals_few_at_once_and_many_as_fast_as_it_is_asked() -> None:
    few, many = scale.heal(50, LOOKUPS_PER_S), scale.heal(10_000, LOOKUPS_PER_S)
    assert few.by_redis > 0.9
    assert few.p99_ms <= scale.PACKET_MS + scale.LOOKUP_MS
    assert many.by_redis < 0.7
    assert few.p99_ms < many.median_ms < many.p99_ms <= many.worst_ms <= scale.CHECK_MS
    alone = scale.heal(2_000, lookups_per_s=0)
    assert alone.by_redis == 0
    assert alone.median_ms == pytest.approx(scale.CHECK_MS / 2, rel=0.1)


def test_a_hash_fills_hosts_the_more_evenly_the_more_calls_there_are() -> None:
    few, many = scale.place(1_000, 4), scale.place(1_000_000, 4)
    assert 1 < many.fullest_host < few.fullest_host < few.fullest_worker
    assert many.fullest_worker < few.fullest_worker < 2
    assert many.per_host == 250_000


def test_a_lost_regions_calls_are_back_once_their_clients_have_noticed() -> None:
    three, twenty = scale.lose_region(30_000, 3), scale.lose_region(30_000, 20)
    assert three.calls_each == 5_000
    assert three.load_after == pytest.approx(0.75)
    assert twenty.load_after < three.load_after
    noticed_s, last_s = scale.NOTICED_S
    assert noticed_s < three.back_median_s < three.back_p99_s < last_s + 1


def test_the_written_tables_are_the_simulations() -> None:
    written = Path(report.__file__).parent / "results" / "scale.md"
    assert written.read_text() == report.scale_document()
