"""Sessions in large numbers, simulated: placement, lost hosts, a lost region. `python -m benchmarks.scale`.

1. A relay host that gets packets of a call it does not know asks Redis, at most LOOKUPS_PER_S a
   second, or waits for the client's next check, whichever comes first. Both are simulated call by
   call, on one host, in steps of a millisecond.
2. How many calls a host does not know after a loss is what the routers in front decide: with resilient
   hashing those of the lost hosts, shared out; with plain hashing (modulo) nearly all.
3. A flow falls on a host and a worker by a hash, so their loads differ as those of balls in bins do.
4. After a region is lost its clients notice one by one, and call again in another region, whose
   transceivers answer as many a second as their cores do in half of their time.
5. Nothing is sent; the figures are those of the design (relay/cache.py, csrc/relay/parking.h) and of
   benchmarks/README.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from relay.cache_policy import LOOKUPS_PER_S
from relay.capacity import Cost, Site, plan

COST = Cost(up_us=3.0, down_us=3.7)
"""CPU time of a voice packet, as `relay capacity` measures it on a machine like the one of results/."""

PACKET_MS = 20
CHECK_MS = 2500
LOOKUP_MS = 3
PARKED_FLOWS = 256
WORKERS = 16
SIZES = (10_000, 1_000_000, 20_000_000)

NOTICED_S = (5.0, 8.0)
"""When a client whose packets go nowhere calls again: Chromium says `disconnected` after 5 s, and
the page waits up to 3 s more, so that not all come at once."""
ANSWER_CPU_S = 0.0043
"""CPU time of setting a call up, DTLS included (Call setup without a browser)."""
SESSIONS_PER_CORE = 200
"""Talking sessions of a transceiver's core, with PCM (Talking sessions per core)."""


@dataclass(frozen=True)
class Healing:
    """How long calls were silent, client to transceiver."""

    median_ms: int
    p99_ms: int
    worst_ms: int
    by_redis: float
    """The share that Redis healed; the others' next check did."""


def heal(strangers: int, lookups_per_s: float, seed: int = 1) -> Healing:
    """One host that suddenly gets the packets of so many calls that it does not know."""
    rng = random.Random(seed)
    check_ms = [rng.randrange(CHECK_MS) for _ in range(strangers)]
    by_phase: list[list[int]] = [[] for _ in range(PACKET_MS)]
    for call in range(strangers):
        by_phase[rng.randrange(PACKET_MS)].append(call)
    silent_ms = list(check_ms)
    asked: set[int] = set()
    budget, now_ms = lookups_per_s, 0  # a second's worth at once (RateCap)
    while now_ms < CHECK_MS:
        budget = min(budget + lookups_per_s / 1000, lookups_per_s)
        phase = by_phase[now_ms % PACKET_MS]
        room = PARKED_FLOWS * WORKERS // PACKET_MS
        for call in phase:
            if budget < 1 or room < 1:
                break
            if call in asked or check_ms[call] <= now_ms:
                continue
            asked.add(call)
            silent_ms[call] = min(silent_ms[call], now_ms + LOOKUP_MS)
            budget, room = budget - 1, room - 1
        by_phase[now_ms % PACKET_MS] = [
            call for call in phase if call not in asked and check_ms[call] > now_ms
        ]
        now_ms += 1
    silent_ms.sort()
    return Healing(
        median_ms=silent_ms[strangers // 2],
        p99_ms=silent_ms[strangers * 99 // 100],
        worst_ms=silent_ms[-1],
        by_redis=len(asked) / strangers,
    )


def losses(sessions: int) -> Iterator[tuple[str, int, int]]:
    """(what is lost, hosts left, calls that each of them does not know)."""
    hosts = plan(sessions, COST, site=Site()).hosts
    each = sessions / hosts
    left = hosts - 1
    yield "one host, resilient hashing", left, math.ceil(each / left)
    yield "one host, plain hashing", left, math.ceil(sessions / left * left / hosts)
    third = max(1, hosts // 3)
    left = hosts - third
    yield "a third of the hosts, resilient hashing", left, math.ceil(each * third / left)


@dataclass(frozen=True)
class Placement:
    """How evenly a hash spreads sessions."""

    per_host: float
    fullest_host: float
    """Times the mean."""
    fullest_worker: float
    """Times the mean."""


def place(sessions: int, hosts: int, seed: int = 1) -> Placement:
    """Each worker's share is drawn from the normal that many balls in many bins come to."""
    rng = random.Random(seed)
    mean = sessions / (hosts * WORKERS)
    workers = [
        [max(0.0, rng.gauss(mean, math.sqrt(mean))) for _ in range(WORKERS)] for _ in range(hosts)
    ]
    return Placement(
        per_host=sessions / hosts,
        fullest_host=max(map(sum, workers)) / (mean * WORKERS),
        fullest_worker=max(map(max, workers)) / mean,
    )


@dataclass(frozen=True)
class RegionLost:
    """What the clients of a lost region see, and what the others must bear."""

    calls_each: int
    """That each other region gets."""
    load_after: float
    """Of its relays, where all ran at half load."""
    back_median_s: float
    back_p99_s: float
    offers_per_s: float
    """That arrive at each other region at most."""


def lose_region(sessions: int, regions: int, seed: int = 1) -> RegionLost:
    """One of `regions` equal ones; its calls go to the others in equal shares."""
    rng = random.Random(seed)
    calls = math.ceil(sessions / regions / (regions - 1))
    cores = 2 * sessions / regions / SESSIONS_PER_CORE  # twice what the calls take: half load
    answers_per_s = cores / 2 / ANSWER_CPU_S
    free_s, back_s = 0.0, []
    for noticed_s in sorted(rng.uniform(*NOTICED_S) for _ in range(min(calls, 200_000))):
        free_s = max(free_s, noticed_s) + max(1.0, calls / 200_000) / answers_per_s
        back_s.append(free_s)
    return RegionLost(
        calls_each=calls,
        load_after=Site().load * regions / (regions - 1),
        back_median_s=back_s[len(back_s) // 2],
        back_p99_s=back_s[len(back_s) * 99 // 100],
        offers_per_s=calls / (NOTICED_S[1] - NOTICED_S[0]),
    )


def table(head: str, rows: Iterable[Sequence[object]]) -> str:
    """In Markdown; the columns of `head` stand between bars."""
    columns = head.split("|")
    lines = [columns, ["---"] * len(columns), *(map(str, row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def placement_rows() -> Iterator[Sequence[object]]:
    """How full the fullest are."""
    for sessions in SIZES:
        hosts = plan(sessions, COST, site=Site()).hosts
        found = place(sessions, hosts)
        yield (
            *(f"{sessions:,}", f"{hosts:,}", f"{found.per_host:,.0f}"),
            *(f"{found.fullest_host:.2f} x", f"{found.fullest_worker:.2f} x"),
        )


def loss_rows() -> Iterator[Sequence[object]]:
    """What calls hear, and what Redis is asked."""
    for sessions in SIZES:
        for lost, left, strangers in losses(sessions):
            found = heal(strangers, LOOKUPS_PER_S)
            yield (
                *(f"{sessions:,}", lost, f"{left:,}", f"{strangers:,}"),
                *(f"{found.median_ms} ms", f"{found.p99_ms} ms", f"{found.by_redis:.0%}"),
                f"{left * min(strangers, LOOKUPS_PER_S):,}",
            )


def region_rows() -> Iterator[Sequence[object]]:
    """One region of several is lost."""
    for sessions, regions in ((1_000_000, 3), (20_000_000, 3), (20_000_000, 20)):
        found = lose_region(sessions, regions)
        yield (
            *(f"{sessions:,}", regions, f"{found.calls_each:,}", f"{found.offers_per_s:,.0f}"),
            *(f"{found.load_after:.2f}", f"{found.back_median_s:.1f} s"),
            f"{found.back_p99_s:.1f} s",
        )


def tables() -> str:
    """All of them; the same on every run."""
    return "\n\n".join(
        [
            table("sessions|hosts|a host|fullest host|fullest worker", placement_rows()),
            table(
                "sessions|lost|hosts left|unknown calls a host|silent p50|p99|by Redis|lookups/s",
                loss_rows(),
            ),
            table(
                "sessions|regions|calls for each other|offers/s each|load then|back p50|p99",
                region_rows(),
            ),
        ]
    )


if __name__ == "__main__":
    print(tables())
