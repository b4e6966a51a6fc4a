"""Delay that a forwarder adds, at 10, 50 and 80 % of what the null forwarder can do, open loop.

Method (README.md): live. Relay, null forwarder and the direct way (no forwarder) in turn, in the same
run; each packet carries the time of its sending, the kernel stamps its arrival in the receiving
socket. Medians over the turns; of each turn p50, p99 and p99.9.
"""

from __future__ import annotations

from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.live import Live, run_live
from benchmarks.programs import take_priority
from benchmarks.rig import Direction, Load, Rig, rig

TURNS = 25
TURN_MS = 200
DRAINS = 5
OFFERED = 0.95
"""The share of a rate that must have been offered for a turn to count."""


class Contest:
    """Three ways for the same packets, up to a transceiver or down to the clients."""

    def __init__(self, started: Rig, direction: Direction, sizes: object, share: float) -> None:
        self._started = started
        self._direction = direction
        self._sizes = sizes
        up = direction == "up"
        added = 0 if up else -38
        null_ns = median(
            started.drain_null(direction, sizes, arrives=direction, added=added)
            for _ in range(DRAINS)
        )
        self.pps = round(share * 1e9 / null_ns)
        generator = started.generator
        self.ports = {
            "relay": started.public_port if up else started.internal_port,
            "null": started.null_port,
            "direct": int(generator.greeting[0]) if up else generator.ask("clients")[0],
        }
        self.turns: dict[str, list[Live]] = {way: [] for way in self.ports}

    def take_turns(self) -> None:
        """One turn each."""
        for way, port in self.ports.items():
            offer = (port, self.pps)
            up, down = (offer, (0, 0)) if self._direction == "up" else ((0, 0), offer)
            live = run_live(self._started.generator, TURN_MS, up=up, down=down, sizes=self._sizes)
            self.turns[way].append(live)

    def _total(self, way: str, name: str) -> int:
        return sum(int(getattr(live, f"{self._direction}_{name}")) for live in self.turns[way])

    def offered(self) -> float:
        """The share of the rate that was offered, in the worst turn."""
        name = f"{self._direction}_sent"
        sent = min(int(getattr(live, name)) for lives in self.turns.values() for live in lives)
        return sent * 1000 / TURN_MS / self.pps

    def kept(self, way: str) -> float:
        """The share that arrived."""
        return self._total(way, "received") / self._total(way, "sent")

    def added_us(self, way: str, quantile: str) -> float:
        """The median turn's quantile, less that of the direct way."""
        name = f"{self._direction}_{quantile}_ns"
        ours, direct = (
            median(float(getattr(live, name)) for live in self.turns[each])
            for each in (way, "direct")
        )
        return round((ours - direct) / 1e3, 1)


def measure_delay(
    benchmark: BenchmarkFixture, load: Load, direction: Direction, sizes: object, share: float
) -> None:
    """Added by the relay and by the null forwarder; `cpu` is the relay's share of a CPU meanwhile."""
    take_priority()
    with rig(load) as started:
        contest = Contest(started, direction, sizes, share)
        before_ns = started.relays[0].cpu_ns()
        benchmark.pedantic(contest.take_turns, rounds=TURNS)
        cpu_ns = started.relays[0].cpu_ns() - before_ns
    quantiles = ("p50", "p99", "p999")
    benchmark.extra_info.update(
        pps=contest.pps,
        offered=round(contest.offered(), 3),
        lost_ppm=round((1 - contest.kept("relay")) * 1e6),
        null_lost_ppm=round((1 - contest.kept("null")) * 1e6),
        cpu=round(cpu_ns / 1e6 / TURN_MS / TURNS, 3),
        relay_added_us=[contest.added_us("relay", quantile) for quantile in quantiles],
        null_added_us=[contest.added_us("null", quantile) for quantile in quantiles],
        ratio=[
            round(contest.added_us("relay", quantile) / contest.added_us("null", quantile), 2)
            for quantile in quantiles
        ],
    )
    if contest.offered() < OFFERED:
        pytest.skip("this machine was too busy to offer the load")


@pytest.mark.benchmark(group="live: delay added")
@pytest.mark.parametrize("coalesce_us", [0, 50, 200])
@pytest.mark.parametrize("sizes", [172, "mix"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_added_delay(
    benchmark: BenchmarkFixture, share: float, sizes: object, coalesce_us: int
) -> None:
    """On the way up, against the null forwarder that sends everything to one destination."""
    if coalesce_us and (share, sizes) != (0.5, 172):
        pytest.skip("its trade is shown at half load")
    measure_delay(benchmark, Load(coalesce_us=coalesce_us), "up", sizes, share)


@pytest.mark.benchmark(group="live: delay added")
@pytest.mark.parametrize(("share", "sizes", "coalesce_us"), [(0.5, 172, 0), (0.5, "mix", 0)])
def test_added_delay_down(
    benchmark: BenchmarkFixture, share: float, sizes: object, coalesce_us: int
) -> None:
    """On the way down, against the null forwarder that sends to the same clients."""
    load = Load(coalesce_us=coalesce_us, null="fanout")
    measure_delay(benchmark, load, "down", sizes, share)
