"""What happens to calls when hosts are lost: a simulation, `python -m benchmarks.scale`.

1. A relay host that gets packets of a call it does not know asks Redis, at most LOOKUPS_PER_S a
   second, or waits for the client's next check, whichever comes first. Both are simulated call by
   call, on one host, in steps of a millisecond.
2. How many calls a host does not know after a loss is what the routers in front decide: with resilient
   hashing those of the lost hosts, shared out; with plain hashing (modulo) nearly all.
3. Nothing is sent; the figures are those of the design (relay/cache.py, csrc/relay/parking.h).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
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


def main() -> None:
    """A table for each size."""
    print("| sessions | lost | hosts left | unknown calls a host | silent p50 | p99 | by Redis |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for sessions in SIZES:
        for lost, left, strangers in losses(sessions):
            found = heal(strangers, LOOKUPS_PER_S)
            print(
                f"| {sessions:,} | {lost} | {left:,} | {strangers:,} | {found.median_ms} ms "
                f"| {found.p99_ms} ms | {found.by_redis:.0%} |"
            )


if __name__ == "__main__":
    main()
